"""Result of a search over layouts: plans, and a certificate of their optimality gap."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from phaze.base.arrays import Floats
from phaze.layout import MODEL_WIDTHS, Layout
from phaze.plan.layouts.division_search import FoundDivision
from phaze.plan.layouts.divisions import DividedLayout
from phaze.runtimes.grid import COLUMNS, LayoutGrid
from phaze.spec.training_plan import PlanCertificate, UndecidedPlan

MOST = 5
"""Maximum number of undecided layouts that are listed."""


@dataclass(frozen=True)
class PlannedLayout:
    """Layout with the best pipeline split found for it."""

    divided: DividedLayout
    found: FoundDivision
    twins: tuple[PlannedLayout, ...] = ()
    """Other layouts with nearly equal step time and peak memory."""

    @cached_property
    def peak_bytes(self) -> float:
        """Tensor bytes on the rank with peak memory."""
        return float(self.divided.timeline(self.found.division).peak_bytes.max())

    @property
    def layout(self) -> Layout:
        """Layout of the plan."""
        return self.divided.layout

    @property
    def schedule(self) -> str:
        """Name of the pipeline schedule."""
        return self.divided.schedule

    @property
    def kinds(self) -> int:
        """Number of kinds of parallelism in use besides data parallelism, plus one with recompute."""
        wide = [name for name in MODEL_WIDTHS if getattr(self.layout, name) > 1]
        return len(wide) + (self.layout.recompute != "none")


@dataclass(frozen=True)
class LayoutPlans:
    """Plans by increasing step time, with their certificate; no plans if nothing fits."""

    plans: tuple[PlannedLayout, ...]
    certificate: PlanCertificate
    closest: tuple[Layout, str, float] | None = None
    """If nothing fits: the closest layout, its schedule, and its memory shortfall in bytes."""
    stopped: str = ""
    """Reason why the search ended before its gap was closed; empty if it is closed."""


def undecided_layouts(
    grid: LayoutGrid, bounds_s: Floats, best_s: float, gap: float
) -> tuple[tuple[UndecidedPlan, ...], int]:
    """Layouts that may beat the best plan by more than the gap, by increasing bound, and their number.

    `bounds_s` are the lower bounds of all layouts, (N,).
    """
    if best_s == inf:
        return (), 0
    below = np.flatnonzero(bounds_s < best_s * (1 - gap))
    first = below[np.argsort(bounds_s[below], kind="stable")[:MOST]]
    named = [
        UndecidedPlan(fields=_fields(grid, place), bound_s=bound_s, gain=1 - bound_s / best_s)
        for place, bound_s in zip(first.tolist(), bounds_s[first].tolist(), strict=True)
    ]
    return tuple(named), len(below)


def _fields(grid: LayoutGrid, place: int) -> dict[str, int | str]:
    layout = grid.layout(place)
    own = {name: getattr(layout, name) for name in COLUMNS if name != "schedule"}
    found = {name: int(value) if isinstance(value, bool) else value for name, value in own.items()}
    return {**found, "schedule": grid.schedule_of(place)}
