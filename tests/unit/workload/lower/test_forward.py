"""The forward pass: core types, and the traffic that remains after fusion."""

import pytest
from hypothesis import given

from phaze.workload.families.transformer import transformer_graph
from phaze.workload.lower.forward import forward_pass
from phaze.workload.lower.fusion import fuse
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.operators import LayerPass, Operator
from phaze.workload.primitives import LayerGraph
from tests.unit.workload.examples import layer_of, slice_of, slices


def passed(layer: LayerGraph, *, fused: bool = True) -> LayerPass:
    """Return the forward pass of a layer."""
    return forward_pass(layer, fuse(layer, enabled=fused), 2)


def operator(name: str, tensor: int, start: str, *, layer: str = "block", fused: bool = True) -> Operator:
    """Return the operator of a model whose name begins so."""
    graph = passed(layer_of(slice_of(name, tensor), layer), fused=fused)
    return next(o for o in graph.operators if o.name.startswith(start))


def streamed(graph: LayerPass) -> int:
    """Return the HBM bytes of all vector operations and collectives."""
    return sum(part.streamed_bytes for o in graph.operators for part in o.parts)


TOKENS, HIDDEN = 1024, 768
RESIDUAL = 2 * TOKENS * HIDDEN
"""Bytes of GPT-2's residual stream."""


def test_the_core_type_is_that_of_the_parts() -> None:
    """Products run on tensor cores, with elementwise work on fused cores; views need no core."""
    cores = {"input_fork": "none", "attention_norm": "vector", "qkv": "fused", "query_reshape": "none"}
    cores |= {"scores": "fused", "softmax": "vector", "context": "tensor", "attention_out": "fused"}
    assert {start: operator("gpt2", 1, start).core for start in cores} == cores


def test_collectives_run_on_the_network() -> None:
    """An all-reduce is a network operator; copying a tensor to all ranks needs no work forward."""
    assert operator("megatron-bert", 2, "attention_out_all_reduce").core == "network"
    assert operator("megatron-bert", 2, "attention_copy").core == "none"


IDS = 8 * TOKENS
TRAFFIC = {
    "a bias is read, GELU's input is written for the backward pass": (
        ("gpt2", "feed_forward_in", {}, [("matmul", 0), ("add", 2 * 4 * HIDDEN), ("gelu", 4 * RESIDUAL)])
    ),
    "a residual sum reads the residual, and a mask of one byte an element is written": (
        "gpt2", "attention_out", {},
        [("matmul", 0), ("add", 2 * HIDDEN), ("dropout", RESIDUAL // 2), ("add", RESIDUAL)],
    ),
    "a norm reads the stream, its scale and bias, and writes the stream": (
        ("gpt2", "attention_norm", {}, [("layer_norm", 2 * RESIDUAL + 4 * HIDDEN)])
    ),
    "alone, GELU reads and writes the wide tensor": (
        ("gpt2", "gelu", {"fused": False}, [("gelu", 8 * RESIDUAL)])
    ),
    "an embedding is one pass over the rows that it needs and their ids": (
        "gpt2", "word_lookup", {"layer": "embedding"},
        [("add", RESIDUAL + IDS), ("add", RESIDUAL + IDS), ("add", 0), ("dropout", RESIDUAL + RESIDUAL // 2)],
    ),
    "a rotary embedding is two products and a sum": (
        ("llama2-7b", "query+", {}, [("matmul", 0), ("mul", 2 * 2 * 1024 * 128), ("mul", 0), ("add", 0)])
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "start", "which", "expected"), TRAFFIC.values(), ids=TRAFFIC)
def test_what_an_operator_reads_and_writes(
    name: str, start: str, which: dict[str, object], expected: list[tuple[str, int]]
) -> None:
    """Kinds and HBM bytes of its parts."""
    parts = operator(name, 1, start, **which).parts  # type: ignore[arg-type]
    assert [(p.kind, p.streamed_bytes) for p in parts] == expected


def test_an_all_reduce_reads_and_writes_its_tensor() -> None:
    """The collective's tensor is b s h elements, in memory before and after."""
    (part,) = operator("megatron-gpt-2.5b", 4, "attention_out_all_reduce").parts
    size = 2 * 1024 * 1920
    assert (part.kind, part.elements, part.network_bytes, part.streamed_bytes) == (
        "all_reduce",
        size // 2,
        size,
        2 * size,
    )


def test_a_loss_reads_one_value_a_token() -> None:
    """The loss reads the label's log-probability."""
    loss = operator("gpt2", 1, "nll_loss", layer="head")
    assert (loss.input_bytes, loss.output_bytes) == (2 * TOKENS, 2 * TOKENS)


@given(slices())
def test_fusion_never_adds_traffic(part: ModelSlice) -> None:
    """A fused pass streams no more than an unfused one, and does the same work."""
    for layer in transformer_graph(part).layers:
        fused, plain = passed(layer), passed(layer, fused=False)
        assert streamed(fused) <= streamed(plain)
        work = [
            sum(p.tensor_flops + p.vector_flops for o in g.operators for p in o.parts) for g in (fused, plain)
        ]
        assert work[0] == work[1]


@given(slices())
def test_fusion_changes_nothing_that_is_kept(part: ModelSlice) -> None:
    """The tensors stored for the backward pass are the same with and without fusion."""
    for layer in transformer_graph(part).layers:
        kept = [sum(o.stashed_bytes for o in passed(layer, fused=f).operators) for f in (True, False)]
        assert kept[0] == kept[1]


@given(slices())
def test_edges_carry_what_their_target_reads(part: ModelSlice) -> None:
    """The bytes of the edges into an operator are its input, except for the input of the layer."""
    for layer in transformer_graph(part).layers:
        graph = passed(layer)
        for number, o in enumerate(graph.operators):
            incoming = sum(e.nbytes for e in graph.edges if e.target == number)
            assert incoming in (o.input_bytes, o.input_bytes - 2 * layer.input_elements)
