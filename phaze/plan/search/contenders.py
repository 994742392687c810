"""Candidate layouts, each with its lower bound and its best pipeline split so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.plan import effort
from phaze.plan.bounds.families import LayoutFamilies
from phaze.plan.bounds.layouts import LayoutBounds
from phaze.plan.question import PlanQuestion
from phaze.plan.search.planned import DistinctPlans, PlannedLayout
from phaze.plan.splits.event_program import Flow
from phaze.plan.splits.search import SplitSearch, TimedSplit
from phaze.plan.time_limit import Work
from phaze.runtimes.grid import LayoutGrid
from phaze.spec.names import GAP


@dataclass(eq=False)
class LayoutContender:
    """Candidate layout, with the search over its pipeline splits."""

    place: int
    search: SplitSearch | None = None
    exact: bool = False
    """True if all pipeline splits of the layout were simulated."""

    @property
    def unfinished(self) -> bool:
        """True if the layout's lower bound may still rise."""
        return self.search is None or not self.search.done

    @property
    def time_s(self) -> float:
        """Step time of the layout's best pipeline split so far; infinite without one."""
        return inf if self.search is None or self.search.best is None else self.search.best.time_s


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
    examined: list[LayoutContender] = field(default_factory=list)
    """Layouts with simulated pipeline splits."""
    _by_place: dict[int, LayoutContender] = field(default_factory=dict)
    _with_recompute: dict[int, int] = field(default_factory=dict)
    """Index of the layout with optional recompute, by index of the same layout without recompute."""
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
        """Step-time threshold: layouts with a bound below it are simulated, however wide the gap is."""
        return self.distinct.longest_s * (1 - min(self.gap, GAP))

    def target_of(self, contender: LayoutContender) -> float:
        """Step-time threshold for a layout's bound, also limited by the fastest plan of its family."""
        return min(self.target_s, self.fastest_s(contender.place) * (1 - self.gap))

    def fastest_s(self, place: int) -> float:
        """Step time of the fastest plan in the layout's family."""
        return self.distinct.fastest_s(int(self.families.family[place]))

    def contender_at(self, place: int) -> LayoutContender:
        """Candidate layout at an index of the grid."""
        return self._by_place.setdefault(place, LayoutContender(place))

    def bound_of(self, contender: LayoutContender) -> float:
        """Best lower bound so far on the step time of a layout."""
        own_s = float(self.bounds.time_s[contender.place])
        return own_s if contender.search is None else max(own_s, contender.search.bound_s)

    def decided(self, contender: LayoutContender) -> bool:
        """True if the lower bound of a layout has reached its threshold."""
        return self.bound_of(contender) >= self.target_of(contender)

    def is_branching(self, contender: LayoutContender) -> bool:
        """True if the next step branches on subsets of the layout's pipeline splits, see `SplitSearch`."""
        other = self._recomputing(contender.place) or contender
        return other.search is not None and other.search.is_branching

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

    def search_of(self, contender: LayoutContender, *, simple: bool = False) -> SplitSearch:
        """Search over the pipeline splits of a candidate; the first call starts it with `guess`."""
        if contender.search is None:
            place = contender.place
            staged = self.question.staged(self.grid.layout(place), self.grid.schedule_of(place))
            best = self._splits.get((staged.layout.pp, staged.layout.vp))
            similar, limit_bytes = best.split if best else None, self.question.limit_bytes(staged.layout)
            limits = limit_bytes, self.distinct.longest_s
            contender.search = SplitSearch(
                staged, *limits, flows=self._flows, work=self.work, similar=similar
            )
            self.examined.append(contender)
            contender.search.guess(simple=simple)
            contender.exact = contender.search.done
            self._record(contender)
        return contender.search

    def examine(self, contender: LayoutContender) -> None:
        """Raise the bound of a layout by one step: by linear relaxation first, by whole layers later."""
        search, other = self.search_of(contender), self._recomputing(contender.place)
        if not search.done:
            if other is not None:
                self._raise_bound(other)
                search.adopt_bound(self.search_of(other), self.target_of(contender))
            else:
                self._raise_bound(contender)
            self._record(contender)
        self._unload_others(search)

    def climb(self, count: int) -> None:
        """Improve the best pipeline splits of the fastest layouts by local search, one of each pipeline.

        Of layouts with equal numbers of ranks and chunks the others then try the best split of all. Layouts
        whose splits were all simulated cannot improve.
        """
        by_shape: dict[tuple[int, int], list[LayoutContender]] = {}
        for contender in sorted(self.examined, key=lambda contender: contender.time_s):
            if not contender.exact and contender.time_s < inf:
                by_shape.setdefault(self.search_of(contender).shape, []).append(contender)
        # Layouts of one shape have similar best splits: one climbs, the others only try its split.
        for shape, (first, *others) in list(by_shape.items())[:count]:
            self.search_of(first).climb()
            self._record(first)
            for contender in others:
                self.search_of(contender).try_blocks(self._splits[shape].split.blocks)
                self._record(contender)

    def lighten(self, family: int) -> None:
        """Try the pipeline split of a family's plan with its other options and fewer recomputed blocks."""
        split = self.distinct.by_family[family].split
        for place in np.flatnonzero(self.families.family == family).tolist():
            contender = self.contender_at(place)
            self.search_of(contender).lighten(split)
            self._record(contender)

    def extend_searches(self) -> None:
        """Resume all searches, now for plans that are no slower than the last table row.

        Bounds are capped at the best time, since earlier searches proved nothing beyond it.
        """
        longest_s = self.distinct.longest_s
        for contender in self.examined:
            if contender.search is not None and not contender.exact:
                bound_s = min(contender.search.bound_s, self.distinct.best_s)
                extended = replace(contender.search, target_s=longest_s, bound_s=bound_s, may_branch=False)
                # They had ended at the threshold of the best plan; that of a slower row lies above it.
                extended.relaxed = extended.done = False
                contender.search = extended

    def _unload_others(self, search: SplitSearch) -> None:
        """Keep the linear programs of the most recent unfinished searches only, to limit memory use."""
        if search.done:
            search.release()
            return
        self._loaded = [search, *(other for other in self._loaded if other is not search)]
        for other in self._loaded[effort.MOST_LOADED :]:
            other.unload()
        del self._loaded[effort.MOST_LOADED :]

    def _raise_bound(self, contender: LayoutContender) -> None:
        """Raise the bound of a layout by one step, unless it has reached its threshold."""
        search, target_s = self.search_of(contender), self.target_of(contender)
        if search.bound_s < target_s and not search.done:
            (search.finish if search.relaxed else search.relax)(target_s)
            self._record(contender)

    def _recomputing(self, place: int) -> LayoutContender | None:
        """Same layout, except that any number of its layers may be recomputed, including none.

        Its bound therefore also holds for this layout.
        """
        other = self._with_recompute.get(place)
        return None if other is None else self.contender_at(other)

    def _record(self, contender: LayoutContender) -> None:
        search = contender.search
        if search is not None and search.best is not None:
            # A good split is a start for other layouts with as many ranks and chunks.
            best = self._splits.get(search.shape, search.best)
            self._splits[search.shape] = min(best, search.best, key=lambda split: split.time_s)
            plan = PlannedLayout(search.staged, search.best.split, search.best.time_s)
            if self.distinct.note(int(self.families.family[contender.place]), plan):
                self.on_better(plan)

    @property
    def bounds_s(self) -> Floats:
        """Lower bound on the step time of each layout, (N,); infinite for layouts that do not fit."""
        examined, bounds = tuple(self.examined), self.bounds  # in this order, for other threads
        lowest_s = np.where(bounds.fits, bounds.time_s, inf)
        for contender in examined:
            lowest_s[contender.place] = max(lowest_s[contender.place], self.bound_of(contender))
        return lowest_s

    @property
    def simulated(self) -> Bools:
        """Mask of the layouts with simulated pipeline splits, (N,)."""
        return np.isin(np.arange(len(self.grid)), [contender.place for contender in self.examined])

    @property
    def simulated_splits(self) -> int:
        """Number of simulated pipeline splits."""
        return sum(contender.search.simulated for contender in self.examined if contender.search is not None)

    @property
    def searched(self) -> int:
        """Number of layouts with too many pipeline splits to simulate all of them."""
        return sum(not contender.exact for contender in self.examined)
