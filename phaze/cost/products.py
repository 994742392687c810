"""Time of matrix products on the arrays of a device, by tiles that its processors share out.

Processors work in waves of tiles, of which the last is as long as the others however few tiles are left
(NVIDIA, Matrix Multiplication Background User's Guide, 2023, Section 3), unless the library splits their sums
among all processors (stream-K: Osama et al., PPoPP 2023). Operands and result go over HBM once.
"""

from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.errors import PhazeError
from phaze.layout import OPERAND_BYTES, Compute
from phaze.spec.speeds.products import TILES, ProductSpeed, ProductTile
from phaze.spec.system import Device

HALF = 2.0
"""Bytes of a number that is cast."""
READ_TWICE = ("fp8-cs", "nvfp4")
"""Precisions whose scale is that of a whole tensor: its largest value is looked for first."""


@dataclass(frozen=True, eq=False)
class Products:
    """Matrix products (W,) in one precision."""

    shapes: Ints
    """Batch, m, k, n, (W, 4)."""
    by_rows: Bools
    """Those that sum over the rows of both operands, as gradients of weights do over tokens, (W,)."""
    bytes_per_element: int
    """Of the result, and of operands in half precision."""
    compute: Compute = "bf16"
    added_bytes: float = 0.0
    """Bytes that a gradient of weights moves for each of its elements beside writing it, where the product
    adds it to that of earlier microbatches."""


def speed_of(device: Device, compute: Compute) -> ProductSpeed:
    """Speed of a device's products in a precision; PhazeError where it has none.

    Devices whose products the mapper prices have half precision at their peak.
    """
    found = device.products or {"bf16": ProductSpeed(reached=1.0)}
    if compute not in found:
        raise PhazeError(f"compute: device {device.name} multiplies {', '.join(found)}, got {compute}")
    return found[compute]


def product_times(products: Products, device: Device) -> Floats:
    """Seconds of products by arrays, vector lanes, HBM and the start of the kernel, (W, 4).

    Arrays, lanes and HBM work at once: the slowest has the time, the others 0; then the HBM has what adding
    up gradients makes it longer.
    """
    speed = speed_of(device, products.compute)
    clock_hz = device.clock_hz * device.sustained_clock
    hbm_bytes_per_s = device.hbm_bandwidth_bytes_per_s * speed.hbm
    aligned = _aligned(products, device.aligned_bytes)
    lanes = products.shapes.prod(axis=1, dtype=float) / (device.num_vc * device.lanes)
    by = np.stack([
        np.where(aligned, array_cycles(products.shapes, speed, device), 0.0) / clock_hz,
        np.where(aligned, 0.0, lanes) / clock_hz,
        _moved_bytes(products) / hbm_bytes_per_s,
        np.zeros(len(products.shapes)),
    ], axis=1)  # fmt: skip
    found = np.where(by == by.max(axis=1, keepdims=True), by, 0.0)
    found[:, 2] += products.by_rows * speed.added * _added_bytes(products) / hbm_bytes_per_s
    found[:, 3] = speed.start_s
    return found


def array_cycles(shapes: Ints, speed: ProductSpeed, device: Device) -> Floats:
    """Cycles of the arrays of all processors for products (W, 4: batch, m, k, n), (W,)."""
    batch, m, k, n = shapes.T.astype(float)
    terms = k + speed.fill
    cycles = np.full(len(shapes), np.inf)
    for rows, columns, efficiency in _turned(speed.tiles or TILES):
        waves = batch * np.ceil(m / rows) * np.ceil(n / columns) / device.num_tc
        summed = np.ceil(waves) * terms
        if speed.split is not None:
            summed = np.minimum(summed, waves * terms + speed.split)
        cycles = np.minimum(cycles, rows * columns * summed / efficiency)
    found: Floats = cycles / (device.pe_x * device.pe_y * speed.times * speed.reached)
    return found


def _turned(tiles: tuple[ProductTile, ...]) -> list[tuple[int, int, float]]:
    """Rows, columns and efficiency of tiles, each both ways round."""
    ways = ((tile.rows, tile.columns, tile.efficiency) for tile in tiles)
    return list(dict.fromkeys(way for a, b, e in ways for way in ((a, b, e), (b, a, e))))


def _aligned(products: Products, aligned_bytes: int) -> Bools:
    """Whether rows can be fed to the arrays, (W,); where a product sums over rows, these may be of any
    number.
    """
    _, m, k, n = products.shapes.T
    whole_m, whole_k, whole_n = (
        (size * products.bytes_per_element) % aligned_bytes == 0 for size in (m, k, n)
    )
    found: Bools = (whole_k | (products.by_rows & whole_m)) & whole_n
    return found


def _moved_bytes(products: Products) -> Floats:
    """Bytes of operands and results, (W,)."""
    batch, m, k, n = products.shapes.T.astype(float)
    width = products.bytes_per_element
    operand = width if products.compute == "bf16" else OPERAND_BYTES[products.compute]
    found: Floats = batch * ((m * k + k * n) * operand + m * n * width)
    return found


def _added_bytes(products: Products) -> Floats:
    batch, m, _, n = products.shapes.T.astype(float)
    found: Floats = batch * m * n * products.added_bytes
    return found


def cast_bytes(compute: Compute, device: Device) -> float:
    """Bytes that making an operand of a product in training moves for each of its numbers.

    It is read in half precision, once more where the scale is that of the tensor and not of earlier steps,
    and written along rows for one product and along columns for another. Products of Blackwell read a tensor
    of one scale both ways, so that one copy is enough. The Hadamard transform and the stochastic rounding of
    four bits are part of the kernel that casts (Transformer Engine: transposes by recipe in its guide to
    low-precision training, and `row_cast_col_hadamard_transform_cast_fusion`).
    """
    if compute == "bf16":
        return 0.0
    copies = 1 if device.is_blackwell and compute in ("fp8", "fp8-cs") else 2
    return HALF * (1 + (compute in READ_TWICE)) + copies * OPERAND_BYTES[compute]


def cast_s(elements: Floats, compute: Compute, device: Device) -> Floats:
    """Seconds in which a measured product casts its input, (W,), 0 in half precision.

    The kernels of inference write rows alone. They look for the largest value of a tensor in eight bits, and
    are given it in four.
    """
    if compute == "bf16":
        return np.zeros_like(elements)
    speed = speed_of(device, compute)
    moved = HALF * (1 + (compute in ("fp8", "fp8-cs"))) + OPERAND_BYTES[compute]
    found: Floats = elements * moved / (device.hbm_bandwidth_bytes_per_s * speed.cast) + speed.cast_start_s
    return found
