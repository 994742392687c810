"""Attention as one operator, whose scores never leave the chip (Dao et al., NeurIPS 2022).

The operator works on blocks of queries and keys in the global buffer. Queries, keys, values and results cross
HBM, and the scores do not. It stores one element per row of scores, from which the backward pass computes the
scores again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from phaze.spec.rows import PartRole
from phaze.workload.operators import Edge, LayerPass, Operator, Part
from phaze.workload.primitives import Region, Scores
from phaze.workload.workload import Layer

HALF = 2
"""Bytes of an element of queries, keys, values and results."""
STATISTIC = 4
"""Bytes of the log-sum-exp of a row of attention scores."""
BLOCK = 128
"""Queries of a block. A causal mask leaves half of the scores of a block on the diagonal unused."""


def first_products(core: Sequence[Operator]) -> list[Part]:
    """GEMMs of queries and keys: the first of each pair of GEMMs in the attention core."""
    return [part for operator in core for part in operator.parts if part.kind == "matmul"][::2]


def scores_of(core: Sequence[Operator]) -> list[Scores]:
    """Shape of each attention core of a layer, derived from its GEMMs if the operators do not store it."""
    if shapes := [operator.scores for operator in core if operator.scores is not None]:
        return shapes
    products = [part for operator in core for part in operator.parts if part.kind == "matmul"]
    return [_shape(*pair) for pair in zip(products[::2], products[1::2], strict=True)]


def _shape(scores: Part, context: Part) -> Scores:
    """Shape of a causal attention core over whole sequences, derived from its two GEMMs."""
    keys, heads = scores.n, scores.batch * scores.m // scores.n
    return Scores(1, keys, keys, keys, keys / 2, heads, scores.batch, scores.k, context.n)


def kept_with_flash(layer: Layer) -> Layer:
    """Copy of a layer with a fused attention core, which stores one element per row of scores.

    Its norms store their statistics. Source: Dao et al., NeurIPS 2022.
    """
    stored = layer.without(frozenset({"core_attn"}))
    # Log-sum-exp of every row of scores, from which the backward kernel recomputes them.
    rows = sum(part.batch * part.m for part in first_products(layer.attention("forward")))
    return replace(
        stored, activation_bytes=stored.activation_bytes + layer.statistics_bytes + STATISTIC * rows
    )


def join_attention(layer: Layer) -> Layer:
    """Copy of a layer whose attention core is one operator in each pass.

    A layer without attention is returned unchanged, and so is one whose core has other operators inside.
    """
    core, backward_core = layer.attention("forward"), layer.attention("backward")
    shapes = scores_of(core) if core else []
    # Kernels of a fused core share one shape; several cores are in series with other operators.
    if len(shapes) != 1 or not _adjacent(layer.forward) or not _adjacent(layer.backward):
        return layer
    forward = _contracted(layer.forward, _forward(core, shapes[0]))
    backward = _contracted(layer.backward, _backward(core, backward_core, shapes[0]))
    return replace(kept_with_flash(layer), forward=forward, backward=backward)


def _adjacent(layer_pass: LayerPass) -> bool:
    """True if no operator between the first and the last one of the attention core is outside the core."""
    places = [place for place, operator in enumerate(layer_pass.operators) if operator.attention]
    return places[-1] - places[0] == len(places) - 1


def _forward(core: Sequence[Operator], shape: Scores) -> Operator:
    """Operator of the forward pass: scores, softmax, and the sum of values."""
    batch, rows, seen = _blocks(shape)
    products = (batch, rows, shape.size, seen), (batch, rows, seen, shape.value_size)
    parts = (*_products("forward", *products), *_on_scores(core, shape))
    return _operator("attention", core, _with_traffic(parts, _traffic(shape)), shape)


def _backward(core: Sequence[Operator], backward_core: Sequence[Operator], shape: Scores) -> Operator:
    """Operator of the backward pass, which computes the scores again at the cost of the forward pass."""
    batch, rows, seen = _blocks(shape)
    size, value_size = shape.size, shape.value_size
    scores = (batch, rows, size, seen)
    gradients = (
        (batch, rows, value_size, seen),  # of probabilities
        (batch, seen, rows, value_size),  # of values
        (batch, rows, seen, size),  # of queries
        (batch, seen, rows, size),  # of keys
    )
    parts = (
        *_products("forward", scores),
        *_products("data_gradient", *gradients),
        *_on_scores(core, shape),
        *_on_scores(backward_core, shape),
    )
    return _operator("attention.backward", backward_core, _with_traffic(parts, 2 * _traffic(shape)), None)


def _blocks(shape: Scores) -> tuple[int, int, int]:
    """Number of key heads, rows of queries for each, and keys that a row multiplies on average."""
    edge = min(BLOCK, shape.queries) * shape.mean / shape.longest if shape.mean < shape.longest else 0.0
    rows = shape.heads // shape.kv_heads * shape.queries
    return shape.samples * shape.kv_heads, rows, min(ceil(shape.mean + edge), shape.keys)


def _products(role: PartRole, *sizes: tuple[int, int, int, int]) -> tuple[Part, ...]:
    return tuple(Part("attention", role, *size) for size in sizes)


def _on_scores(core: Sequence[Operator], shape: Scores) -> tuple[Part, ...]:
    """Vector parts of a core without HBM traffic; those on every score skip masked blocks."""
    batch, rows, seen = _blocks(shape)
    whole = batch * rows * shape.keys
    return tuple(
        replace(
            part, streamed_bytes=0, elements=batch * rows * seen if part.elements == whole else part.elements
        )
        for operator in core
        for part in operator.parts
        if part.kind != "matmul"
    )


def _traffic(shape: Scores) -> int:
    """Bytes of queries, keys, values and results, and of the statistics of the rows."""
    rows = shape.queries * shape.heads
    elements = (rows + shape.keys * shape.kv_heads) * (shape.size + shape.value_size)
    return shape.samples * (HALF * elements + STATISTIC * rows)


def _with_traffic(parts: Sequence[Part], nbytes: int) -> tuple[Part, ...]:
    """Parts of an operator, with the HBM traffic of all parts assigned to the last one."""
    return (*parts[:-1], replace(parts[-1], streamed_bytes=nbytes))


def _operator(name: str, core: Sequence[Operator], parts: tuple[Part, ...], shape: Scores | None) -> Operator:
    return Operator(
        name=name,
        parts=parts,
        input_bytes=core[0].input_bytes,
        parameter_bytes=sum(operator.parameter_bytes for operator in core),
        output_bytes=core[-1].output_bytes,
        attention=True,
        regions=frozenset[Region]({"core_attn"}).union(*(operator.regions for operator in core)),
        scores=shape,
    )


def _contracted(layer_pass: LayerPass, joined: Operator) -> LayerPass:
    """Pass with the adjacent operators of the attention core replaced by a single one."""
    attends = [operator.attention for operator in layer_pass.operators]
    first, count = attends.index(True), sum(attends)
    operators = (*layer_pass.operators[:first], joined, *layer_pass.operators[first + count :])

    def place(index: int) -> int:
        return index if index < first else max(first, index - count + 1)

    sizes: Counter[tuple[int, int]] = Counter()
    for edge in layer_pass.edges:
        sizes[place(edge.source), place(edge.target)] += edge.nbytes
    edges = (Edge(*ends, nbytes) for ends, nbytes in sorted(sizes.items()) if ends[0] != ends[1])
    return LayerPass(operators, tuple(edges))
