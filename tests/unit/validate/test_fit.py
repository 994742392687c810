"""Fit of a single constant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze.plan.machines import load_machine
from phaze.validate.rows import RunRow, read_row
from phaze.validate.table import fitted_sustained_hbm, log_errors, predict_rows, with_sustained_hbm

MACHINE = load_machine("a100-selene")
TEXTS = {
    "hidden": "1024", "heads": "16", "layers": "4", "seq": "512", "vocab": "51200", "gpus": "1",
    "global_batch": "8", "microbatch": "8", "recompute": "full",
}  # fmt: skip


def measured(share: float) -> list[RunRow]:
    """Return runs with the times predicted for a share of the HBM bandwidth."""
    rows = [read_row({**TEXTS, "layers": layers}) for layers in ("2", "4")]
    times = predict_rows(rows, with_sustained_hbm(MACHINE, share))["time_s"]
    return [replace(row, measured_s=float(time_s)) for row, time_s in zip(rows, times, strict=True)]


def test_the_share_that_runs_were_made_with_is_found_again() -> None:
    for share in (0.45, 0.8):
        rows = measured(share)
        assert fitted_sustained_hbm(rows, MACHINE) == pytest.approx(share)
        assert abs(log_errors(rows, with_sustained_hbm(MACHINE, share))).max() < 1e-12


def test_runs_that_took_longer_than_predicted_have_negative_errors() -> None:
    assert (log_errors(measured(0.5), with_sustained_hbm(MACHINE, 0.9)) < 0).all()
