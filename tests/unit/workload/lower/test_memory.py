"""Stored activations of the forward pass: closed forms of the literature, with each tensor counted once."""

from dataclasses import replace

import pytest
from hypothesis import given

from phaze.workload.families.transformer import transformer_graph
from phaze.workload.lower.memory import first_stashes
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.primitives import LayerGraph
from tests.unit.workload.examples import POINTS, layer_of, model_of, slice_of, slices


def kept_bytes(layer: LayerGraph, bytes_per_element: int = 2) -> int:
    """Return the bytes that a layer stores for its backward pass."""
    return sum(s.nbytes for stashes in first_stashes(layer, bytes_per_element) for s in stashes)


WITH_DROPOUT = [(n, t) for n, t in POINTS if "llama" not in n and "opt" not in n]


@pytest.mark.parametrize(("name", "tensor"), WITH_DROPOUT)
def test_a_block_keeps_what_korthikanti_counts(name: str, tensor: int) -> None:
    """A block with GELU and dropout stores sbh(10 + 24/t + 5as/(ht)) bytes (Korthikanti et al. 2023, Equation
    2).
    """
    part = slice_of(name, tensor, 4)
    s, b, h, a, t = part.sequence, 4, part.model.hidden, part.model.heads, tensor
    assert kept_bytes(layer_of(part, "block")) * t == s * b * h * (10 * t + 24) + 5 * a * s * s * b


def test_a_relu_keeps_what_the_next_product_keeps() -> None:
    """OPT's ReLU and its second matrix need the same tensor; without attention dropout so do softmax and
    product.
    """
    part = slice_of("opt-350m")
    s, h, a = 2048, 1024, 16
    assert kept_bytes(layer_of(part, "block")) == 26 * s * h + 2 * a * s * s


@pytest.mark.parametrize(("name", "tensor"), [("llama2-7b", 1), ("llama2-70b", 1), ("llama2-70b", 8)])
def test_a_llama_block_keeps_both_factors_of_its_gate(name: str, tensor: int) -> None:
    """Norm inputs and outputs in full; queries, grouped keys and values, context, four feed-forward tensors
    per rank.
    """
    part = slice_of(name, tensor)
    m, s = part.model, part.sequence
    cut = 2 * m.query_width + 2 * m.kv_width + 4 * m.feed_forward
    assert (
        kept_bytes(layer_of(part, "block"))
        == 2 * s * 4 * m.hidden + (2 * s * cut + 2 * m.heads * s * s) // tensor
    )


def test_a_language_models_head_keeps_norm_input_product_input_and_probabilities() -> None:
    """GPT-2's head stores two residual streams and the log-probabilities."""
    part = slice_of("gpt2")
    assert kept_bytes(layer_of(part, "head")) == 2 * 1024 * (768 + 768 + 50257)


def test_an_embedding_keeps_its_dropout_mask() -> None:
    """The embedding stores one byte per element; token ids are input, not activations."""
    assert kept_bytes(layer_of(slice_of("gpt2"), "embedding")) == 1024 * 768


def test_a_mask_is_one_byte_whatever_the_precision() -> None:
    """Wider elements double the tensors, but not the masks."""
    block = layer_of(slice_of("gpt2"), "block")
    masks = 2 * 1024 * 768 + 12 * 1024**2
    assert kept_bytes(block, 4) - masks == 2 * (kept_bytes(block, 2) - masks)


def test_views_are_what_they_show() -> None:
    """Queries, keys and values of a fused projection are three views of one tensor, not copies."""
    block = layer_of(slice_of("gpt2"), "block")
    bias = next(i for i, p in enumerate(block.primitives) if p.name == "qkv_split")
    pieces = {(s.source, s.piece) for stashes in first_stashes(block, 2) for s in stashes if s.source == bias}
    assert pieces == {(bias, 0), (bias, 1), (bias, 2)}


@given(slices())
def test_no_tensor_is_kept_twice(part: ModelSlice) -> None:
    """Every stashed tensor belongs to one primitive, and has a positive size."""
    for layer in transformer_graph(part).layers:
        found = [s for stashes in first_stashes(layer, 2) for s in stashes]
        assert len(found) == len(set(found))
        assert all(s.nbytes > 0 and s.source < len(layer.primitives) for s in found)


@given(slices())
def test_what_is_kept_grows_with_the_microbatch(part: ModelSlice) -> None:
    """Twice the samples store twice the bytes."""
    double = replace(part, layout=replace(part.layout, microbatch=2 * part.microbatch))
    for one, two in zip(transformer_graph(part).layers, transformer_graph(double).layers, strict=True):
        assert kept_bytes(two) == 2 * kept_bytes(one)


def test_more_slices_never_keep_more() -> None:
    """A larger TMP width never stores more on a device."""
    sizes = [kept_bytes(layer_of(slice_of("megatron-gpt-8.3b", t), "block")) for t in (1, 2, 4, 8)]
    assert sizes == sorted(sizes, reverse=True)
    assert model_of("megatron-gpt-8.3b").heads % 8 == 0
