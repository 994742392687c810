"""Operators on a tile group: compute, tensors and collectives of each tile (PALM, IV.B, Table III).

Convention. A linear operator is Y = X Wᵀ with X of B × M × K, W of N × K and Y of B × M × N. PALM's text
calls the weights M × K and the input N × K, but its Table III reduces a gradient of N K/(n k) elements over b
and over m: W is N × K there, and so here. The operators below note the misprints of Table III.

Degrees (b, m, n, k), (b, c, i, k), (b, c, i, 1) or (N_d, N_m, 1, 1) are the numbers of parts into which the
dimensions are cut. A tile has one part of each dimension. Tiles that differ in one part only form a group
along that axis:

    forward     partial sums over the reduced dimension: all-reduce of Y over k
    backward    partial sums of the gradient of X over N: all-reduce over n
    update      partial sums of the gradient of W over samples: all-reduce over b, then over m

As in PALM, the all-reduces over b and over m are separate, one after the other. Sizes of tensors are exact
quotients, as in Table III. Sizes of products are rounded up: those of the tile with the largest part.

`operators_of` has only the operators of PALM's table: no normalisations, activation functions or embedding.
The convolution of a shortcut follows the convolutions that it bypasses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Literal

from phaze.base.errors import PhazeError
from phaze.cost.network.network import Collective
from phaze.layout import Layout
from phaze.spec.model import Model
from phaze.spec.models import AnyModel
from phaze.spec.rows import Gemm
from phaze.spec.tiled_study import check_tiled
from phaze.spec.vision import ResNet
from phaze.workload.families.vision import ConvolutionShape, SlidingWindow

Phase = Literal["forward", "backward", "update"]
TileAxis = Literal["b", "m", "n", "k", "c", "i", "d", "e", "t"]
"""Dimension split among tiles; d, e and t are data, expert and tensor parallelism of a layer."""
Axes = tuple[TileAxis, TileAxis, TileAxis, TileAxis]

Degrees = tuple[int, int, int, int]
"""Number of parts of each dimension, in the order of Table III."""


@dataclass(frozen=True)
class Reduction:
    """Collective in each group along an axis, of a tensor with `elements` elements per member."""

    phase: Phase
    axis: TileAxis
    width: int
    """Number of members per group."""
    elements: float
    kind: Collective = "all_reduce"


@dataclass(frozen=True)
class TileShare:
    """One tile's share of an operator: FLOPs, tensor sizes (in elements) and all-reduces."""

    flops: float
    """FLOPs of the forward pass (Table III)."""
    product: Gemm | None
    """GEMM of the forward pass on the tile with the largest part; None if arrays cannot run it."""
    weights: float
    """Number of weight elements."""
    inputs: float
    outputs: float
    reductions: tuple[Reduction, ...] = ()
    vector_cycles: float = 0.0
    """Cycles of one vector lane in the forward pass."""
    backward_flops: float | None = None
    """FLOPs of the backward pass; None: twice those of the forward pass."""
    backward_cycles: float = 0.0
    """Cycles of one vector lane in the backward pass."""
    backward_idle: bool = False
    """True if the backward pass neither computes nor moves tensors, as that of a sum."""
    stored: float | None = None
    """Elements stored per microbatch for the backward pass; None: the inputs."""
    fetched: float | None = None
    """Weights that a pass reads, such as the rows of an embedding that tokens choose; None: all weights."""

    @property
    def replicas(self) -> int:
        """Number of tiles that store the same weights."""
        return prod(reduction.width for reduction in self.along("update"))

    @property
    def fetched_share(self) -> float:
        """Share of the weights that a pass reads."""
        return 1.0 if self.fetched is None or not self.weights else self.fetched / self.weights

    def along(self, phase: Phase) -> tuple[Reduction, ...]:
        """All-reduces of a phase, in order of execution."""
        return tuple(reduction for reduction in self.reductions if reduction.phase == phase)


