"""Result of a search over layouts: distinct plans, and a certificate of their optimality gap."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np

from phaze.base.arrays import Floats
from phaze.layout import MODEL_WIDTHS, Layout
from phaze.plan.layouts.division_search import FoundDivision
from phaze.plan.layouts.divisions import DividedLayout
from phaze.runtimes.grid import COLUMNS, LayoutGrid
from phaze.spec.training_plan import TIE, PlanCertificate, UndecidedPlan

MOST = 5
"""Maximum number of undecided layouts that are listed."""
TWIN_MEMORY = 0.01
"""Maximum relative difference in peak memory between layouts that share a row."""


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
        """Number of kinds of parallelism in use besides data parallelism, plus one if the plan recomputes."""
        wide = [name for name in MODEL_WIDTHS if getattr(self.layout, name) > 1]
        return len(wide) + (self.layout.recompute != "none")


@dataclass(frozen=True)
class LayoutPlans:
    """Plans by increasing step time, with their certificate; no plans if nothing fits."""

    plans: tuple[PlannedLayout, ...]
    certificate: PlanCertificate
    closest: tuple[Layout, str, float] | None = None
    """If nothing fits: the closest layout, its schedule, and its memory shortfall in bytes."""


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


@dataclass(eq=False)
class DistinctPlans:
    """Fastest plan found for every family of layouts, over all recompute options."""

    rows: int = 1
    """Number of table rows to search for."""
    best_s: float = inf
    longest_s: float = inf
    """Step time of the last requested row; infinite while there are fewer plans."""
    found: dict[int, PlannedLayout] = field(default_factory=dict)
    """Fastest plan by family index."""

    def fastest_s(self, family: int) -> float:
        """Step time of the fastest plan of a family; infinite if none is known."""
        known = self.found.get(family)
        return inf if known is None else known.found.time_s

    def note(self, family: int, plan: PlannedLayout) -> bool:
        """Record a plan if it is the fastest of its family so far; True if it is the fastest of all."""
        time_s = plan.found.time_s
        if time_s >= self.fastest_s(family):
            return False
        self.found[family] = plan
        best, self.best_s = time_s < self.best_s, min(time_s, self.best_s)
        if time_s < self.longest_s:
            self.look_for(self.rows)
        return best

    def look_for(self, rows: int) -> None:
        """Set the number of table rows to search for."""
        self.rows = rows
        last = [self.best_s] if rows == 1 else [one.found.time_s for one in self.ranked()[:rows]]
        self.longest_s = max(last) if len(last) == rows else inf

    def ranked(self, proven_s: float = inf) -> list[PlannedLayout]:
        """Plans by increasing step time; tied plans are ordered by simplicity.

        In a tie, plans within `proven_s` come first.
        """
        left, ranked = sorted(self.found.values(), key=lambda one: one.found.time_s), list[PlannedLayout]()
        while left:
            longest_s = left[0].found.time_s * (1 + TIE)
            same = [one for one in left if one.found.time_s <= longest_s]
            ranked += sorted(same, key=lambda one: (one.found.time_s > proven_s, one.kinds, one.found.time_s))
            left = left[len(same) :]
        return _folded(ranked)


def are_twins(one: PlannedLayout, other: PlannedLayout) -> bool:
    """True if two plans tie in step time and in peak memory."""
    time_s, most_bytes = one.found.time_s, one.peak_bytes
    return (
        abs(other.found.time_s - time_s) <= TIE * time_s
        and abs(other.peak_bytes - most_bytes) <= TWIN_MEMORY * most_bytes
    )


def _folded(plans: Iterable[PlannedLayout]) -> list[PlannedLayout]:
    """Merge each plan with its later near-duplicates (`are_twins`), keeping the order."""
    found: list[tuple[PlannedLayout, list[PlannedLayout]]] = []
    for plan in plans:
        twins = next((twins for one, twins in reversed(found) if are_twins(one, plan)), None)
        if twins is None:
            found.append((plan, []))
        else:
            twins.append(plan)
    return [replace(one, twins=tuple(twins)) if twins else one for one, twins in found]
