"""Layouts under a search, each with its bound and the best pipeline split found by now."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.plan.layouts.bounds import LayoutBounds
from phaze.plan.layouts.distinct import DistinctPlans
from phaze.plan.layouts.division_search import DivisionSearch, FlowKey
from phaze.plan.layouts.event_program import Flow
from phaze.plan.layouts.families import LayoutFamilies
from phaze.plan.layouts.found import PlannedLayout
from phaze.plan.layouts.question import PlanQuestion
from phaze.runtimes.grid import LayoutGrid

MOST_READY = 32
"""Layouts whose linear programs are kept in memory until they are looked at again."""


@dataclass(eq=False)
class Contender:
    """A layout of open families."""

    place: int
    search: DivisionSearch | None = None
    exact: bool = False
    """Whether all of its divisions were simulated."""

    @property
    def time_s(self) -> float:
        """Seconds of its best division by now; infinite without any."""
        return inf if self.search is None or self.search.found is None else self.search.found.time_s


@dataclass(eq=False)
class Contenders:
    """Layouts of open families, of which divisions are simulated and bounds raised one at a time."""

    question: PlanQuestion
    families: LayoutFamilies
    gap: float
    on_better: Callable[[PlannedLayout], None]
    distinct: DistinctPlans = field(default_factory=DistinctPlans)
    """The fastest plan of every family, and the time of the last row that is looked for."""
    looked_at: list[Contender] = field(default_factory=list)
    """Those with simulated divisions."""
    _known: dict[int, Contender] = field(default_factory=dict)
    _whole: dict[int, int] = field(default_factory=dict)
    """Of layouts whose layers keep all, those beside them in which any may run forward again."""
    _flows: dict[FlowKey, Flow] = field(default_factory=dict)
    _ready: list[DivisionSearch] = field(default_factory=list)
    """Searches with a program that is in memory, the last one first."""

    @property
    def grid(self) -> LayoutGrid:
        """Layouts of families that are open by now; no place changes when further ones are opened."""
        return self.families.grid

    @property
    def bounds(self) -> LayoutBounds:
        """Their bounds."""
        return self.families.own

    @property
    def enough_s(self) -> float:
        """Seconds that a bound need not exceed."""
        return self.distinct.longest_s * (1 - self.gap)

    def enough_of(self, contender: Contender) -> float:
        """The same of one layout: its kin are in the table at most once, with the fastest of them."""
        return min(self.enough_s, self.fastest_s(contender.place) * (1 - self.gap))

    def fastest_s(self, place: int) -> float:
        """Seconds of the fastest plan of a layout or one that recomputes something else."""
        return self.distinct.fastest_s(int(self.families.family[place]))

    def at(self, place: int) -> Contender:
        """Layout at a place of the grid."""
        return self._known.setdefault(place, Contender(place))

    def bound_of(self, contender: Contender) -> float:
        """Seconds that a layout does not go below, as far as it is known by now."""
        own_s = float(self.bounds.time_s[contender.place])
        return own_s if contender.search is None else max(own_s, contender.search.bound_s)

    def relate(self, places: Ints) -> None:
        """Let layouts at places, of which some layers may run forward again, bound those beside them."""
        words = [self.grid.recomputes[word] for word in self.grid.recompute[places].tolist()]
        each = list(zip(places.tolist(), self.families.family[places].tolist(), words, strict=True))
        part = self.question.runtime.recomputes_part
        whole = {family: place for place, family, word in each if word == "full" and part}
        self._whole = {
            place: whole[family] for place, family, word in each if word == "none" and family in whole
        }

    def begun(self, contender: Contender) -> DivisionSearch:
        """Search for divisions of a contender, with a first one."""
        if contender.search is None:
            place = contender.place
            divided = self.question.divided(self.grid.layout(place), self.grid.schedule_of(place))
            limit_bytes = self.question.limit_bytes(divided.layout)
            contender.search = DivisionSearch(
                divided, limit_bytes, self.distinct.longest_s, flows=self._flows
            )
            self.looked_at.append(contender)
            contender.search.guess()
            contender.exact = contender.search.done
            self._note(contender)
        return contender.search

    def look_at(self, contender: Contender) -> None:
        """Raise the bound of a layout: first by parts of blocks, at last by whole ones."""
        search, other = self.begun(contender), self._recomputed(contender.place)
        if not search.done:
            if other is not None:
                self._raise(other)
                search.follow(self.begun(other), self.enough_of(contender))
            else:
                self._raise(contender)
            self._note(contender)
        self._keep(search)

    def climb(self, count: int) -> None:
        """Look around the best divisions of so many layouts."""
        for one in sorted(self.looked_at, key=lambda one: one.time_s)[:count]:
            self.begun(one).climb()
            self._note(one)

    def look_on(self) -> None:
        """Take up layouts again, for plans that are no slower than the last row; bounds are of plans below
        the best one.
        """
        longest_s = self.distinct.longest_s
        for one in self.looked_at:
            if one.search is not None and not one.exact:
                bound_s = min(one.search.bound_s, self.distinct.best_s)
                one.search = replace(
                    one.search, enough_s=longest_s, bound_s=bound_s, relaxed=False, done=False
                )

    def _keep(self, search: DivisionSearch) -> None:
        """Keep the program of a search that goes on, and of a few before it; programs are most of memory."""
        if search.done:
            search.release()
            return
        self._ready = [search, *(one for one in self._ready if one is not search)]
        for one in self._ready[MOST_READY:]:
            one.park()
        del self._ready[MOST_READY:]

    def _raise(self, contender: Contender) -> None:
        """Take one more step with the bound of a layout, unless it is high enough."""
        search, enough_s = self.begun(contender), self.enough_of(contender)
        if search.bound_s < enough_s and not search.done:
            (search.finish if search.relaxed else search.relax)(enough_s)
            self._note(contender)

    def _recomputed(self, place: int) -> Contender | None:
        """Contender that differs in nothing but in layers that may run forward again: any number, or none, so
        that its bound is one of the layout, too.
        """
        other = self._whole.get(place)
        return None if other is None else self.at(other)

    def _note(self, contender: Contender) -> None:
        search = contender.search
        if search is not None and search.found is not None:
            plan = PlannedLayout(search.divided, search.found)
            if self.distinct.note(int(self.families.family[contender.place]), plan):
                self.on_better(plan)

    @property
    def bounds_s(self) -> Floats:
        """Seconds that each layout does not go below, (N,); infinite for those that do not fit."""
        found = np.where(self.bounds.fits, self.bounds.time_s, inf)
        for one in self.looked_at:
            found[one.place] = max(found[one.place], self.bound_of(one))
        return found

    @property
    def simulated(self) -> Bools:
        """Layouts of which divisions were simulated, (N,)."""
        found = np.zeros(len(self.grid), np.bool_)
        found[[one.place for one in self.looked_at]] = True
        return found

    @property
    def divisions(self) -> int:
        """Divisions that were simulated."""
        return sum(search.simulated for search in self._searches)

    @property
    def searched(self) -> int:
        """Layouts of which not all divisions were simulated at once."""
        return sum(not one.exact for one in self.looked_at)

    @property
    def work(self) -> int:
        """Linear programs that were solved, longer ones as many as they take longer."""
        return sum(search.work for search in self._searches)

    @property
    def _searches(self) -> Iterable[DivisionSearch]:
        return (one.search for one in self.looked_at if one.search is not None)
