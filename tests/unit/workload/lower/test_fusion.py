"""Fusion: joined primitives, and acyclic graphs."""

from itertools import product

import pytest
from hypothesis import given

from phaze.spec.rows import Gemm
from phaze.workload.families.transformer import transformer_graph
from phaze.workload.lower.backward import backward_pass
from phaze.workload.lower.forward import forward_pass
from phaze.workload.lower.fusion import fuse
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.primitives import INPUT, LayerBuilder
from tests.unit.workload.examples import layer_of, named_groups, names, slice_of, slices


def test_a_gpt_block_fuses_into_14_operators() -> None:
    """Biases, activation, dropout, sum, scale and mask join the product before them; softmax and norms do
    not.
    """
    assert named_groups(layer_of(slice_of("gpt2"), "block")) == [
        ["input_fork"],
        ["attention_norm"],
        ["qkv", "qkv_bias", "qkv_split"],
        ["query_reshape", "query_transpose"],
        ["key_reshape", "key_transpose"],
        ["value_reshape", "value_transpose"],
        ["scores", "scores_scale", "scores_mask"],
        ["softmax"],
        ["softmax_dropout"],
        ["context", "context_transpose", "context_reshape"],
        ["attention_out", "attention_out_bias", "attention_dropout", "attention_add", "attention_add_fork"],
        ["feed_forward_norm"],
        ["feed_forward_in", "feed_forward_in_bias", "gelu"],
        ["feed_forward_out", "feed_forward_out_bias", "feed_forward_dropout", "feed_forward_add"],
    ]


AFTER_A_SUM = ["attention_out_bias", "attention_dropout", "attention_add"]
LOOKUPS = ["word_lookup", "position_lookup", "position_add", "embedding_dropout"]
TOGETHER = {
    "an all-reduce runs alone": ("megatron-gpt-2.5b", 2, [["attention_out"], ["attention_out_all_reduce"]]),
    "bias, dropout and sum after it are an operator": (
        ("megatron-gpt-2.5b", 2, [[*AFTER_A_SUM, "attention_add_fork"]])
    ),
    "a norm takes in the elementwise work of a slice": ("bert-large", 2, [[*AFTER_A_SUM, "attention_norm"]]),
    "and stays apart from a product": ("bert-large", 1, [["attention_norm"]]),
    "a gate joins one of its two products": (
        ("llama2-7b", 1, [["feed_forward_in", "silu"], ["feed_forward_up", "feed_forward_gate"]])
    ),
    "views keep no elementwise work from its product": (
        ("llama2-7b", 1, [["query", "query_reshape", "query_transpose", "query_rotary"]])
    ),
    "lookups join their sum": ("gpt2", 1, [LOOKUPS]),
}


@pytest.mark.parametrize(("name", "tensor", "groups"), TOGETHER.values(), ids=TOGETHER)
def test_operators_that_run_together(name: str, tensor: int, groups: list[list[str]]) -> None:
    found = [g for layer in transformer_graph(slice_of(name, tensor)).layers for g in named_groups(layer)]
    assert all(group in found for group in groups)


def test_a_result_with_two_readers_stays_outside() -> None:
    """Results with several readers are computed once, and stored in memory."""
    layer = LayerBuilder(4)
    x = layer.add("scale", "x", layer.input)
    layer.add("add", "sum", layer.add("gelu", "a", x), layer.add("relu", "b", x))
    assert named_groups(layer.finish("l", 4)) == [["x", "x_fork"], ["a", "b", "sum"]]


def test_nothing_joins_the_input_of_a_product() -> None:
    """A product reads its operands from memory."""
    layer = LayerBuilder(4)
    x = layer.add("gelu", "x", layer.input)
    layer.add("matmul", "y", x, elements=4, gemm=Gemm(1, 2, 2, 2), parameters=4)
    assert named_groups(layer.finish("l", 4)) == [["x"], ["y"]]


