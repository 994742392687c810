"""Candidate layouts, each with its lower bound and its best pipeline split so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.plan.layouts.bounds import LayoutBounds
from phaze.plan.layouts.division_search import DivisionSearch, FoundDivision
from phaze.plan.layouts.event_program import Flow
from phaze.plan.layouts.families import LayoutFamilies
from phaze.plan.layouts.found import DistinctPlans, PlannedLayout
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.time_limit import Work
from phaze.runtimes.grid import LayoutGrid
from phaze.spec.names import GAP

MOST_READY = 32
"""Maximum number of layouts whose linear programs stay in memory between examinations."""


@dataclass(eq=False)
class LayoutContender:
    """Candidate layout, with the search over its pipeline splits."""

    place: int
    search: DivisionSearch | None = None
    exact: bool = False
    """True if all pipeline splits of the layout were simulated."""

    @property
    def unfinished(self) -> bool:
        """True if the layout's lower bound may still rise."""
        return self.search is None or not self.search.done

    @property
    def time_s(self) -> float:
        """Step time of the layout's best pipeline split so far; infinite without one."""
        return inf if self.search is None or self.search.found is None else self.search.found.time_s


@dataclass(eq=False)
class Contenders:
    """Candidate layouts of a search, with their lower bounds and simulated pipeline splits."""

    question: PlanQuestion
    families: LayoutFamilies
    gap: float
    on_better: Callable[[PlannedLayout], None]
    distinct: DistinctPlans = field(default_factory=DistinctPlans)
    """Fastest plan of every family, and the step time of the last requested table row."""
    work: Work = field(default_factory=Work)
    """Count of linear programs solved for all layouts."""
    looked_at: list[LayoutContender] = field(default_factory=list)
    """Layouts with simulated pipeline splits."""
    _known: dict[int, LayoutContender] = field(default_factory=dict)
    _whole: dict[int, int] = field(default_factory=dict)
    """Index of the layout with optional recompute, by index of the same layout without recompute."""
    _flows: dict[bytes, list[Flow]] = field(default_factory=dict)
    _splits: dict[tuple[int, int], FoundDivision] = field(default_factory=dict)
    """Best pipeline split found for each number of ranks and chunks, with its step time."""
    _ready: list[DivisionSearch] = field(default_factory=list)
    """Searches whose linear program is in memory, most recent first."""

    @property
    def grid(self) -> LayoutGrid:
        """Layouts of the families expanded so far; indices stay valid when more families are expanded."""
        return self.families.grid

    @property
    def bounds(self) -> LayoutBounds:
        """Lower bounds of the layouts in `grid`."""
        return self.families.own

    @property
    def enough_s(self) -> float:
        """Step-time threshold, in seconds: a lower bound that reaches it is not raised further."""
        return self.distinct.longest_s * (1 - self.gap)

    @property
    def promising_s(self) -> float:
        """Step-time threshold: layouts with a bound below it are simulated, however wide the gap is."""
        return self.distinct.longest_s * (1 - min(self.gap, GAP))

    def enough_of(self, contender: LayoutContender) -> float:
        """Step-time threshold for a layout's bound, also limited by the fastest plan of its family."""
        return min(self.enough_s, self.fastest_s(contender.place) * (1 - self.gap))

    def fastest_s(self, place: int) -> float:
        """Step time of the fastest plan in the layout's family."""
        return self.distinct.fastest_s(int(self.families.family[place]))

    def at(self, place: int) -> LayoutContender:
        """Candidate layout at an index of the grid."""
        return self._known.setdefault(place, LayoutContender(place))

    def bound_of(self, contender: LayoutContender) -> float:
        """Best lower bound so far on the step time of a layout."""
        own_s = float(self.bounds.time_s[contender.place])
        return own_s if contender.search is None else max(own_s, contender.search.bound_s)

    def decided(self, contender: LayoutContender) -> bool:
        """True if the lower bound of a layout has reached its threshold."""
        return self.bound_of(contender) >= self.enough_of(contender)

    def parted(self, contender: LayoutContender) -> bool:
        """True if the next step branches on subsets of the layout's pipeline splits, see `DivisionSearch`."""
        other = self._recomputed(contender.place) or contender
        return other.search is not None and other.search.parted

    def relate(self, places: Ints) -> None:
        """Reuse the bound of each layout with optional recompute for the same layout without recompute.

        Not where token dispatch overlaps without recompute alone: the bound would be too high.
        """
        words = [self.grid.recomputes[word] for word in self.grid.recompute[places].tolist()]
        each = list(zip(places.tolist(), self.families.family[places].tolist(), words, strict=True))
        part = self.question.runtime.recomputed_counts != "all"
        whole = {family: place for place, family, word in each if word == "full" and part}
        plain = [(place, family) for place, family, word in each if word == "none" and family in whole]
        layouts = {place: self.grid.layout(place) for place, _ in plain}
        self._whole = {
            place: whole[family]
            for place, family in plain
            if not self.question.lowering(layouts[place]).pairs(layouts[place])
        }

    def begun(self, contender: LayoutContender, *, simple: bool = False) -> DivisionSearch:
        """Search over the pipeline splits of a candidate; the first call starts it with `guess`."""
        if contender.search is None:
            place = contender.place
            divided = self.question.divided(self.grid.layout(place), self.grid.schedule_of(place))
            limit_bytes = self.question.limit_bytes(divided.layout)
            known = self._splits.get((divided.layout.pp, divided.layout.vp))
            contender.search = DivisionSearch(
                divided,
                limit_bytes,
                self.distinct.longest_s,
                flows=self._flows,
                work=self.work,
                like=known.division if known else None,
            )
            self.looked_at.append(contender)
            contender.search.guess(simple=simple)
            contender.exact = contender.search.done
            self._note(contender)
        return contender.search

    def look_at(self, contender: LayoutContender) -> None:
        """Raise the bound of a layout by one step: by linear relaxation first, by whole layers later."""
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
        """Improve the best pipeline splits of the fastest layouts by local search, one of each pipeline.

        Of layouts with equal numbers of ranks and chunks the others then try the best split of all. Layouts
        whose splits were all simulated cannot improve.
        """
        by_shape: dict[tuple[int, int], list[LayoutContender]] = {}
        for one in sorted(self.looked_at, key=lambda one: one.time_s):
            if not one.exact and one.time_s < inf:
                by_shape.setdefault(self.begun(one).shape, []).append(one)
        for shape, (first, *others) in list(by_shape.items())[:count]:
            self.begun(first).climb()
            self._note(first)
            for one in others:
                self.begun(one).try_blocks(self._splits[shape].division.blocks)
                self._note(one)

    def lighten(self, family: int) -> None:
        """Try the pipeline split of a family's plan with its other options and fewer recomputed blocks."""
        split = self.distinct.found[family].found.division
        for place in np.flatnonzero(self.families.family == family).tolist():
            contender = self.at(place)
            self.begun(contender).lighten(split)
            self._note(contender)

    def look_on(self) -> None:
        """Resume all searches, now for plans that are no slower than the last table row.

        Bounds are capped at the best time, since earlier searches proved nothing beyond it.
        """
        longest_s = self.distinct.longest_s
        for one in self.looked_at:
            if one.search is not None and not one.exact:
                bound_s = min(one.search.bound_s, self.distinct.best_s)
                again = replace(one.search, enough_s=longest_s, bound_s=bound_s, branches=False)
                again.relaxed = again.done = False
                one.search = again

    def _keep(self, search: DivisionSearch) -> None:
        """Keep the linear programs of the most recent unfinished searches only, to limit memory use."""
        if search.done:
            search.release()
            return
        self._ready = [search, *(one for one in self._ready if one is not search)]
        for one in self._ready[MOST_READY:]:
            one.park()
        del self._ready[MOST_READY:]

    def _raise(self, contender: LayoutContender) -> None:
        """Raise the bound of a layout by one step, unless it has reached its threshold."""
        search, enough_s = self.begun(contender), self.enough_of(contender)
        if search.bound_s < enough_s and not search.done:
            (search.finish if search.relaxed else search.relax)(enough_s)
            self._note(contender)

    def _recomputed(self, place: int) -> LayoutContender | None:
        """Same layout, except that any number of its layers may be recomputed, including none.

        Its bound therefore also holds for this layout.
        """
        other = self._whole.get(place)
        return None if other is None else self.at(other)

    def _note(self, contender: LayoutContender) -> None:
        search = contender.search
        if search is not None and search.found is not None:
            known = self._splits.setdefault(search.shape, search.found)
            if search.found.time_s < known.time_s:
                self._splits[search.shape] = search.found
            plan = PlannedLayout(search.divided, search.found)
            if self.distinct.note(int(self.families.family[contender.place]), plan):
                self.on_better(plan)

    @property
    def bounds_s(self) -> Floats:
        """Lower bound on the step time of each layout, (N,); infinite for layouts that do not fit."""
        looked_at, bounds = tuple(self.looked_at), self.bounds  # in this order, for other threads
        found = np.where(bounds.fits, bounds.time_s, inf)
        for one in looked_at:
            found[one.place] = max(found[one.place], self.bound_of(one))
        return found

    @property
    def simulated(self) -> Bools:
        """Mask of the layouts with simulated pipeline splits, (N,)."""
        found = np.zeros(len(self.grid), np.bool_)
        found[[one.place for one in self.looked_at]] = True
        return found

    @property
    def divisions(self) -> int:
        """Number of simulated pipeline splits."""
        return sum(one.search.simulated for one in self.looked_at if one.search is not None)

    @property
    def searched(self) -> int:
        """Number of layouts with too many pipeline splits to simulate all of them."""
        return sum(not one.exact for one in self.looked_at)
