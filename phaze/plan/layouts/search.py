"""Search for the fastest plan among all layouts of a runtime, with a certificate of its optimality gap.

First plans come from neighbours of simple layouts (`guesses`). Then every family of valid layouts that may
fit gets a lower bound on its time (`families`). The first bound needs
few shards. If it is below a known plan, a bound from less widely shared shards follows, and finally each
layout of the family gets its own bound. The layout with the smallest bound is examined next: even stages are
simulated, a linear program raises its bound and finds other pipeline splits (`division_search`).

The search for the first plan ends when no bound is below its time by more than the gap. The search for
further rows of the table ends when no bound is below the time of the last row.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.progress import busy
from phaze.base.units import GIB
from phaze.plan.layouts.contenders import Contenders, LayoutContender
from phaze.plan.layouts.divisions import Division
from phaze.plan.layouts.families import LayoutFamilies
from phaze.plan.layouts.found import DistinctPlans, LayoutPlans, PlannedLayout, undecided_layouts
from phaze.plan.layouts.guesses import MOST_TRIED, Guesses
from phaze.plan.layouts.pipeline_bounds import ShapeFlows
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.slices import first_of_each
from phaze.plan.layouts.time_limit import OutOfTime, TimeLimit, Work
from phaze.runtimes.space import legal_space
from phaze.spec.names import GAP
from phaze.spec.training_plan import TIE, PlanCertificate

FIRST = 30
"""Maximum number of layouts examined before all others, one for each kind (`_look_at_kinds`)."""
BEST = 3
"""Number of fastest layouts whose pipeline splits are improved by local search."""
MOST_BEGUN = 200
"""Maximum number of undecided layouts that are simulated after the search."""
MOST_SHARPENED = 30_000
"""Maximum number of families whose bounds are raised together, which limits memory use."""
MOST_OPENED = 3_000
"""Maximum number of families expanded together, which limits memory use."""
MOST_SLICES = 300
"""Maximum number of shards whose costs stay in memory for reuse."""
MOST_WORK = 100_000
"""Maximum number of linear programs, weighted by their relative duration."""
MOST_IN_PARTS = 40_000
"""Maximum number of linear programs spent on branching within single layouts."""
RATE_OVER = 1_000
"""Number of linear programs over which it is measured how fast a search proceeds."""
STUCK = "the bounds of the remaining layouts cannot be raised further"
MOST_LOOKED_AT = 3000
"""Maximum number of layouts whose pipeline splits are searched; the others only widen the gap."""
MORE_WORK = 200
"""Maximum number of additional linear programs for further table rows."""
MORE_LOOKED_AT = 150
"""Maximum number of additional layouts whose pipeline splits are searched for further table rows."""
MOST_QUEUED = 3000
"""Maximum number of layouts that are queued for further table rows."""


@dataclass(eq=False)
class LayoutSearch:
    """Best-first search over families of layouts, ordered by lower bound.

    Its bound holds at any time, so that it may end whenever there is a plan.
    """

    question: PlanQuestion
    families: LayoutFamilies
    gap: float
    on_better: Callable[[LayoutSearch], None]
    """Callback for every plan that is faster than all before."""
    most_work: int = MOST_WORK
    """Maximum number of linear programs; layouts left after that only widen the gap."""
    prove: bool = True
    """False if a good plan is enough, without a tight lower bound."""
    named: str = ""
    """Start of progress messages, which tells a search from the main one of a question."""
    limit: TimeLimit = field(default_factory=TimeLimit)
    first: Sequence[PlannedLayout] = ()
    """Plans found by other estimates, whose layouts are simulated first."""
    contenders: Contenders = field(init=False)
    """Candidate layouts of the expanded families."""
    guesses: Guesses = field(init=False)
    """Heuristic that simulates promising families first."""
    _limit: str = ""
    """Limit of work that ended the search for the first plan; empty if none did."""
    _out_of_time: str = ""
    """Limit of time, or interruption, that ended the search; empty if none did."""
    _goes_on: bool = False
    _shapes: ShapeFlows = field(init=False)
    _queue: list[tuple[float, int, LayoutContender]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.contenders = Contenders(self.question, self.families, self.gap, lambda _: self.on_better(self))
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
        return min(self.distinct.found.values(), key=lambda plan: plan.found.time_s)

    def run(self, wanted: int) -> None:
        """Search until the gap is closed and `wanted` plans are known.

        Without a proof, it ends after the guesses.
        """
        with self._in_time():
            self._run(wanted)
        self._lighten(1)

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Context that says where the search stands, and ends when its time is over and there is a plan."""
        self.contenders.work.check, self._goes_on = self._check_time, True
        try:
            with busy(lambda: f"{self.named}{self.standing()}"):
                yield
        except OutOfTime as reason:
            self._out_of_time = str(reason)
        finally:
            self.contenders.work.check, self._goes_on = Work.check, False

    def _check_time(self) -> None:
        """Raise OutOfTime if the search must end; it goes on until there is a plan."""
        if self.best_s < inf and (reason := self.limit.reason):
            raise OutOfTime(reason)

    def _run(self, wanted: int) -> None:
        for plan in self.first:
            self.guesses.like(plan)
        self.guesses.start()
        self.guesses.descend()
        self.families.bound()
        if self.distinct.found:
            self.on_better(self)  # with a first proof
        if self.prove:
            self._sharpen()
        self.guesses.alike()
        self.guesses.descend()
        self.contenders.climb(BEST)
        if not self.prove:
            return
        self._open()
        self._fill(10 * wanted)
        self.guesses.undecided()
        self._bound_shapes()
        self.guesses.undecided()
        self._look_at_kinds()
        self._limit = self._close(self.most_work, MOST_LOOKED_AT)
        self._begin_undecided()
        for _, _, contender in sorted(self._queue)[: 10 * wanted]:
            if len(self.distinct.found) >= wanted:
                break
            self.contenders.begun(contender)
        while len(self.distinct.found) < wanted and len(some := self.families.closed(inf)[:wanted]):
            self.families.open(some)
            for family in some.tolist():
                self.guesses.begin(family, most=MOST_TRIED)

    def _begin_undecided(self) -> None:
        """Simulate even splits of undecided layouts with the smallest bounds, then improve the best splits.

        If the search stopped early, a faster plan may be among them.
        """
        undecided = [one for bound_s, _, one in sorted(self._queue) if bound_s < self.enough_s]
        for contender in undecided[:MOST_BEGUN]:
            self.contenders.begun(contender)
        if undecided:
            self.contenders.climb(BEST)

    def run_on(self, rows: int) -> None:
        """Continue the search until no other layout can be faster than the last of `rows` table rows."""
        if rows > 1 and self.distinct.found:
            with self._in_time():
                self._run_on(rows)
            self._lighten(rows)
        self.question.forget(MOST_SLICES)

    def _run_on(self, rows: int) -> None:
        self._check_time()
        self.contenders.climb(rows)
        self.distinct.look_for(rows)
        self.contenders.look_on()
        self._shapes.begin_again()
        work = min(MORE_WORK, self.most_work) + self._work
        searched = MORE_LOOKED_AT + self.contenders.searched
        left = True
        while left:
            self._sharpen()
            self._open()
            self._queue = []
            self._fill(0, MOST_QUEUED)
            self._close(work, searched)
            # Rows that turn out as twins make room for slower ones.
            left = len(self.families.closed(self.enough_s)) > 0

    def _lighten(self, rows: int) -> None:
        """Try the pipeline splits of the first table rows with less recomputation until no row changes."""
        tried, left = set[tuple[int, Division]](), True
        while left:
            last_s = max((plan.found.time_s for plan in self.planned[:rows]), default=0.0)
            splits = {
                (family, plan.found.division)
                for family, plan in self.distinct.found.items()
                if plan.found.time_s <= last_s
            }
            left = not splits <= tried
            for family, _ in sorted(splits - tried, key=lambda one: self.distinct.fastest_s(one[0])):
                self.contenders.lighten(family)
            tried |= splits

    def _close(self, most_work: int, most_searched: int) -> str:
        """Examine layouts by increasing bound until the gap is closed; return the limit reached, if any.

        Parts of pipeline splits raise the smallest bound only while every layout's bound may still rise.
        A search ends at once where neither its bound nor the number of layouts left, at the rate at which
        they changed, would close the gap within the limit: more work would leave about the same gap.
        """
        stuck, in_parts = "", 0
        rated = self._work, self.bound_s, self._left
        while self._queue and self._queue[0][0] < self.enough_s:
            self._check_time()
            if self.contenders.searched >= most_searched:
                return f"the pipeline splits of {most_searched:,} layouts were searched, which is the limit"
            if (work := self._work) >= most_work:
                return f"the limit of {most_work:,} linear programs was reached"
            if work >= rated[0] + RATE_OVER:
                before, rated = rated, (work, self.bound_s, self._left)
                share = (work - before[0]) / (most_work - work)
                if (
                    rated[1] - before[1] < share * (self.enough_s - rated[1])
                    and before[2] - rated[2] < share * rated[2]
                ):
                    return f"it proceeds too slowly to end within {most_work:,} linear programs"
            _, place, contender = queued = heapq.heappop(self._queue)
            parted = self.contenders.parted(contender)
            if self.contenders.decided(contender) or (stuck and parted):
                continue
            self._examine(*queued)
            if contender.unfinished:
                heapq.heappush(self._queue, (self.contenders.bound_of(contender), place, contender))
            elif not self.contenders.decided(contender):
                stuck = stuck or STUCK
            in_parts += parted * (self._work - work)
            if in_parts >= MOST_IN_PARTS:
                stuck = f"the limit of {MOST_IN_PARTS:,} linear programs for parts of layouts was reached"
        return stuck

    @property
    def _left(self) -> int:
        """Number of queued layouts that may be faster than the best plan."""
        return sum(queued[0] < self.enough_s for queued in tuple(self._queue))

    def _examine(self, known_s: float, place: int, contender: LayoutContender) -> None:
        """Raise the bound of a queued layout, unless it has risen since the layout was queued."""
        risen = self.contenders.bound_of(contender) > known_s
        if not risen and not self._shapes.bound_like(place, self.enough_s):
            self.contenders.look_at(contender)

    def _sharpen(self) -> None:
        """Raise the bounds of all unexpanded families that may be faster than the best plan."""
        some = self.families.closed(self.enough_s)
        for part in _parts(some[~self.families.sharpened[some]], MOST_SHARPENED):
            self._check_time()
            self.families.sharpen(part, "microbatch")
        self.question.forget(MOST_SLICES)

    def _open(self) -> None:
        """Expand all families that may be faster than the best plan."""
        for part in _parts(self.families.closed(self.enough_s), MOST_OPENED):
            self._check_time()
            self.families.open(part)

    def _bound_shapes(self) -> None:
        """Tighten lower bounds with flow relaxations, smallest bound first, while this can still pay off."""
        done = []
        while self._queue and self._queue[0][0] < self.enough_s and self._shapes.work < self.most_work // 2:
            self._check_time()
            known_s, place, contender = heapq.heappop(self._queue)
            left = self.contenders.bound_of(contender) > known_s or self._shapes.bound_like(
                place, self.enough_s
            )
            again = (self.contenders.bound_of(contender), place, contender)
            if left:
                heapq.heappush(self._queue, again)
            else:
                done.append(again)
        self._queue = [*self._queue, *done]
        heapq.heapify(self._queue)

    @property
    def enough_s(self) -> float:
        """Step-time threshold, in seconds: a lower bound that reaches it is not raised further."""
        return self.contenders.enough_s

    def _look_at_kinds(self) -> None:
        """Tighten the smallest bound of each kind of layout once, and improve the best pipeline splits.

        A plan that is hard to beat leaves fewer layouts to examine.
        """
        grid = self.families.grid
        kinds = grid.pp, grid.vp > 1, grid.microbatch, grid.tp
        for place in first_of_each(self._order(), *kinds)[:FIRST].tolist():
            if self.families.own.time_s[place] < self.enough_s and self._work < self.most_work:
                self.contenders.look_at(self.contenders.at(place))
        self.contenders.climb(BEST)

    def _fill(self, more: int, most: int | None = None) -> None:
        """Queue the layouts that may be faster than the last table row, and the next `more` layouts."""
        order = self._order()[:most]
        times = self.families.own.time_s[order]
        count = int(np.searchsorted(times, self.enough_s)) + more
        for place in order[:count].tolist():
            contender = self.contenders.at(place)
            self._queue.append((self.contenders.bound_of(contender), place, contender))
        heapq.heapify(self._queue)
        self.contenders.relate(order[:count])

    def _order(self, most_s: float = inf) -> Ints:
        """Indices of the layouts that may fit, with bounds up to `most_s`, by increasing bound."""
        return self.families.own.in_order(self.families.own.time_s <= most_s)

    @property
    def planned(self) -> list[PlannedLayout]:
        """Distinct simulated plans that fit, fastest first; ties are ordered by simplicity.

        Of layouts that differ only in recompute, the fastest counts. The first one is within the gap of the
        bound if any is.
        """
        proven_s = min(max(self.best_s, self.bound_s / (1 - self.gap)), self.best_s * (1 + TIE))
        return self.distinct.ranked(proven_s)

    def proven_rows(self, plans: Sequence[PlannedLayout]) -> int:
        """Number of leading rows that no other layout can beat by more than the gap."""
        times_s = [one.found.time_s for one in plans]
        last_s = max(times_s, default=0.0)
        low_s = self.families.closed_s
        for place in self._order(last_s).tolist():
            if self.families.own.time_s[place] >= low_s:
                break
            bound_s = self.contenders.bound_of(self.contenders.at(place))
            if bound_s < min(last_s, self.contenders.fastest_s(place)) * (1 - self.gap):
                low_s = min(low_s, bound_s)
        return next((i for i, time_s in enumerate(times_s) if time_s * (1 - self.gap) > low_s), len(times_s))

    @property
    def bound_s(self) -> float:
        """Lower bound on the step time over all layouts; it never falls."""
        return min(self.best_s, self.families.closed_s, float(self.contenders.bounds_s.min(initial=inf)))

    def standing(self) -> str:
        """Progress message for another thread: layouts left, gap and best plan."""
        best_s, bound_s = self.best_s, self.bound_s
        if best_s == inf:
            return "no plan yet"
        message = f"{self._left:,} layouts left" if self._queue else "bounding layouts"
        gap = f", gap {1 - bound_s / best_s:.1%}" if bound_s > 0 else ""
        return f"{message}{gap}, best plan {self.question.rank} {best_s:.4g} s a step"

    @property
    def stopped(self) -> str | None:
        """Reason why the search ended early; None if its gap is closed."""
        if self._goes_on or self._out_of_time:
            return self._out_of_time or "it had not ended when this plan was found"
        return None if self.bound_s >= self.best_s * (1 - self.gap) else self._limit or STUCK

    def plans(self, wanted: int, rows: int = 1) -> LayoutPlans:
        """The `wanted` fastest plans so far, with a certificate for the first `rows` of them."""
        plans, families = tuple(self.planned[:wanted]), self.families
        closest = None if plans else families.closest()
        bound_s, unfit, dominated = self.bound_s, families.all_unfit, families.dominated
        simulated = int(self.contenders.simulated.sum())
        undecided, count = undecided_layouts(families.grid, self.contenders.bounds_s, self.best_s, self.gap)
        certificate = PlanCertificate(
            layouts=families.space.layouts,
            illegal={name: count for name, count in families.space.illegal.items() if count},
            same=families.same,
            unfit=unfit,
            lacking_gib=(closest[2] if closest else families.lacking_bytes) / GIB if unfit else None,
            bounded={
                "layout": families.unknown + len(families.grid) - simulated,
                **({"recompute": dominated} if dominated else {}),
            },
            simulated=simulated,
            divisions=self.contenders.divisions,
            bound_s=bound_s if bound_s < inf else None,
            gap=1 - bound_s / plans[0].found.time_s if plans else 0.0,
            rows=self.proven_rows(plans[:rows]),
            stopped=self.stopped,
            undecided=undecided,
            undecided_layouts=count,
        )
        return LayoutPlans(plans, certificate, closest)

    @property
    def _work(self) -> int:
        return self._shapes.work + self.contenders.work.count


