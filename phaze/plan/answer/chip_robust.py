"""Chips under other assumptions than the choice was made with: the one with the least regret.

A case is a model under one assumption: bandwidths of HBM and of the network, or the speed of vector cores,
`SPAN` lower or higher, overlap as expected or only as measured, and other loads of experts. The best chip of
each case is searched for, with a wider gap than the choice, and joins the candidates. A chip has its best
plan in each case, as software follows the chip. Its regret is the share by which it scores worse than the
best candidate of the case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from math import inf
from typing import Self

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.progress import counted
from phaze.cost.network.fabric import network_of
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.model_chips import ModelChips
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.answer.regrets import regrets_of, safest_first, scenarios
from phaze.plan.answer.what_if import MEMORY, changed_machines
from phaze.plan.machines import device_of
from phaze.plan.question import PlanQuestion
from phaze.plan.search.planned import PlannedLayout
from phaze.plan.search.search import LayoutPlanner
from phaze.spec.chip_choice import ChipRegret, RobustChoice
from phaze.spec.system import Cluster

SPAN = 0.2
"""Relative change of a rate: predictions of chips that do not exist miss measured runs by up to this."""
SAME = {MEMORY, "clock"}
"""Resources that are no assumption: the memory is chosen, and the clock is that of all chips."""
GAP = 0.05
"""Least gap of the search in a case: smaller regrets decide nothing, and their proof would take longest."""
MOST_CANDIDATES = 12
"""Maximum number of candidates of the choice that are compared, besides the best chips of the cases."""


@dataclass(frozen=True, eq=False)
class Assumption:
    """Change of a planning request, whatever its chip."""

    words: str
    """Clause after `if`."""
    changed: Callable[[PlanQuestion], PlanQuestion]


def assumptions_of(planner: TrainingPlanner, networks: Mapping[str, Cluster]) -> Iterator[Assumption]:
    """Yield the assumptions of a model's choice, then others one at a time, such as other networks."""
    question, expected = planner.question, planner.expected
    yield Assumption("all is as assumed", lambda question: question)
    for factor, direction in ((1 - SPAN, "lower"), (1 + SPAN, "higher")):
        for name, _ in changed_machines(question):
            if name not in SAME and name not in _unused(question):
                yield Assumption(
                    f"the {name} is {100 * SPAN:.0f} % {direction}", _with_resource(name, factor)
                )
        yield Assumption(
            f"the speed of vector cores is {100 * SPAN:.0f} % {direction}", _with_vectors(1 / factor)
        )
    for description, cluster in networks.items():
        yield Assumption(f"the network is {description}", _with_network(cluster))
    used = question.task.load, question.machine.stack
    for number, scenario in enumerate(scenarios(expected)):
        if (scenario.question.task.load, scenario.question.machine.stack) != used:
            yield Assumption(scenario.words, _in_scenario(number, expected))


def _with_resource(name: str, factor: float) -> Callable[[PlanQuestion], PlanQuestion]:
    def changed(question: PlanQuestion) -> PlanQuestion:
        return replace(question, machine=dict(changed_machines(question, factor))[name])

    return changed


def _with_network(cluster: Cluster) -> Callable[[PlanQuestion], PlanQuestion]:
    def changed(question: PlanQuestion) -> PlanQuestion:
        machine = replace(question.machine, network=network_of(cluster), system=cluster)
        return replace(question, machine=machine)

    return changed


def _with_vectors(times: float) -> Callable[[PlanQuestion], PlanQuestion]:
    def changed(question: PlanQuestion) -> PlanQuestion:
        cycles = {key: times * cycles for key, cycles in question.machine.vector_cycles.items()}
        return replace(question, machine=replace(question.machine, vector_cycles=cycles))

    return changed


def _in_scenario(number: int, expected: PlanQuestion) -> Callable[[PlanQuestion], PlanQuestion]:
    """Load and overlap of a scenario, on the chip of a question."""
    scenario = scenarios(expected)[number].question

    def changed(question: PlanQuestion) -> PlanQuestion:
        machine = replace(question.machine, stack=scenario.machine.stack)
        return replace(question, task=replace(question.task, load=scenario.task.load), machine=machine)

    return changed


def _unused(question: PlanQuestion) -> set[str]:
    """Names of the bandwidths of network levels beyond the devices of a request."""
    levels = () if question.machine.system is None else question.machine.system.levels
    return {
        f"bandwidth among {level.devices:,} devices"
        for inner, level in pairwise(levels)
        if inner.devices >= question.task.devices
    }


