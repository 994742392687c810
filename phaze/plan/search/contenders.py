"""Candidate layouts, each with its lower bound and its best pipeline split so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.plan import effort
from phaze.plan.bounds.families import LayoutFamilies
from phaze.plan.bounds.layouts import LayoutBounds
from phaze.plan.question import PlanQuestion
from phaze.plan.search.planned import DistinctPlans, PlannedLayout
from phaze.plan.splits.event_program import Flow
from phaze.plan.splits.search import SplitSearch, TimedSplit
from phaze.plan.splits.split import Split
from phaze.plan.time_limit import Work
from phaze.runtimes.grid import LayoutGrid
from phaze.spec.names import GAP


@dataclass(eq=False)
class Contenders:
    """Candidate layouts of a search, with their lower bounds and simulated pipeline splits.

    A layout is given by its place, the index in `grid`.
    """

    question: PlanQuestion
    families: LayoutFamilies
    gap: float
    on_better: Callable[[PlannedLayout], None]
    distinct: DistinctPlans = field(default_factory=DistinctPlans)
    """Fastest plan of every family, and the step time of the last requested table row."""
    work: Work = field(default_factory=Work)
    """Count of linear programs solved for all layouts."""
    searches: dict[int, SplitSearch] = field(default_factory=dict)
    """Searches over the pipeline splits of layouts, by place; all others have no simulated splits."""
    _with_recompute: dict[int, int] = field(default_factory=dict)
    """Place of the layout with optional recompute, by place of the same layout without recompute.

    The first may recompute any number of its layers, including none: its bound also holds for the second.
    """
    _flows: dict[bytes, list[Flow]] = field(default_factory=dict)
    _splits: dict[tuple[int, int], TimedSplit] = field(default_factory=dict)
    """Best pipeline split found for each number of ranks and chunks, with its step time."""
    _loaded: list[SplitSearch] = field(default_factory=list)
    """Searches whose linear program is in memory, most recent first."""

    @property
    def grid(self) -> LayoutGrid:
        """Layouts of the families expanded so far; indices stay valid when more families are expanded."""
        return self.families.grid

    @property
    def bounds(self) -> LayoutBounds:
        """Lower bounds of the layouts in `grid`."""
        return self.families.layout_bounds

    @property
    def target_s(self) -> float:
        """Step-time threshold, in seconds: a lower bound that reaches it is not raised further."""
        return self.distinct.longest_s * (1 - self.gap)

    @property
    def promising_s(self) -> float:
        """Step-time threshold: layouts with a bound below it are simulated even if a wide gap is accepted."""
        return self.distinct.longest_s * (1 - min(self.gap, GAP))

    def target_of(self, place: int) -> float:
        """Step-time threshold for a layout's bound, also limited by the fastest plan of its family."""
        return min(self.target_s, self.fastest_s(place) * (1 - self.gap))

    def fastest_s(self, place: int) -> float:
        """Step time of the fastest plan in the layout's family."""
        return self.distinct.fastest_s(int(self.families.family[place]))

    def bound_of(self, place: int) -> float:
        """Best lower bound so far on the step time of a layout."""
        bound_s, search = float(self.bounds.time_s[place]), self.searches.get(place)
        return bound_s if search is None else max(bound_s, search.bound_s)

    def decided(self, place: int) -> bool:
        """True if the lower bound of a layout has reached its threshold."""
        return self.bound_of(place) >= self.target_of(place)

    def unfinished(self, place: int) -> bool:
        """True if the lower bound of a layout may still rise."""
        return place not in self.searches or not self.searches[place].done

    def is_branching(self, place: int) -> bool:
        """True if the next step branches on subsets of the layout's pipeline splits, see `SplitSearch`."""
        search = self.searches.get(self._with_recompute.get(place, place))
        return search is not None and search.is_branching

    def relate(self, places: Ints) -> None:
        """Reuse the bound of each layout with optional recompute for the same layout without recompute.

        Not where token dispatch overlaps without recompute alone: the bound would be too high.
        """
        options = [self.grid.recomputes[option] for option in self.grid.recompute[places].tolist()]
        rows = list(zip(places.tolist(), self.families.family[places].tolist(), options, strict=True))
        # Only if part of the layers may be recomputed does the same layout without recompute belong to it.
        part = self.question.runtime.recomputed_counts != "all"
        recomputing = {family: place for place, family, option in rows if option == "full" and part}
        plain = [row[:2] for row in rows if row[2] == "none" and row[1] in recomputing]
        self._with_recompute = {}
        for place, family in plain:
            layout = self.grid.layout(place)
            if not self.question.lowering(layout).pairs(layout):
                self._with_recompute[place] = recomputing[family]

    def search_of(self, place: int, *, simple: bool = False) -> SplitSearch:
        """Search over the pipeline splits of a layout; the first call starts it with `guess`."""
        if place not in self.searches:
            staged = self.question.staged(self.grid.layout(place), self.grid.schedule_of(place))
            best = self._splits.get((staged.layout.pp, staged.layout.vp))
            similar, limit_bytes = best.split if best else None, self.question.limit_bytes(staged.layout)
            limits = limit_bytes, self.distinct.longest_s
            search = SplitSearch(staged, *limits, flows=self._flows, work=self.work, similar=similar)
            self.searches[place] = search
            search.guess(simple=simple)
            self._record(place)
        return self.searches[place]

    def examine(self, place: int) -> None:
        """Raise the bound of a layout by one step: by linear relaxation first, by whole layers later."""
        search, other = self.search_of(place), self._with_recompute.get(place)
        if not search.done:
            if other is not None:
                self._raise_bound(other)
                search.adopt_bound(self.search_of(other), self.target_of(place))
            else:
                self._raise_bound(place)
            self._record(place)
        self._unload_others(search)

    def climb(self, count: int) -> None:
        """Improve the best pipeline splits of the fastest layouts by local search, one of each pipeline.

        Of layouts with equal numbers of ranks and chunks the others then try the best split of all. Layouts
        whose splits were all simulated cannot improve.
        """
        timed = [
            (search.best.time_s, place)
            for place, search in self.searches.items()
            if search.best is not None and not search.exact
        ]
        by_shape: dict[tuple[int, int], list[int]] = {}
        for _, place in sorted(timed, key=lambda split: split[0]):
            by_shape.setdefault(self.searches[place].shape, []).append(place)
        # Layouts of one shape have similar best splits: one climbs, the others only try its split.
        for shape, (first, *others) in list(by_shape.items())[:count]:
            self.searches[first].climb()
            self._record(first)
            for place in others:
                self.searches[place].try_blocks(self._splits[shape].split.blocks)
                self._record(place)

    def try_split(self, place: int, split: Split) -> None:
        """Simulate a pipeline split of a layout, with more recomputed layers if it does not fit."""
        self.search_of(place, simple=True).try_split(split.blocks, split.recomputed)
        self._record(place)

    def lighten(self, family: int) -> None:
        """Try the pipeline split of a family's plan with its other options and fewer recomputed blocks."""
        split = self.distinct.by_family[family].split
        for place in np.flatnonzero(self.families.family == family).tolist():
            self.search_of(place).lighten(split)
            self._record(place)

    def extend_searches(self) -> None:
        """Resume all searches, now for plans that are no slower than the last table row.

        Bounds are capped at the best time, since earlier searches proved nothing beyond it.
        """
        longest_s = self.distinct.longest_s
        for place, search in self.searches.items():
            if not search.exact:
                bound_s = min(search.bound_s, self.distinct.best_s)
                # They had ended at the threshold of the best plan; that of a slower row lies above it.
                self.searches[place] = replace(
                    search, target_s=longest_s, bound_s=bound_s, relaxed=False, done=False, may_branch=False
                )

    def _unload_others(self, search: SplitSearch) -> None:
        """Keep the linear programs of the most recent unfinished searches only, to limit memory use."""
        if search.done:
            search.release()
            return
        self._loaded = [search, *(other for other in self._loaded if other is not search)]
        for other in self._loaded[effort.MOST_LOADED :]:
            other.unload()
        del self._loaded[effort.MOST_LOADED :]

    def _raise_bound(self, place: int) -> None:
        """Raise the bound of a layout by one step, unless it has reached its threshold."""
        search, target_s = self.search_of(place), self.target_of(place)
        if search.bound_s < target_s and not search.done:
            (search.finish if search.relaxed else search.relax)(target_s)
            self._record(place)

    def _record(self, place: int) -> None:
        search = self.searches[place]
        if search.best is not None:
            # A good split is a start for other layouts with as many ranks and chunks.
            best = self._splits.get(search.shape, search.best)
            self._splits[search.shape] = min(best, search.best, key=lambda split: split.time_s)
            plan = PlannedLayout(search.staged, search.best.split, search.best.time_s)
            if self.distinct.note(int(self.families.family[place]), plan):
                self.on_better(plan)

    @property
    def bounds_s(self) -> Floats:
        """Lower bound on the step time of each layout, (N,); infinite for layouts that do not fit."""
        places, bounds = tuple(self.searches), self.bounds  # in this order, for other threads
        lowest_s = np.where(bounds.fits, bounds.time_s, inf)
        for place in places:
            lowest_s[place] = max(lowest_s[place], self.bound_of(place))
        return lowest_s

    @property
    def searched(self) -> int:
        """Number of layouts with too many pipeline splits to simulate all of them."""
        return sum(not search.exact for search in self.searches.values())
