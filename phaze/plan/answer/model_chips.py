"""Best chip of one model: a search over all chips of a space, and the best plan on any chip.

A smaller chip is taken instead of the best one as long as the same plan scores at most `SPARE` worse on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from phaze.base.errors import PhazeError
from phaze.base.progress import busy
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.chip_objectives import ChipGoal
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.bounds.chips import GROWING
from phaze.plan.search.chip_scores import ChipScores
from phaze.plan.search.chips import ChipSearch
from phaze.plan.search.search import LayoutPlanner
from phaze.spec.architecture import Architecture

SPARE = 0.005
"""Relative increase of the score that a smaller chip may cost, below all errors of a prediction."""


@dataclass(frozen=True)
class Evaluated:
    """Best plan of a model on a chip, None if nothing fits, with the lower bound of all layouts there."""

    planner: TrainingPlanner
    priced: PricedLayout | None
    bound_s: float
    score: float
    """Score of the plan by the objective of the choice; infinite if nothing fits."""
    stopped: str | None = None
    """Reason why the search ended early."""


@dataclass(frozen=True, eq=False)
class ModelChips:
    """Search for the best chip of one model."""

    planner: TrainingPlanner
    goal: ChipGoal
    finished: ChipSearch | None = None
    """The search, if another job ran it; None: it is run here."""
    evaluated: dict[int, Evaluated] = field(default_factory=dict)
    """Best plans of this model so far, by the index of their chip."""

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.planner.request.model.name

    @property
    def chips(self) -> Sequence[Architecture]:
        """Chips of the space."""
        return self.planner.request.chips or ()

    @cached_property
    def scores(self) -> ChipScores:
        """Scores of the chips."""
        return self.goal.scores(self.planner)

    @cached_property
    def search(self) -> ChipSearch:
        """Finished search over all chips; PhazeError if the model fits on none."""
        if self.finished is not None:
            return self.finished
        with busy(self.name):
            search = replace(self.planner.search_chips(), scores=self.scores)
            search.run(1)
        if search.best_s == inf:
            answer = self.planner.on_chip(search.place).answer(search.plans(1), 1, alone=True)
            reason = answer.reason if answer.format == "phaze-no-plan" else ""
            raise PhazeError(
                f"chip: {self.name} fits on no chip of the space: {reason}", "pass larger --hbm, or --devices"
            )
        return search

    @cached_property
    def best(self) -> PricedLayout:
        """The best plan on any chip."""
        return PricedLayout.of(self.search.question, self.search.fastest)

    @cached_property
    def best_score(self) -> float:
        """Score of the best plan on any chip."""
        return self.goal.score(self.chips[self.search.place], self.best)

    @cached_property
    def smallest(self) -> int:
        """Smallest chip that is nearly as good as the best one under the same plan."""
        place, smaller = self.search.place, True
        places = {_sizes(chip): number for number, chip in enumerate(self.chips)}
        while smaller:
            smaller = False
            for name in GROWING:
                number = _next_smaller(self.chips, places, place, name)
                if number is None:
                    continue
                same = self.with_best_layout(number)
                if same.score <= self.best_score * (1 + SPARE):
                    self.evaluated[number] = same
                    place, smaller = number, True
        return place

    def with_best_layout(self, place: int) -> Evaluated:
        """Plan on a chip of the space with the layout of the best plan; without a plan if it does not fit."""
        # Unlike `on_chip`, it leaves no costs behind: many chips are asked for.
        planner = replace(self.planner, request=self.planner.request.on_chip(place), chip=place)
        priced, bound_s = self.best.priced_for(planner.question), float(self.search.bounds_s[place])
        if priced.lacking_gib > 0:
            return Evaluated(planner, None, bound_s, inf)
        score = self.goal.score(self.chips[place], priced)
        return Evaluated(planner, priced, min(bound_s, priced.price.time_s), score)

    def on_chip(self, place: int) -> Evaluated:
        """Best plan on a chip of the space."""
        if place not in self.evaluated:
            evaluated = self._planned(self.planner.on_chip(place), self.chips[place])
            self.evaluated[place] = evaluated
            self.search.raise_bound(place, evaluated.bound_s)
        return self.evaluated[place]

    def on_architecture(self, chip: Architecture) -> Evaluated:
        """Best plan on a chip that need not be in the space."""
        machine = self.planner.request.stored_machine()
        changes = {"chips": None, "machine": machine.on_architecture(chip, machine.stack)}
        request = self.planner.request.model_copy(update=changes)
        return self._planned(replace(self.planner, request=request), chip)

    def _planned(self, planner: TrainingPlanner, chip: Architecture) -> Evaluated:
        # The layout of the best plan is often a good one on another chip.
        first, label = (self.search.fastest,), f"{self.name} on {chip.name}: "
        search = LayoutPlanner(
            fixed=planner.request.fixed,
            number=1,
            gap=planner.gap,
            limit=planner.limit,
            first=first,
            label=label,
        )
        plans = search(planner.question)
        bound_s = inf if plans.certificate.bound_s is None else plans.certificate.bound_s
        priced = PricedLayout.of(planner.question, plans.plans[0]) if plans.plans else None
        score = inf if priced is None else self.goal.score(chip, priced)
        return Evaluated(planner, priced, bound_s, score, plans.certificate.stopped)


def _sizes(chip: Architecture) -> tuple[object, ...]:
    """Fields by which chips of a space differ."""
    return tuple(getattr(chip, name) for name in ("pe_x", "pe_y", "pe_vc", *GROWING, "clock_hz"))


def _next_smaller(
    chips: Sequence[Architecture], places: Mapping[tuple[object, ...], int], place: int, name: str
) -> int | None:
    """Index of the chip with the next smaller value in one field; None if the space has none."""
    chip = chips[place]
    smaller = [value for other in chips if (value := getattr(other, name)) < getattr(chip, name)]
    return places.get(_sizes(chip.model_copy(update={name: max(smaller)}))) if smaller else None
