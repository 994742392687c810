"""One tile's share of an operator: bytes stored in SRAM, DRAM traffic, and compute time.

The strategies of PALM's text (IV.C.1) for the operators of a tile, in order of preference:

    S_WSG_ACT   weights, optimizer states, gradients and activations fit together: nothing moves
    S_WSG       weights, optimizer states and gradients fit: activations stream
    S_ACT       activations fit: weights stream
    S_PTY       neither fits: operands that do not stay are fetched repeatedly

Under S_PTY one operand stays in SRAM, part by part, and the other streams once per part. The input stays if
it is at least as large as the weights (IS), else the weights (WS). Algorithm 1 as printed differs: a test
compares both. With parts of unlimited size each operand is fetched once.

Bytes are per microbatch for a pass and per batch for the update. A backward pass is two products. The input
gradient is computed from the output gradient and the weights. The weight gradient is computed from the output
gradient and the input, and added to the sum of earlier microbatches, which is read and written.

Training has arrays at their peak, as PALM's cases, which use Adam in mixed precision and recompute
activations. Vector operations of an operator run on the vector lanes next to the array, and read and write
its tensors at the bandwidth of the SRAM; an operator takes as long as the longest of the three. A tile
without lanes or without a bandwidth takes no time for them, as in PALM.

Inference uses the cycles of `cost.mapper.arrays` in the fastest dataflow of each product (Table II: WS, IS).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, inf
from typing import Literal, NamedTuple

from phaze.cost.mapper import arrays
from phaze.cost.memory import (
    ParameterBytes,
    parameter_bytes,
    sharers,
    update_bytes,
)
from phaze.layout import Optimizer, Precision, Zero
from phaze.spec.rows import Gemm
from phaze.spec.tiled import Tile
from phaze.tiles.operators import TileShare

SramStrategy = Literal["S_WSG_ACT", "S_WSG", "S_ACT", "S_PTY"]
TRAINED = parameter_bytes("adam", "mixed")


class TileExecution(NamedTuple):
    """Execution options of a stage."""

    training: bool = True
    """False for inference, which stores no gradients, no optimizer states and no stashed activations."""
    in_flight: int = 1
    """Microbatches with stored activations, including the current one."""
    element_bytes: int = TRAINED.weights
    """Bytes per element of weights and activations in compute; 1 in inference with 8-bit integers."""
    shared: bool = False
    """True if each replica fetches a share of the weights and gathers the rest (inference only)."""
    optimizer: Optimizer = "adam"
    precision: Precision = "mixed"
    zero: Zero = 0
    """ZeRO stage: states of weights that replicas shard."""
    recompute: bool = True
    """True if the backward pass recomputes activations, and microbatches in flight store their input only."""
    cached: bool = False
    """True if inference holds what operators store: keys and values of earlier tokens."""

    @property
    def size(self) -> ParameterBytes:
        """Bytes per parameter of weights, gradients and optimizer states."""
        return parameter_bytes(self.optimizer, self.precision)

    @property
    def gathers(self) -> bool:
        """True if every pass gathers weights that replicas shard."""
        return self.zero >= 3 if self.training else self.shared


class TileBytes(NamedTuple):
    """Bytes of one operator's tensors on a tile."""

    weights: float
    gradients: float
    optimizer: float
    """Optimizer states and full-precision weights."""
    inputs: float
    outputs: float
    stored: float | None = None
    """Bytes stored per microbatch for the backward pass; None: the inputs."""
    fetched_share: float = 1.0
    """Share of the weights that a pass reads, and whose gradients it updates."""

    @property
    def stash(self) -> float:
        """Bytes stored per microbatch for the backward pass."""
        return self.inputs if self.stored is None else self.stored

    @property
    def wsg(self) -> float:
        """Bytes of weights, optimizer states and gradients (PALM's WSG)."""
        return self.weights + self.gradients + self.optimizer


class Access(NamedTuple):
    """DRAM traffic of a tile, in bytes."""

    read_bytes: float = 0.0
    write_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes


def tile_bytes(share: TileShare, execution: TileExecution) -> TileBytes:
    """Bytes by tensor of a tile's share of an operator."""
    replicas, size, element_bytes = share.replicas, execution.size, execution.element_bytes
    inputs, outputs = share.inputs * element_bytes, share.outputs * element_bytes
    stored = None if share.stored is None else share.stored * element_bytes
    if not execution.training:
        weights = share.weights / (replicas if execution.shared else 1) * element_bytes
        return TileBytes(weights, 0.0, 0.0, inputs, outputs, stored, share.fetched_share)
    zero = execution.zero
    return TileBytes(
        share.weights * size.weights / sharers(replicas, zero, 3),
        share.weights * size.gradients / sharers(replicas, zero, 2),
        share.weights * size.optimizer / sharers(replicas, zero, 1),
        inputs,
        outputs,
        stored,
        share.fetched_share,
    )


def held_bytes(
    operators: Sequence[TileBytes], execution: TileExecution, entering_bytes: float
) -> tuple[float, float]:
    """Bytes of WSG (weights, optimizer states, gradients) and of activations on a tile.

    The current microbatch has all tensors stored for the backward pass (the inputs of Table III's operators)
    and the last output. The other microbatches in flight store the same, or only the `entering_bytes` of the
    stage if they are recomputed. Inference stores keys and values of earlier tokens, if there are any, and
    else needs the input and the output of one operator at a time.
    """
    wsg = sum(operator.wsg for operator in operators)
    if not execution.training:
        cache = sum(operator.stash for operator in operators) if execution.cached else 0.0
        return wsg, cache + max(operator.inputs + operator.outputs for operator in operators)
    stored = sum(operator.stash for operator in operators)
    waiting = entering_bytes if execution.recompute else stored
    return wsg, stored + operators[-1].outputs + (execution.in_flight - 1) * waiting