@dataclass(frozen=True)
class Linear:
    """Linear operator Y = X Wᵀ, or a product of two activations, split by degrees (b, m, n, k)."""

    batch: int
    m: int
    n: int
    k: int
    weighted: bool = True
    """False if the second operand is also an activation, one per sample, as in attention."""

    def shares(self, degrees: Degrees, axes: Axes = ("b", "m", "n", "k")) -> tuple[TileShare]:
        """One tile's share of the operator.

        In a product of two activations cut along m, the gradient of the second operand is summed over m in
        the backward pass.
        """
        _check((("b", self.batch), ("m", self.m), ("n", self.n), ("k", self.k)), degrees)
        b, m, n, k = degrees
        second = self.n * self.k / (n * k) * (1 if self.weighted else self.batch / b)
        first = self.batch * self.m * self.k / (b * m * k)
        outputs = self.batch * self.m * self.n / (b * m * n)
        batch, rows, columns, depth = map(_most, (self.batch, self.m, self.n, self.k), degrees)
        share = TileShare(
            2.0 * self.batch * self.m * self.n * self.k / prod(degrees),
            # All samples share the weights: one product, through which they stream.
            Gemm(1, batch * rows, depth, columns) if self.weighted else Gemm(batch, rows, depth, columns),
            second if self.weighted else 0.0,
            first if self.weighted else first + second,
            outputs,
            wider_than_one(
                Reduction("forward", axes[3], k, outputs),
                Reduction("backward", axes[2], n, first),
                Reduction("update", axes[0], b if self.weighted else 1, second),
                Reduction("update" if self.weighted else "backward", axes[1], m, second),
            ),
        )
        return (share,)


def _convolution_shares(conv: ConvolutionShape, degrees: Degrees) -> tuple[TileShare]:
    """One tile's share of a convolution split by degrees (b, c, i, k), where i splits rows.

    Table III gives 2 B H W R S C K FLOPs with H and W of the output, and B H W K/(b i c) for the gradient of
    the input: its K must be C, which c divides. It ignores the halo rows that neighbours along i exchange.
    """
    sizes = ("b", conv.samples), ("c", conv.channels), ("i", conv.out_size), ("k", conv.kernels)
    _check(sizes, degrees)
    b, c, i, k = degrees
    window, pixels = conv.window**2, conv.samples * conv.out_size**2
    weights = conv.parameters / (c * k)
    inputs = conv.samples * conv.size**2 * conv.channels / (b * i * c)
    outputs = pixels * conv.kernels / (b * i * k)
    batch, channels, rows, kernels = (
        _most(size, part) for (_, size), part in zip(sizes, degrees, strict=True)
    )
    share = TileShare(
        2.0 * pixels * window * conv.channels * conv.kernels / prod(degrees),
        Gemm(1, batch * rows * conv.out_size, window * channels, kernels),
        weights,
        inputs,
        outputs,
        wider_than_one(
            Reduction("forward", "c", c, outputs),
            Reduction("backward", "k", k, inputs),
            Reduction("update", "b", b, weights),
            Reduction("update", "i", i, weights),
        ),
    )
    return (share,)


@dataclass(frozen=True)
class Pool(SlidingWindow):
    """Pooling of square maps per channel, split by degrees (b, c, i, 1).

    Table III gives 2 B H W R S K/(b c i) FLOPs, and the text K = 1: K there must be C, which c divides.
    """

    def shares(self, degrees: Degrees) -> tuple[TileShare]:
        """One tile's share of the operator, which needs no communication."""
        out = self.out_size
        _check((("b", self.samples), ("c", self.channels), ("i", out), ("k", 1)), degrees)
        outputs = self.samples * out * out * self.channels / prod(degrees)
        inputs = self.samples * self.size**2 * self.channels / prod(degrees)
        return (TileShare(2.0 * outputs * self.window**2, None, 0.0, inputs, outputs),)


@dataclass(frozen=True)
class TransformerLayer:
    """Megatron's transformer layer: six GEMMs on inputs of B × S × H, split by degrees (N_d, N_m, 1, 1).

    Consecutive products are cut along n, then along k. Thus only every second one is reduced in each
    direction. A test asserts that the sums over the products are the row of Table III.
    """

    batch: int
    hidden: int
    sequence: int
    heads: int

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise PhazeError(f"transformer layer: heads must divide hidden {self.hidden}, got {self.heads}")

    def shares(self, degrees: Degrees) -> tuple[TileShare, ...]:
        """One tile's share of each of the six GEMMs."""
        d, t = degrees[:2]
        _check((("N_d", self.batch), ("N_m", self.heads), ("1", 1), ("1", 1)), degrees)
        hidden, head = self.hidden, self.hidden // self.heads
        return (
            *self._across(3 * hidden, hidden, d, t),
            self._attention(self.sequence, head, d, t),
            self._attention(head, self.sequence, d, t),
            *self._along(hidden, hidden, d, t),
            *self._across(4 * hidden, hidden, d, t),
            *self._along(hidden, 4 * hidden, d, t),
        )

    def _across(self, n: int, k: int, d: int, t: int) -> tuple[TileShare]:
        return Linear(self.batch, self.sequence, n, k).shares((d, 1, t, 1), ("d", "m", "t", "k"))

    def _along(self, n: int, k: int, d: int, t: int) -> tuple[TileShare]:
        return Linear(self.batch, self.sequence, n, k).shares((d, 1, 1, t), ("d", "m", "n", "t"))

    def _attention(self, n: int, k: int, d: int, t: int) -> TileShare:
        """One tile's share of an attention GEMM, which covers whole heads of whole samples."""
        (share,) = Linear(self.batch * self.heads, self.sequence, n, k, False).shares((d * t, 1, 1, 1))
        return replace(share, product=Gemm(_most(self.batch, d) * _most(self.heads, t), self.sequence, k, n))


