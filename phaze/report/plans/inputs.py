"""What the page of the plans is made from, and the printed table beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.spec.names import Planner
from phaze.spec.planning import PlanCase, PlanStudy
from phaze.spec.published_plans import OUT_OF_MEMORY, PublishedPlans

PLANNER_NAMES: dict[Planner, str] = {
    "piper": "Piper",
    "no-dp": "no DP",
    "no-tp": "no TP",
    "no-ar": "no AR",
    "equi": "equi",
    "equi-no-tp": "equi, no TP",
}
"""As the paper calls them."""
GROUP = ["case", "blocks", "memory_gib", "microbatches", "mode"]
"""What the rows of one panel have in common."""


@dataclass(frozen=True)
class PlanInputs:
    """Tables of all cases of a study."""

    plans: PlanStudy
    cases: pd.DataFrame
    pipelines: pd.DataFrame
    curves: pd.DataFrame
    durations: pd.DataFrame
    published: PublishedPlans | None = None

    def label(self, name: str) -> str:
        """Return how readers call an input: our own says so."""
        given = self.plans.inputs[name]
        own = self.plans.stand_ins.get(name)
        return given.label if own is None else f"{given.label} (ours, on {own.architecture})"

    def scale_s(self, name: str) -> float:
        """Return the seconds of an input's unit of time."""
        ours = name in self.plans.stand_ins
        return 1e-3 if self.plans.inputs[name].unit == "ms" and not ours else 1.0

    def of(self, show: str) -> Iterator[tuple[str, PlanCase]]:
        """Yield the cases that are shown so."""
        yield from ((name, case) for name, case in self.plans.made.items() if case.show == show)


def planners_of(rows: pd.DataFrame) -> list[Planner]:
    """Return the planners of some rows, in the order in which they are shown."""
    return [planner for planner in PLANNER_NAMES if planner in set(rows["planner"])]


def relative(cases: pd.DataFrame) -> pd.Series:
    """Return the throughput of every row over the best on the same cluster, 0 without a plan."""
    best = cases.groupby([*GROUP, "devices"])["time_per_sample"].transform("min")
    share = best / cases["time_per_sample"]
    return share.where(np.isfinite(cases["time_per_sample"]), 0.0)


def read_curve(curve: pd.DataFrame, devices: pd.Series | np.ndarray) -> np.ndarray:
    """Return the times with so many devices from the steps of one planner, infinite below the first."""
    steps = curve.sort_values("devices")
    at = np.searchsorted(steps["devices"].to_numpy(), np.asarray(devices), side="right")
    times: np.ndarray = np.concatenate(([np.inf], steps["time_per_sample"].to_numpy()))[at]
    return times


def by_values(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[tuple[float, ...], pd.DataFrame]]:
    """Yield the rows of a frame by the values of some columns, in rising order."""
    ordered = frame[list(columns)].drop_duplicates().sort_values(list(columns))
    for values in ordered.to_numpy(dtype=float).tolist():
        same = (frame[list(columns)] == values).all(axis=1)
        yield tuple(values), frame[same]


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

    def agrees(self, mode: str) -> bool:
        """Return whether our times in a mode print as the row's."""
        return all(agrees(self.printed[p], self.ours[mode][p]) for p in self.printed)


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
            first = same.groupby(["mode", "planner"])["time_per_sample"].first()
            ours = {
                str(mode): {p: float(first.get((mode, p), np.nan)) for p in ("piper", "equi")}
                for mode in same["mode"].unique()
            }
            yield Row(row.devices, row.memory_gib, {"piper": row.piper, "equi": row.equi}, ours)
