"""One tile's share of an operator: bytes kept in SRAM, bytes moved from and to DRAM, seconds of work.

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

Training is that of PALM's cases: Adam in mixed precision, activations recomputed, arrays at their peak.
Inference has the cycles of `cost.mapper.arrays` in the dataflow that suits a product best (Table II: WS, IS).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, inf
from typing import Literal, NamedTuple

from phaze.cost.mapper import arrays
from phaze.cost.memory import parameter_bytes, update_bytes
from phaze.spec.tiled import Tile
from phaze.tiles.operators import TileShare
from phaze.workload.primitives import Gemm

SramStrategy = Literal["S_WSG_ACT", "S_WSG", "S_ACT", "S_PTY"]
TRAINED = parameter_bytes("adam", "mixed")


class TileExecution(NamedTuple):
    """How a stage is executed."""

    training: bool = True
    """False: inference, which keeps no gradients, no optimizer states, and no activations for later."""
    in_flight: int = 1
    """Microbatches whose activations are kept, the one at work among them."""
    element_bytes: int = TRAINED.weights
    """Of weights and activations at work; 1 in inference with 8-bit integers."""
    shared: bool = False
    """In inference: whether a replica fetches a share of its weights, and gathers the others'."""


class TileBytes(NamedTuple):
    """Bytes that a tile holds of one operator."""

    weights: float
    gradients: float
    optimizer: float
    """States and full-precision weights."""
    inputs: float
    outputs: float

    @property
    def wsg(self) -> float:
        """Weights, optimizer states and gradients."""
        return self.weights + self.gradients + self.optimizer


class Access(NamedTuple):
    """Bytes that a tile moves from and to DRAM."""

    read_bytes: float = 0.0
    write_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Both ways."""
        return self.read_bytes + self.write_bytes


def tile_bytes(share: TileShare, execution: TileExecution) -> TileBytes:
    """Bytes of a share."""
    weights = share.weights / (share.replicas if execution.shared else 1) * execution.element_bytes
    activations = share.inputs * execution.element_bytes, share.outputs * execution.element_bytes
    if not execution.training:
        return TileBytes(weights, 0.0, 0.0, *activations)
    return TileBytes(
        weights, share.weights * TRAINED.gradients, share.weights * TRAINED.optimizer, *activations
    )


def held_bytes(operators: Sequence[TileBytes], execution: TileExecution) -> tuple[float, float]:
    """Bytes of WSG and of activations that a tile holds.

    An operator's output is the next one's input, so that activations are all inputs and the last output; of
    microbatches in flight beside the one at work only the first input is kept. Inference keeps nothing, and
    needs an input and its output at a time.
    """
    wsg = sum(each.wsg for each in operators)
    if not execution.training:
        return wsg, max(each.inputs + each.outputs for each in operators)
    one = sum(each.inputs for each in operators) + operators[-1].outputs
    return wsg, one + (execution.in_flight - 1) * operators[0].inputs


def allocate(wsg_bytes: float, activation_bytes: float, sram_bytes: float) -> SramStrategy:
    """Strategy of the text."""
    if wsg_bytes + activation_bytes <= sram_bytes:
        return "S_WSG_ACT"
    if wsg_bytes <= sram_bytes:
        return "S_WSG"
    return "S_ACT" if activation_bytes <= sram_bytes else "S_PTY"


def passed_bytes(inputs: float, weights: float, part_bytes: float) -> float:
    """Bytes of both operands under S_PTY: the larger once, the other for each part of it that fits."""
    stays, passes = (inputs, weights) if inputs >= weights else (weights, inputs)
    return stays + _parts(stays, part_bytes) * passes


def _parts(stays: float, part_bytes: float) -> int:
    return max(1, ceil(stays / part_bytes))


def forward_access(strategy: SramStrategy, op: TileBytes, part_bytes: float) -> Access:
    """Bytes that a forward pass of an operator moves."""
    if strategy == "S_WSG_ACT":
        return Access()
    if strategy == "S_ACT":
        return Access(op.weights)
    if strategy == "S_WSG":
        return Access(op.inputs, op.outputs)
    return Access(passed_bytes(op.inputs, op.weights, part_bytes), op.outputs)


def backward_access(strategy: SramStrategy, op: TileBytes, part_bytes: float) -> Access:
    """Bytes that a backward pass of an operator moves, without the forward pass that it does again.

    Under S_PTY, where samples of the input stay for the gradient of the weights, those of the output pass
    once, and sums are read and written for each part; where parts of the gradient stay, the input passes for
    each.
    """
    if strategy == "S_WSG_ACT":
        return Access()
    if strategy == "S_ACT":
        return Access(op.weights + op.gradients, op.gradients)
    if strategy == "S_WSG":
        return Access(2 * op.outputs + op.inputs, op.inputs)
    of_input = passed_bytes(op.outputs, op.weights, part_bytes)
    if op.inputs >= op.gradients:
        sums = _parts(op.inputs, part_bytes) * op.gradients
        return Access(of_input + (op.inputs + op.outputs + sums), op.inputs + sums)
    passes = _parts(op.gradients, part_bytes) * op.inputs
    return Access(of_input + (op.outputs + passes + op.gradients), op.inputs + op.gradients)


def update_access(strategy: SramStrategy, share: TileShare) -> Access:
    """Bytes that an update moves: weights and states both ways, unless they stay in SRAM."""
    if strategy in ("S_WSG_ACT", "S_WSG") or not share.weights:
        return Access()
    moved = update_bytes(share.weights, "adam", "mixed", 0, share.replicas)
    return Access(moved / 2, moved / 2)


def training_s(tile: Tile, share: TileShare, products: int) -> float:
    """Seconds of a pass of so many products with the share's FLOPs each."""
    return products * share.flops / tile.flops


def inference_s(tile: Tile, share: TileShare, element_bytes: int) -> float:
    """Seconds of a forward pass; what arrays cannot do runs on lanes, or at the peak without any."""
    if share.product is None:
        return share.flops / (tile.lanes * tile.clock_hz if tile.lanes else tile.flops)
    return product_s(tile, share.product, element_bytes)


@lru_cache(maxsize=4096)
def product_s(tile: Tile, product: Gemm, element_bytes: int) -> float:
    """Seconds of products with the dataflow that is done first, by its array or its SRAM."""
    m, k, n = product.m, product.k, product.n
    streams = (arrays.WEIGHT, m, k, n), (arrays.INPUT, n, k, m)
    return min(_mapped_s(tile, product, element_bytes, *some) for some in streams)


def _mapped_s(
    tile: Tile, product: Gemm, element_bytes: int, dataflow: int, stream: int, down: int, across: int
) -> float:
    """Seconds of products in one dataflow, by what streams and what lies down and across an array."""
    folds_down, folds_across = -(-down // tile.pe_x), -(-across // tile.pe_y)
    start = arrays.start_cycles(dataflow, float(tile.pe_x), float(tile.pe_y))
    folds = product.batch * folds_down * folds_across
    cycles = arrays.pass_cycles(start, 1.0, float(stream), float(folds))
    words = product.batch * arrays.array_words(
        dataflow,
        float(product.m * product.k),
        float(product.k * product.n),
        float(product.m * product.n),
        1.0,
        float(folds_down),
        float(folds_across),
    )
    sram_s = words * element_bytes / (tile.sram_bandwidth_bytes_per_s or inf)
    return max(cycles / tile.clock_hz, sram_s)
