"""The backward pass: mirrors the forward pass, and makes every gradient once."""

from __future__ import annotations

import pytest
from hypothesis import given

from phaze.workload.families.transformer import transformer_graph
from phaze.workload.lower.backward import Form, backward_pass
from phaze.workload.lower.forward import forward_pass
from phaze.workload.lower.fusion import fuse
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.operators import LayerPass, Operator
from phaze.workload.primitives import LayerGraph
from tests.unit.workload.examples import NAMES, layer_of, slice_of, slices, some

TOKENS, HIDDEN = 1024, 768
RESIDUAL = 2 * TOKENS * HIDDEN
"""Bytes of GPT-2's residual stream."""
SCORES = 2 * 12 * 1024**2
"""Bytes of GPT-2's attention scores."""


def passed(layer: LayerGraph, form: Form = "paired", *, fused: bool = True) -> LayerPass:
    """Return the backward pass of a layer."""
    return backward_pass(layer, fuse(layer, enabled=fused), 2, form)


def forward(layer: LayerGraph, *, fused: bool = True) -> LayerPass:
    """Return the forward pass of a layer."""
    return forward_pass(layer, fuse(layer, enabled=fused), 2)


def operator(
    start: str,
    form: Form = "paired",
    *,
    end: str = "",
    model: str = "gpt2",
    tensor: int = 1,
    layer: str = "block",
    fused: bool = True,
) -> Operator:
    """Return the backward operator whose name begins and ends so."""
    graph = passed(layer_of(slice_of(model, tensor), layer), form, fused=fused)
    return next(o for o in graph.operators if o.name.startswith(start) and o.name.endswith(end))


def parts(o: Operator) -> list[tuple[str, str, int]]:
    """Return kind, role and traffic of the parts of an operator."""
    return [(p.kind, p.role, p.streamed_bytes) for p in o.parts]


def tensor_flops(graph: LayerPass) -> int:
    """Return the FLOPs of all matrix multiplications."""
    return sum(part.tensor_flops for o in graph.operators for part in o.parts)


def streamed(graph: LayerPass) -> int:
    """Return the HBM bytes beside matrix multiplications."""
    return sum(part.streamed_bytes for o in graph.operators for part in o.parts)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_paired_operators_mirror_the_forward_pass(name: str, fused: bool) -> None:
    """There is one backward operator for each forward operator, in reverse, and every edge is turned
    around.
    """
    for layer in transformer_graph(slice_of(name)).layers:
        ahead, back = forward(layer, fused=fused), passed(layer, fused=fused)
        assert [o.name for o in back.operators] == [f"{o.name}.backward" for o in reversed(ahead.operators)]
        last = len(ahead.operators) - 1
        turned = {(last - e.target, last - e.source) for e in ahead.edges}
        assert {(e.source, e.target) for e in back.edges} == turned


@some
@given(slices())
def test_products_take_twice_the_flops_of_the_forward_pass(part: ModelSlice) -> None:
    """Every matrix multiplication has two gradients of its own cost, in both forms."""
    for layer in transformer_graph(part).layers:
        for form in ("paired", "split"):
            assert tensor_flops(passed(layer, form)) == 2 * tensor_flops(forward(layer))


def test_the_products_of_a_gradient_have_the_right_shapes() -> None:
    """Of (m x k)(k x n) the left gradient is (m x n)(n x k), the right (k x m)(m x n)."""
    o = operator("feed_forward_in")
    shapes = {p.role: (p.batch, p.m, p.k, p.n) for p in o.parts if p.kind == "matmul"}
    assert shapes == {
        "data_gradient": (1, TOKENS, 4 * HIDDEN, HIDDEN),
        "weight_gradient": (1, HIDDEN, TOKENS, 4 * HIDDEN),
    }


def test_attention_products_have_no_weight_gradient() -> None:
    """Both operands of an attention product are activations."""
    assert [p.role for p in operator("context").parts] == ["data_gradient", "data_gradient"]
    assert [p.role for p in operator("scores").parts if p.kind == "matmul"] == [
        "data_gradient",
        "data_gradient",
    ]


def test_a_fused_activation_reads_its_input_and_writes_its_gradient_once() -> None:
    """GELU's input is read and its gradient written for the second product; the first takes it from core
    to core.
    """
    assert parts(operator("feed_forward_in")) == [
        ("gelu", "backward", 8 * RESIDUAL),
        ("add", "backward", 2 * 4 * HIDDEN),
        ("matmul", "data_gradient", 0),
        ("matmul", "weight_gradient", 0),
    ]


