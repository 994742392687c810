"""Products compared with measured ones: accuracy, and constants recovered by the fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.products import Products, cast_s, product_times
from phaze.layout import Compute
from phaze.spec.files import FOLDER
from phaze.spec.speeds.products import ProductSpeed
from phaze.spec.systems import load_device
from phaze.validate.constants import Site
from phaze.validate.parts.base import in_a_loop, site_of
from phaze.validate.parts.products import ProductsPart, product_s
from phaze.validate.parts.registry import part_named
from phaze.validate.parts.scores import compare

PART = ProductsPart()
KERNELS = FOLDER / "measured" / "kernels"
OWN = KERNELS / "products.csv"
SHARED = Path("../shared/data/kernels/gemm.csv")
MOST = {"bf16": (0.04, 0.1), "fp8-block": (0.05, 0.15), "fp8": (0.08, 0.2), "nvfp4": (0.08, 0.2)}
"""Limits on the median and 90th percentile of the errors of large products."""
UNSTEADY = {"B200-SXM": (0.045, 0.115), "B300-SXM": (0.07, 0.135), "GB200": (0.065, 0.14)}
"""Devices where half-precision products of similar size differ by up to a quarter, as their clock did."""


def _device(name: str) -> Site:
    site = site_of(name)
    assert site is not None
    return in_a_loop(site)


def _check(path: Path) -> None:
    groups = compare(PART, [path]).by("device", "precision", "kind")
    large = [group for group in groups if group["kind"] == "5 GFLOP or more"]
    assert len(large) == 23
    for group in large:
        device, precision = str(group["device"]), str(group["precision"])
        usual = MOST[precision]
        median, p90 = UNSTEADY.get(device, usual) if precision == "bf16" else usual
        assert float(str(group["median"])) < median, group
        assert float(str(group["p90"])) < p90, group


def test_large_products_are_near_measured_ones() -> None:
    """For every device and precision of the project's table."""
    assert part_named("products").name == "products"
    _check(OWN)


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data")
def test_all_given_products_are_near_as_well() -> None:
    _check(SHARED)


@pytest.mark.parametrize("name", ["A100-SXM4-80GB", "H100-SXM", "B200-SXM"])
def test_half_of_the_shapes_tell_the_others(name: str) -> None:
    """Constants fitted to every second shape of a device are equally accurate for the others."""
    rows = PART.read(OWN)
    rows = rows[rows["device"] == name].reset_index(drop=True)
    shown = rows.groupby(["m", "n", "k"], sort=True).ngroup() % 2 == 0
    site = PART.fitted(rows[shown], _device(name))
    hidden = rows[~shown]
    errors = np.abs(PART.predicted_s(hidden, site) / hidden["measured_s"] - 1)
    for precision, own in errors.groupby(hidden["precision"]):
        median, p90 = MOST[str(precision)]
        assert own.median() < 1.1 * median
        assert own.quantile(0.9) < 1.3 * p90


@pytest.mark.parametrize("precision", ["bf16", "nvfp4"])
def test_the_fit_finds_the_constants_of_products_again(precision: Compute) -> None:
    rows = PART.read(OWN)
    rows = rows[(rows["device"] == "B200-SXM") & (rows["precision"] == precision)]
    site = _device("B200-SXM")
    planted = ProductSpeed(
        reached=0.61, fill=222.0, split=1500.0, start_s=2.08e-6, cast=0.4, cast_start_s=7e-6, times=2.0
    )
    device = site.device.model_copy(update={"products": {**site.device.products, precision: planted}})
    made = rows.assign(measured_s=product_s(rows, device, precision))
    found = PART.fitted(made, Site(site.cluster, device, site.stack)).device.products[precision]
    for name in ("reached", "fill", "split"):
        assert getattr(found, name) == pytest.approx(getattr(planted, name), rel=0.02)


@pytest.mark.slow
def test_devices_are_those_that_the_fit_finds() -> None:
    """Every second shape gives nearly the same constants as all of them."""
    rows = PART.read(OWN)
    for name, own in rows.groupby("device"):
        site = _device(str(name))
        found = PART.fitted(own, site).device.products
        for precision in set(own["precision"]):
            reached = site.device.products[precision].reached
            assert found[precision].reached == pytest.approx(
                reached, rel=0.08 if precision == "nvfp4" else 0.03
            )


def test_products_alike_are_fitted_together() -> None:
    site = _device("B200-SXM")
    assert site.device.products["fp8"] == site.device.products["fp8-cs"]
    assert site.device.products["fp8-block"] == site.device.products["mxfp8"]


def test_devices_without_speeds_are_priced_by_the_mapper() -> None:
    rows = PART.read(OWN).head(5)
    site = _device("V100-32GB")
    found = PART.predicted_s(rows, site)
    assert (found > PART.fastest_s(rows, site)).all()
    assert np.isnan(PART.predicted_s(rows.assign(precision="fp8"), site)).all()


