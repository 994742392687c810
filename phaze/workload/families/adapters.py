"""Low-rank adapters for frozen matrices, y = W x + B A x; only A and B are trained (Hu et al., ICLR 2022).

If W is cut by columns, every tensor-parallel rank has A whole; if it is cut by rows, every rank has B whole.
A rank's partial B A x is added to its partial W x before the ranks are summed. For a column-cut matrix every
rank computes A x. A runtime may also cut A and gather, but r is small.
"""

from __future__ import annotations

from dataclasses import replace

from phaze.spec.rows import Gemm
from phaze.workload.primitives import LayerGraph, ModelGraph, Primitive, Tensor, with_forks

NEVER = ("embedding", "head")
"""Layers without adapters."""


def with_adapters(graph: ModelGraph, rank: int) -> ModelGraph:
    """Model with frozen parameters and an adapter of a given rank for every matrix of its blocks."""
    frozen = (_frozen(layer) for layer in graph.layers)
    layers = (layer if layer.name in NEVER else _adapted(layer, rank) for layer in frozen)
    return replace(graph, layers=tuple(layers))


def _frozen(layer: LayerGraph) -> LayerGraph:
    return replace(
        layer, primitives=tuple(replace(one, frozen=one.parameters > 0) for one in layer.primitives)
    )


def _adapted(layer: LayerGraph, rank: int) -> LayerGraph:
    """Layer with adapters behind each run of matrices, so that matrices with one input stay adjacent."""
    made: list[Primitive] = []
    place: dict[int, int] = {}
    """Old index -> new index to read from: the primitive, or its sum with the adapter."""
    waiting: list[tuple[int, Primitive]] = []

    def add_adapters() -> None:
        for index, base in waiting:
            made.extend(_adapter(base, Tensor(place[index], base.elements), len(made), rank))
            place[index] = len(made) - 1
        waiting.clear()

    for index, primitive in enumerate(layer.primitives):
        adapts = primitive.kind == "matmul" and primitive.parameters > 0
        if not adapts:
            add_adapters()
        inputs = tuple(replace(x, source=place.get(x.source, x.source)) for x in primitive.inputs)
        made.append(replace(primitive, inputs=inputs))
        place[index] = len(made) - 1
        if adapts:
            waiting.append((index, made[-1]))
    add_adapters()
    return with_forks(replace(layer, primitives=tuple(made)))


def _adapter(base: Primitive, product: Tensor, start: int, rank: int) -> list[Primitive]:
    """The two products of an adapter, and the sum with the product of the frozen matrix."""
    assert base.gemm is not None
    down = Gemm(base.gemm.batch, base.gemm.m, base.gemm.k, rank)
    up = Gemm(base.gemm.batch, base.gemm.m, rank, base.gemm.n)
    steps = [
        ("down", "matmul", base.inputs, down),
        ("up", "matmul", (Tensor(start, down.result_elements),), up),
        ("sum", "add", (product, Tensor(start + 1, up.result_elements)), None),
    ]
    return [
        Primitive(
            f"{base.name}_adapter_{name}",
            kind,
            inputs,
            base.elements if gemm is None else gemm.result_elements,
            gemm,
            0 if gemm is None else gemm.batch * gemm.k * gemm.n,
            regions=base.regions,
        )
        for name, kind, inputs, gemm in steps
    ]