def _parts(which: Ints, most: int) -> Iterator[Ints]:
    """Yield consecutive parts of an index array, each with at most `most` entries."""
    for start in range(0, len(which), most):
        yield which[start : start + most]


def layout_search(
    question: PlanQuestion,
    fixed: Mapping[str, int | str] | None = None,
    *,
    gap: float = GAP,
    on_better: Callable[[LayoutSearch], None] = lambda _: None,
    most_work: int = MOST_WORK,
    prove: bool = True,
    named: str = "",
    limit: TimeLimit | None = None,
    first: Sequence[PlannedLayout] = (),
) -> LayoutSearch:
    """Search over the layouts of a question with some fields fixed, not yet run."""
    space = legal_space(question.runtime, question.task, fixed)
    question.refuse_endless(space.families)
    families = LayoutFamilies.of(question, space)
    limit = limit or TimeLimit()
    return LayoutSearch(question, families, gap, on_better, most_work, prove, named, limit, first)


def plan_layouts(
    question: PlanQuestion,
    fixed: Mapping[str, int | str] | None = None,
    *,
    gap: float = GAP,
    wanted: int = 10,
    rows: int = 1,
    on_better: Callable[[LayoutSearch], None] = lambda _: None,
    most_work: int = MOST_WORK,
    prove: bool = True,
    named: str = "",
    limit: TimeLimit | None = None,
) -> LayoutPlans:
    """Search for the `wanted` fastest plans with some fields fixed, with a certificate of optimality.

    The first `rows` plans are the best distinct ones, as far as the certificate proves it. Without `prove` it
    is a short search for a good plan, whose certificate is loose. The other options are those of
    `LayoutSearch`.
    """
    search = layout_search(
        question, fixed, gap=gap, on_better=on_better, most_work=most_work, prove=prove, named=named,
        limit=limit,
    )  # fmt: skip
    search.run(wanted)
    search.run_on(rows)
    return search.plans(wanted, rows)