@dataclass(frozen=True, eq=False)
class ChipCase:
    """Model under one assumption, with its best chip."""

    model: ModelChips
    assumption: Assumption
    place: int
    """Index of the best chip."""
    score: float
    """Score of its best plan; infinite if the model fits on no chip."""
    bound: float
    """Lower bound on the score of all chips."""
    first: tuple[PlannedLayout, ...]
    """The best plan, if there is one."""

    @classmethod
    def of(cls, model: ModelChips, assumption: Assumption) -> Self:
        """Search for the best chip."""
        search, question = model.planner.search_chips(), model.planner.on_chip(0).question
        planner = replace(
            search.planner,
            first=(model.search.fastest,),
            label=f"{model.name} if {assumption.words}: ",
            gap=max(search.planner.gap, GAP),
        )
        # Envelopes of groups are made of the chips, whose HBM may be another one in the case.
        machines = (question.machine.with_device(chip) for chip in search.chips)
        questions = (replace(question, machine=machine) for machine in machines)
        chips = [device_of(assumption.changed(on_chip).machine) for on_chip in questions]

        def question_on(place: int) -> PlanQuestion:
            return assumption.changed(model.planner.on_chip(place).question)

        search = replace(search, question_on=question_on, planner=planner, chips=chips, scores=model.scores)
        search.run(1)
        first = (search.fastest,) if search.best < inf else ()
        return cls(model, assumption, search.place, search.best, float(search.bounds.min()), first)

    def score_on(self, place: int) -> float:
        """Score of the best plan of a short search on a chip; infinite if it finds none that fits."""
        if place == self.place:
            return self.score
        planned = self.model.planner.on_chip(place)
        planner = LayoutPlanner(
            fixed=planned.request.fixed,
            number=1,
            gap=max(planned.gap, GAP),
            prove=False,
            limit=planned.limit,
            first=self.first,
            label=f"{self.model.name} on {self.model.chips[place].name} if {self.assumption.words}: ",
        )
        question = self.assumption.changed(planned.question)
        plans = (PricedLayout.of(question, plan) for plan in planner(question).plans)
        return min((self.model.goal.score(self.model.chips[place], plan) for plan in plans), default=inf)


@dataclass(frozen=True, eq=False)
class RobustChips:
    """Regrets of chips over all cases, and the chip with the smallest largest one."""

    models: Sequence[ModelChips]
    candidates: Sequence[int]
    """Candidates of the choice, the best one first."""
    networks: Mapping[str, Cluster]
    """Other networks than the assumed one, by description."""

    @cached_property
    def cases(self) -> list[ChipCase]:
        """Every model under every assumption."""
        pairs = [
            (model, changed)
            for model in self.models
            for changed in assumptions_of(model.planner, self.networks)
        ]
        return [ChipCase.of(model, changed) for model, changed in counted(pairs, "cases")]

    @cached_property
    def compared(self) -> list[int]:
        """Compared chips: candidates of the choice, then best chips of the cases."""
        best = (case.place for case in self.cases if case.score < inf)
        return [*dict.fromkeys([*self.candidates[:MOST_CANDIDATES], *best])]

    @cached_property
    def scores(self) -> Floats:
        """Score of every compared chip in every case, infinite where the model does not fit, (S, n)."""
        pairs = [*product(self.cases, self.compared)]
        scores = [case.score_on(place) for case, place in counted(pairs, "plans")]
        return np.array(scores).reshape(len(self.cases), len(self.compared))

    @cached_property
    def _regrets(self) -> Floats:
        return regrets_of(self.scores)

    @property
    def order(self) -> list[int]:
        """Compared chips by increasing largest regret."""
        return [self.compared[column] for column in self._columns]

    @property
    def _columns(self) -> list[int]:
        return safest_first(self._regrets.max(axis=0))

    @property
    def choice(self) -> RobustChoice:
        """Cases and regrets of the compared chips."""
        columns, regrets = self._columns, self._regrets
        compared = [self._regret(int(regrets[:, column].argmax()), column, column) for column in columns]
        # Of equally good chips the first in the order, such as the chosen one, is the best.
        best = [columns[place] for place in regrets[:, columns].argmin(axis=1).tolist()]
        cases = [self._regret(row, column, columns[0]) for row, column in enumerate(best)]
        return RobustChoice(compared=tuple(compared), cases=tuple(cases), gap=self._gap)

    def _regret(self, row: int, named: int, column: int) -> ChipRegret:
        """Case with the name of one compared chip and the regret of one."""
        case, chip = self.cases[row], self.models[0].chips[self.compared[named]]
        regret = float(self._regrets[row, column])
        return ChipRegret(
            model=case.model.name,
            assumption=case.assumption.words,
            chip=chip.name,
            hbm_gib=chip.hbm_gib or 0.0,
            regret=regret if regret < inf else None,
        )

    @property
    def _gap(self) -> float:
        """Most by which a chip that is not compared can be better than the best compared one, in any case."""
        bounds, best = np.array([case.bound for case in self.cases]), self.scores.min(axis=1)
        return float(np.max(np.where(np.isfinite(best), 1 - bounds / best, 0.0), initial=0.0))
