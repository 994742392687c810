"""What one tile takes for its share of an operator: bytes kept in SRAM, moved from and to DRAM, seconds.

The strategies of the text (PALM, IV.C.1), in their order, for the operators that a tile has:

    S_WSG_ACT   weights, optimizer states, gradients and activations fit together: nothing moves
    S_WSG       weights, optimizer states and gradients fit: activations stream
    S_ACT       activations fit: weights stream
    S_PTY       neither fits: operands that do not stay are fetched again and again

Under S_PTY one operand stays in parts of the SRAM's size, and the other passes once for each part: the input
where it is no smaller than the weights (IS), else the weights (WS). Algorithm 1 as printed is another: a test
compares both. With parts of unlimited size every operand passes once.

Bytes are per microbatch for a pass and per batch for the update. A backward pass is two products: the
gradient of the input from that of the output and the weights, and the gradient of the weights from that of
the output and the input, which is added to what earlier microbatches left: that is read and written.
Cycles of arrays are those of `cost.mapper.arrays`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Literal, get_args

from phaze.base.errors import PhazeError
from phaze.cost.mapper import arrays
from phaze.cost.memory import Optimizer, parameter_bytes, update_bytes
from phaze.layout import Precision, Zero
from phaze.tiles.chip import DATAFLOWS, Tile
from phaze.tiles.operators import Product, Share

Strategy = Literal["S_WSG_ACT", "S_WSG", "S_ACT", "S_PTY"]
Stationary = Literal["input", "weight"]


def one_of(noun: str, name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise `PhazeError` where a value is not one of those allowed."""
    if value not in allowed:
        raise PhazeError(f"{noun}: {name} must be one of {', '.join(map(str, allowed))}, got {value}")


@dataclass(frozen=True)
class Training:
    """What is done with the operators, as far as memory is concerned."""

    backward: bool = True
    """False: inference, which keeps no gradients, no optimizer states, and no activations for later."""
    optimizer: Optimizer = "adam"
    precision: Precision = "mixed"
    zero: Zero = 0
    recompute: bool = False
    """Keep only the first input of a microbatch, and do the forward pass again before the backward pass."""
    in_flight: int = 1
    """Microbatches whose activations are kept, the one at work among them."""
    element_bytes: int | None = None
    """Of inference: bytes of weights and activations that are not those of the precision, 1 for int8."""
    states: bool = True
    """Whether an update moves more than full-precision weights, which is all in PALM's text."""

    def __post_init__(self) -> None:
        for name, allowed in (("optimizer", Optimizer), ("precision", Precision), ("zero", Zero)):
            one_of("training", name, getattr(self, name), get_args(allowed))
        if self.in_flight < 1:
            raise PhazeError(f"training: in_flight must be ≥ 1, got {self.in_flight}")
        if self.element_bytes is not None and (self.backward or self.element_bytes < 1):
            raise PhazeError(
                f"training: element_bytes must be ≥ 1 and of inference, got {self.element_bytes}"
            )

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight at work, not of a full-precision copy."""
        return self.activation_bytes

    @property
    def activation_bytes(self) -> int:
        """Bytes of an element of an activation."""
        return self.element_bytes or parameter_bytes("sgd", self.precision).weights


@dataclass(frozen=True)
class Sizes:
    """Bytes that a tile holds of one operator."""

    weights: float
    gradients: float
    optimizer: float
    """States, and full-precision weights where they are held beside."""
    inputs: float
    outputs: float

    @property
    def wsg(self) -> float:
        """Weights, optimizer states and gradients."""
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True)
class Access:
    """Bytes that a tile moves from and to DRAM."""

    read_bytes: float = 0.0
    write_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Both ways."""
        return self.read_bytes + self.write_bytes

    def __add__(self, other: Access) -> Access:
        return Access(self.read_bytes + other.read_bytes, self.write_bytes + other.write_bytes)


