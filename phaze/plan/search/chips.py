"""Search for the fastest plan among several chips and all their layouts, with one certificate.

Chips that differ only in fields of which more is never slower form a group (`bounds.chips`). Every group has
a lower bound with the layout free, from its layers alone. The most promising chip gives the first plan. The
groups are then taken by increasing bound on the score, by default the step time (`chip_scores`). A
`LayoutSearch` on a chip that is at least as large as each of a group excludes all of them at once, if no
layout on it beats the best plan. Otherwise the group is split, down to single chips. The search ends at the
first group whose bound is not below the best plan by more than the gap.
"""

from __future__ import annotations

import gc
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Literal

import numpy as np

from phaze.base.arrays import Floats
from phaze.plan import effort
from phaze.plan.bounds.chips import ChipGroup, ShardBounds, groups_of
from phaze.plan.machines import device_of
from phaze.plan.question import PlanQuestion
from phaze.plan.search.chip_scores import ChipScores
from phaze.plan.search.planned import LayoutPlans, PlannedLayout
from phaze.plan.search.search import LayoutPlanner, LayoutSearch
from phaze.runtimes.space import Space, legal_space
from phaze.spec.system import Device
from phaze.spec.training_plan import ChipOutcome, PlanCertificate

SUMMED = ("layouts", "same", "unfit", "simulated", "divisions", "undecided_layouts")
"""Counts of a certificate that add up over chips."""
Outcome = Literal["best", "slower", "excluded", "unfit", "undecided"]


