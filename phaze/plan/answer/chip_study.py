"""Jobs of a study that chooses chips: search per model, plans on other chips, and one chip for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import pandas as pd

from phaze.base.errors import PhazeError
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.chip_choice import (
    ChipChooser,
    nearest_chip,
    without_interval,
)
from phaze.plan.answer.chip_designs import plans_on, promising, sizes_of
from phaze.plan.answer.chip_objectives import ChipGoal
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.chips import Chips, chip_machine, designs_within_area
from phaze.plan.question import PlanQuestion
from phaze.plan.search.chips import ChipSearch
from phaze.plan.search.planned import PlannedLayout
from phaze.plan.time_limit import TimeLimit
from phaze.runtimes.recipe import Recipe
from phaze.spec.architecture import load_technology
from phaze.spec.chip_choice import ChipChoice, ChipForModels
from phaze.spec.chip_study import ChipPoint
from phaze.spec.config import load_architecture
from phaze.spec.files import FOLDER
from phaze.spec.names import Rank
from phaze.spec.system import Cluster
from phaze.spec.systems import load_cluster
from phaze.spec.training_plan import AskedPlan, StoredMachine, TrainingPlan
from phaze.tables.chips import ChipBounds


@dataclass(eq=False, kw_only=True)
class FinishedSearch(ChipSearch):
    """Search over chips that another job ran, from its best plan and its table of bounds."""

    plan: PlannedLayout
    ended_early: str | None

    @property
    def question(self) -> PlanQuestion:
        """Planning request on the best chip."""
        return self.question_on(self.place)

    @property
    def fastest(self) -> PlannedLayout:
        """Fastest plan."""
        return self.plan

    @property
    def best_s(self) -> float:
        """Step time of the fastest plan."""
        return self.plan.time_s

    @property
    def best(self) -> float:
        """Score of the fastest plan."""
        return self.best_s

    @property
    def stopped(self) -> str | None:
        """Reason why the search ended before its gap was closed; None if it is closed."""
        return self.ended_early


RANKED: Rank = "prudent"
"""Kind of step time by which chips of a study are compared."""
FEWEST = 2


@dataclass(frozen=True)
class ChipSpace:
    """Machine of a point's network, and its chips."""

    machine: StoredMachine
    chips: Chips

    @classmethod
    def of(cls, point: ChipPoint, search: str, folder: Path = FOLDER) -> ChipSpace:
        """Enumerate the designs of a search; PhazeError if fewer than two are within the area limit."""
        cluster, device = load_cluster(point.system, folder)
        if point.levels is not None:
            cluster = Cluster(device=cluster.device, levels=point.levels)
        chips = designs_within_area(point.designs, cluster, device, point.hbm_gib, folder)
        if len(chips) < FEWEST:
            raise PhazeError(
                f"chips: {search}: designs.area_limit_mm2: {point.designs.area_limit_mm2} leaves "
                f"{len(chips)} designs, and a choice needs {FEWEST}",
                "raise it, or add sizes to designs.grid",
            )
        machine = chip_machine(cluster, device, folder)
        return cls(machine.on_architecture(chips[0], machine.stack), chips)

    def request(self, point: ChipPoint, model: Mapping[str, object]) -> AskedPlan:
        """Planning request of a model on any of the chips."""
        fields = {
            "model": model, "system": point.system, "stack": self.machine.stack.name, "runtime": "chip",
            "devices": point.devices, "global_batch": point.global_batch, "sequence": point.sequence,
            "fixed": point.fix, "rank": RANKED, "machine": self.machine, "chips": self.chips,
        }  # fmt: skip
        return AskedPlan.parse(fields, "chips")


