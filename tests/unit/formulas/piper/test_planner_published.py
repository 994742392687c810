"""The planner gives the optima of the authors' program and the printed times of the paper."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from phaze.formulas.piper.baselines import CONTENDERS
from phaze.formulas.piper.instance import read_instance
from phaze.formulas.piper.layers import FlatCluster, ProfiledLayers, Synchronisation
from phaze.formulas.piper.planner import SearchOptions

DATA = Path(__file__).resolve().parents[5] / "shared" / "data" / "piper"
BANDWIDTH = 25 * 2.0**30
MICROBATCHES = {"gnmt": 256, "resnet": 7680}

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not DATA.is_dir(), reason="the authors' inputs are not there"),
]

PRINTED = """
    gnmt 2 2.5 263.354, gnmt 2 3.5 260.268, gnmt 4 1.2 148.848, gnmt 4 2.5 131.702, gnmt 8 1.2 69.5705,
    gnmt 8 2.4 65.1633, gnmt 16 1.2 33.4478, gnmt 32 0.8 17.0167,
    resnet 8 4 74.2513, resnet 8 8 63.4363, resnet 8 16 58.5656, resnet 16 2 76.5213, resnet 16 4 35.4642,
    resnet 16 8 31.636, resnet 16 16 29.2406, resnet 32 1.5 61.2086, resnet 32 2 26.4449,
    resnet 32 4 17.5978, resnet 32 8 15.8181, resnet 32 16 14.5413, resnet 64 1.5 16.9921,
    resnet 64 2 11.5094, resnet 64 4 8.64699, resnet 64 4 8.64699, resnet 64 8 7.83803, resnet 64 16 7.27067,
    resnet 128 1 19.8685, resnet 128 1.5 7.02514, resnet 128 2 5.50138, resnet 128 4 4.29729,
    resnet 128 8 3.90292, resnet 128 16 3.63534
"""
"""Table 1 of the paper: model, devices, GB per device, time per sample."""
ROWS = [tuple(row.split()) for row in PRINTED.split(",")]
SLOW = {("resnet", "32", "1.5"), ("resnet", "64", "1.5"), ("resnet", "64", "2")} | {
    ("resnet", "128", gb) for gb in ("1", "1.5", "2", "4")
}
"""Rows that take seconds, which tests/benchmarks/test_piper.py checks."""


@cache
def layers_in(name: str) -> ProfiledLayers:
    """Return the layers of an input of the authors."""
    return read_instance(DATA / name).layers()


def optima() -> list[tuple[str, int, float, int, str, str]]:
    """Return (input, devices, GiB, microbatches, baseline, optimum) of the authors' program."""
    if not DATA.is_dir():
        return []
    table = pd.read_csv(DATA / "optima.csv", dtype=str)
    return [
        (row.input, int(row.devices), float(row.memory_gib), int(row.microbatches), baseline, optimum)
        for row in table.itertuples()
        for baseline in ("piper", "no_dp", "no_tp", "no_ar")
        if isinstance(optimum := getattr(row, baseline), str)
    ]


def time_on(
    name: str, devices: int, gib: float, microbatches: int, baseline: str, synchronisation: Synchronisation
) -> float | None:
    """Return the time per sample of the best plan, along one linear order with `round`."""
    cluster = FlatCluster(devices, gib * 2**30, BANDWIDTH, microbatches, synchronisation=synchronisation)
    by, options = CONTENDERS[baseline.replace("_", "-")], SearchOptions(linear=synchronisation == "round")
    found = by.plan(by.restrict(layers_in(name)), cluster, options)
    return found.time_per_sample_s if found else None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "devices", "gib", "microbatches", "baseline", "optimum"), optima())
def test_optima_are_those_of_the_authors_program(
    name: str, devices: int, gib: float, microbatches: int, baseline: str, optimum: str
) -> None:
    found = time_on(name, devices, gib, microbatches, baseline, "batch")
    if optimum == "infeasible":
        assert found is None
    elif name.startswith("bert"):
        assert found == pytest.approx(float(optimum), rel=1e-9)
    else:
        decimals = len(optimum.partition(".")[2])
        assert found is not None
        assert f"{found:.{decimals}f}" == optimum


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ROWS if row[:3] not in SLOW], ids="-".join)
def test_table_1_comes_out_along_one_linear_order(row: tuple[str, str, str, str]) -> None:
    """Gradients are synchronised once per d microbatches, for any d (Piper, Appendix F)."""
    name, devices, gib, printed = row
    found = time_on(f"{name}.json", int(devices), float(gib), MICROBATCHES[name], "piper", "round")
    assert found is not None
    assert f"{found:.6g}" == printed


def test_all_downsets_and_one_synchronisation_a_batch_give_a_better_plan_than_is_printed() -> None:
    found = time_on("gnmt.json", 8, 1.2, 256, "piper", "batch")
    assert found == pytest.approx(68.5656, abs=5e-5)
