"""Distinct layers of a traced model: the embedding, each kind of block, and the head.

Blocks are the members of the module list with the most operators, such as `model.layers.3`. Each block reads
one tensor of the previous layer. Anything else that modules pass to all blocks, such as positions, is
constant.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from phaze.base.errors import PhazeError
from phaze.spec.rows import Gemm
from phaze.spec.traced import Traced, TracedLayer, TracedOperator, TracedProduct, TracedRun, TracedTensor
from phaze.workload.families.traced.translate import Trace, needed_of
from phaze.workload.kinds import KINDS
from phaze.workload.primitives import INPUT, LayerGraph, LayerRun, ModelGraph, Primitive, Tensor, with_forks

_MEMBER = re.compile(r"(.+?)\.(\d+)\.")
"""Pattern of a module list's member in the name of an operator, such as `model.layers.3.`."""


def layers_of(trace: Trace) -> ModelGraph:
    """Split a trace into distinct layers and their order.

    Raises PhazeError for a model that is not a chain of embedding, blocks and head.
    """
    primitives = needed_of(trace)
    places = _places(primitives)
    ends = [0, *(q for q in range(1, len(places)) if places[q] != places[q - 1]), len(places)]
    # Each block must occupy one contiguous range of operators.
    if [places[q] for q in ends[:-1]] != sorted(set(places)):
        raise PhazeError("trace: the model is not a chain: operators of different blocks alternate")
    distinct: dict[tuple[Primitive, ...], LayerGraph] = {}
    order = []
    for first, last in pairwise(ends):
        layer = _layer(primitives, first, last)
        # Blocks are alike if their primitives are equal without block paths and with their own numbering.
        existing = distinct.get(layer.primitives)
        name = existing.name if existing else _layer_name(places, first, len(distinct))
        distinct.setdefault(layer.primitives, replace(layer, name=name))
        order.append(name)
    runs = tuple(LayerRun(name, len(list(same))) for name, same in groupby(order))
    return ModelGraph(tuple(with_forks(layer) for layer in distinct.values()), runs)


def _places(primitives: Sequence[Primitive]) -> list[int]:
    """Block number of every primitive, from 1; 0 before the blocks, one past the last block after them."""
    members = [_MEMBER.match(primitive.name) for primitive in primitives]
    lists = Counter(member[1] for member in members if member)
    if not lists:
        raise PhazeError("trace: the model has no list of blocks")
    # Other lists, such as the experts of a block, are nested in blocks and match at their outer list.
    blocks = lists.most_common(1)[0][0]
    places = [int(member[2]) + 1 if member and member[1] == blocks else 0 for member in members]
    last = len(places) - next(q for q, place in enumerate(reversed(places)) if place)
    return places[:last] + [max(places) + 1] * (len(places) - last)


def _layer_name(places: Sequence[int], first: int, count: int) -> str:
    if places[first] in (places[0], places[-1]):
        return "embedding" if places[first] == places[0] else "head"
    return "block" if count == 1 else f"block-{count}"


def _layer(primitives: Sequence[Primitive], first: int, last: int) -> LayerGraph:
    """Build the layer of primitives `first` to `last` - 1, and remove the block's path from their names.

    Raises PhazeError if it reads more than one tensor of earlier primitives.
    """
    members = primitives[first:last]
    read = {x.source for primitive in members for x in primitive.inputs if x.source < first} - {INPUT}
    if len(read) > 1:
        names = ", ".join(sorted(primitives[source].name for source in read))
        raise PhazeError(
            f"trace: the model is not a chain: {members[0].name} and later operators read {names}"
        )
    place = {**dict.fromkeys(read, INPUT), **{index: index - first for index in range(first, last)}}
    own_members = tuple(
        replace(primitive.reading(place), name=_MEMBER.sub("", primitive.name, count=1))
        for primitive in members
    )
    input_elements = max((primitives[source].elements for source in read), default=0)
    output_elements = members[-1].elements if last < len(primitives) else 0
    return LayerGraph("", own_members, input_elements, output_elements)


def described(graph: ModelGraph, name: str, sequence: int, *, causal: bool = False) -> Traced:
    """Model spec of the traced layers, for one sample of `sequence` tokens."""
    layers = (
        TracedLayer(
            name=layer.name,
            operators=tuple(map(_operator, layer.primitives)),
            input_elements=layer.input_elements,
            output_elements=layer.output_elements,
        )
        for layer in graph.layers
    )
    runs = (TracedRun(layer=run.layer, count=run.count) for run in graph.runs)
    return Traced(name=name, sequence=sequence, layers=tuple(layers), runs=tuple(runs), causal=causal)


def _operator(primitive: Primitive) -> TracedOperator:
    gemm = primitive.gemm
    return TracedOperator(
        name=primitive.name,
        kind=primitive.kind,
        inputs=tuple(TracedTensor(**vars(x)) for x in primitive.inputs),
        elements=primitive.elements,
        product=TracedProduct(**vars(gemm)) if gemm is not None else None,
        parameters=primitive.parameters,
        constant_bytes=primitive.constant_bytes,
        group=primitive.group,
    )


def traced_graph(model: Traced, samples: int) -> ModelGraph:
    """Build the layers of a traced model for `samples` samples; PhazeError for an unknown operator."""
    layers = tuple(
        LayerGraph(
            layer.name,
            tuple(_primitive(operator, samples) for operator in layer.operators),
            samples * layer.input_elements,
            samples * layer.output_elements,
        )
        for layer in model.layers
    )
    return ModelGraph(layers, tuple(LayerRun(run.layer, run.count) for run in model.runs))


def _primitive(operator: TracedOperator, samples: int) -> Primitive:
    """Scale an operator to `samples` samples, with more rows per weight or more batched GEMMs.

    Masks and tables keep the size for one sample.
    """
    if operator.kind not in KINDS:
        raise PhazeError(
            f"operator {operator.name}: kind: must be one of {', '.join(KINDS)}, got {operator.kind}"
        )
    # Token ids and labels grow with the samples.
    indices = operator.kind in ("lookup", "nll_loss")
    return Primitive(
        name=operator.name,
        kind=operator.kind,
        inputs=tuple(Tensor(x.source, samples * x.elements, x.piece, x.gradient) for x in operator.inputs),
        elements=samples * operator.elements,
        gemm=_gemm(operator.product, samples, weights=operator.parameters > 0) if operator.product else None,
        parameters=operator.parameters,
        constant_bytes=operator.constant_bytes * (samples if indices else 1),
        group=operator.group,
    )


def _gemm(product: TracedProduct, samples: int, *, weights: bool) -> Gemm:
    # Weights multiply more rows; products of activations, as in attention, are repeated per sample.
    rows = weights or product.batch == 1
    batch, m = (product.batch, samples * product.m) if rows else (samples * product.batch, product.m)
    return Gemm(batch, m, product.k, product.n, samples * product.unrolled)