def test_a_fast_product_is_refused_as_one_in_other_units(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("device,gemm_dtype,m,n,k,latency_ms\nH100,bfloat16,8192,8192,8192,0.0015\n")
    with pytest.raises(
        PhazeError, match=r"line 2: latency_ms must be at least 1\.11.*check that it is in milliseconds"
    ):
        PART.read(path, "h100")


def test_gradients_of_weights_take_what_was_measured() -> None:
    """Relative to forward products (SimuMax): the same arithmetic, and exposed bytes of accumulation."""
    table = pd.read_csv(KERNELS / "gradient-products.csv")
    table = table[table["device"] == "A100 PCIe"]
    device = load_device("a100-80gb").model_copy(
        update={"sustained_clock": 1.0, "hbm_bandwidth_bytes_per_s": 1.935e12}
    )
    shapes = np.stack([np.ones(len(table), np.int64), *(table[name] for name in "mkn")], axis=1)
    gradients = (table["layout"] == "NT").to_numpy()
    asked = replace(Products(shapes, gradients, 2), added_bytes=6.0)
    ratio = product_times(asked, device).sum(axis=1) / (table["latency_ms"].to_numpy() * 1e-3)
    usual = np.median(ratio[table["layout"] == "TN"])
    assert 0.8 < usual < 0.95  # at 300 W, in long loops
    for layout in ("NN", "NT"):
        assert np.median(ratio[table["layout"] == layout]) == pytest.approx(usual, rel=0.02)


def test_both_gradients_of_layers_on_an_a100_are_near() -> None:
    """No constant is fitted to these rows: median error ≤ 8 %, 90th percentile ≤ 20 %, in both directions."""
    groups = compare(PART, [KERNELS / "layer-products.csv"]).by("kind")
    assert [group["kind"] for group in groups] == ["5 GFLOP or more", "5 GFLOP or more, backward"]
    for group in groups:
        assert group["rows"] == group["answered"] == 355
        assert float(str(group["median"])) <= 0.08
        assert float(str(group["p90"])) <= 0.20


def test_products_of_amd_devices_without_casts_are_near() -> None:
    groups = compare(PART, [KERNELS / "amd-products.csv"]).by("device", "precision")
    limits = {("MI300X", "fp8-block"): 0.17, ("MI355X", "bf16"): 0.16, ("MI355X", "fp8"): 0.14}
    limits["MI355X", "fp8-block"] = 0.2
    assert {(group["device"], group["precision"]) for group in groups} == set(limits)
    for group in groups:
        assert group["answered"] == group["rows"]
        assert float(str(group["median"])) <= 0.07
        assert float(str(group["p90"])) <= limits[str(group["device"]), str(group["precision"])]


def test_a_cast_that_was_not_timed_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "device,precision,m,n,k,latency_ms,cast\n"
        "H100,fp8,4096,8192,2048,0.2,timed\nH100,fp8,4096,8192,2048,0.2,none\n"
    )
    rows, site = PART.read(path), _device("H100-SXM")
    timed_s, product_only_s = PART.predicted_s(rows, site)
    assert timed_s - product_only_s == pytest.approx(cast_s(np.array([4096 * 2048.0]), "fp8", site.device)[0])
    path.write_text("device,precision,m,n,k,latency_ms,cast\nH100,fp8,4096,8192,2048,0.2,some\n")
    with pytest.raises(PhazeError, match="cast must be timed or none, got some"):
        PART.read(path)


def test_a_backward_row_is_the_sum_of_two_products_and_enters_no_fit(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    lines = (
        "H100,bf16,4096,8192,2048,0.4,backward\nH100,bf16,4096,2048,8192,0.4,\nH100,bf16,2048,8192,4096,0.4,"
    )
    path.write_text(
        "device,precision,m,n,k,latency_ms,direction\n" + lines.replace(",\n", ",forward\n") + "forward\n"
    )
    rows, site = PART.read(path), _device("H100-SXM")
    times_s = PART.predicted_s(rows, site)
    assert times_s[0] == pytest.approx(times_s[1] + times_s[2])
    assert PART.fastest_s(rows, site)[0] == pytest.approx(PART.fastest_s(rows, site)[1:].sum())
    shapes = PART.read(OWN).query("device == 'H100-SXM' and precision == 'bf16'")
    other = pd.concat([shapes, rows.iloc[[0] * 50]], ignore_index=True)
    assert PART.fitted(other, site).device.products == PART.fitted(shapes, site).device.products


def test_an_unknown_direction_says_which_are_known(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("device,precision,m,n,k,latency_ms,direction\nH100,bf16,8192,8192,8192,2,sideways\n")
    with pytest.raises(PhazeError, match="line 2: direction must be forward or backward, got sideways"):
        PART.read(path)
