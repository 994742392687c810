"""Operators cut one by one over a group of tiles, by degrees of PALM's Table III, given or searched.

Degrees are (b, m, n, k) of a product: batch, rows, columns and the summed dimension; and (b, c, i, k) of a
convolution: batch, channels, rows of pixels and kernels. The batch of a product with weights is its samples,
of attention its heads of all samples, of experts the experts. An operator without a product is cut along b,
and a lookup along n, the width of its rows.

Degrees that are not given are those with the least time of the operator on the group: its work in both
passes, and its collectives on rings of neighbours. Two operators may cut a tensor differently: it then passes
through the memory of the chip. Tokens that are dispatched to experts, and their results, are an all-to-all
among all tiles of the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple, TypeVar

from phaze.base.errors import PhazeError
from phaze.base.nearest import nearest
from phaze.cost.network.network import Levels, Tier
from phaze.layout import Group
from phaze.tiles.chip import Chip
from phaze.tiles.lowering import Cut, LayerOperator, ModelLayer
from phaze.tiles.operators import (
    CutOperator,
    Degrees,
    Linear,
    Phase,
    Reduction,
    TileAxis,
    TileShare,
    wider_than_one,
)
from phaze.tiles.tile import backward_s, forward_s

Sizes = tuple[int, int, int, int]
Part = TypeVar("Part")
PRODUCT: tuple[TileAxis, TileAxis, TileAxis, TileAxis] = ("b", "m", "n", "k")
CONVOLUTION: tuple[TileAxis, TileAxis, TileAxis, TileAxis] = ("b", "c", "i", "k")
DISPATCHED = ("dispatch", "combine")
"""Kinds of operators before and after experts, between which tokens change tiles."""


class UncutOperator(NamedTuple):
    """Operator of a layer for the samples of a microbatch, before it is cut."""

    operator: LayerOperator
    samples: int
    convolution: bool
    """True for a convolution, whose degrees are in another order."""

    @property
    def name(self) -> str:
        """Name of the product, else of all operations."""
        primitive = self.operator.product
        return self.operator.forward.name if primitive is None else primitive.name

    @property
    def axes(self) -> tuple[TileAxis, TileAxis, TileAxis, TileAxis]:
        """Axes of the degrees, in order."""
        return CONVOLUTION if self.convolution else PRODUCT

    @property
    def sizes(self) -> Sizes:
        """Dimensions in the order of the degrees; elements, 1, width and 1 without a product."""
        gemm = self.operator.gemm
        if gemm is None:
            elements = max(primitive.elements for primitive in self.operator.primitives)
            return elements, 1, self.operator.row_width, 1
        if gemm.batch > 1:
            return gemm.batch, gemm.m, gemm.n, gemm.k
        samples = self.samples if gemm.m % self.samples == 0 else 1
        rows = gemm.m // samples
        return (samples, gemm.k, rows, gemm.n) if self.convolution else (samples, rows, gemm.n, gemm.k)

    def fits(self, degrees: Degrees) -> bool:
        """True if no dimension has fewer elements than parts."""
        return all(1 <= degree <= size for degree, size in zip(degrees, self.sizes, strict=True))

    def cut(self, degrees: Degrees) -> CutOperator:
        """Operator with one tile's share, and the collectives of Table III."""
        share = self._vector_share if self.operator.gemm is None else self._product_share
        return CutOperator(self.name, share(degrees), self.axes)

    def _product_share(self, degrees: Degrees) -> TileShare:
        """One tile's share of a product, and of the elementwise operations that follow it."""
        operator, total, sizes, axes = self.operator, self.operator.share, self.sizes, self.axes
        primitive, tiles = operator.product, prod(degrees)
        assert primitive is not None
        if self.convolution:
            # Table III sums a convolution over its channels: they are k of a product, and its kernels n.
            sizes, degrees, axes = _as_product(sizes), _as_product(degrees), _as_product(axes)
        b, m, n, k = degrees
        # A head that several layers share multiplies a matrix that another operator stores.
        weighted, stores = len(primitive.inputs) == 1, primitive.parameters > 0
        linear = Linear(*sizes, weighted and not operator.expert).shares(degrees, axes)[0]
        # Convolutions read fewer elements than their products multiply, and grouped queries share keys.
        first = primitive.inputs[0].elements / (b * m * k)
        unrolled = prod((sizes[0], sizes[1], sizes[3])) / (b * m * k)
        second = 0.0 if weighted else primitive.inputs[1].elements / (b * n * k)
        others = total.inputs - sum(tensor.elements for tensor in primitive.inputs)
        product_weights = sizes[2] * sizes[3] * (sizes[0] / b if operator.expert else 1) / (n * k) * stores
        biases = total.weights - primitive.parameters
        # A bias of attention scores, such as that of positions in a window, is whole on every tile.
        weights = product_weights + (biases / n if weighted else biases)
        outputs = total.outputs / (b * m * n)
        operands = operator.stored_operands
        # Operations that follow the product store tensors of its output's shape.
        stored = operands.first / (b * m * k) + operands.second / (b * n * k)
        stored += max(0.0, (total.stored or 0.0) - sum(operands)) / (b * m * n)
        reductions = []
        if biases and not weighted:
            widths = zip(axes[:3], (b, m, n), strict=True)
            reductions = [Reduction("update", axis, width, biases) for axis, width in widths]
        for reduction in linear.reductions:
            # Tiles with other rows of an expert share its weights, as tiles with other rows of a sample do.
            updates = reduction.phase == "update" or (operator.expert and reduction.axis == "m")
            size = weights if updates else reduction.elements
            if reduction.axis == axes[2]:
                size *= first / unrolled
            phase = "update" if updates else reduction.phase
            reductions.append(replace(reduction, phase=phase, elements=size))
        return replace(
            linear,
            flops=total.flops / tiles,
            weights=weights,
            inputs=first + second + max(0.0, others) / (b * m * n),
            outputs=outputs,
            reductions=tuple(reduction for reduction in wider_than_one(*reductions) if reduction.elements),
            vector_cycles=total.vector_cycles / (b * m * n),
            backward_flops=(total.backward_flops or 0.0) / tiles,
            backward_cycles=total.backward_cycles / (b * m * n),
            backward_idle=total.backward_idle,
            stored=stored,
        )

    def _vector_share(self, degrees: Degrees) -> TileShare:
        """One tile's share of an operator without a product; its parameters are whole on every tile."""
        total, (b, _, n, _), tiles = self.operator.share, degrees, prod(degrees)
        inputs, outputs, weights = total.inputs / tiles, total.outputs / tiles, total.weights / n
        reductions = [Reduction("update", "b", b, weights)] if weights else []
        if any(primitive.kind in DISPATCHED for primitive in self.operator.primitives):
            phases: tuple[Phase, ...] = ("forward", "backward")
            reductions += [Reduction(phase, "b", b, max(inputs, outputs), "all_to_all") for phase in phases]
        return replace(
            total,
            weights=weights,
            inputs=inputs,
            outputs=outputs,
            reductions=tuple(reduction for reduction in wider_than_one(*reductions) if reduction.elements),
            vector_cycles=total.vector_cycles / tiles,
            backward_cycles=total.backward_cycles / tiles,
            stored=(total.stored or 0.0) / tiles,
            fetched=(total.fetched or 0.0) / tiles if n > 1 else total.fetched,
        )


