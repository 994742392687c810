"""Time of expert GEMMs and of whole mixture-of-experts feed-forward networks on one rank.

A kernel distributes the tiles of all experts over the processors in waves. The rows of each expert are padded
to whole blocks, so experts with few rows are slow. They also read all their weights for few rows and are then
HBM-bound. Arithmetic and HBM traffic overlap in part: the time is the root of the sum of squares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Floats
from phaze.cost.memory import HALF
from phaze.cost.products import Products, speed_of
from phaze.layout import OPERAND_BYTES, Compute
from phaze.spec.speeds.experts import ExpertKernel, Experts, ExpertSpeed
from phaze.spec.system import Device

TILE = 128
"""Rows and columns of an output tile (CUTLASS grouped GEMM; DeepGEMM, `get_best_config`)."""
FILL = 64
"""Overhead per tile (start, storing results), expressed as additional steps along k."""
NEAREST: dict[Compute, Compute] = {"fp8-cs": "fp8", "mxfp8": "fp8", "fp8-block": "fp8"}
"""Substitute precision, for devices without constants for the requested precision."""


@dataclass(frozen=True, eq=False)
class ExpertRows:
    """Dispatched tokens (rows) of a rank's experts, aggregated for the kernels; each field (R,)."""

    rows: Floats
    """Total number of rows over all experts."""
    tiles: Floats
    """Number of tiles along the rows; the rows of each expert are padded to whole blocks."""
    experts: Floats
    """Number of experts with at least one row; only their weights are read."""
    most: Floats
    """Number of rows of the busiest expert."""

    @classmethod
    def of(cls, rows: Floats, block: int = TILE) -> ExpertRows:
        """Aggregate row counts by expert, (R, experts on the rank), padded to multiples of `block`."""
        return cls(
            rows.sum(axis=1), _padded_tiles(rows, block).sum(axis=1),
            (rows >= 1).sum(axis=1).astype(float), rows.max(axis=1),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class ExpertNetwork:
    """Dimensions of expert feed-forward networks; each field (R,)."""

    tokens: Floats
    """Number of input tokens, equal to the output tokens after the weighted sum."""
    hidden: Floats
    width: Floats
    gated: Floats
    """1 for gated networks (two input projections), otherwise 0."""


def expert_speed(device: Device, experts: Experts | ExpertKernel, compute: Compute) -> ExpertSpeed | None:
    """Speed constants of an expert kernel in a given precision; None if the device has none.

    Half-precision constants are scaled to a lower precision by the ratio of peak fractions that dense
    products reach.
    """
    # `fused` only joins the activation to the kernel; its GEMMs are those of `grouped`.
    speeds = device.experts.get("grouped" if experts == "fused" else experts)
    if not speeds:
        return None
    for precision in (compute, NEAREST.get(compute, compute)):
        if precision in speeds:
            return speeds[precision]
    if "bf16" not in speeds or compute not in device.products:
        return None
    half = speeds["bf16"]
    # The lower precision loses the same part of its peak in expert GEMMs as in dense ones.
    share = device.products[compute].reached / device.products["bf16"].reached
    return half.model_copy(update={"reached": min(half.reached * share, 1.0)})


def _padded_tiles(rows: Floats, block: int) -> Floats:
    """Number of tiles along the rows of experts that are padded to multiples of `block`."""
    tiles: Floats = np.ceil(rows / block) * (block / TILE)
    return tiles


def arithmetic_s(
    tiles: Floats, terms: Floats, speed: ExpertSpeed, device: Device, compute: Compute
) -> Floats:
    """Tensor-core time of tiles with `terms` steps along k, run in waves on the SMs, in seconds, (R,)."""
    rate = 2.0 * device.pe_x * device.pe_y * device.clock_hz * device.sustained_clock
    tile_s = 2.0 * TILE * TILE * (terms + FILL) / (rate * speed_of(device, compute).times * speed.reached)
    return np.ceil(tiles / device.num_tc) * tile_s


def moved_s(nbytes: Floats, share: float, device: Device) -> Floats:
    """Time to move bytes at a fraction of the HBM bandwidth, in seconds, (R,)."""
    return nbytes / (device.hbm_bandwidth_bytes_per_s * share)


def expert_times(products: Products, device: Device, speed: ExpertSpeed) -> Floats:
    """Time of expert GEMMs batched over a rank's experts, in seconds, (W, 3): tensor cores, HBM, launch.

    The rate is capped at that of dense products: expert kernels were measured with weights that were never
    loaded, so the arrays sustained a higher clock than the power limit allows with real data. Accumulated
    gradients are read and written. All time but the start is attributed to the slower of arrays and HBM.
    """
    dense = speed_of(device, products.compute)
    reached = min(speed.reached, dense.reached)
    return products_s(products, device, speed.model_copy(update={"reached": reached}))


def products_s(products: Products, device: Device, speed: ExpertSpeed) -> Floats:
    """Time of expert GEMMs as in `expert_times`, with the given constants and without the rate cap."""
    experts, m, k, n = products.shapes.T.astype(float)
    width, compute = float(products.bytes_per_element), products.compute
    # Only operands are cast; results keep the width of an element.
    operand = width if compute == "bf16" else OPERAND_BYTES[compute]
    # Weight gradients are added to a gradient that is already there: traffic beyond writing the result.
    result = width + products.by_rows * products.added_bytes
    tiles = experts * _padded_tiles(m, speed.block) * np.ceil(n / TILE)
    computed = arithmetic_s(tiles, k, speed, device, compute)
    moved = moved_s(experts * ((m * k + k * n) * operand + m * n * result), speed.hbm, device)
    seconds, binds = np.hypot(computed, moved), computed >= moved
    start_s = speed_of(device, compute).start_s + experts * speed.expert_s
    return np.stack([seconds * binds, seconds * ~binds, start_s], axis=1)


def feed_forward_s(
    loads: ExpertRows, network: ExpertNetwork, device: Device, speed: ExpertSpeed, compute: Compute
) -> Floats:
    """Forward time of a rank's expert feed-forward networks, in seconds, (R,).

    Steps: gather and cast rows, multiply, activate and cast, multiply, sum a token's rows by their weights.
    """
    operand, rows = OPERAND_BYTES[compute], loads.rows
    # Where every expert has a fixed number of blocks, the expert with the most rows ends last.
    seconds = np.full(len(rows), speed.start_s) + loads.most * speed.row_s
    hidden, width, inputs = network.hidden, network.width, 1 + network.gated
    for terms, columns in ((hidden, width * inputs), (width, hidden)):
        tiles = loads.tiles * np.ceil(columns / TILE)
        nbytes = loads.experts * terms * columns * operand + rows * (terms * operand + columns * HALF)
        seconds += np.hypot(
            arithmetic_s(tiles, terms, speed, device, compute), moved_s(nbytes, speed.hbm, device)
        )
    gathered = hidden * (HALF + operand)
    activated = width * (inputs * HALF + operand)
    passed = rows * (gathered + activated + hidden * HALF) + network.tokens * hidden * HALF
    return seconds + loads.experts * speed.expert_s + moved_s(passed, speed.passes or speed.hbm, device)
