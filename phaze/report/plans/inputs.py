"""What the page of the plans is made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.spec.names import Planner
from phaze.spec.planning import PlanCase, Plans
from phaze.spec.published_plans import PublishedPlans

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

    plans: Plans
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
