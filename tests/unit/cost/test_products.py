"""Matrix products on the arrays of a device, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.cost.products import Products, array_cycles, cast_bytes, cast_s, product_times, speed_of
from phaze.layout import COMPUTES
from phaze.spec.files import FOLDER
from phaze.spec.speeds.products import ProductSpeed, ProductTile
from phaze.spec.systems import load_device

A100 = load_device("a100-80gb").model_copy(update={"sustained_clock": 1.0})
TILE = ProductTile(rows=256, columns=128)
SPEED = ProductSpeed(reached=0.9, fill=100.0, tiles=(TILE,))
EACH = A100.pe_x * A100.pe_y
FASTER = {
    "clock_hz": 1.1, "hbm_bandwidth_bytes_per_s": 1.5, "num_tc": 1.3, "pe_x": 2.0,
}  # fmt: skip


def products(*shapes: tuple[int, int, int, int], by_rows: bool = False) -> Products:
    """Return products batch × m × k × n in half precision."""
    return Products(np.array(shapes, np.int64), np.full(len(shapes), by_rows), 2)


def cycles(speed: ProductSpeed, *shape: int) -> float:
    """Return the cycles of one product."""
    return float(array_cycles(np.array([shape], np.int64), speed, A100)[0])


def test_a_product_of_one_tile_takes_its_terms_and_those_of_the_fill() -> None:
    one = 256 * 128 * (4096 + 100) / EACH / 0.9
    assert cycles(SPEED, 1, 256, 4096, 128) == pytest.approx(one)
    assert cycles(SPEED, 1, 128, 4096, 256) == pytest.approx(one)  # turned
    assert cycles(SPEED, A100.num_tc, 256, 4096, 128) == pytest.approx(one)
    assert cycles(SPEED, A100.num_tc + 1, 256, 4096, 128) == pytest.approx(2 * one)


def test_split_sums_share_the_last_wave_out() -> None:
    """Half a wave more takes half the time, plus the exchange of partial results; at most a whole wave."""
    split = SPEED.model_copy(update={"split": 500.0})
    one, tiles = 256 * 128 / EACH / 0.9, A100.num_tc * 3 // 2
    assert cycles(split, tiles, 256, 4096, 128) == pytest.approx(one * (1.5 * (4096 + 100) + 500))
    assert cycles(split, A100.num_tc + 107, 256, 4096, 128) == pytest.approx(2 * one * (4096 + 100))


def test_a_narrow_product_has_narrow_tiles() -> None:
    """A tile of 64 × 64 reads 128 operands per term, one of 256 × 128 three times as many."""
    usual = SPEED.model_copy(update={"tiles": ()})
    assert cycles(SPEED, 1, 64, 4096, 64) == pytest.approx(3 * cycles(usual, 1, 64, 4096, 64))
    assert cycles(SPEED, 1, 8192, 4096, 8192) == pytest.approx(cycles(usual, 1, 8192, 4096, 8192))


def test_gradients_that_are_added_up_cost_a_part_of_their_bytes() -> None:
    """Read and written in single precision instead of written in half precision: six bytes more per
    element.
    """
    shape = (1, 4096, 8192, 4096)
    plain = product_times(products(shape, by_rows=True), A100)
    added = product_times(replace(products(shape, by_rows=True), added_bytes=6.0), A100)
    speed = A100.products["bf16"]
    more_s = speed.added * 6 * 4096**2 / (A100.hbm_bandwidth_bytes_per_s * speed.hbm)
    assert added - plain == pytest.approx(np.array([[0, 0, more_s, 0]]))
    other = replace(products(shape), added_bytes=6.0)  # not a gradient of weights
    assert (product_times(other, A100) == product_times(products(shape), A100)).all()


@given(
    shape=st.tuples(st.integers(1, 8), *(st.integers(8, 20000) for _ in range(3))),
    faster=st.sampled_from(sorted(FASTER)),
    compute=st.sampled_from(["bf16", "fp8", "fp8-block", "nvfp4"]),
)
def test_a_faster_resource_never_makes_a_product_slower(
    shape: tuple[int, int, int, int], faster: str, compute: str
) -> None:
    device = load_device("b200")
    value = getattr(device, faster)
    more = device.model_copy(update={faster: type(value)(value * FASTER[faster])})
    asked = replace(products(shape), compute=compute)  # type: ignore[arg-type]
    before, after = (product_times(asked, one).sum() for one in (device, more))
    assert after <= before * (1 + 1e-12)


@pytest.mark.slow
@given(shape=st.tuples(st.just(1), *(st.integers(8, 20000) for _ in range(3))))
def test_no_product_is_faster_than_the_peak(shape: tuple[int, int, int, int]) -> None:
    for name in ("a100-80gb", "h100-80gb", "gb300", "mi300x"):
        device = load_device(name)
        least = 2.0 * np.prod([float(size) for size in shape]) / device.peak_flops_per_s
        assert product_times(products(shape), device).sum() > least


def test_casts_read_once_more_for_the_scale_of_a_tensor() -> None:
    """Hopper has a copy along rows and one along columns, Blackwell a single one of tensors with one
    scale.
    """
    hopper, blackwell = load_device("h100-80gb"), load_device("b200")
    assert [cast_bytes(word, hopper) for word in ("bf16", "fp8", "fp8-cs")] == [0.0, 4.0, 6.0]
    assert cast_bytes("fp8-block", hopper) == 2 + 2 * (1 + 4 / 128)
    assert [cast_bytes(word, blackwell) for word in ("fp8", "fp8-cs")] == [3.0, 5.0]
    assert cast_bytes("mxfp8", blackwell) == 2 + 2 * (1 + 1 / 32)
    assert cast_bytes("nvfp4", blackwell) == 4 + 2 * (1 / 2 + 1 / 16)
    assert all(cast_bytes(word, blackwell) > 0 for word in COMPUTES if word != "bf16")


def test_a_measured_product_casts_its_input() -> None:
    device = load_device("b200")
    speed = device.products["nvfp4"]
    moved = 1e6 * (2 + 1 / 2 + 1 / 16)
    by_hand = moved / (device.hbm_bandwidth_bytes_per_s * speed.cast) + speed.cast_start_s
    assert cast_s(np.array([1e6]), "nvfp4", device) == pytest.approx(by_hand)
    assert cast_s(np.array([1e6]), "bf16", device) == 0


def test_devices_name_the_precisions_that_they_have() -> None:
    with pytest.raises(PhazeError, match="device a100-80gb multiplies bf16, got fp8"):
        speed_of(A100, "fp8")
    with pytest.raises(PhazeError, match="multiplies bf16, got mxfp8"):
        speed_of(load_device("v100-32gb"), "mxfp8")
    assert speed_of(load_device("v100-32gb"), "bf16").reached == 1.0


def test_the_clock_that_a_b200_sustains_is_that_of_its_products_in_long_loops() -> None:
    """SimuMax's loops over the rate of TensorRT-LLM's products, forward and backward, from 100 GFLOP."""
    device, found = load_device("b200"), list[float]()
    loops = pd.read_csv(FOLDER / "measured" / "kernels" / "gradient-products.csv").query("device == 'B200'")
    for (layout, result), own in loops[2 * loops.m * loops.n * loops.k >= 1e11].groupby(["layout", "result"]):
        shapes = np.stack([np.ones(len(own), np.int64), own.m, own.k, own.n], axis=1)
        added = 6.0 if result == "fp32" else 0.0  # read and written in single, in place of written in half
        asked = Products(shapes, np.full(len(own), layout == "NT"), 2, added_bytes=added)
        arrays, _, hbm, start = product_times(asked, device.model_copy(update={"sustained_clock": 1.0})).T
        share = arrays / (own.latency_ms.to_numpy(float) * 1e-3 - hbm - start)
        found += share[arrays > 0].tolist()
    assert len(found) == 221
    assert np.median(found) == pytest.approx(device.sustained_clock, abs=0.005)