def searched(
    point: ChipPoint, search: str, model: Mapping[str, object], folder: Path = FOLDER
) -> tuple[TrainingPlan, pd.DataFrame]:
    """Best plan of a model on any chip, and table `chip_bounds`; PhazeError if it fits on none."""
    request = ChipSpace.of(point, search, folder).request(point, model)
    chooser = ChipChooser((request,), point.gap, _limit(point), goal_of(point, folder), folder=folder)
    (choice,) = chooser.models
    run = choice.search
    answer = choice.planner.answer(run.plans(1), 1, alone=True)
    assert isinstance(answer, TrainingPlan)
    question = answer.question.model_copy(update={"chips": None})
    designs = sizes_of(chooser.chips)
    # Bounds are those of groups: single ones would take longer than the search.
    step_s = np.nan_to_num(plans_on(choice, promising(designs, run.bounds_s))[0], nan=inf)
    bounds = designs.rename(columns={"name": "architecture"}).assign(
        search=search, bound_s=np.minimum(run.bounds_s, step_s), step_s=step_s
    )
    # The outcomes of all chips are rows of the table.
    plan = answer.model_copy(update={"question": question, "chips": None})
    return plan, ChipBounds.check(bounds)


def goal_of(point: ChipPoint, folder: Path = FOLDER) -> ChipGoal:
    """What chips are chosen for: the least step time."""
    return ChipGoal("time", load_technology(point.designs.technology, folder))


def _limit(point: ChipPoint) -> TimeLimit:
    return TimeLimit(point.seconds or inf)


def finished(planner: TrainingPlanner, plan: TrainingPlan, bounds: pd.DataFrame) -> FinishedSearch:
    """Search over the planner's chips from its plan and its rows of table `chip_bounds`."""
    chips, best = planner.request.chips or (), plan.question.stored_machine().device
    keys = [(chip.name, chip.hbm_gib) for chip in chips]
    place, search = keys.index((best.name, best.hbm_gib)), planner.search_chips()
    question = planner.on_chip(place).question
    priced = PricedLayout.of_recipe(question, Recipe.of(plan)).priced_for(question)
    rows = bounds.set_index(["architecture", "hbm_gib"]).loc[keys]
    run = FinishedSearch(
        question_on=search.question_on,
        planner=search.planner,
        chips=search.chips,
        place=place,
        plan=PlannedLayout(priced.staged, priced.split, priced.price.time_s),
        ended_early=plan.certificate.stopped,
    )
    run.chip_bounds_s = rows["bound_s"].to_numpy().copy()
    return run


@dataclass(frozen=True)
class Searched:
    """Search of a model with the content of its files, and its plans on other chips."""

    search: str
    point: ChipPoint
    plan: TrainingPlan
    bounds: pd.DataFrame
    others: tuple[ChipForModels, ...] = ()


def chooser_of(searches: Sequence[Searched], limit: TimeLimit, folder: Path = FOLDER) -> ChipChooser:
    """Choice of a chip among the designs of some models' searches in one scenario."""
    first = searches[0].point
    designs = ChipSpace.of(first, searches[0].search, folder)
    requests, runs = list[AskedPlan](), list[FinishedSearch]()
    for search in searches:
        request = designs.request(search.point, search.plan.question.model.model_dump(mode="json"))
        requests.append(request)
        planner = TrainingPlanner(request, without_interval, search.point.gap, folder, _limit(search.point))
        runs.append(finished(planner, search.plan, search.bounds))
    return ChipChooser(
        requests=tuple(requests),
        gap=max(search.point.gap for search in searches),
        limit=limit,
        goal=goal_of(first, folder),
        folder=folder,
        finished=tuple(runs),
    )


def on_other_chip(search: Searched, name: str, *, nearest: bool, folder: Path = FOLDER) -> ChipForModels:
    """Plan of a searched model on an architecture, or on the design that is `nearest` to it."""
    chooser, chip = chooser_of([search], _limit(search.point), folder), load_architecture(name, folder)
    if nearest:
        return chooser.outside(nearest_chip(chooser.chips, chip), "template")
    return chooser.outside(chip, "built")


def choice_of(searches: Sequence[Searched], seconds: float = inf, folder: Path = FOLDER) -> ChipChoice:
    """Chip for all models of a scenario from their searches, within a time limit."""
    chooser = chooser_of(searches, TimeLimit(seconds), folder)
    return chooser.choice(searches[0].point.designs, _joined(search.others for search in searches))


def _joined(others: Iterable[Sequence[ChipForModels]]) -> Iterable[ChipForModels]:
    """Yield each compared chip with its plans of all models."""
    for rows in zip(*others, strict=True):
        plans = tuple(plan for row in rows for plan in row.plans)
        yield rows[0].model_copy(update={"plans": plans})
