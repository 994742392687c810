"""First plans of a search, found by heuristics; the better they are, the fewer layouts need exact bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.plan import effort
from phaze.plan.bounds.families import LayoutFamilies
from phaze.plan.bounds.shards import first_of_each
from phaze.plan.search.contenders import Contenders
from phaze.plan.search.planned import PlannedLayout
from phaze.runtimes.grid import COLUMNS
from phaze.runtimes.rules import ENDS

CHOICES = ("schedule", "pp", "vp", "tp", "cp", "ep", "etp", "microbatch", "zero", "cp_kind")
"""Layout fields that distinguish families; the other fields follow from them."""
ALIKE = ("pp", "vp", "tp", "cp", "microbatch", "zero")
"""Fields by which families are grouped; one family per group is simulated."""
SPLIT = ("pp", "vp", "tp", "cp", "ep", "microbatch")
"""Fields by which open families are grouped; one family per group is simulated."""


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
                if self._simulate_first(np.flatnonzero(simple & (every.pp == depth) & (every.cp == cp))):
                    break

    def _simulate_first(self, families: Ints) -> bool:
        """Simulate layouts of these families by increasing bound until one fits; True if one does."""
        every, bounds, most_s = self.families.every, self.families.bounds, self.contenders.distinct.most_s
        families = families[bounds.time_s[families] < most_s]
        self.families.sharpen(families, "tokens")
        families = families[(bounds.fits & (bounds.time_s < most_s))[families]]
        families = families[np.argsort(bounds.time_s[families], kind="stable")]
        families = first_of_each(families, every.tp, every.zero, every.sequence_parallel)
        self.families.open(families)
        return self.simulate(families)

    def try_plan(self, plan: PlannedLayout) -> None:
        """Simulate a layout that another estimate found, with every recompute option."""
        every, layout = self.families.every, plan.layout
        schedule, cp_kind = every.schedules.index(plan.schedule), every.cp_kinds.index(layout.cp_kind)
        fields = vars(layout) | {"schedule": schedule, "cp_kind": cp_kind}
        same = [getattr(every, name) == fields[name] for name in COLUMNS if name != "recompute"]
        family = np.flatnonzero(np.all(same, axis=0))
        self.families.open(family)
        self.simulate(family)
        for place in np.flatnonzero(np.isin(self.families.family, family)).tolist():
            if self.contenders.grid.layout(place).recompute == layout.recompute:
                self.contenders.try_split(place, plan.split)

    def descend(self) -> None:
        """Move to faster neighbours from the fastest plan of each pipeline depth (local search)."""
        depths, distinct = self.families.every.pp, self.contenders.distinct
        while True:
            fastest = dict[int, int]()
            for family in sorted(distinct.by_family, key=distinct.fastest_s):
                fastest.setdefault(int(depths[family]), family)
            # One start per depth, so that the depth of the first plan does not decide.
            near_s = distinct.best_s * (1 + effort.FAR)
            nearby = (start for start in fastest.values() if distinct.fastest_s(start) < near_s)
            unstarted = [start for start in nearby if start not in self._started]
            if not unstarted:
                return
            self._started.add(unstarted[0])
            self._try_neighbours(unstarted[0])

    def _try_neighbours(self, start: int) -> None:
        """Simulate the neighbours of a plan, smallest bounds first, until one is clearly faster."""
        known_s = self.contenders.distinct.fastest_s(start)
        nearby = self.neighbours_of(start)
        self.families.sharpen(nearby, "microbatch")
        bounds = self.families.bounds
        nearby = nearby[bounds.fits[nearby] & (bounds.time_s[nearby] < known_s)]
        nearby = nearby[np.argsort(bounds.time_s[nearby], kind="stable")][: effort.MOST_NEIGHBOURS]
        for families in np.array_split(nearby, -(-len(nearby) // effort.EXPANDED_AT_ONCE) or 1):
            self.families.open(families)
            for family in families.tolist():
                self.simulate(family, known_s, effort.MOST_PER_FAMILY)
                if self.contenders.distinct.fastest_s(family) < known_s * (1 - effort.CLEAR_GAIN):
                    return

    def neighbours_of(self, start: int) -> Ints:
        """Unexpanded families that differ from one family by one step in at most `MOST_STEPS` fields."""
        near = np.flatnonzero(~self.families.opened)
        # Field by field, since most families already differ too much in the first few.
        steps = np.zeros(len(near), np.int64)
        for places in self._value_ranks:
            apart = np.abs(places[near] - places[start])
            steps = steps + apart
            close = (apart <= 1) & (steps <= effort.MOST_STEPS)
            near, steps = near[close], steps[close]
        return near

    @cached_property
    def _value_ranks(self) -> list[Ints]:
        """For every field of `CHOICES`, the rank of each family's value among the field's values, (F,)."""
        ranks = []
        for name in CHOICES:
            values = getattr(self.families.every, name)
            # Steps count values that occur: tp 4 and 8 are one step apart.
            ranks.append((np.cumsum(np.bincount(values) > 0) - 1)[values])
        return ranks

    def try_groups(self) -> None:
        """From each group of families that may be faster, simulate the one with the smallest bound.

        Families of a group have the same `ALIKE` fields. Layouts with even splits come first.
        """
        bounds, every = self.families.bounds, self.families.every
        order = bounds.in_order(bounds.time_s < self.contenders.promising_s)
        layers = self.contenders.question.task.model.layers + ENDS
        even: Bools = layers % every.stages[order] == 0
        for parity in (even, ~even):
            groups = first_of_each(order[parity], *(getattr(every, name) for name in ALIKE))
            families = groups[: effort.MOST_GROUPS]
            self.families.open(families)
            self._simulate_each(families)

    def try_undecided(self) -> None:
        """From each group of expanded families that may be faster, simulate the one with the smallest bound.

        Families of a group have the same `SPLIT` fields.
        """
        grid, bounds = self.contenders.grid, self.contenders.bounds
        order = bounds.in_order(bounds.time_s < self.contenders.promising_s)
        groups = first_of_each(order, *(getattr(grid, name) for name in SPLIT))
        self._simulate_each(self.families.family[groups[: effort.MOST_UNDECIDED_GROUPS]])

    def _simulate_each(self, families: Ints) -> None:
        """Simulate a few layouts of each expanded family, if they may be faster."""
        for family in families.tolist():
            self.simulate(family, self.contenders.promising_s, effort.MOST_PER_FAMILY)

    def simulate(self, families: int | Ints, most_s: float = inf, most: int | None = None) -> bool:
        """Simulate layouts of expanded families by increasing bound until one fits; True if one does.

        Only bounds below `most_s` count. With `most`, up to that many layouts are simulated, and the search
        goes on after one that fits while others may be faster.
        """
        places = np.flatnonzero(np.isin(self.families.family, families))
        bounds_s, fits = self.contenders.bounds.time_s[places], False
        for at in np.argsort(bounds_s, kind="stable")[:most].tolist():
            if bounds_s[at] >= most_s:
                break
            best = self.contenders.search_of(int(places[at]), simple=True).best
            if best is not None:
                fits, most_s = True, min(most_s, best.time_s)
                if most is None:
                    break
        return fits
