"""Search for the fastest plan among all layouts of a runtime, with a certificate of its optimality gap.

First plans come from neighbours of simple layouts (`guesses`). Then every family of valid layouts that may
fit gets a lower bound on its time (`families`). The first bound needs few shards. If it is below a known
plan, a bound from less widely shared shards follows, and finally each layout of the family gets its own
bound. The layout with the smallest bound is examined next: even stages are simulated, a linear program raises
its bound and finds other pipeline splits (`splits.search`).

The search for the first plan ends when no bound is below its time by more than the gap. The search for
further rows of the table ends when no bound is below the time of the last row.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.progress import busy
from phaze.base.units import GIB, percent
from phaze.plan import effort
from phaze.plan.bounds.families import LayoutFamilies, UnfitLayout
from phaze.plan.bounds.flows import ShapeFlows
from phaze.plan.bounds.shards import first_of_each
from phaze.plan.question import PlanQuestion
from phaze.plan.search.contenders import Contenders
from phaze.plan.search.guesses import Guesses
from phaze.plan.search.planned import DistinctPlans, LayoutPlans, PlannedLayout, undecided_layouts
from phaze.plan.splits.split import Split
from phaze.plan.time_limit import OutOfTime, TimeLimit, Work
from phaze.runtimes.space import Space, legal_space
from phaze.spec.names import GAP
from phaze.spec.training_plan import TIE, PlanCertificate

ENOUGH = "a plan is fast enough"
"""Reason why a search ends that only asks whether there is such a plan."""
STUCK = "the bounds of the remaining layouts cannot be raised further"


@dataclass(frozen=True, kw_only=True)
class LayoutPlanner:
    """Planner that searches all layouts of a question's runtime, with a certificate of optimality.

    The first `rows` of its `number` plans are the best distinct ones, as far as the certificate proves it.
    """

    fixed: Mapping[str, int | str] = field(default_factory=dict)
    """Layout fields that all plans have."""
    number: int = 10
    rows: int = 1
    gap: float = GAP
    on_better: Callable[[LayoutSearch], None] = lambda _: None
    """Callback for every plan that is faster than all before."""
    most_work: int = effort.MOST_WORK
    """Maximum number of linear programs; layouts left after that only widen the gap."""
    prove: bool = True
    """False if a good plan is enough, without a tight lower bound."""
    label: str = ""
    """Start of progress messages, which tells a search from the main one of a question."""
    limit: TimeLimit = field(default_factory=TimeLimit)
    first: Sequence[PlannedLayout] = ()
    """Plans found by other estimates, whose layouts are simulated first."""
    most_s: float = inf
    """Step time of a plan on another chip: the search ends once it is proven that no plan is faster."""
    enough_s: float = 0.0
    """Step time below which any plan ends the search: its bound cannot exclude such plans."""

    def search(
        self, question: PlanQuestion, space: Space | None = None, least_s: Floats | None = None
    ) -> LayoutSearch:
        """Search over the layouts of a question, not yet run.

        `space` has these layouts, and `least_s` lower bounds on their step times, if they are known.
        """
        space = space or legal_space(question.runtime, question.task, self.fixed)
        question.refuse_endless(space.families)
        return LayoutSearch(question, LayoutFamilies.of(question, space, least_s), self)

    def __call__(self, question: PlanQuestion) -> LayoutPlans:
        """Find the fastest plans; none if nothing fits."""
        search = self.search(question)
        search.run(self.number)
        search.extend(self.rows)
        return search.plans(self.number, self.rows)


class SearchStatus(NamedTuple):
    """Work done, lower bound and undecided layouts, to tell how fast a search proceeds."""

    work: int
    bound_s: float
    undecided: int
    """Number of queued layouts that may be faster than the best plan."""


@dataclass(eq=False)
class LayoutSearch:
    """Best-first search over families of layouts, ordered by lower bound.

    Its bound holds at any time, so that it may end whenever there is a plan.
    """

    question: PlanQuestion
    families: LayoutFamilies
    planner: LayoutPlanner
    contenders: Contenders = field(init=False)
    """Candidate layouts of the expanded families."""
    guesses: Guesses = field(init=False)
    """Heuristic that simulates promising families first."""
    _limit: str = ""
    """Limit of work that ended the search for the first plan; empty if none did."""
    _out_of_time: str = ""
    """Limit of time, or interruption, that ended the search; empty if none did."""
    _running: bool = False
    _shapes: ShapeFlows = field(init=False)
    _queue: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.contenders = Contenders(
            self.question, self.families, self.planner.gap, lambda _: self.planner.on_better(self)
        )
        self.distinct.most_s = self.distinct.longest_s = self.planner.most_s
        self._shapes = ShapeFlows(self.question, self.families)
        self.guesses = Guesses(self.contenders)

    @property
    def distinct(self) -> DistinctPlans:
        """Fastest plan of every family."""
        return self.contenders.distinct

    @property
    def best_s(self) -> float:
        """Step time of the fastest plan."""
        return self.distinct.best_s

    @property
    def fastest(self) -> PlannedLayout:
        """Fastest plan so far."""
        return min(self.distinct.by_family.values(), key=lambda plan: plan.time_s)

    def run(self, number: int) -> None:
        """Search until the gap is closed and `number` plans are known.

        Without a proof, it ends after the guesses. Layouts of other plans are tried first, whatever the time.
        """
        for plan in self.planner.first:
            self.guesses.try_plan(plan)
        with self._in_time():
            self._run(number)
        self._lighten(1)

    @contextmanager
    def _in_time(self, phase: str = "") -> Iterator[None]:
        """Context that reports progress, and ends the search at its time limit once there is a plan.

        `phase` is the start of its progress messages.
        """
        works, self._running = [self.contenders.work], True
        # Layers of devices are lowered in seconds, and bounds of all families follow from them.
        works += [self.question.work] * bool(self.question.machine.stack.scheduled)
        for work in works:
            work.check = self._check_time
        try:
            with busy(lambda: f"{self.planner.label}{phase}{self.progress()}"):
                yield
        except OutOfTime as reason:
            self._out_of_time = str(reason)
        finally:
            self._running = False
            for work in works:
                work.check = Work.check

    def _check_time(self) -> None:
        """Raise OutOfTime if the search must end.

        On devices it goes on until there is a plan, here or elsewhere, which takes seconds. Schedules may
        take minutes.
        """
        if self.best_s < self.planner.enough_s:
            raise OutOfTime(ENOUGH)
        has_plan = min(self.best_s, self.planner.most_s) < inf
        if (has_plan or self.question.machine.stack.scheduled) and (reason := self.planner.limit.reason):
            raise OutOfTime(reason)

    def _run(self, number: int) -> None:
        self._check_time()
        if self._is_beaten():
            return
        self.guesses.start()
        self.guesses.descend()
        self.families.bound(self.target_s)
        if self.distinct.by_family:
            self.planner.on_better(self)  # with a first proof
        if self.planner.prove:
            self._sharpen()
        self.guesses.try_groups()
        self.guesses.descend()
        self.contenders.climb(effort.MOST_CLIMBED)
        if not self.planner.prove:
            return
        self._open_families()
        self._fill_queue(10 * number)
        # Better plans leave fewer layouts for the expensive steps that follow.
        self.guesses.try_undecided()
        self._bound_shapes()
        self.guesses.try_undecided()
        self._examine_kinds()
        self._limit = self._close_gap(self.planner.most_work, effort.MOST_SEARCHED)
        self._simulate_undecided()
        if self.best_s <= self.planner.most_s:  # on a chip that another one beats, one plan is enough
            self._fill_rows(number)

    def _is_beaten(self) -> bool:
        """True if the bounds of families exclude that a layout beats the best plan of the other chips."""
        if self.planner.most_s == inf:
            return False
        self.families.bound(self.target_s)
        self._sharpen()
        return not len(self.families.closed(self.target_s))

    def _fill_rows(self, number: int) -> None:
        """Simulate further layouts until `number` plans are known, smallest bounds first."""
        for _, place in sorted(self._queue)[: 10 * number]:
            if len(self.distinct.by_family) >= number:
                break
            self.contenders.search_of(place)
        while len(self.distinct.by_family) < number and len(families := self.families.closed(inf)[:number]):
            self.families.open(families)
            for family in families.tolist():
                self.guesses.simulate(family, most=effort.MOST_PER_FAMILY)

    def _simulate_undecided(self) -> None:
        """Simulate even splits of undecided layouts with the smallest bounds, then improve the best splits.

        If the search stopped early, a faster plan may be among them.
        """
        undecided = [place for bound_s, place in sorted(self._queue) if bound_s < self.target_s]
        for place in undecided[: effort.MOST_SIMULATED]:
            self.contenders.search_of(place)
        if undecided:
            self.contenders.climb(effort.MOST_CLIMBED)

    def try_plan(self, plan: PlannedLayout) -> None:
        """Simulate a layout that another estimate found; the bound stays valid."""
        self.guesses.try_plan(plan)
        self._lighten(1)

    def extend(self, rows: int) -> None:
        """Continue the search until no other layout can be faster than the last of `rows` table rows."""
        if rows > 1 and self.distinct.by_family:
            with self._in_time("next best plans: "):
                self._extend(rows)
            self._lighten(rows)
        self.question.forget(effort.MOST_SHARDS)

    def _extend(self, rows: int) -> None:
        self._check_time()
        self.contenders.climb(rows)
        self.distinct.most_s = inf  # the rows of the table are all on this chip
        self.distinct.set_rows(rows)
        self.contenders.extend_searches()
        self._shapes.restart()
        work = min(effort.FURTHER_WORK, self.planner.most_work) + self._work
        searched = effort.FURTHER_SEARCHED + self.contenders.searched
        unfinished = True
        while unfinished:
            self._sharpen()
            self._open_families()
            self._queue = []
            self._fill_queue(0, effort.MOST_QUEUED)
            self._close_gap(work, searched)
            # Rows that turn out as twins make room for slower ones.
            unfinished = len(self.families.closed(self.target_s)) > 0

    def _lighten(self, rows: int) -> None:
        """Try the pipeline splits of the first table rows with less recomputation until no row changes."""
        tried, changed = set[tuple[int, Split]](), True
        while changed:
            last_s = max((plan.time_s for plan in self.planned[:rows]), default=0.0)
            plans = [row for row in self.distinct.by_family.items() if row[1].time_s <= last_s]
            splits = {(family, plan.split) for family, plan in plans}
            changed = not splits <= tried
            for family, _ in sorted(splits - tried, key=lambda split: self.distinct.fastest_s(split[0])):
                self.contenders.lighten(family)
            tried |= splits

    def _close_gap(self, most_work: int, most_searched: int) -> str:
        """Examine layouts by increasing bound until the gap is closed; return the limit reached, if any.

        Parts of pipeline splits raise the smallest bound only while every layout's bound may still rise.
        A search ends at once where neither its bound nor the number of layouts left, at the rate at which
        they changed, would close the gap within the limit: more work would leave about the same gap.
        """
        stuck, branching_work = "", 0
        rated = self._status
        while self._queue and self._queue[0][0] < self.target_s:
            self._check_time()
            if self.contenders.searched >= most_searched:
                return f"the pipeline splits of {most_searched:,} layouts were searched, which is the limit"
            if (work := self._work) >= most_work:
                return f"the limit of {most_work:,} linear programs was reached"
            if work >= rated.work + effort.RATE_WORK:
                before, rated = rated, self._status
                share = (work - before.work) / (most_work - work)
                if (
                    rated.bound_s - before.bound_s < share * (self.target_s - rated.bound_s)
                    and before.undecided - rated.undecided < share * rated.undecided
                ):
                    return f"at its pace the proof needs more than the limit of {most_work:,} linear programs"
            queued_s, place = heapq.heappop(self._queue)
            is_branching = self.contenders.is_branching(place)
            if self.contenders.decided(place) or (stuck and is_branching):
                continue
            self._examine(queued_s, place)
            if self.contenders.unfinished(place):
                heapq.heappush(self._queue, (self.contenders.bound_of(place), place))
            elif not self.contenders.decided(place):
                stuck = stuck or STUCK
            branching_work += is_branching * (self._work - work)
            if branching_work >= (most := effort.MOST_BRANCHING_WORK):
                stuck = f"the limit of {most:,} linear programs for parts of layouts was reached"
        return stuck

    @property
    def _status(self) -> SearchStatus:
        return SearchStatus(self._work, self.bound_s, self._undecided_count)

    @property
    def _undecided_count(self) -> int:
        """Number of queued layouts that may be faster than the best plan."""
        return sum(queued[0] < self.target_s for queued in tuple(self._queue))

    def _examine(self, queued_s: float, place: int) -> None:
        """Raise the bound of a queued layout, unless it has risen since the layout was queued."""
        if not self._has_risen(queued_s, place):
            self.contenders.examine(place)

    def _has_risen(self, queued_s: float, place: int) -> bool:
        """True if the bound of a layout has risen since it was queued, or now by a flow of its shape."""
        risen = self.contenders.bound_of(place) > queued_s
        return risen or self._shapes.bound_like(place, self.target_s)

    def _sharpen(self) -> None:
        """Raise the bounds of all unexpanded families that may be faster than the best plan."""
        undecided = self.families.closed(self.target_s)
        for part in _parts(undecided[~self.families.sharpened[undecided]], effort.MOST_SHARPENED):
            self._check_time()
            self.families.sharpen(part, "microbatch")
        self.question.forget(effort.MOST_SHARDS)

    def _open_families(self) -> None:
        """Expand all families that may be faster than the best plan."""
        for part in _parts(self.families.closed(self.target_s), effort.MOST_EXPANDED):
            self._check_time()
            self.families.open(part)

    def _bound_shapes(self) -> None:
        """Tighten lower bounds with flow relaxations, smallest bound first, while this can still pay off."""
        done = []
        # Flows of shapes raise many bounds at once, but half of the work is left for single layouts.
        while (
            self._queue
            and self._queue[0][0] < self.target_s
            and self._shapes.work < self.planner.most_work // 2
        ):
            self._check_time()
            queued_s, place = heapq.heappop(self._queue)
            if self._has_risen(queued_s, place):
                heapq.heappush(self._queue, (self.contenders.bound_of(place), place))
            else:
                done.append((queued_s, place))
        self._queue = [*self._queue, *done]
        heapq.heapify(self._queue)

    @property
    def target_s(self) -> float:
        """Step-time threshold, in seconds: a lower bound that reaches it is not raised further."""
        return self.contenders.target_s

    def _examine_kinds(self) -> None:
        """Tighten the smallest bound of each kind of layout once, and improve the best pipeline splits.

        A plan that is hard to beat leaves fewer layouts to examine.
        """
        grid = self.families.grid
        kinds = grid.pp, grid.vp > 1, grid.microbatch, grid.tp
        for place in first_of_each(self._order(), *kinds)[: effort.MOST_GROUPS].tolist():
            if (
                self.families.layout_bounds.time_s[place] < self.target_s
                and self._work < self.planner.most_work
            ):
                self.contenders.examine(place)
        self.contenders.climb(effort.MOST_CLIMBED)

    def _fill_queue(self, further: int, most: int | None = None) -> None:
        """Queue the layouts that may be faster than the last table row, and the next `further` layouts."""
        order = self._order()[:most]
        times = self.families.layout_bounds.time_s[order]
        count = int(np.searchsorted(times, self.target_s)) + further
        self._queue += [(self.contenders.bound_of(place), place) for place in order[:count].tolist()]
        heapq.heapify(self._queue)
        self.contenders.relate(order[:count])

    def _order(self, most_s: float = inf) -> Ints:
        """Indices of the layouts that may fit, with bounds up to `most_s`, by increasing bound."""
        return self.families.layout_bounds.in_order(self.families.layout_bounds.time_s <= most_s)

    @property
    def planned(self) -> list[PlannedLayout]:
        """Distinct simulated plans that fit, fastest first; ties are ordered by simplicity.

        Of layouts that differ only in recompute, the fastest counts. The first one is within the gap of the
        bound if any is.
        """
        # A simpler plan comes first in a tie only if the proof still covers it.
        proven_s = min(max(self.best_s, self.bound_s / (1 - self.planner.gap)), self.best_s * (1 + TIE))
        return self.distinct.ranked(proven_s)

    def proven_rows(self, plans: Sequence[PlannedLayout]) -> int:
        """Number of leading rows that no other layout can beat by more than the gap."""
        times_s = [plan.time_s for plan in plans]
        last_s = max(times_s, default=0.0)
        # Families that are not expanded count with their common bound.
        low_s = self.families.closed_s
        for place in self._order(last_s).tolist():
            if self.families.layout_bounds.time_s[place] >= low_s:
                break
            bound_s = self.contenders.bound_of(place)
            if bound_s < min(last_s, self.contenders.fastest_s(place)) * (1 - self.planner.gap):
                low_s = min(low_s, bound_s)
        return next(
            (i for i, time_s in enumerate(times_s) if time_s * (1 - self.planner.gap) > low_s), len(times_s)
        )

    @property
    def bound_s(self) -> float:
        """Lower bound on the step time over all layouts; it never falls."""
        # Splits slower than the best plan of the other chips are left out of the bounds of single layouts.
        most_s = self.planner.most_s if len(self.families.grid) else inf
        searched_s = float(self.contenders.bounds_s.min(initial=most_s))
        return min(self.best_s, self.families.closed_s, searched_s)

    def progress(self) -> str:
        """Progress message for another thread: layouts left, gap and best plan."""
        best_s, bound_s = self.best_s, self.bound_s
        if best_s == inf:
            return "no plan yet"
        message = f"{self._undecided_count:,} layouts left" if self._queue else "bounding layouts"
        gap = f", gap {percent(1 - bound_s / best_s)}" if bound_s > 0 else ""
        is_slow = self.planner.limit.elapsed_s > effort.SLOW_S and self.planner.gap < effort.SOONER_GAP
        hint = f" (--gap {effort.SOONER_GAP:g} or --seconds ends sooner)" * is_slow
        return f"{message}{gap}, best plan {self.question.rank} {best_s:.4g} s a step{hint}"

    @property
    def stopped(self) -> str | None:
        """Reason why the search ended early; None if its gap is closed."""
        if self._running:
            return self._out_of_time or "it had not ended when this plan was found"
        best_s = min(self.best_s, self.planner.most_s)
        is_closed = self.bound_s >= best_s * (1 - self.planner.gap)
        return None if is_closed else self._out_of_time or self._limit or STUCK

    def plans(self, number: int, rows: int = 1) -> LayoutPlans:
        """The `number` fastest plans so far, with a certificate for the first `rows` of them."""
        plans = tuple(self.planned[:number])
        closest = None if plans else self.families.closest()
        return LayoutPlans(plans, self.certificate(plans[:rows], closest), closest)

    def certificate(
        self, rows: Sequence[PlannedLayout] = (), closest: UnfitLayout | None = None
    ) -> PlanCertificate:
        """Proof of how far the fastest plan can be from the optimum, for the rows of its table."""
        families, searches = self.families, self.contenders.searches
        bound_s, unfit, dominated = self.bound_s, families.all_unfit, families.dominated
        best_s = min(self.best_s, self.planner.most_s)
        undecided, count = undecided_layouts(
            families.grid, self.contenders.bounds_s, best_s, self.planner.gap
        )
        return PlanCertificate(
            layouts=families.space.layouts,
            illegal={name: count for name, count in families.space.illegal.items() if count},
            same=families.same,
            unfit=unfit,
            lacking_gib=(closest.lacking_bytes if closest else families.lacking_bytes) / GIB
            if unfit
            else None,
            bounded={
                "layout": families.unknown + len(families.grid) - len(searches),
                **({"recompute": dominated} if dominated else {}),
            },
            simulated=len(searches),
            divisions=sum(search.simulated for search in searches.values()),
            bound_s=bound_s if bound_s < inf else None,
            gap=1 - bound_s / rows[0].time_s if rows else 0.0,
            rows=self.proven_rows(rows),
            stopped=self.stopped,
            undecided=undecided,
            undecided_layouts=count,
            schedule_gap=self.question.schedule_gap,
        )

    @property
    def _work(self) -> int:
        return self._shapes.work + self.contenders.work.count


def _parts(which: Ints, most: int) -> Iterator[Ints]:
    """Yield consecutive parts of an index array, each with at most `most` entries."""
    for start in range(0, len(which), most):
        yield which[start : start + most]