def sizes(share: Share, training: Training) -> Sizes:
    """Return the bytes of a share; ZeRO divides states, gradients, weights over the replicas in turn."""
    each = parameter_bytes(training.optimizer, training.precision)
    data = share.replicas
    owned = [share.weights / (data if training.zero >= stage else 1) for stage in (3, 2, 1)]
    element = training.activation_bytes
    return Sizes(
        owned[0] * training.weight_bytes,
        owned[1] * each.gradients * training.backward,
        owned[2] * each.optimizer * training.backward,
        share.inputs * element,
        share.outputs * element,
    )


def held(operators: Sequence[Sizes], training: Training) -> tuple[float, float]:
    """Return the bytes of WSG and of activations that a tile holds.

    An operator's output is the next one's input, so that activations are all inputs and the last output, for
    every microbatch in flight. With recompute those in flight beside the one at work keep the first input
    only; inference keeps nothing, and needs an input and its output at a time.
    """
    wsg = sum(each.wsg for each in operators)
    if not training.backward:
        return wsg, max((each.inputs + each.outputs for each in operators), default=0.0)
    if not operators:
        return wsg, 0.0
    one = sum(each.inputs for each in operators) + operators[-1].outputs
    waiting = operators[0].inputs if training.recompute else one
    return wsg, one + (training.in_flight - 1) * waiting


def allocate(wsg_bytes: float, activation_bytes: float, sram_bytes: float) -> Strategy:
    """Return the strategy of the text."""
    if wsg_bytes + activation_bytes <= sram_bytes:
        return "S_WSG_ACT"
    if wsg_bytes <= sram_bytes:
        return "S_WSG"
    return "S_ACT" if activation_bytes <= sram_bytes else "S_PTY"


def stationary(inputs: float, weights: float) -> Stationary:
    """Return what stays under S_PTY: the input where ACT ≥ W."""
    return "input" if inputs >= weights else "weight"


def passed_bytes(inputs: float, weights: float, sram_bytes: float) -> float:
    """Return the bytes of both operands under S_PTY: one once, the other for each part of it that fits."""
    stays, passes = (inputs, weights) if stationary(inputs, weights) == "input" else (weights, inputs)
    return stays + _parts(stays, sram_bytes) * passes


def _parts(stays: float, sram_bytes: float) -> int:
    """Return in how many parts an operand stays."""
    return max(1, ceil(stays / sram_bytes))


def forward_access(strategy: Strategy, op: Sizes, sram_bytes: float) -> Access:
    """Return what a forward pass of an operator moves."""
    if strategy == "S_WSG_ACT":
        return Access()
    if strategy == "S_ACT":
        return Access(op.weights)
    if strategy == "S_WSG":
        return Access(op.inputs, op.outputs)
    return Access(passed_bytes(op.inputs, op.weights, sram_bytes), op.outputs)


def backward_access(strategy: Strategy, op: Sizes, sram_bytes: float) -> Access:
    """Return what a backward pass of an operator moves, without the forward pass that it may do again."""
    if strategy == "S_WSG_ACT":
        return Access()
    if strategy == "S_ACT":
        return Access(op.weights + op.gradients, op.gradients)
    if strategy == "S_WSG":
        return Access(2 * op.outputs + op.inputs, op.inputs)
    of_input = Access(passed_bytes(op.outputs, op.weights, sram_bytes), op.inputs)
    return of_input + gradient_access(op, sram_bytes)


def gradient_access(op: Sizes, sram_bytes: float) -> Access:
    """Return what the gradient of the weights moves under S_PTY.

    Where samples of the input stay, those of the output pass once, and sums are read and written for each
    part; where parts of the gradient stay, the input passes for each.
    """
    if stationary(op.inputs, op.gradients) == "input":
        sums = _parts(op.inputs, sram_bytes) * op.gradients
        return Access(op.inputs + op.outputs + sums, sums)
    passes = _parts(op.gradients, sram_bytes) * op.inputs
    return Access(op.outputs + passes + op.gradients, op.gradients)


