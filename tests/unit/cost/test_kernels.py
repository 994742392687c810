"""Kernels on all cores of a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.cost.kernels import KERNEL_LIMITS, time_kernels
from phaze.cost.mapper.loads import Cores, hbm_words, map_shapes
from phaze.cost.mapper.works import Works
from phaze.spec.speeds.products import ProductSpeed, ProductTile
from phaze.spec.systems import load_device

SHAPES = np.array([[1, 2048, 4096, 3072], [8, 2048, 96, 2048], [1, 128, 8, 128]], np.int64)
DEVICE = load_device("a100-80gb").model_copy(
    update={"sustained_clock": 0.9, "sustained_hbm": 0.5, "kernel_s": 2e-6, "products": {}}
)


def works(shapes: np.ndarray, streamed: list[float], cycles: float = 1.0, elements: float = 0.0) -> Works:
    """Return works of one part each; rows of zeros are vector operations."""
    count = len(shapes)
    return Works(
        ids=np.arange(count),
        of_part=np.arange(count),
        shapes=shapes,
        elements=np.full(count, elements),
        cycles=np.full(count, cycles),
        streamed_bytes=np.array(streamed),
        network_bytes=np.zeros(count),
        unrolled=np.zeros(count),
        kinds=np.where(shapes[:, 0] > 0, "matmul", "add"),
    )


def test_a_product_takes_what_the_mapper_or_hbm_says_and_the_start_of_a_kernel() -> None:
    found = time_kernels(works(SHAPES, [0.0] * 3), DEVICE, 2)
    words = DEVICE.tensor_l2_kib * 512
    sizes = (DEVICE.pe_x, DEVICE.pe_y, int(words), DEVICE.bandwidth, DEVICE.num_tc)
    mapped = map_shapes(SHAPES, np.zeros(3), Cores(*(np.array([size]) for size in sizes)), preload=False)
    chip_s = mapped.cycles[:, 0] / (0.9 * DEVICE.clock_hz)
    glb = np.array([int(DEVICE.glb_mib * 2**19)])
    hbm_s = 2 * hbm_words(SHAPES, glb)[:, 0] / (0.5 * DEVICE.hbm_bandwidth_bytes_per_s)
    assert found.sum(axis=1) == pytest.approx(np.maximum(chip_s, hbm_s) + 2e-6)
    assert (found[:, KERNEL_LIMITS.index("kernel_start")] == 2e-6).all()


def test_an_elementwise_kernel_takes_its_bytes_or_its_cycles() -> None:
    nothing = np.zeros((2, 4), np.int64)
    lanes = DEVICE.lanes * DEVICE.num_vc
    found = time_kernels(works(nothing, [1e9, 8.0], cycles=3.0, elements=1e6), DEVICE, 2)
    cycles = 3.0 * np.ceil(1e6 / lanes)
    assert found[0, KERNEL_LIMITS.index("hbm")] == pytest.approx(
        1e9 / (0.5 * DEVICE.hbm_bandwidth_bytes_per_s)
    )
    assert found[1, KERNEL_LIMITS.index("vector")] == pytest.approx(cycles / (0.9 * DEVICE.clock_hz))


def test_kernels_of_both_kinds_keep_their_order() -> None:
    mixed = np.array([SHAPES[0], np.zeros(4, np.int64), SHAPES[1]])
    together = time_kernels(works(mixed, [0.0, 1e9, 0.0]), DEVICE, 2)
    apart = [time_kernels(works(mixed[[i]], [[0.0, 1e9, 0.0][i]]), DEVICE, 2)[0] for i in range(3)]
    assert together == pytest.approx(np.array(apart))


def test_what_a_convolution_unrolls_on_the_chip_is_not_read_from_hbm() -> None:
    """A 3 x 3 convolution with few kernels waits for its maps from HBM, not for its unrolled matrix."""
    slow = DEVICE.model_copy(update={"hbm_bandwidth_bytes_per_s": 1e9})
    shape = np.array([[1, 56 * 56, 9 * 64, 64]], np.int64)
    whole = works(shape, [0.0])
    plain = time_kernels(whole, slow, 2)
    saved = 56 * 56 * 8 * 64
    unrolled = time_kernels(replace(whole, unrolled=np.array([float(saved)])), slow, 2)
    hbm = KERNEL_LIMITS.index("hbm")
    assert plain[0, hbm] - unrolled[0, hbm] == pytest.approx(2 * saved / 0.5e9)
    assert unrolled[0, hbm] >= 2 * (56 * 56 * (64 + 64) + 9 * 64 * 64) / 0.5e9


FILL, START_S = 64, 2e-6
SPEED = ProductSpeed(
    reached=1.0, fill=FILL, hbm=0.5, start_s=START_S, tiles=(ProductTile(rows=256, columns=128),)
)
TILED = DEVICE.model_copy(update={"products": {"bf16": SPEED}, "aligned_bytes": 16})

QUICK = TILED.model_copy(update={"hbm_bandwidth_bytes_per_s": 1e16})


def test_a_product_takes_whole_waves_of_tiles() -> None:
    """108 processors with 1,024 multipliers each: 108 tiles take as long as one, and 109 twice as long."""
    one = 256 * 128 * (4096 + FILL) / 1024 / (0.9 * TILED.clock_hz)
    for shape, waves in (((1, 256, 4096, 128), 1), ((108, 256, 4096, 128), 1), ((109, 128, 4096, 256), 2)):
        found = time_kernels(works(np.array([shape], np.int64), [0.0]), QUICK, 2)
        assert found[0, KERNEL_LIMITS.index("compute")] == pytest.approx(waves * one)
        assert found.sum() == pytest.approx(waves * one + START_S)


def test_gradients_of_weights_sum_over_any_number_of_rows_on_the_arrays() -> None:
    """Both operands have token rows: their widths are aligned, for any number of rows."""
    device = TILED.model_copy(update={"aligned_bytes": 16})
    whole = works(np.array([(1, 512, 1229, 256)], np.int64), [0.0])
    compute, lanes = (KERNEL_LIMITS.index(name) for name in ("compute", "vector"))
    assert time_kernels(whole, device, 2)[0, lanes] > 0
    assert time_kernels(replace(whole, by_rows=np.array([True])), device, 2)[0, compute] > 0
    narrow = works(np.array([(1, 513, 1229, 256)], np.int64), [0.0])
    assert time_kernels(replace(narrow, by_rows=np.array([True])), device, 2)[0, lanes] > 0


def test_the_fastest_tile_is_taken() -> None:
    small = ProductTile(rows=64, columns=64, efficiency=0.5)
    speed = SPEED.model_copy(update={"tiles": (*SPEED.tiles, small)})
    both = TILED.model_copy(update={"products": {"bf16": speed}})
    narrow = np.array([[1, 64, 4096, 64]], np.int64)
    coarse, fine = (time_kernels(works(narrow, [0.0]), device, 2).sum() for device in (TILED, both))
    assert coarse - 2e-6 == pytest.approx(8 * 0.5 * (fine - 2e-6))


def test_rows_that_are_not_aligned_are_multiplied_on_the_lanes() -> None:
    """Heads of dimension 108, 216 bytes, in BLOOM's sweep of 2022."""
    odd, even = (
        time_kernels(works(np.array([[64, 2048, k, 2048]], np.int64), [0.0]), TILED, 2)[0] for k in (108, 112)
    )
    lanes = 64 * 2048 * 108 * 2048 / (TILED.num_vc * TILED.lanes) / (0.9 * TILED.clock_hz)
    assert odd[KERNEL_LIMITS.index("vector")] == pytest.approx(lanes)
    assert odd.sum() > 5 * even.sum()


def test_a_product_of_few_terms_waits_for_hbm() -> None:
    shape = np.array([[1, 8192, 8, 8192]], np.int64)
    moved = 2 * (2 * 8192 * 8 + 8192 * 8192)
    found = time_kernels(works(shape, [0.0]), TILED, 2)
    hbm_s = moved / (0.5 * TILED.hbm_bandwidth_bytes_per_s)
    assert found[0, KERNEL_LIMITS.index("hbm")] == pytest.approx(hbm_s)