def allocate(wsg_bytes: float, activation_bytes: float, sram_bytes: float) -> SramStrategy:
    """First allocation strategy listed by PALM (Section IV.C.1) that fits in SRAM."""
    if wsg_bytes + activation_bytes <= sram_bytes:
        return "S_WSG_ACT"
    if wsg_bytes <= sram_bytes:
        return "S_WSG"
    return "S_ACT" if activation_bytes <= sram_bytes else "S_PTY"


def passed_bytes(inputs: float, weights: float, part_bytes: float) -> float:
    """Bytes read if no operand fits (S_PTY): the larger once, the smaller once per part of the larger."""
    stays, passes = (inputs, weights) if inputs >= weights else (weights, inputs)
    return stays + _parts(stays, part_bytes) * passes


def _parts(stays: float, part_bytes: float) -> int:
    return max(1, ceil(stays / part_bytes))


def forward_access(strategy: SramStrategy, op: TileBytes, part_bytes: float) -> Access:
    """DRAM traffic of a forward pass of an operator."""
    if strategy == "S_WSG_ACT":
        return Access()
    weights = op.weights * op.fetched_share
    if strategy == "S_ACT":
        return Access(weights)
    if strategy == "S_WSG":
        return Access(op.inputs, op.outputs)
    return Access(passed_bytes(op.inputs, weights, part_bytes), op.outputs)


def backward_access(strategy: SramStrategy, op: TileBytes, part_bytes: float) -> Access:
    """DRAM traffic of a backward pass of an operator, without recomputation.

    Under S_PTY, the weight gradient keeps the larger of input and gradient in SRAM, part by part. If parts of
    the input stay, the output gradient streams once and the sums are read and written once per part. If parts
    of the gradient stay, the input streams once per part.
    """
    if strategy == "S_WSG_ACT":
        return Access()
    weights, gradients = op.weights * op.fetched_share, op.gradients * op.fetched_share
    if strategy == "S_ACT":
        return Access(weights + gradients, gradients)
    if strategy == "S_WSG":
        return Access(2 * op.outputs + op.inputs, op.inputs)
    of_input = passed_bytes(op.outputs, weights, part_bytes)
    if op.inputs >= gradients:
        sums = _parts(op.inputs, part_bytes) * gradients
        return Access(of_input + (op.inputs + op.outputs + sums), op.inputs + sums)
    passes = _parts(gradients, part_bytes) * op.inputs
    return Access(of_input + (op.outputs + passes + gradients), op.inputs + gradients)


def update_access(strategy: SramStrategy, share: TileShare, execution: TileExecution) -> Access:
    """DRAM traffic of an update: weights and states are read and written, unless they stay in SRAM."""
    if strategy in ("S_WSG_ACT", "S_WSG") or not share.weights:
        return Access()
    moved = update_bytes(
        share.weights, execution.optimizer, execution.precision, execution.zero, share.replicas
    )
    return Access(moved / 2, moved / 2)


def forward_s(tile: Tile, share: TileShare, element_bytes: int) -> float:
    """Compute time in s of a forward pass in training."""
    return max(share.flops / tile.flops, _vector_s(tile, share, share.vector_cycles, element_bytes))


def backward_s(tile: Tile, share: TileShare, element_bytes: int) -> float:
    """Compute time in s of a backward pass, by default with twice the FLOPs of the forward pass."""
    flops = 2 * share.flops if share.backward_flops is None else share.backward_flops
    return max(flops / tile.flops, _vector_s(tile, share, share.backward_cycles, element_bytes))


def _vector_s(tile: Tile, share: TileShare, cycles: float, element_bytes: int) -> float:
    """Time in s of a pass's vector operations: on the lanes, and to move their tensors through SRAM."""
    if not cycles:
        return 0.0
    lanes_s = cycles / (tile.lanes * tile.clock_hz) if tile.lanes else 0.0
    moved = (share.inputs + share.outputs) * element_bytes
    return max(lanes_s, moved / (tile.sram_bandwidth_bytes_per_s or inf))


def inference_s(tile: Tile, share: TileShare, element_bytes: int) -> float:
    """Compute time in s of a forward pass.

    Operators that arrays cannot run use the vector lanes, or the peak of the tile if it has no lanes.
    """
    vector_s = _vector_s(tile, share, share.vector_cycles, element_bytes)
    if share.product is None:
        return max(vector_s, share.flops / (tile.lanes * tile.clock_hz if tile.lanes else tile.flops))
    return max(vector_s, product_s(tile, share.product, element_bytes))


@lru_cache(maxsize=4096)
def product_s(tile: Tile, product: Gemm, element_bytes: int) -> float:
    """Time in s of a batched GEMM with its fastest dataflow, bound by the array or by its SRAM."""
    m, k, n = product.m, product.k, product.n
    streams = (arrays.WEIGHT, m, k, n), (arrays.INPUT, n, k, m)
    return min(_mapped_s(tile, product, element_bytes, *stream) for stream in streams)


def _mapped_s(
    tile: Tile, product: Gemm, element_bytes: int, dataflow: int, stream: int, down: int, across: int
) -> float:
    """Time in s of a batched GEMM in one dataflow.

    `stream`, `down` and `across` are the dimensions that stream through the array and that lie along it.
    """
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