@dataclass(eq=False)
class ChipSearch:
    """Branch and bound over chips and their layouts.

    Its bound holds at any time, so that it may end whenever there is a plan.
    """

    question_on: Callable[[int], PlanQuestion]
    """Function that returns the planning request on a chip, by its index."""
    planner: LayoutPlanner
    chips: Sequence[Device] = ()
    """Chips to choose from; empty: the machine's device."""
    on_better: Callable[[ChipSearch], None] = lambda _: None
    """Callback for every plan that is better than all before, on any chip."""
    scores: ChipScores | None = None
    """Scores by which chips are compared, on each that of its fastest plan; None: step times."""
    place: int = 0
    """Index of the chip with the best plan; without a plan, of the one that comes closest to fit one."""
    searches: dict[int, LayoutSearch] = field(default_factory=dict)
    """Searches over the layouts of chips, by index; all other chips are excluded by their bounds so far."""
    _plan_scores: dict[tuple[int, float], float] = field(default_factory=dict)
    """Scores of plans by chip and step time."""

    @cached_property
    def _bound(self) -> ShardBounds:
        return ShardBounds(self.question_on(0), self._space.families)

    @cached_property
    def _space(self) -> Space:
        """Layouts to choose from, the same on all chips."""
        question = self.question_on(0)
        return legal_space(question.runtime, question.task, self.planner.fixed)

    @cached_property
    def chip_bounds_s(self) -> Floats:
        """Lower bound so far on the step time on every chip with the layout free, in seconds, (D,)."""
        return np.zeros(max(len(self.chips), 1))

    @property
    def search(self) -> LayoutSearch:
        """Search over the layouts of the best chip."""
        return self.searches[self.place]

    @property
    def question(self) -> PlanQuestion:
        """Planning request on the best chip."""
        return self.search.question

    @property
    def best_s(self) -> float:
        """Step time of the fastest plan."""
        return min((search.best_s for search in self.searches.values()), default=inf)

    @cached_property
    def _scores(self) -> ChipScores:
        return self.scores or ChipScores.of_rates([1.0] * max(len(self.chips), 1))

    @property
    def best(self) -> float:
        """Score of the best plan; infinite without a plan."""
        return min(map(self.score_on, self.searches), default=inf)

    def score_on(self, place: int) -> float:
        """Score of the fastest plan on a chip that is searched; infinite without a plan."""
        search = self.searches[place]
        if search.best_s == inf or self._scores.of_plan is None:
            return float(self._scores.at(np.array(place), search.best_s))
        if (place, search.best_s) not in self._plan_scores:
            score = self._scores.of_plan(place, search.question, search.fastest)
            self._plan_scores[place, search.best_s] = score
        return self._plan_scores[place, search.best_s]

    @property
    def bounds(self) -> Floats:
        """Lower bound on the score of every chip so far, (D,)."""
        return self._scores.bounds(self.bounds_s, range(len(self.bounds_s)))

    @property
    def fastest(self) -> PlannedLayout:
        """Fastest plan so far."""
        return self.search.fastest

    @property
    def bounds_s(self) -> Floats:
        """Lower bound on the step time of every chip so far, in seconds, (D,)."""
        bounds_s = self.chip_bounds_s.copy()
        for place, search in self.searches.items():
            bounds_s[place] = max(bounds_s[place], search.bound_s)
        return bounds_s

    @property
    def bound_s(self) -> float:
        """Lower bound on the step time over all chips and layouts."""
        return min(self.best_s, float(self.bounds_s.min()))

    def run(self, number: int) -> None:
        """Search groups of chips until the gap is closed, with `number` plans of the best chip.

        The first plan is one of the most promising chip. Groups follow by increasing bound.
        """
        queue = self._first_groups()
        self._search(self._most_promising(queue[-1]), number)
        while queue and not self.planner.limit.reason:
            group = queue.pop()
            if self._bound_on(group) >= self._target:
                break
            if len(group.places) > 1:
                # Where small chips score better at the same time, no layout on a large one excludes them.
                is_futile = self._longest_s(group, self._target) >= effort.FUTILE * group.bound_s
                if not is_futile or self._scores.alike(group.places):
                    group = self.exclude(group, self._target)
                if self._bound_on(group) < self._target:
                    for part in self._bounded(group.parts(self.chips)):
                        insort(queue, part, key=self._urgency)
            elif group.places[0] not in self.searches:
                self._search(group.places[0], number)
        if self.best_s == inf:
            # If nothing fits, the chip with the most memory comes closest.
            roomiest = max(range(len(self.chips)), key=lambda place: self.chips[place].hbm_gib, default=0)
            if roomiest not in self.searches:
                self._search(roomiest, number)
            self.place = min(self.searches, key=lambda place: self.searches[place].families.lacking_bytes)

    def _most_promising(self, group: ChipGroup) -> int:
        """Chip with the smallest bound in the smallest part of a group."""
        while len(group.places) > 1:
            group = self._by_bound(self._bounded(group.parts(self.chips)))[-1]
        return group.places[0]

    @property
    def _target(self) -> float:
        """Score below which a plan would be better than the best one by more than the gap."""
        return self.best * (1 - self.planner.gap)

    def _bound_on(self, group: ChipGroup) -> float:
        """Lower bound on the score of each chip of a group."""
        return float(self._scores.bounds(self.chip_bounds_s, group.places).min())

    def _longest_s(self, group: ChipGroup, score: float | Floats) -> float:
        """Step time from which no chip of a group scores less than `score`, as far as bounds do not tell."""
        places = np.array(group.places)
        scores = np.broadcast_to(score, places.shape)
        left = self._scores.bounds(self.chip_bounds_s, places) < scores
        return self._scores.longest_s(places[left], scores[left])

    def _by_bound(self, groups: Iterable[ChipGroup]) -> list[ChipGroup]:
        """Groups by decreasing bound: the last one is the most promising, in a tie that of the first chip."""
        return sorted(groups, key=self._urgency)

    def _urgency(self, group: ChipGroup) -> tuple[float, int]:
        return -self._bound_on(group), -group.places[0]

    def _first_groups(self) -> list[ChipGroup]:
        """The largest groups by decreasing bound; a single chip, or the machine's device, has no bound."""
        if not self.chips:
            return [ChipGroup((0,), device_of(self.question_on(0).machine))]
        return self._by_bound(self._bounded(groups_of(self.chips)))

    def _bounded(self, groups: Sequence[ChipGroup]) -> list[ChipGroup]:
        """Groups with bounds by their layers alone."""
        bounds_s = self._bound.of([group.envelope for group in groups]).tolist()
        bounded = [
            replace(group, bound_s=max(group.bound_s, bound_s))
            for group, bound_s in zip(groups, bounds_s, strict=True)
        ]
        for group in bounded:
            self._raise(group)
        return bounded

    def bound_each(self) -> None:
        """Raise the bound of every chip to that of its own layers, as chips of a group may differ much.

        Where this would take too long, chips keep the bounds of their groups.
        """
        if len(self.chips) * self._bound.graphs <= effort.MOST_CHIP_GRAPHS:
            self._bounded([ChipGroup((place,), chip) for place, chip in enumerate(self.chips)])

    def raise_bound(self, place: int, bound_s: float) -> None:
        """Raise the bound of a chip to that of another search over its layouts."""
        self.chip_bounds_s[place] = max(self.chip_bounds_s[place], bound_s)

    def _raise(self, group: ChipGroup) -> None:
        """Raise the bounds of chips to that of their group."""
        places = list(group.places)
        self.chip_bounds_s[places] = np.maximum(self.chip_bounds_s[places], group.bound_s)

    def exclude(self, group: ChipGroup, score: float | Floats) -> ChipGroup:
        """Group with a raised bound, by a search over layouts on its envelope.

        It excludes scores below `score` if no layout on the envelope is as fast as a chip would have to be.
        """
        group = replace(group, bound_s=self._bound_of(group, self._longest_s(group, score)))
        self._raise(group)
        return group

    def _bound_of(self, group: ChipGroup, target_s: float) -> float:
        """Lower bound of a group by a search over layouts on its envelope, which ends below a step time."""
        question = self.question_on(group.places[0])
        question = replace(question, machine=group.envelope_machine(question.machine))
        first, label = (self.search.fastest,) if self.best_s < inf else (), f"{group.envelope.name}: "
        planner = replace(self.planner, most_s=target_s, enough_s=target_s, gap=0.0, first=first, label=label)
        search = planner.search(question, self._space, self._bound.families_s(group.envelope))
        search.run(1)
        # A schedule of the envelope that is not proven shortest may be longer than one of a smaller chip.
        bound_s = max(group.bound_s, search.bound_s * (1 - (question.schedule_gap or 0.0)))
        # Callbacks of a search refer to it, so that only the collector frees its costs: 150 MB of each group.
        del search, question, planner
        gc.collect()
        return bound_s

    def _search(self, place: int, number: int) -> None:
        """Search the layouts of one chip, as far as they may be faster than the best plan so far."""
        # An equally good plan on a later chip, such as one with more memory, is no reason to change.
        best_before = self.best

        def note(_: LayoutSearch) -> None:
            if self.score_on(place) < best_before:
                self.place = place
                self.on_better(self)

        label = f"{self.chips[place].name}: " if self.chips else self.planner.label
        # The layout of the best plan is often a good one on the next chip.
        first = (self.search.fastest,) if self.best_s < inf else self.planner.first
        most_s = self._scores.longest_s([place], best_before)
        planner = replace(self.planner, most_s=most_s, label=label, on_better=note, first=first)
        if not self.searches:
            self.place = place
        least_s = self._bound.families_s(self.chips[place]) if self.chips else None
        self.searches[place] = planner.search(self.question_on(place), self._space, least_s)
        self.searches[place].run(number)
        # Where the score is not the time, the fastest plan on a chip may score worse than the one before.
        if self.best < inf:
            self.place = min(self.searches, key=self.score_on)

    @property
    def stopped(self) -> str | None:
        """Reason why the search ended before its gap was closed; None if it is closed."""
        has_gap = self.bounds.min() < self._target
        reasons = (search.certificate().stopped for search in self.searches.values())
        return next(filter(None, (*reasons, self.planner.limit.reason)), None) if has_gap else None

    def extend(self, rows: int) -> None:
        """Continue the search on the best chip until no other of its layouts can be one of `rows` rows."""
        self.search.extend(rows)

    def plans(self, number: int, rows: int = 1) -> LayoutPlans:
        """The `number` fastest plans on the best chip, with a certificate over all chips."""
        plans = self.search.plans(number, rows)
        if not self.chips:
            return plans
        certificate = self._certificate(plans.certificate)
        return replace(plans, certificate=certificate, chips=self.outcomes, place=self.place)

    def _certificate(self, best: PlanCertificate) -> PlanCertificate:
        """Certificate over all chips, from that of the best one."""
        others = [search.certificate() for place, search in self.searches.items() if place != self.place]
        searched, excluded = [best, *others], len(self.chips) - len(self.searches)
        counts = {name: sum(getattr(proof, name) for proof in searched) for name in SUMMED}
        # All chips have the same layouts, which no rule of the runtime tells apart.
        counts["layouts"] += excluded * best.layouts
        counts["same"] += excluded * best.same
        bounded = Counter[str]({"chip": excluded * best.legal})
        for proof in searched:
            bounded.update(proof.bounded)
        bound_s, lacking = self.bound_s, [proof.lacking_gib for proof in searched if proof.lacking_gib]
        changes: dict[str, object] = {
            **counts,
            "illegal": {name: len(self.chips) * count for name, count in best.illegal.items()},
            "lacking_gib": min(lacking, default=None),
            "bounded": dict(bounded),
            "bound_s": bound_s if bound_s < inf else None,
            "gap": 1 - bound_s / self.best_s if self.best_s < inf else 0.0,
            "stopped": self.stopped,
            "schedule_gap": max(proof.schedule_gap or 0.0 for proof in searched),
        }
        return best.model_copy(update=changes)

    @property
    def outcomes(self) -> tuple[ChipOutcome, ...]:
        """Outcome of every chip, by increasing bound; the best one first."""
        bounds_s, rows = self.bounds_s, list[ChipOutcome]()
        for place in np.argsort(bounds_s, kind="stable").tolist():
            chip, search = self.chips[place], self.searches.get(place)
            time_s = search.best_s if search is not None and search.best_s < inf else None
            row = ChipOutcome(
                chip=chip.name,
                area_mm2=chip.area_mm2,
                bound_s=float(bounds_s[place]) if bounds_s[place] < inf else None,
                time_s=time_s,
                outcome=self._outcome(place, float(bounds_s[place])),
            )
            rows.append(row)
        return tuple(sorted(rows, key=lambda row: row.outcome != "best"))

    def _outcome(self, place: int, bound_s: float) -> Outcome:
        """What became of a chip whose bound is `bound_s`."""
        search = self.searches.get(place)
        if bound_s == inf:
            return "unfit"
        if self.best_s == inf:
            return "undecided"
        if place == self.place:
            return "best"
        if bound_s < self.best_s * (1 - self.planner.gap):
            return "undecided"
        return "slower" if search is not None else "excluded"
