"""Time of the products of experts, and of a whole feed-forward network of experts, on one rank.

A kernel shares out the tiles of all experts among the processors, in waves. Rows of an expert are padded to
whole tiles, so that experts with few rows are slow; they also read their weights for few rows, which binds
at the HBM. Both overlap in part: the time is the root of the sum of squares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Floats
from phaze.cost.products import Products, speed_of
from phaze.layout import OPERAND_BYTES, Compute
from phaze.spec.speeds.experts import ExpertKernel, Experts, ExpertSpeed
from phaze.spec.system import Device

TILE = 128
"""Rows and columns of a tile of the result (CUTLASS grouped GEMM; DeepGEMM, `get_best_config`)."""
FILL = 64
"""Terms of a sum that go by while a tile starts and its results are stored."""
HALF = 2
"""Bytes of a number in half precision, in which results are written."""
NEAREST: dict[Compute, Compute] = {"fp8-cs": "fp8", "mxfp8": "fp8", "fp8-block": "fp8"}
"""Precision whose constants hold where a device has none of its own."""


@dataclass(frozen=True, eq=False)
class ExpertRows:
    """Rows of the experts of a rank, summed as kernels need them; each field (R,)."""

    rows: Floats
    """Rows of all experts."""
    tiles: Floats
    """Tiles along the rows: each expert's rows are padded to whole ones."""
    experts: Floats
    """Experts with at least one row, whose weights are read."""
    most: Floats
    """Rows of the expert with most of them."""

    @classmethod
    def of(cls, rows: Floats) -> ExpertRows:
        """ExpertRows of rows by expert, (R, experts of the rank)."""
        return cls(
            rows.sum(axis=1), np.ceil(rows / TILE).sum(axis=1), (rows >= 1).sum(axis=1).astype(float),
            rows.max(axis=1),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class ExpertNetwork:
    """Feed-forward networks of experts; each field (R,)."""

    tokens: Floats
    """Tokens that enter, and leave summed."""
    hidden: Floats
    width: Floats
    gated: Floats
    """1 where two projections are multiplied, else 0."""


def expert_speed(device: Device, experts: Experts | ExpertKernel, compute: Compute) -> ExpertSpeed | None:
    """Constants of a kernel in a precision; None where the device has none.

    Those of each expert's own products are known in half precision; lower ones reach the same share of what
    dense products do.
    """
    speeds = device.experts.get("grouped" if experts == "fused" else experts)
    if not speeds:
        return None
    for word in (compute, NEAREST.get(compute, compute)):
        if word in speeds:
            return speeds[word]
    if "bf16" not in speeds or compute not in device.products:
        return None
    half = speeds["bf16"]
    share = device.products[compute].reached / device.products["bf16"].reached
    return half.model_copy(update={"reached": min(half.reached * share, 1.0)})


def arithmetic_s(
    tiles: Floats, terms: Floats, speed: ExpertSpeed, device: Device, compute: Compute
) -> Floats:
    """Seconds in which the arrays make tiles of sums of so many terms, (R,), in waves over the processors."""
    rate = 2.0 * device.pe_x * device.pe_y * device.clock_hz * device.sustained_clock
    each = 2.0 * TILE * TILE * (terms + FILL) / (rate * speed_of(device, compute).times * speed.reached)
    found: Floats = np.ceil(tiles / device.num_tc) * each
    return found


def moved_s(nbytes: Floats, share: float, device: Device) -> Floats:
    """Seconds in which bytes go over the HBM at a share of its bandwidth, (R,)."""
    return nbytes / (device.hbm_bandwidth_bytes_per_s * share)


def expert_times(products: Products, device: Device, speed: ExpertSpeed) -> Floats:
    """Seconds of products of experts by arrays, HBM and start, (W, 3), each a batch of the experts of a rank.

    They reach at most what dense products do: the weights of measured networks of experts were never loaded,
    so that arrays keep a higher clock than power allows with numbers. Gradients that are added up are read
    and written. Either the arrays or the HBM have all of the time but the start, whichever takes longer.
    """
    dense = speed_of(device, products.compute)
    reached = min(speed.reached, dense.reached)
    return products_s(products, device, speed.model_copy(update={"reached": reached}))


def products_s(products: Products, device: Device, speed: ExpertSpeed) -> Floats:
    """The same of kernels with these constants."""
    experts, m, k, n = products.shapes.T.astype(float)
    width, compute = float(products.bytes_per_element), products.compute
    operand = width if compute == "bf16" else OPERAND_BYTES[compute]
    result = width + products.by_rows * products.added_bytes
    tiles = experts * np.ceil(m / TILE) * np.ceil(n / TILE)
    computed = arithmetic_s(tiles, k, speed, device, compute)
    moved = moved_s(experts * ((m * k + k * n) * operand + m * n * result), speed.hbm, device)
    seconds, binds = np.hypot(computed, moved), computed >= moved
    start_s = speed_of(device, compute).start_s + experts * speed.expert_s
    return np.stack([seconds * binds, seconds * ~binds, start_s], axis=1)


def feed_forward_s(
    loads: ExpertRows, own: ExpertNetwork, device: Device, speed: ExpertSpeed, compute: Compute
) -> Floats:
    """Seconds of whole feed-forward networks of experts on a rank, forward, (R,).

    Gather and cast rows, multiply, activate and cast, multiply, sum a token's rows by their weights.
    """
    operand, rows = OPERAND_BYTES[compute], loads.rows
    seconds = np.full(len(rows), speed.start_s) + loads.most * speed.row_s
    for terms, columns in ((own.hidden, own.width * (1 + own.gated)), (own.width, own.hidden)):
        tiles = loads.tiles * np.ceil(columns / TILE)
        nbytes = loads.experts * terms * columns * operand + rows * (terms * operand + columns * HALF)
        seconds += np.hypot(
            arithmetic_s(tiles, terms, speed, device, compute), moved_s(nbytes, speed.hbm, device)
        )
    gathered = own.hidden * (HALF + operand)
    activated = own.width * ((1 + own.gated) * HALF + operand)
    passed = rows * (gathered + activated + own.hidden * HALF) + own.tokens * own.hidden * HALF
    found: Floats = (
        seconds + loads.experts * speed.expert_s + moved_s(passed, speed.passes or speed.hbm, device)
    )
    return found