def update_access(strategy: Strategy, share: Share, training: Training) -> Access:
    """Return what an update moves: nothing where weights and states stay in SRAM.

    Full-precision weights are loaded and stored back; with `states` gradients and states are loaded as well,
    and states and weights of working precision stored. With ZeRO a replica updates its part.
    """
    if strategy in ("S_WSG_ACT", "S_WSG") or not training.backward or not share.weights:
        return Access()
    data = share.replicas
    moved = update_bytes(
        share.weights, training.optimizer, training.precision, training.zero, data, states=training.states
    )
    each = parameter_bytes(training.optimizer, training.precision)
    stored = each.weights if training.precision == "mixed" else 0
    more = (each.gradients - stored) * share.weights / (data if training.zero else 1) * training.states
    return Access((moved + more) / 2, (moved - more) / 2)


Rate = Literal["array", "peak"]
"""array: cycles of the dataflow that suits a product best; peak: FLOPs over the peak, as PALM has."""


@dataclass(frozen=True)
class Work:
    """Seconds for which the parts of a tile are busy at the same time."""

    compute_s: float = 0.0
    sram_s: float = 0.0
    sram_bytes: float = 0.0
    """Between SRAM and arrays; not known at the peak rate."""

    @property
    def busy_s(self) -> float:
        """Until the slower one is done."""
        return max(self.compute_s, self.sram_s)

    def __add__(self, other: Work) -> Work:
        return Work(
            self.compute_s + other.compute_s,
            self.sram_s + other.sram_s,
            self.sram_bytes + other.sram_bytes,
        )


def forward_work(tile: Tile, share: Share, element_bytes: int, rate: Rate = "array") -> Work:
    """Return the forward pass of a share; what arrays cannot do runs on lanes, or at the peak without any."""
    if not share.products or rate == "peak":
        lanes_per_s = tile.lanes * tile.clock_hz
        speed = tile.peak_flops_per_s if share.products or not tile.lanes else lanes_per_s
        return Work(share.flops / speed)
    return _sum(tile, share.products, element_bytes)


def backward_work(tile: Tile, share: Share, element_bytes: int, rate: Rate = "array") -> Work:
    """Return the backward pass of a share: two products for each one, as many FLOPs as they have."""
    if not share.products:
        return forward_work(tile, share, element_bytes, rate)
    if rate == "peak":
        again = sum(product.flops for product in share.again)
        return Work((2 * share.flops + again) / tile.peak_flops_per_s)
    both = tuple(product for some in share.products for product in some.gradients)
    return _sum(tile, share.again + both, element_bytes)


def _sum(tile: Tile, products: tuple[Product, ...], element_bytes: int) -> Work:
    found = [product_work(tile, product, element_bytes) for product in products]
    return sum(found, Work())


@lru_cache(maxsize=4096)
def product_work(tile: Tile, product: Product, element_bytes: int) -> Work:
    """Return the work of a product with the dataflow that is done first."""
    options = [_mapped(tile, product, DATAFLOWS[name], element_bytes) for name in tile.dataflows]
    return min(options, key=lambda work: (work.busy_s, work.compute_s))


def _mapped(tile: Tile, product: Product, dataflow: int, element_bytes: int) -> Work:
    """Return the work of a product in one dataflow, its folds shared out among the arrays.

    Where there are fewer folds than arrays, several arrays hold the same fold and divide the stream.
    """
    stream, down, across = _loops(product, dataflow)
    folds_down, folds_across = -(-down // tile.rows), -(-across // tile.columns)
    folds = product.count * folds_down * folds_across
    copies = max(1, tile.arrays // folds)
    start = arrays.start_cycles(dataflow, float(tile.rows), float(tile.columns))
    each = -(-folds // tile.arrays)
    cycles = arrays.pass_cycles(start, 1.0, float(-(-stream // copies)), float(each))
    words = product.count * arrays.array_words(
        dataflow,
        float(product.m * product.k),
        float(product.k * product.n),
        float(product.m * product.n),
        1.0,
        float(folds_down),
        float(folds_across),
    )
    size = words * element_bytes
    return Work(cycles / tile.clock_hz, size / tile.sram_bandwidth_bytes_per_s, size)


def _loops(product: Product, dataflow: int) -> tuple[int, int, int]:
    """Return what streams, and what lies down and across an array."""
    m, k, n = product.m, product.k, product.n
    if dataflow == arrays.WEIGHT:
        return m, k, n
    return (k, m, n) if dataflow == arrays.OUTPUT else (n, k, m)
