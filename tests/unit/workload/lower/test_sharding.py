"""Megatron's sharding: work is divided, and sums pass over the network."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given

from phaze.base.errors import PhazeError
from phaze.workload.families.transformer import transformer_graph
from phaze.workload.lower.memory import first_stashes
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.primitives import LayerGraph
from tests.unit.workload.examples import POINTS, forward_flops, layer_of, slice_of, slices

SLICED = [(name, t) for name, t in POINTS if t > 1]


def unsliced(part: ModelSlice) -> ModelSlice:
    """Return the whole model of a shard."""
    return replace(part, layout=replace(part.layout, tp=1))


def network(layer: LayerGraph) -> Counter[str]:
    """Return how many all-reduces a layer has forward (all_reduce) and backward (copy)."""
    return Counter(p.kind for p in layer.primitives if p.kind in ("all_reduce", "copy"))


def test_berts_transform_and_pooler_run_on_every_slice() -> None:
    """Only the decoder of BERT's head is sharded."""
    heads = (layer_of(slice_of("megatron-bert", t), "head") for t in (1, 4))
    whole, part = ({p.name: p.gemm for p in head.primitives if p.gemm} for head in heads)
    assert set(whole) == {"transform", "logits", "pooler", "next_sentence"}
    assert [name for name in whole if whole[name] != part[name]] == ["logits"]


@given(slices())
def test_slices_share_out_the_blocks_of_random_models(part: ModelSlice) -> None:
    """For any model, t shards of a block have its FLOPs, and their sharded parameters add up to its own."""
    whole = layer_of(unsliced(part), "block")
    assert part.layout.tp * forward_flops(layer_of(part, "block")) == forward_flops(whole)
    weights = [sum(p.parameters for p in x.primitives if p.gemm) for x in (layer_of(part, "block"), whole)]
    assert part.layout.tp * weights[0] == weights[1]
    assert not any(network(layer) for layer in transformer_graph(unsliced(part)).layers)


@pytest.mark.parametrize(("name", "tensor"), [("megatron-gpt-8.3b", 8), ("llama2-70b", 8)])
def test_slices_share_out_the_head_of_a_language_model(name: str, tensor: int) -> None:
    part = slice_of(name, tensor)
    assert tensor * forward_flops(layer_of(part, "head")) == forward_flops(layer_of(unsliced(part), "head"))


@pytest.mark.parametrize(("name", "tensor"), SLICED)
def test_all_reduces_are_those_of_megatron(name: str, tensor: int) -> None:
    """Two all-reduces per block and pass; one after the embedding; three small ones in the loss, one after
    the head.
    """
    counts = {layer.name: network(layer) for layer in transformer_graph(slice_of(name, tensor)).layers}
    assert counts["block"] == {"all_reduce": 2, "copy": 2}
    assert counts["embedding"] == {"all_reduce": 1}
    assert counts["head"] == {"all_reduce": 3, "copy": 1}


def test_all_reduces_carry_the_residual_stream() -> None:
    """Every all-reduce of a block has b s h elements, those of the loss one per token."""
    part = slice_of("megatron-gpt-2.5b", 4, 2)
    for layer, size in (("block", 2 * 1024 * 1920), ("embedding", 2 * 1024 * 1920), ("head", 2 * 1024)):
        found = {p.elements for p in layer_of(part, layer).primitives if p.kind == "all_reduce"}
        assert found == {size}


def test_norms_and_row_biases_are_whole_on_every_slice() -> None:
    """A rank has its share of the matrices and column biases, and all other parameters."""
    h, t = 1920, 4
    found = {
        p.name: p.parameters
        for p in layer_of(slice_of("megatron-gpt-2.5b", t), "block").primitives
        if p.parameters
    }
    assert found == {
        "attention_norm": 2 * h,
        "qkv": 3 * h * h // t,
        "qkv_bias": 3 * h // t,
        "attention_out": h * h // t,
        "attention_out_bias": h,
        "feed_forward_norm": 2 * h,
        "feed_forward_in": 4 * h * h // t,
        "feed_forward_in_bias": 4 * h // t,
        "feed_forward_out": 4 * h * h // t,
        "feed_forward_out_bias": h,
    }


def test_bias_and_dropout_follow_the_all_reduce() -> None:
    """Otherwise they would be counted t times in the sum."""
    found = [p.name for p in layer_of(slice_of("megatron-gpt-2.5b", 2), "block").primitives]
    start = found.index("attention_out")
    assert found[start : start + 5] == [
        "attention_out",
        "attention_out_all_reduce",
        "attention_out_bias",
        "attention_dropout",
        "attention_add",
    ]


def test_a_vocabulary_is_padded_to_equal_slices() -> None:
    """GPT-2's odd vocabulary is padded and split into equal shards."""
    part = slice_of("gpt2", 2)
    assert part.vocabulary == 25129
    assert part.vocabulary * 2 >= part.model.vocabulary


@pytest.mark.parametrize(("name", "tensor"), [("llama2-70b", 16), ("llama-3.1-405b", 32)])
def test_slices_that_share_a_head_gather_queries_keys_and_values(name: str, tensor: int) -> None:
    """Every rank has its share of the matrices, and the attention of its own heads with one key."""
    part = slice_of(name, tensor)
    sliced, whole = layer_of(part, "block"), layer_of(unsliced(part), "block")
    assert tensor * forward_flops(sliced) == forward_flops(whole)
    weights = [sum(p.parameters for p in layer.primitives if p.gemm) for layer in (sliced, whole)]
    assert tensor * weights[0] == weights[1]
    gathers = {p.name: p.elements for p in sliced.primitives if p.kind == "all_gather"}
    widths = {"query": part.model.query_width, "key": part.model.kv_width, "value": part.model.kv_width}
    assert gathers == {f"{n}_heads_all_gather": part.tokens * wide for n, wide in widths.items()}
    kept = {s.source: s.elements for found in first_stashes(sliced, 2) for s in found}
    names = {p.name: i for i, p in enumerate(sliced.primitives)}
    assert kept[names["key_rotary"]] == kept[names["value_heads"]] == part.tokens * part.model.head_width


@pytest.mark.parametrize(
    ("name", "tensor", "word"), [("gpt2-xl", 2, "heads 25"), ("llama2-70b", 24, "heads 64")]
)
def test_slices_that_cut_a_head_are_refused(name: str, tensor: int, word: str) -> None:
    """The width must divide the heads; the message gives model and heads."""
    with pytest.raises(PhazeError, match=f"model {name}: tensor: {tensor} must .* divide {word}"):
        slice_of(name, tensor)