@dataclass(frozen=True)
class CutOperator:
    """Operator of a model that is already cut for a group of tiles, with one tile's share of it."""

    name: str
    share: TileShare
    axes: tuple[TileAxis, ...]
    """Axes of the degrees by which it is cut."""

    def shares(self, _: Degrees) -> tuple[TileShare]:
        """One tile's share of the operator."""
        return (self.share,)


TileOperator = Linear | ConvolutionShape | Pool | TransformerLayer | CutOperator

AXES: dict[type[TileOperator], tuple[TileAxis, ...]] = {
    Linear: ("b", "m", "n", "k"),
    ConvolutionShape: ("b", "c", "i", "k"),
    Pool: ("b", "c", "i"),
    TransformerLayer: ("d", "t"),
}
"""Axes of each kind of operator, in the order of Table III."""


def axes_of(operator: TileOperator) -> tuple[TileAxis, ...]:
    """Axes of an operator's degrees, in order."""
    return operator.axes if isinstance(operator, CutOperator) else AXES[type(operator)]


def shares(operator: TileOperator, degrees: Degrees) -> tuple[TileShare, ...]:
    """One tile's share of every GEMM of an operator; raises `PhazeError` if degrees exceed dimensions."""
    if isinstance(operator, ConvolutionShape):
        return _convolution_shares(operator, degrees)
    return operator.shares(degrees)


def _most(size: int, parts: int) -> int:
    return -(-size // parts)


def wider_than_one(*reductions: Reduction) -> tuple[Reduction, ...]:
    """Collectives with several members per group."""
    return tuple(reduction for reduction in reductions if reduction.width > 1)


def _check(sizes: tuple[tuple[str, int], ...], degrees: Degrees) -> None:
    """Raise `PhazeError` if a dimension has fewer elements than parts."""
    for (axis, size), degree in zip(sizes, degrees, strict=True):
        if not 1 <= degree <= size:
            raise PhazeError(f"tiles: degree {axis} must be from 1 to {size}, got {degree}")


def communication_size(batch: int, sequence: int, hidden: int, layout: Layout) -> float:
    """Bytes all-reduced by a layer in 16 bits, 8 B S H N_m/N + 24 H²/N_m (PALM, Equation 6)."""
    tiles = layout.tp * layout.dp
    return 8.0 * batch * sequence * hidden * layout.tp / tiles + 24.0 * hidden**2 / layout.tp


def operators_of(model: AnyModel, samples: int, sequence: int = 1) -> tuple[TileOperator, ...]:
    """Operators of a model in the order of the forward pass; for a transformer, its blocks.

    Raises `PhazeError` if PALM's table lacks operators of the model.
    """
    if isinstance(model, ResNet):
        return tuple(_resnet(model, samples))
    if not isinstance(model, Model):
        raise PhazeError(f"model {model.name}: the tile level knows transformers and residual networks only")
    check_tiled(model, "tiled")
    return (TransformerLayer(samples, model.hidden, sequence, model.heads),) * model.layers


def _resnet(model: ResNet, samples: int) -> list[TileOperator]:
    """Operators of the stem, the bottleneck blocks (strided in their 3 × 3 convolution) and the head."""
    backbone, sizes = model.backbone, (-(-model.image // 4), *model.backbone.sizes(model.image))
    operators: list[TileOperator] = [
        ConvolutionShape(samples, model.channels, model.image, backbone.stem, window=7, stride=2),
        Pool(samples, backbone.stem, -(-model.image // 2), window=3, stride=2),
    ]
    for blocks, width, (before, after), (inside, out) in zip(
        backbone.blocks, backbone.widths, pairwise(sizes), pairwise((backbone.stem, *backbone.outputs)),
        strict=True,
    ):  # fmt: skip
        for size, channels in ((before, inside), *((after, out),) * (blocks - 1)):
            stride = size // after
            operators += [
                ConvolutionShape(samples, channels, size, width),
                ConvolutionShape(samples, width, size, width, window=3, stride=stride),
                ConvolutionShape(samples, width, -(-size // stride), out),
            ]
            if channels != out:
                operators.append(ConvolutionShape(samples, channels, size, out, stride=stride))
    last = sizes[-1]
    mean = Pool(samples, backbone.outputs[-1], last, window=last, stride=last)
    return [*operators, mean, Linear(samples, 1, model.classes, backbone.outputs[-1])]