def test_a_bias_alone_passes_the_gradient_on() -> None:
    """The bias of QKV sums the gradient that both products read; only its own gradient is written."""
    o = operator("qkv")
    assert (o.core, parts(o)[0]) == ("fused", ("add", "backward", 2 * 3 * HIDDEN))


def test_the_last_residual_sum_hands_its_gradient_on_untouched() -> None:
    """The gradient of the residual is the one that arrived: nothing is written for it; dropout reads its
    mask.
    """
    assert parts(operator("feed_forward_out")) == [
        ("dropout", "backward", RESIDUAL // 2 + RESIDUAL),
        ("add", "backward", 2 * HIDDEN),
        ("matmul", "data_gradient", 0),
        ("matmul", "weight_gradient", 0),
    ]


def test_a_fork_sums_the_gradients_of_its_readers() -> None:
    """Two gradients arrive, one stands for a product's operand; their sum is written for the residual."""
    o = operator("attention_out")
    assert parts(o)[:2] == [
        ("add", "backward", 2 * RESIDUAL),
        ("dropout", "backward", RESIDUAL // 2 + RESIDUAL),
    ]
    assert parts(operator("input_fork")) == [("add", "backward", 3 * RESIDUAL)]


def test_three_readers_need_two_sums() -> None:
    """Llama's projections send three gradients back to the norm."""
    found = parts(operator("attention_norm_fork", model="llama2-7b"))
    size = 2 * 1024 * 4096
    assert found == [("add", "backward", 4 * size), ("add", "backward", 0)]


def test_scores_write_the_gradient_that_two_products_read() -> None:
    """Mask and scale change the gradient of the scores, which queries and keys both need."""
    assert parts(operator("scores"))[:2] == [
        ("masked_fill", "backward", 1024**2),
        ("mul", "backward", SCORES),
    ]


def test_a_softmax_reads_gradient_and_output() -> None:
    """Softmax reads what arrives and its own output, and writes a gradient of their size."""
    assert parts(operator("softmax.")) == [("softmax", "backward", 3 * SCORES)]


def test_a_norm_makes_both_gradients_in_one_pass() -> None:
    """A norm reads gradient, input and scale, and writes two gradients."""
    assert parts(operator("attention_norm")) == [
        ("layer_norm", "backward", 3 * RESIDUAL + 2 * 2 * 2 * HIDDEN)
    ]


def test_a_gate_has_two_gradients() -> None:
    """Both factors get a product with the other; one gradient leaves, the other is read by a second
    product.
    """
    found = parts(operator("feed_forward_up", model="llama2-7b"))
    wide = 2 * 1024 * 11008
    assert [kind for kind, _, _ in found] == ["mul", "mul", "matmul", "matmul"]
    assert found[0][2] == 4 * wide
    assert found[1][2] == 0


def test_an_embedding_adds_gradients_into_the_rows_it_read() -> None:
    """Rows of the tables are read and written; the gradient is made once, by the dropout, and kept inside."""
    found = parts(operator("word_lookup", layer="embedding"))
    ids = 8 * TOKENS
    assert found == [
        ("dropout", "backward", RESIDUAL + RESIDUAL // 2),
        ("add", "backward", 2 * RESIDUAL + ids),
        ("add", "backward", 2 * RESIDUAL + ids),
    ]


def test_collectives_change_sides() -> None:
    """What is summed forward costs nothing backward, and what was handed to all slices is summed."""
    model = "megatron-gpt-2.5b"
    assert operator("attention_out_all_reduce", model=model, tensor=4).core == "none"
    copied = operator("attention_copy", model=model, tensor=4)
    assert copied.core == "network"
    assert copied.parts[0].network_bytes == 2 * 1024 * 1920
    assert operator("logits_copy", model=model, tensor=4, layer="head").core == "network"


def test_a_loss_sends_one_value_a_token_back() -> None:
    """The gradient of the log-probabilities is one value a token; that of the logits is as wide as the
    vocabulary.
    """
    o = operator("log_softmax", layer="head")
    logits = 2 * TOKENS * 50257
    assert parts(o) == [("log_softmax", "backward", 2 * TOKENS + 2 * logits)]


def test_split_makes_a_leaf_of_every_weight() -> None:
    """In split form a product has its data gradient with what comes before, and its weight gradient with
    the bias.
    """
    data = operator("feed_forward_in", "split", end="data_gradient")
    weight = operator("feed_forward_in", "split", end="weight_gradient")
    assert parts(data) == [("gelu", "backward", 8 * RESIDUAL), ("matmul", "data_gradient", 0)]
    assert parts(weight) == [("add", "backward", 2 * 4 * HIDDEN), ("matmul", "weight_gradient", 0)]
    assert (data.core, weight.core) == ("fused", "fused")


def test_a_leaf_waits_only_for_what_it_needs() -> None:
    """QKV's weight gradient needs what arrives, not the data gradient; behind a GELU it needs the
    gradient made there.
    """
    graph = passed(layer_of(slice_of("gpt2"), "block"), "split")
    names = [o.name for o in graph.operators]
    sources = {
        names[target]: [names[e.source] for e in graph.edges if e.target == target]
        for target in range(len(names))
    }
    assert sources["qkv+qkv_bias.weight_gradient"] == sources["qkv+qkv_bias.data_gradient"]
    inner = "feed_forward_in+feed_forward_in_bias+gelu"
    assert sources[f"{inner}.weight_gradient"] == [f"{inner}.data_gradient"]


def test_a_norm_splits_into_two_passes() -> None:
    """The gradients of a norm's scale and bias are a second pass over gradient and input."""
    data = operator("attention_norm", "split", end="data_gradient")
    weight = operator("attention_norm", "split", end="weight_gradient")
    assert parts(data) == [("layer_norm", "backward", 3 * RESIDUAL + 2 * 2 * HIDDEN)]
    assert parts(weight) == [("add", "backward", 2 * RESIDUAL + 2 * 2 * HIDDEN)]


def test_an_unfused_bias_is_a_view_with_a_leaf() -> None:
    """Alone, a bias passes the gradient on for free, and its leaf sums it."""
    data = operator("gelu", "split", fused=False)
    bias = operator("feed_forward_in_bias", "split", end="data_gradient", fused=False)
    leaf = operator("feed_forward_in_bias", "split", end="weight_gradient", fused=False)
    assert (data.core, bias.core, leaf.core) == ("vector", "none", "vector")
    assert leaf.parts[0].streamed_bytes == 4 * RESIDUAL + 2 * 4 * HIDDEN


@some
@given(slices())
def test_leaves_are_leaves_and_there_is_one_for_every_operator_with_parameters(part: ModelSlice) -> None:
    """Nothing waits for a weight gradient, and no operator with parameters is without."""
    for layer in transformer_graph(part).layers:
        groups = fuse(layer)
        graph = passed(layer, "split")
        leaves = {i for i, o in enumerate(graph.operators) if o.name.endswith("weight_gradient")}
        assert not leaves & {e.source for e in graph.edges}
        weighted = [g for g in groups if any(layer.primitives[i].parameters for i in g)]
        assert len(leaves) == len(weighted)
        assert len(graph.operators) <= len(groups) + len(leaves)


@some
@given(slices())
def test_every_backward_operator_follows_from_the_layers_end(part: ModelSlice) -> None:
    """Edges go forward in the order of operators, and all but the first operators follow an edge."""
    for layer in transformer_graph(part).layers:
        for form in ("paired", "split"):
            graph = passed(layer, form)
            assert all(e.source < e.target and e.nbytes >= 0 for e in graph.edges)
            first = {0, 1} if form == "split" else {0}
            assert set(range(len(graph.operators))) - first <= {e.target for e in graph.edges}
            assert len(graph.edges) == len({(e.source, e.target) for e in graph.edges})


@some
@given(slices())
def test_fusion_never_adds_traffic_backward(part: ModelSlice) -> None:
    """A fused backward pass streams no more than an unfused one, in both forms."""
    for layer in transformer_graph(part).layers:
        for form in ("paired", "split"):
            assert streamed(passed(layer, form)) <= streamed(passed(layer, form, fused=False))


@some
@given(slices())
def test_splitting_never_saves_traffic(part: ModelSlice) -> None:
    """Making gradients apart reads no less than making them together."""
    for layer in transformer_graph(part).layers:
        assert streamed(passed(layer)) <= streamed(passed(layer, "split"))
