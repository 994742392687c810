"""What a chip is chosen for, as a score of its plan of which less is better.

    time    T                        seconds of a step
    area    N · A · T / tokens       mm² per token per second
    cost    N · P · T / tokens       price of the chips per token per second, P = mm² · price + GiB · price
    energy  (J + N · w · A · T) / tokens   joules of a token

Here T is the step time of the fastest plan on N chips of area A, which leak w per mm², and J its dynamic
energy. All but energy are proportional to T on a chip, so that its fastest plan is its best one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.base.errors import PhazeError
from phaze.base.units import UM2_PER_MM2
from phaze.cost.space import area_um2
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.chip_energy import leakage_w, least_joules, step_joules
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.question import PlanQuestion
from phaze.plan.search.chip_scores import ChipScores
from phaze.plan.search.planned import PlannedLayout
from phaze.runtimes.rules import TrainingTask
from phaze.runtimes.space import legal_space
from phaze.spec.architecture import Architecture, Technology
from phaze.spec.chip_choice import ChipPrices
from phaze.spec.names import ChipObjective


@dataclass(frozen=True)
class ChipGoal:
    """Objective of a choice of chips, with the figures that it needs."""

    objective: ChipObjective
    technology: Technology
    prices: ChipPrices | None = None
    """Prices of the parts of a chip; needed by `cost`."""

    def __post_init__(self) -> None:
        if self.objective == "cost" and self.prices is None:
            raise PhazeError(
                "chip: --objective cost: needs the prices of a mm2 of die and of a GiB of HBM",
                "pass yours, such as --price-mm2 0.3USD --price-gib 12USD",
            )

    def area_mm2(self, chip: Architecture) -> float:
        """Area of a chip in mm²."""
        return chip.area_mm2 or area_um2(chip, self.technology.area_um2) / UM2_PER_MM2

    def price(self, chip: Architecture) -> float | None:
        """Price of a chip with its HBM; None without prices."""
        if self.prices is None:
            return None
        return self.prices.per_mm2 * self.area_mm2(chip) + self.prices.per_gib * (chip.hbm_gib or 0.0)

    def joules(self, chip: Architecture, priced: PricedLayout) -> float:
        """Energy of a step of a plan on all chips."""
        return sum(step_joules(priced, self.technology.energy, self.area_mm2(chip)).values())

    def score(self, chip: Architecture, priced: PricedLayout) -> float:
        """Score of a plan on a chip."""
        task = priced.question.task
        if self.objective == "energy":
            return self.joules(chip, priced) / _tokens(task)
        return self._rate(chip, task) * priced.price.time_s

    def scores(self, planner: TrainingPlanner) -> ChipScores:
        """Scores of the chips of a request, with the least that every layout has."""
        chips, question = planner.request.chips or (), planner.on_chip(0).question
        rates = [self._rate(chip, question.task) for chip in chips]
        if self.objective != "energy":
            return ChipScores.of_rates(rates)
        grid = legal_space(question.runtime, question.task, planner.request.fixed).families
        joules = least_joules(question, grid, planner.search_chips().chips, self.technology.energy)

        def of_plan(place: int, question: PlanQuestion, plan: PlannedLayout) -> float:
            return self.score(chips[place], PricedLayout.of(question, plan))

        return ChipScores(joules / _tokens(question.task), np.array(rates), of_plan)

    def _rate(self, chip: Architecture, task: TrainingTask) -> float:
        """Increase of the score per second of a step."""
        if self.objective == "time":
            return 1.0
        if self.objective == "energy":
            return leakage_w(self.technology.energy, self.area_mm2(chip), task) / _tokens(task)
        size = self.area_mm2(chip) if self.objective == "area" else self.price(chip) or 0.0
        return task.devices * size / _tokens(task)


def _tokens(task: TrainingTask) -> int:
    """Tokens of a step."""
    return task.global_batch * task.sequence
