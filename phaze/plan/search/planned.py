"""Result of a search over layouts: distinct plans, and a certificate of their optimality gap."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np

from phaze.base.arrays import Floats
from phaze.layout import MODEL_WIDTHS, Layout
from phaze.plan.bounds.families import UnfitLayout
from phaze.plan.splits.split import Split, StagedLayout
from phaze.runtimes.grid import COLUMNS, LayoutGrid
from phaze.spec.training_plan import TIE, ChipOutcome, PlanCertificate, UndecidedPlan

MOST_LISTED = 5
"""Maximum number of undecided layouts that are listed."""
TWIN_MEMORY = 0.01
"""Maximum relative difference in peak memory between layouts that share a row."""


@dataclass(frozen=True)
class PlannedLayout:
    """Layout with the best pipeline split found for it."""

    staged: StagedLayout
    split: Split
    time_s: float
    twins: tuple[PlannedLayout, ...] = ()
    """Other layouts with nearly equal step time and peak memory."""

    @cached_property
    def peak_bytes(self) -> float:
        """Tensor bytes on the rank with peak memory."""
        return float(self.staged.timeline(self.split).peak_bytes.max())

    @property
    def layout(self) -> Layout:
        """Layout of the plan."""
        return self.staged.layout

    @property
    def schedule(self) -> str:
        """Name of the pipeline schedule."""
        return self.staged.schedule

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
    closest: UnfitLayout | None = None
    """If nothing fits: the layout with the smallest memory shortfall."""
    chips: tuple[ChipOutcome, ...] | None = None
    """Outcome of every chip, of a search over several; None for one."""
    place: int = 0
    """Index of the chip of these plans among those of the request."""


def undecided_layouts(
    grid: LayoutGrid, bounds_s: Floats, best_s: float, gap: float
) -> tuple[tuple[UndecidedPlan, ...], int]:
    """Layouts that may beat the best plan by more than the gap, by increasing bound, and their number.

    `bounds_s` are the lower bounds of all layouts, (N,).
    """
    if best_s == inf:
        return (), 0
    below = np.flatnonzero(bounds_s < best_s * (1 - gap))
    first = below[np.argsort(bounds_s[below], kind="stable")[:MOST_LISTED]]
    undecided = [
        UndecidedPlan(fields=_fields(grid, place), bound_s=bound_s, gain=1 - bound_s / best_s)
        for place, bound_s in zip(first.tolist(), bounds_s[first].tolist(), strict=True)
    ]
    return tuple(undecided), len(below)


def _fields(grid: LayoutGrid, place: int) -> dict[str, int | str]:
    layout = grid.layout(place)
    values = {name: getattr(layout, name) for name in COLUMNS if name != "schedule"}
    fields = {name: int(value) if isinstance(value, bool) else value for name, value in values.items()}
    return {**fields, "schedule": grid.schedule_of(place)}


@dataclass(eq=False)
class DistinctPlans:
    """Fastest plan found for every family of layouts, over all recompute options."""

    rows: int = 1
    """Number of table rows to search for."""
    best_s: float = inf
    most_s: float = inf
    """Step time of a plan on another chip: slower plans are no rows."""
    longest_s: float = inf
    """Step time of the last requested row, at most `most_s`, while there are fewer plans."""
    by_family: dict[int, PlannedLayout] = field(default_factory=dict)
    """Fastest plan by family index."""

    def fastest_s(self, family: int) -> float:
        """Step time of the fastest plan of a family; infinite if none is known."""
        plan = self.by_family.get(family)
        return inf if plan is None else plan.time_s

    def note(self, family: int, plan: PlannedLayout) -> bool:
        """Record a plan if it is the fastest of its family so far; True if it is the fastest of all."""
        time_s = plan.time_s
        if time_s >= self.fastest_s(family):
            return False
        self.by_family[family] = plan
        best, self.best_s = time_s < self.best_s, min(time_s, self.best_s)
        # Only then do the first rows change.
        if time_s < self.longest_s:
            self.set_rows(self.rows)
        return best

    def set_rows(self, rows: int) -> None:
        """Set the number of table rows to search for."""
        self.rows = rows
        last = [self.best_s] if rows == 1 else [plan.time_s for plan in self.ranked()[:rows]]
        self.longest_s = min(max(last) if len(last) == rows else inf, self.most_s)

    def ranked(self, proven_s: float = inf) -> list[PlannedLayout]:
        """Plans by increasing step time, but first the simplest of those that tie with the fastest.

        In this tie, plans within `proven_s` come before others.
        """
        plans = self.by_family.values()
        longest_s = min((plan.time_s for plan in plans), default=0.0) * (1 + TIE)
        tied = (plan for plan in plans if plan.time_s <= longest_s)
        first = min(tied, key=lambda plan: (plan.time_s > proven_s, plan.kinds, plan.time_s), default=None)
        return _merge_twins(sorted(plans, key=lambda plan: (plan is not first, plan.time_s)))


def are_twins(plan: PlannedLayout, other: PlannedLayout) -> bool:
    """True if two plans tie in step time and in peak memory."""
    if abs(other.time_s - plan.time_s) > TIE * plan.time_s:
        return False
    return abs(other.peak_bytes - plan.peak_bytes) <= TWIN_MEMORY * plan.peak_bytes


def _merge_twins(plans: Iterable[PlannedLayout]) -> list[PlannedLayout]:
    """Merge each plan with its later near-duplicates (`are_twins`), keeping the order."""
    groups: list[list[PlannedLayout]] = []
    for plan in plans:
        group = next((group for group in reversed(groups) if are_twins(group[0], plan)), [])
        if not group:
            groups.append(group)
        group.append(plan)
    return [replace(first, twins=tuple(twins)) if twins else first for first, *twins in groups]
