"""First plans of a search, found by heuristics; the better they are, the fewer layouts need exact bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.plan.layouts.contenders import Contenders
from phaze.plan.layouts.families import LayoutFamilies
from phaze.plan.layouts.found import PlannedLayout
from phaze.plan.layouts.slices import first_of_each
from phaze.runtimes.grid import COLUMNS
from phaze.runtimes.rules import ENDS

CHOICES = ("schedule", "pp", "vp", "tp", "cp", "ep", "etp", "microbatch", "zero", "cp_kind")
"""Layout fields that distinguish families; the other fields follow from them."""
MOST_STEPS = 2
"""Maximum number of fields in which a neighbour differs, each by one step."""
MOST_NEIGHBOURS = 40
"""Maximum number of neighbours that are simulated, smallest bounds first."""
AT_ONCE = 10
"""Maximum number of families expanded together."""
CLEARLY = 0.02
"""Relative gain of a neighbour above which the search moves on to it at once."""
FAR = 0.2
"""Relative distance from the best plan up to which the neighbours of a plan are simulated."""
ALIKE = ("pp", "vp", "tp", "cp", "microbatch", "zero")
"""Fields by which families are grouped; one family per group is simulated."""
FIRST = 30
"""Maximum number of `ALIKE` groups that are tried, with one simulated family each."""
SPLIT = ("pp", "vp", "tp", "cp", "ep", "microbatch")
"""Fields by which open families are grouped; one family per group is simulated."""
MOST_UNDECIDED = 100
"""Maximum number of `SPLIT` groups that are tried, with one simulated family each."""
MOST_TRIED = 3
"""Maximum number of layouts of a family that are simulated."""


@dataclass(eq=False)
class Guesses:
    """Heuristic search for first plans among promising families."""

    contenders: Contenders
    _started: set[int] = field(default_factory=set)
    """Families whose neighbours were already simulated."""

    @property
    def families(self) -> LayoutFamilies:
        """Layout families of the search."""
        return self.contenders.families

    def start(self) -> None:
        """Simulate simple layouts of each pipeline depth by increasing bound, until one fits.

        Simple layouts have the smallest microbatch and the fewest stages per rank. Their memory bounds are
        tighter.
        """
        every = self.families.every
        if not len(every):
            return
        simple = (every.microbatch == every.microbatch.min()) & (every.vp == every.vp.min())
        simple &= (every.etp == every.etp.min()) | (every.etp == every.tp)
        for depth in np.unique(every.pp[simple]).tolist():
            for cp in np.unique(every.cp[simple & (every.pp == depth)]).tolist():
                if self._start(np.flatnonzero(simple & (every.pp == depth) & (every.cp == cp))):
                    break

    def _start(self, some: Ints) -> bool:
        """Simulate layouts of these families by increasing bound until one fits; True if one does."""
        every, bounds = self.families.every, self.families.bounds
        self.families.sharpen(some, "tokens")
        some = some[bounds.fits[some]]
        some = some[np.argsort(bounds.time_s[some], kind="stable")]
        some = first_of_each(some, every.tp, every.zero, every.sequence_parallel)
        self.families.open(some)
        return self.begin(some)

    def like(self, plan: PlannedLayout) -> None:
        """Simulate the layout of a plan that was found by other estimates, with any recompute that fits."""
        every, layout = self.families.every, plan.layout
        fields = vars(layout) | {
            "schedule": every.schedules.index(plan.schedule), "cp_kind": every.cp_kinds.index(layout.cp_kind),
        }  # fmt: skip
        same = [getattr(every, name) == fields[name] for name in COLUMNS if name != "recompute"]
        family = np.flatnonzero(np.all(same, axis=0))
        self.families.open(family)
        self.begin(family)

    def descend(self) -> None:
        """Move to faster neighbours from the fastest plan of each pipeline depth (local search)."""
        depths, distinct = self.families.every.pp, self.contenders.distinct
        while True:
            fastest = dict[int, int]()
            for family in sorted(distinct.found, key=distinct.fastest_s):
                fastest.setdefault(int(depths[family]), family)
            near_s = distinct.best_s * (1 + FAR)
            near = (one for one in fastest.values() if distinct.fastest_s(one) < near_s)
            left = [one for one in near if one not in self._started]
            if not left:
                return
            self._started.add(left[0])
            self._look_around(left[0])

    def _look_around(self, start: int) -> None:
        """Simulate the neighbours of a plan, smallest bounds first, until one is clearly faster."""
        known_s = self.contenders.distinct.fastest_s(start)
        near = self.near(start)
        self.families.sharpen(near, "microbatch")
        bounds = self.families.bounds
        near = near[bounds.fits[near] & (bounds.time_s[near] < known_s)]
        near = near[np.argsort(bounds.time_s[near], kind="stable")][:MOST_NEIGHBOURS]
        for some in np.array_split(near, -(-len(near) // AT_ONCE)) if len(near) else []:
            self.families.open(some)
            for family in some.tolist():
                self.begin(family, known_s, MOST_TRIED)
                if self.contenders.distinct.fastest_s(family) < known_s * (1 - CLEARLY):
                    return

    def near(self, start: int) -> Ints:
        """Unexpanded families that differ from one family by one step in at most `MOST_STEPS` fields."""
        near = np.flatnonzero(~self.families.opened)
        steps = np.zeros(len(near), np.int64)
        for places in self._places:
            apart = np.abs(places[near] - places[start])
            steps = steps + apart
            kept = (apart <= 1) & (steps <= MOST_STEPS)
            near, steps = near[kept], steps[kept]
        return near

    @cached_property
    def _places(self) -> list[Ints]:
        """For every field of `CHOICES`, the rank of each family's value among the field's values, (F,)."""
        found = []
        for name in CHOICES:
            values = getattr(self.families.every, name)
            found.append((np.cumsum(np.bincount(values) > 0) - 1)[values])
        return found

    def alike(self) -> None:
        """From each group of families that may be faster, simulate the one with the smallest bound.

        Families of a group have the same `ALIKE` fields. Layouts with even splits come first.
        """
        bounds, every = self.families.bounds, self.families.every
        order = bounds.in_order(bounds.time_s < self.contenders.promising_s)
        layers = self.contenders.question.task.model.layers + ENDS
        even: Bools = layers % every.stages[order] == 0
        for own in (even, ~even):
            some = first_of_each(order[own], *(getattr(every, name) for name in ALIKE))[:FIRST]
            self.families.open(some)
            self._begin_each(some)

    def undecided(self) -> None:
        """From each group of expanded families that may be faster, simulate the one with the smallest bound.

        Families of a group have the same `SPLIT` fields.
        """
        grid, bounds = self.contenders.grid, self.contenders.bounds
        order = bounds.in_order(bounds.time_s < self.contenders.promising_s)
        groups = first_of_each(order, *(getattr(grid, name) for name in SPLIT))[:MOST_UNDECIDED]
        self._begin_each(self.families.family[groups])

    def _begin_each(self, families: Ints) -> None:
        """Simulate a few layouts of each expanded family, if they may be faster."""
        for family in families.tolist():
            self.begin(family, self.contenders.promising_s, MOST_TRIED)

    def begin(self, families: int | Ints, most_s: float = inf, most: int | None = None) -> bool:
        """Simulate layouts of expanded families by increasing bound until one fits; True if one does.

        Only bounds below `most_s` count. With `most`, up to that many layouts are simulated, and the search
        goes on after one that fits while others may be faster.
        """
        places = np.flatnonzero(np.isin(self.families.family, families))
        bounds_s, found = self.contenders.bounds.time_s[places], False
        for at in np.argsort(bounds_s, kind="stable")[:most].tolist():
            if bounds_s[at] >= most_s:
                break
            one = self.contenders.at(int(places[at]))
            if self.contenders.begun(one, simple=True).found:
                found, most_s = True, min(most_s, one.time_s)
                if most is None:
                    break
        return found