def _as_product(order: tuple[Part, Part, Part, Part]) -> tuple[Part, Part, Part, Part]:
    """Order (b, m, n, k) of an order (b, c, i, k) of a convolution."""
    b, c, i, k = order
    return b, i, k, c


def cut_by_degrees(
    chip: Chip, tiles: int, layer: ModelLayer, user_degrees: Mapping[str, Degrees], samples: int,
    microbatches: int, *, convolutions: bool,
) -> Cut:  # fmt: skip
    """Operators of a layer on a group of tiles, by the given degrees or the fastest ones.

    Raises `PhazeError` if degrees do not multiply to the tiles or exceed a dimension.
    """
    cut = []
    for operator in layer.operators:
        # A convolution has several rows for each sample, its pixels.
        convolution = convolutions and operator.gemm is not None and operator.gemm.m > samples
        uncut = UncutOperator(operator, samples, convolution)
        degrees = user_degrees.get(uncut.name)
        if degrees is None:
            degrees = fastest_degrees(chip, tiles, uncut, microbatches)
        else:
            _check(uncut, degrees, tiles)
        cut.append((uncut.cut(degrees), degrees))
    return tuple(cut)


def check_names(user_degrees: Mapping[str, Degrees], layers: Iterable[ModelLayer], where: str) -> None:
    """Raise `PhazeError` if degrees are given for an operator that the model does not have."""
    names = dict.fromkeys(UncutOperator(o, 1, False).name for layer in layers for o in layer.operators)
    for name in user_degrees:
        if name not in names:
            # No verb lists these operators, so the message does, the nearest first.
            listed = ", ".join(dict.fromkeys([*nearest(name, names, 0.0), *names]))
            raise PhazeError(f"{where}: degrees: {name}: must be an operator of the model: {listed}")


