"""Time of GEMMs on the matrix units of a device, from tiles distributed over its processors (SMs).

Processors work in waves of tiles. The last wave takes as long as the others even if few tiles are left
(NVIDIA, Matrix Multiplication Background User's Guide, 2023, Section 3), unless the library splits the sums
of tiles among all processors (stream-K: Osama et al., PPoPP 2023). Operands and result cross HBM once.
"""

from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.memory import HALF
from phaze.layout import OPERAND_BYTES, Compute
from phaze.spec.speeds.products import TILES, ProductSpeed, ProductTile
from phaze.spec.system import Device

READ_TWICE = ("fp8-cs", "nvfp4")
"""Precisions with a per-tensor scale: a first read of the tensor finds its largest value."""


@dataclass(frozen=True, eq=False)
class Products:
    """Batched GEMMs (W,) in one precision."""

    shapes: Ints
    """Sizes batch, m, k and n of each GEMM, (W, 4)."""
    by_rows: Bools
    """True for GEMMs that sum over the rows of both operands, as weight gradients do over tokens, (W,)."""
    bytes_per_element: int
    """Bytes per element of the result, and of operands in half precision."""
    compute: Compute = "bf16"
    added_bytes: float = 0.0
    """Traffic in bytes per weight-gradient element, in addition to writing it, where GEMMs accumulate
    gradients over microbatches.
    """


def speed_of(device: Device, compute: Compute, key: str = "compute") -> ProductSpeed:
    """GEMM speed of a device in a precision; PhazeError, naming `key`, if the device does not support it.

    Devices whose products are priced by the mapper reach their peak in half precision.
    """
    speeds = device.products or {"bf16": ProductSpeed(reached=1.0)}
    if compute not in speeds:
        raise PhazeError(f"{key}: device {device.name} multiplies {', '.join(speeds)}, got {compute}")
    return speeds[compute]


def product_times(products: Products, device: Device) -> Floats:
    """Time of GEMMs in seconds, by bottleneck: arrays, vector lanes, HBM and launch overhead, (W, 4).

    Arrays, lanes and HBM work concurrently: the time is attributed to the slowest, and the others get 0. The
    extra time of gradient accumulation is then added to HBM.
    """
    speed = speed_of(device, products.compute)
    clock_hz = device.clock_hz * device.sustained_clock
    in_steps = device.in_steps.get(products.compute, 1.0)
    hbm_bytes_per_s = device.hbm_bandwidth_bytes_per_s * speed.hbm
    aligned = _aligned(products, device.aligned_bytes)
    batch, m, k, n = products.shapes.T.astype(float)
    width = products.bytes_per_element
    operand = width if products.compute == "bf16" else OPERAND_BYTES[products.compute]
    lanes = products.shapes.prod(axis=1, dtype=float) / (device.num_vc * device.lanes)
    # Operands that are not aligned are multiplied on the vector lanes, not on the arrays.
    by = np.stack([
        np.where(aligned, array_cycles(products.shapes, speed, device), 0.0) / (clock_hz * in_steps),
        np.where(aligned, 0.0, lanes) / clock_hz,
        batch * ((m * k + k * n) * operand + m * n * width) / hbm_bytes_per_s,
        np.zeros(len(products.shapes)),
    ], axis=1)  # fmt: skip
    times_s = np.where(by == by.max(axis=1, keepdims=True), by, 0.0)
    added_bytes = batch * m * n * products.added_bytes
    times_s[:, 2] += products.by_rows * speed.added * added_bytes / hbm_bytes_per_s
    times_s[:, 3] = speed.start_s
    return times_s


def array_cycles(shapes: Ints, speed: ProductSpeed, device: Device) -> Floats:
    """Array cycles of GEMMs (W, 4: batch, m, k, n) distributed over all SMs, (W,)."""
    batch, m, k, n = shapes.T.astype(float)
    terms = k + speed.fill
    cycles = np.full(len(shapes), np.inf)
    for rows, columns, efficiency in _orientations(speed.tiles or TILES):
        waves = batch * np.ceil(m / rows) * np.ceil(n / columns) / device.num_tc
        summed = np.ceil(waves) * terms
        if speed.split is not None:
            # Stream-K fills all waves, at the price of an exchange of partial sums; the faster of both is
            # assumed.
            summed = np.minimum(summed, waves * terms + speed.split)
        cycles = np.minimum(cycles, rows * columns * summed / efficiency)
    return cycles / (device.pe_x * device.pe_y * speed.times * speed.reached)


def _orientations(tiles: tuple[ProductTile, ...]) -> list[tuple[int, int, float]]:
    """Rows, columns and efficiency of every tile, in both orientations."""
    sides = ((tile.rows, tile.columns, tile.efficiency) for tile in tiles)
    return list(dict.fromkeys(turned for a, b, e in sides for turned in ((a, b, e), (b, a, e))))


def _aligned(products: Products, aligned_bytes: int) -> Bools:
    """True where the rows of the operands are aligned for the arrays, (W,).

    The summed dimension of a product over rows may have any size.
    """
    _, m, k, n = products.shapes.T
    fits_m, fits_k, fits_n = (size * products.bytes_per_element % aligned_bytes == 0 for size in (m, k, n))
    aligned: Bools = (fits_k | (products.by_rows & fits_m)) & fits_n
    return aligned


def cast_bytes(compute: Compute, device: Device) -> float:
    """HBM traffic per element to cast a GEMM operand in training, in bytes.

    An operand is read in half precision, and once more if its scale is that of the current tensor and not of
    earlier steps. It is written along rows for one product and along columns for another. Products of
    Blackwell read a tensor with one scale in both directions, so one copy suffices. The Hadamard transform
    and stochastic rounding of four-bit formats are part of the casting kernel (Transformer Engine: transposes
    by recipe in its guide to low-precision training, and `row_cast_col_hadamard_transform_cast_fusion`).
    """
    if compute == "bf16":
        return 0.0
    copies = 1 if device.is_blackwell and compute in ("fp8", "fp8-cs") else 2
    return HALF * (1 + (compute in READ_TWICE)) + copies * OPERAND_BYTES[compute]


def cast_s(elements: Floats, compute: Compute, device: Device) -> Floats:
    """Time to cast the input of a measured GEMM, in seconds, (W,); 0 in half precision.

    Inference kernels write rows only. In eight bits they first find the largest value of the tensor; in four
    bits it is an input.
    """
    if compute == "bf16":
        return np.zeros_like(elements)
    speed = speed_of(device, compute)
    moved = HALF * (1 + (compute in ("fp8", "fp8-cs"))) + OPERAND_BYTES[compute]
    return elements * moved / (device.hbm_bandwidth_bytes_per_s * speed.cast) + speed.cast_start_s
