"""Layouts that a search could not prove slower than its best plan."""

from __future__ import annotations

from math import inf

import numpy as np

from phaze.base.arrays import Floats
from phaze.runtimes.grid import COLUMNS, LayoutGrid
from phaze.spec.training_plan import UndecidedPlan

MOST = 5
"""Maximum number of undecided layouts that are listed."""


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