def _check(uncut: UncutOperator, degrees: Degrees, tiles: int) -> None:
    if prod(degrees) != tiles:
        parts = " × ".join(map(str, degrees))
        raise PhazeError(
            f"degrees: {uncut.name}: {parts} is {prod(degrees)}, must be the {tiles} tiles of a stage"
        )
    for axis, degree, size in zip(uncut.axes, degrees, uncut.sizes, strict=True):
        if degree > size:
            raise PhazeError(f"degrees: {uncut.name}: {axis} must be at most {size}, got {degree}")


@lru_cache(maxsize=16384)
def fastest_degrees(chip: Chip, tiles: int, uncut: UncutOperator, microbatches: int) -> Degrees:
    """Degrees with the least time of an operator per microbatch, among all whose product is `tiles`.

    Gradients of weights are summed once for all microbatches. Raises `PhazeError` if the operator has no
    dimensions to cut.
    """
    if uncut.operator.gemm is None:
        columns = uncut.sizes[2] > 1 and uncut.sizes[2] >= tiles
        return (1, 1, tiles, 1) if columns else (tiles, 1, 1, 1)
    ring = Levels((Tier(chip.grid.tiles, chip.wires.bandwidth_bytes_per_s, chip.wires.latency_s),))
    width, possible = uncut.operator.width, []
    for degrees in degrees_of(tiles, 4):
        if uncut.fits(degrees):
            share = uncut.cut(degrees).share
            seconds = forward_s(chip.tile, share, width) + backward_s(chip.tile, share, width)
            for reduction in share.reductions:
                times = 1 / microbatches if reduction.phase == "update" else 1.0
                group = Group(reduction.width, 1)
                seconds += times * ring.seconds(reduction.kind, reduction.elements * width, group)
            possible.append((seconds, degrees))
    if not possible:
        raise PhazeError(f"operator {uncut.name}: cannot be cut into {tiles} parts, as many as tiles")
    return min(possible)[1]


@lru_cache(maxsize=64)
def degrees_of(tiles: int, axes: int) -> tuple[Degrees, ...]:
    """All degrees with product `tiles`, with degree 1 on all axes after the first `axes`."""
    divisors = [d for d in range(1, tiles + 1) if tiles % d == 0]
    products = [degrees for degrees in product(divisors, repeat=axes) if prod(degrees) == tiles]
    return tuple((*degrees, *(1,) * (4 - axes)) for degrees in products)  # type: ignore[misc]