def test_nothing_joins_a_reduction_in_the_paper() -> None:
    """Operators after a softmax stay separate."""
    layer = LayerBuilder(4)
    x = layer.add("softmax", "x", layer.add("scale", "s", layer.input))
    layer.add("dropout", "y", x)
    assert named_groups(layer.finish("l", 4)) == [["s", "x"], ["y"]]


def test_elementwise_operators_may_join_a_reduction() -> None:
    """Then attention dropout joins its softmax; a second reduction stays separate."""
    layer = LayerBuilder(4)
    x = layer.add("softmax", "x", layer.add("scale", "s", layer.input))
    y = layer.add("softmax", "z", layer.add("dropout", "y", x))
    layer.add("matmul", "m", y, elements=4, gemm=Gemm(1, 2, 2, 2), parameters=4)
    found = layer.finish("l", 4)
    groups = fuse(found, after_reductions=True)
    assert [names(found, group) for group in groups] == [["s", "x", "y"], ["z"], ["m"]]


def test_no_product_joins_a_reduction_by_way_of_an_elementwise_operator() -> None:
    """A sum of a norm and a product joins only one of them; both orders are tried."""
    layer = LayerBuilder(4)
    norm = layer.add("layer_norm", "norm", layer.input, parameters=8)
    matmul = layer.add("matmul", "product", layer.input, elements=4, gemm=Gemm(1, 2, 2, 2), parameters=4)
    layer.add("add", "sum", norm, matmul)
    found = layer.finish("l", 4)
    groups = fuse(found, after_reductions=True)
    assert sorted(len(group) for group in groups)[-1] == 2
    assert ["product", "sum"] in [names(found, group) for group in groups]


def test_a_dropout_with_its_softmax_reads_nothing_from_memory() -> None:
    """Fused, probabilities are written for the backward pass, but not read again: one tensor less forward,
    two less backward.
    """
    layer = layer_of(slice_of("gpt2"), "block")
    elements = next(p.elements for p in layer.primitives if p.name == "softmax")

    def streamed(*, after_reductions: bool, backward: bool) -> int:
        groups = fuse(layer, after_reductions=after_reductions)
        graph = backward_pass(layer, groups, 2, "paired") if backward else forward_pass(layer, groups, 2)
        return sum(p.streamed_bytes for o in graph.operators if "softmax" in o.name for p in o.parts)

    for backward, tensors in ((False, 1), (True, 2)):
        apart, joined = (streamed(after_reductions=a, backward=backward) for a in (False, True))
        assert apart - joined == tensors * elements * 2


@given(slices())
def test_operators_are_a_partition_in_topological_order(part: ModelSlice) -> None:
    """Every primitive is in one operator; only its last one is read from outside; every operator comes
    after its inputs.
    """
    for layer, after in product(transformer_graph(part).layers, (False, True)):
        alone = fuse(layer, enabled=False, after_reductions=after)
        assert alone == tuple((index,) for index in range(len(layer.primitives)))
        groups = fuse(layer, after_reductions=after)
        place = {index: number for number, group in enumerate(groups) for index in group}
        assert sorted(place) == list(range(len(layer.primitives)))
        assert sum(map(len, groups)) == len(place)
        for number, group in enumerate(groups):
            sources = [t.source for i in group for t in layer.primitives[i].inputs if t.source not in group]
            assert all(s == INPUT or (place[s] < number and s == groups[place[s]][-1]) for s in sources)


@given(slices())
def test_an_operator_has_one_product_and_no_company_for_collectives(part: ModelSlice) -> None:
    """No operator has two products, a product with a reduction, or a collective with another primitive."""
    for layer, after in product(transformer_graph(part).layers, (False, True)):
        for group in fuse(layer, after_reductions=after):
            roles = [layer.primitives[index].traits.role for index in group]
            assert roles.count("matmul") <= 1
            assert roles.count("reduction") <= 1
            assert "network" not in roles or len(roles) == 1
            assert not {"matmul", "reduction"} <= set(roles)
