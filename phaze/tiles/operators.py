"""Operators on a tile group: what each tile computes, holds and exchanges (PALM, IV.B, Table III).

Convention. A linear operator is Y = X Wᵀ with X of B × M × K, W of N × K and Y of B × M × N. PALM's text
calls the weights M × K and the input N × K, but its Table III reduces a gradient of N K/(n k) elements over b
and over m: W is N × K there, and so here. Where Table III is misprinted, the operators below say so.

Degrees (b, m, n, k), (b, c, i, k), (b, c, i, 1) or (N_d, N_m, 1, 1) say into how many parts each dimension is
cut. A tile has one part of each, and the tiles that differ in one part only are a group along that axis:

    forward     parts of a sum over the reduced dimension are added up: all-reduce of Y over k
    backward    so are those of the gradient of X, which sums over N: all-reduce over n
    update      gradients of W sum over samples: all-reduce over b, then over m

PALM counts two all-reduces over b and over m, one after the other. Sizes of tensors are exact quotients, as
in Table III; sizes of products are those of the tile that has most.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import prod
from typing import Literal

from phaze.base.errors import PhazeError
from phaze.cost.network.network import Collective
from phaze.layout import Layout

Phase = Literal["forward", "backward", "update"]
Axis = Literal["b", "m", "n", "k", "c", "i", "d", "t"]
"""A dimension that is cut; d and t are the data and tensor parallelism of a transformer layer."""

Degrees = tuple[int, int, int, int]
"""Into how many parts every dimension is cut, in the order of Table III."""


@dataclass(frozen=True)
class Communication:
    """A collective in every group along an axis, of a tensor of so many elements on each member."""

    phase: Phase
    axis: Axis
    width: int
    """Members of a group."""
    elements: float
    kind: Collective = "all_reduce"


@dataclass(frozen=True)
class Product:
    """So many products of m × k by k × n."""

    m: int
    k: int
    n: int
    count: int = 1

    @property
    def flops(self) -> float:
        """Two for each multiplication."""
        return 2.0 * self.count * self.m * self.k * self.n

    @property
    def gradients(self) -> tuple[Product, Product]:
        """The products that give the gradients of the first and of the second operand."""
        return Product(self.m, self.n, self.k, self.count), Product(self.n, self.m, self.k, self.count)


@dataclass(frozen=True)
class Share:
    """What one tile has of an operator."""

    name: str
    flops: float
    """Of the forward pass (Table III)."""
    products: tuple[Product, ...]
    """Of the forward pass, on the tile that has most; none for what arrays cannot do."""
    weights: float
    """Elements."""
    inputs: float
    outputs: float
    communications: tuple[Communication, ...] = ()
    again: tuple[Product, ...] = ()
    """Products that a backward pass does once more, because their results were not kept."""

    @property
    def replicas(self) -> int:
        """Tiles that hold the same weights."""
        return prod(some.width for some in self.communications if some.phase == "update")


@dataclass(frozen=True)
class Linear:
    """Y = X Wᵀ, or a product of two activations; degrees (b, m, n, k)."""

    batch: int
    m: int
    n: int
    k: int
    weighted: bool = True
    """False: the second operand is an activation as well, one for each sample, as in attention."""
    name: str = "linear"

    def __post_init__(self) -> None:
        _check_sizes(self)

    def share(self, degrees: Degrees, axes: tuple[Axis, Axis, Axis, Axis] = ("b", "m", "n", "k")) -> Share:
        """Return what one tile has."""
        _check(self.name, (("b", self.batch), ("m", self.m), ("n", self.n), ("k", self.k)), degrees)
        b, m, n, k = degrees
        second = self.n * self.k / (n * k) * (1 if self.weighted else self.batch / b)
        first = self.batch * self.m * self.k / (b * m * k)
        outputs = self.batch * self.m * self.n / (b * m * n)
        return Share(
            self.name,
            2.0 * self.batch * self.m * self.n * self.k / prod(degrees),
            (self._product(degrees),),
            second if self.weighted else 0.0,
            first if self.weighted else first + second,
            outputs,
            self._communications(degrees, axes, (outputs, first, second)),
        )

    def _product(self, degrees: Degrees) -> Product:
        """Return the product of the tile that has most; samples of one weight stream through one array."""
        batch, m, n, k = map(_most, (self.batch, self.m, self.n, self.k), degrees)
        return Product(batch * m, k, n) if self.weighted else Product(m, k, n, batch)

    def _communications(
        self,
        degrees: Degrees,
        axes: tuple[Axis, Axis, Axis, Axis],
        sizes: tuple[float, float, float],
    ) -> tuple[Communication, ...]:
        """Return what is reduced; of a product of activations cut along m, the second gradient over m."""
        b, m, n, k = degrees
        outputs, first, second = sizes
        return _wider_than_one(
            Communication("forward", axes[3], k, outputs),
            Communication("backward", axes[2], n, first),
            Communication("update", axes[0], b if self.weighted else 1, second),
            Communication("update" if self.weighted else "backward", axes[1], m, second),
        )


@dataclass(frozen=True)
class Convolution:
    """R × S windows over B images of H × W with C channels, K filters; degrees (b, c, i, k), i cuts rows.

    Table III prints 2 B H W R S C K FLOPs with H and W of the output, and B H W K/(b i c) for the gradient of
    the input: K there must be C, which c divides. It leaves out the rows that neighbours along i need of
    each other.
    """

    batch: int
    height: int
    """Of the input."""
    width: int
    channels: int
    rows: int
    """R, the height of the window."""
    columns: int
    filters: int
    stride: int = 1
    name: str = "convolution"

    def __post_init__(self) -> None:
        _check_sizes(self)

    @property
    def outputs(self) -> tuple[int, int]:
        """Height and width of the output, padded so that only the stride shrinks it."""
        return -(-self.height // self.stride), -(-self.width // self.stride)

    def share(self, degrees: Degrees) -> Share:
        """Return what one tile has."""
        high, wide = self.outputs
        sizes = ("b", self.batch), ("c", self.channels), ("i", high), ("k", self.filters)
        _check(self.name, sizes, degrees)
        b, c, i, k = degrees
        window = self.rows * self.columns
        weights = window * self.channels * self.filters / (c * k)
        inputs = self.batch * self.height * self.width * self.channels / (b * i * c)
        outputs = self.batch * high * wide * self.filters / (b * i * k)
        batch, channels, down, filters = (
            _most(size, part) for (_, size), part in zip(sizes, degrees, strict=True)
        )
        return Share(
            self.name,
            2.0 * self.batch * high * wide * window * self.channels * self.filters / prod(degrees),
            (Product(batch * down * wide, window * channels, filters),),
            weights,
            inputs,
            outputs,
            _wider_than_one(
                Communication("forward", "c", c, outputs),
                Communication("backward", "k", k, inputs),
                Communication("update", "b", b, weights),
                Communication("update", "i", i, weights),
            ),
        )


@dataclass(frozen=True)
class Pool:
    """R × S windows over B images of H × W with C channels, each alone; degrees (b, c, i, 1).

    Table III prints 2 B H W R S K/(b c i) FLOPs, and the text K = 1: K there must be C, which c divides.
    """

    batch: int
    height: int
    width: int
    channels: int
    rows: int
    columns: int
    stride: int = 1
    name: str = "pool"

    def __post_init__(self) -> None:
        _check_sizes(self)

    def share(self, degrees: Degrees) -> Share:
        """Return what one tile has; it exchanges nothing."""
        high, wide = -(-self.height // self.stride), -(-self.width // self.stride)
        _check(self.name, (("b", self.batch), ("c", self.channels), ("i", high), ("k", 1)), degrees)
        outputs = self.batch * high * wide * self.channels / prod(degrees)
        inputs = self.batch * self.height * self.width * self.channels / prod(degrees)
        return Share(self.name, 2.0 * outputs * self.rows * self.columns, (), 0.0, inputs, outputs)


@dataclass(frozen=True)
class Transformer:
    """A transformer layer after Megatron: six products on inputs of B × S × H; degrees (N_d, N_m, 1, 1).

    Products that follow each other are cut along n, then along k, so that only every second one is reduced in
    each direction: their sums are the row of Table III, which a test asserts.
    """

    batch: int
    hidden: int
    sequence: int
    heads: int
    name: str = "transformer"
    fused: bool = False
    """Whether scores stay in SRAM between both products of attention, as in FlashAttention."""

    def __post_init__(self) -> None:
        _check_sizes(self)
        if self.hidden % self.heads:
            raise PhazeError(f"{self.name}: heads must divide hidden {self.hidden}, got {self.heads}")

    def shares(self, degrees: Degrees) -> tuple[Share, ...]:
        """Return what one tile has of each product."""
        d, t = degrees[:2]
        _check(self.name, (("N_d", self.batch), ("N_m", self.heads), ("1", 1), ("1", 1)), degrees)
        across, along = (d, 1, t, 1), (d, 1, 1, t)
        head = self.hidden // self.heads
        attention = (
            self._attention("scores", self.sequence, head, (d, t)),
            self._attention("values", head, self.sequence, (d, t)),
        )
        return (
            self._linear("qkv", 3 * self.hidden, self.hidden).share(across, ("d", "m", "t", "k")),
            *((_fused(f"{self.name} attention", *attention),) if self.fused else attention),
            self._linear("projection", self.hidden, self.hidden).share(along, ("d", "m", "n", "t")),
            self._linear("up", 4 * self.hidden, self.hidden).share(across, ("d", "m", "t", "k")),
            self._linear("down", self.hidden, 4 * self.hidden).share(along, ("d", "m", "n", "t")),
        )

    def _linear(self, part: str, n: int, k: int) -> Linear:
        return Linear(self.batch, self.sequence, n, k, name=f"{self.name} {part}")

    def _attention(self, part: str, n: int, k: int, degrees: tuple[int, int]) -> Share:
        """Return the share of a product of which every tile has whole heads of whole samples."""
        d, t = degrees
        product = Linear(self.batch * self.heads, self.sequence, n, k, False, f"{self.name} {part}")
        most = Product(self.sequence, k, n, _most(self.batch, d) * _most(self.heads, t))
        return replace(product.share((d * t, 1, 1, 1)), products=(most,))


def _fused(name: str, scores: Share, values: Share) -> Share:
    """Return both products of attention as one, whose scores are neither read nor written."""
    return Share(
        name,
        scores.flops + values.flops,
        scores.products + values.products,
        0.0,
        scores.inputs + values.inputs - scores.outputs,
        values.outputs,
        again=scores.products,
    )


Operator = Linear | Convolution | Pool | Transformer


def shares(operator: Operator, degrees: Degrees) -> tuple[Share, ...]:
    """Return what one tile has of an operator, part by part.

    Raises `PhazeError` on degrees that it cannot have.
    """
    if isinstance(operator, Transformer):
        return operator.shares(degrees)
    return (operator.share(degrees),)


def axes(operator: Operator, degrees: Degrees) -> dict[Axis, int]:
    """Return the degree of every axis that an operator has, in the order of Table III."""
    names: dict[type[Operator], tuple[Axis, ...]] = {
        Linear: ("b", "m", "n", "k"),
        Convolution: ("b", "c", "i", "k"),
        Pool: ("b", "c", "i"),
        Transformer: ("d", "t"),
    }
    return dict(zip(names[type(operator)], degrees, strict=False))


def _most(size: int, parts: int) -> int:
    return -(-size // parts)


def _wider_than_one(*communications: Communication) -> tuple[Communication, ...]:
    return tuple(some for some in communications if some.width > 1)


def _check(name: str, sizes: tuple[tuple[str, int], ...], degrees: Degrees) -> None:
    """Raise `PhazeError` where a dimension has fewer elements than parts."""
    if len(degrees) != len(sizes):
        raise PhazeError(f"{name}: degrees must be {len(sizes)} numbers, got {degrees}")
    for (axis, size), degree in zip(sizes, degrees, strict=True):
        if not 1 <= degree <= size:
            raise PhazeError(f"{name}: degree {axis} must be from 1 to {size}, got {degree}")


def communication_size(batch: int, sequence: int, hidden: int, layout: Layout) -> float:
    """Return PALM's Equation (6), 8 B S H N_m/N + 24 H²/N_m: bytes in 16 bits that a layer all-reduces."""
    tiles = layout.tp * layout.dp
    return 8.0 * batch * sequence * hidden * layout.tp / tiles + 24.0 * hidden**2 / layout.tp


def _check_sizes(operator: Operator) -> None:
    """Raise `PhazeError` where a size is not at least 1."""
    for field in fields(operator):
        value = getattr(operator, field.name)
        if field.type == "int" and not value >= 1:
            raise PhazeError(f"{operator.name}: {field.name} must be ≥ 1, got {value}")
