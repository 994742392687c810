"""The printed table of plans beside ours, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.report.plans.inputs import PlanInputs
from phaze.spec.published_plans import OUT_OF_MEMORY

MODE_NAMES = {
    "table-1": "the printed table (prefixes of one linear order, gradients once for d microbatches, any d)",
    "program": "the authors' program (all downsets, gradients once for N microbatches, d divides N)",
}
_DIGITS = 6
"""Significant digits of the printed table, without trailing zeros: what a C++ stream prints by default."""


@dataclass(frozen=True)
class Row:
    """A printed row with our times, infinite without a plan."""

    devices: int
    memory_gib: float
    printed: dict[str, str]
    """By planner."""
    ours: dict[str, dict[str, float]]
    """By mode and planner."""


def ours(value: float) -> str:
    """Return a time with as many digits as the table prints; a dash where nobody planned."""
    if np.isnan(value):
        return "–"
    return f"{value:.{_DIGITS}g}" if np.isfinite(value) else OUT_OF_MEMORY


def agrees(printed: str, value: float) -> bool:
    """Say whether a time of ours prints as the digits of the table."""
    return ours(value) == printed


def printed_rows(inputs: PlanInputs, source: str) -> Iterator[Row]:
    """Yield the printed rows of an input that the study planned, as often as they are printed."""
    published = inputs.published
    told = () if published is None else published.table.get(source, ())
    tables = [name for name, case in inputs.of("table") if case.input == source]
    mine = inputs.cases[inputs.cases["case"].isin(tables)]
    for row in told:
        same = mine[(mine["devices"] == row.devices) & (mine["memory_gib"] == row.memory_gib)]
        if len(same):
            printed = {"piper": row.piper, "equi": row.equi}
            yield Row(row.devices, row.memory_gib, printed, _by_mode(same))


def _by_mode(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    return {
        str(mode): {p: _time_of(some, p) for p in ("piper", "equi")} for mode, some in rows.groupby("mode")
    }


def _time_of(rows: pd.DataFrame, planner: str) -> float:
    found = rows.loc[rows["planner"] == planner, "time_per_sample"]
    return float(found.iloc[0]) if len(found) else float("nan")
