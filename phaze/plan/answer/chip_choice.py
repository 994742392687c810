"""Choose the chip to build for some models: the best one for each, and the best one for all.

The best chip of a model is found by `ChipSearch`, with a lower bound on the score of every chip. The chip for
all models has the smallest geometric mean of scores, each relative to the best chip of its model. Candidates
are the models' best chips, and all that `CommonChip` cannot exclude. The bounds of all models bound the mean
on every chip, so that the answer says what another chip of the space could gain at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from pathlib import Path

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.progress import counted
from phaze.cost.space import area_by_part, area_range
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.chip_objectives import ChipGoal
from phaze.plan.answer.chip_robust import RobustChips
from phaze.plan.answer.common_chip import CommonChip
from phaze.plan.answer.model_chips import Evaluated, ModelChips
from phaze.plan.answer.priced import MeasuredInterval, PricedLayout
from phaze.plan.search.chips import ChipSearch
from phaze.plan.time_limit import TimeLimit
from phaze.spec.architecture import GRID_SIZES, Architecture, ArchitectureSpace
from phaze.spec.chip_choice import (
    BoundForModel,
    ChipChoice,
    ChipForModels,
    ChipQuestion,
    ModelOnChips,
    PlanOnChip,
    RobustChoice,
)
from phaze.spec.files import FOLDER
from phaze.spec.measured import PublishedRuns
from phaze.spec.system import Cluster
from phaze.spec.training_plan import AskedPlan

DERIVED = ("pe_vc", "glb_words_per_cycle", "l2_tc_kib", "l2_vc_kib")
"""Fields of a design that follow from its sizes."""


@dataclass(frozen=True, eq=False)
class ChipChooser:
    """Choice of a chip for several models on the same space of chips."""

    requests: tuple[AskedPlan, ...]
    """Planning request of every model, each with the same chips."""
    gap: float
    limit: TimeLimit
    goal: ChipGoal
    """What the chip is chosen for, with areas and energies of the parts of a chip."""
    is_robust: bool = False
    """True to choose the chip with the least regret over the models and all assumptions."""
    folder: Path = FOLDER
    finished: tuple[ChipSearch, ...] = ()
    """Search of every model, if other jobs ran them; empty: all are run here."""
    networks: Mapping[str, Cluster] = field(default_factory=dict)
    """Other networks than the assumed one, by description, with which a robust choice is compared."""

    @cached_property
    def models(self) -> tuple[ModelChips, ...]:
        """Searches of the models."""
        planners = (
            TrainingPlanner(request, without_interval, self.gap, self.folder, self.limit)
            for request in self.requests
        )
        pairs = zip(planners, self.finished or repeat(None), strict=False)
        return tuple(ModelChips(planner, self.goal, search) for planner, search in pairs)

    @property
    def chips(self) -> Sequence[Architecture]:
        """Chips of the space."""
        return self.models[0].chips

    @cached_property
    def best_of(self) -> dict[int, str]:
        """Best chips of single models, each with the first of its models."""
        best = dict[int, str]()
        for number, model in enumerate(counted(self.models, "models"), 1):
            with self._share(number):
                best.setdefault(model.smallest, model.name)
        return best

    @contextmanager
    def _share(self, number: int) -> Iterator[None]:
        """Give each part of the search its share of the time, so that every one finds a chip."""
        parts = len(self.models) * (1 + self.is_robust) + (len(self.models) > 1)
        seconds = self.limit.seconds
        self.limit.seconds = seconds * number / parts
        yield
        self.limit.seconds = seconds

    @cached_property
    def _common(self) -> CommonChip:
        return CommonChip(self.models, self.gap, self.limit)

    @cached_property
    def candidates(self) -> Sequence[int]:
        """Compared chips of the space, by increasing geometric mean of relative scores."""
        best = [*self.best_of]
        if len(self.models) > 1:
            with self._share(len(self.models) + 1):
                best = [*self._common.search(best)]
        return sorted(best, key=self._common.mean)

    @cached_property
    def _robust(self) -> RobustChips:
        return RobustChips(self.models, self.candidates, self.networks)

    @cached_property
    def chosen(self) -> int:
        """Chip with the smallest geometric mean of relative scores, or with the smallest largest regret."""
        return self._robust.order[0] if self.is_robust else self.candidates[0]

    @property
    def robust(self) -> RobustChoice | None:
        """Regrets by which the chip was chosen; None if it was not."""
        return self._robust.choice if self.is_robust else None

    @property
    def least_mean(self) -> float:
        """Lower bound on the geometric mean of relative scores on every chip of the space."""
        return float(self._common.bounds.min())

    @property
    def largest_gain(self) -> float:
        """Most by which any chip of the space can be better than the chosen one, in the geometric mean."""
        return max(0.0, 1.0 - self.least_mean / self._common.mean(self.chosen))

    @property
    def bounds(self) -> tuple[BoundForModel, ...]:
        """Best score and lower bound of every model on any chip."""
        return tuple(
            BoundForModel(
                model=model.name,
                score=model.best_score,
                bound=float(model.search.bounds.min()),
                stopped=model.search.stopped,
            )
            for model in self.models
        )

    def choice(self, space: ArchitectureSpace, others: Iterable[ChipForModels]) -> ChipChoice:
        """The answer, with other chips for comparison after the best ones of single models."""
        devices = max(request.devices for request in self.requests)
        models = (
            ModelOnChips(
                model=request.model.name,
                sequence=request.sequence,
                global_batch=request.global_batch,
                devices=None if request.devices == devices else request.devices,
            )
            for request in self.requests
        )
        question = ChipQuestion(
            models=tuple(models),
            devices=devices,
            cluster=self.requests[0].stored_machine(self.folder).cluster,
            space=space,
            hbm_gib=tuple(sorted({chip.hbm_gib for chip in self.chips if chip.hbm_gib})),
            rank=self.requests[0].rank,
            objective=self.goal.objective,
            prices=self.goal.prices,
            gap=self.gap,
        )
        return ChipChoice(
            question=question,
            designs=len({chip.name for chip in self.chips}),
            chosen=self.row(self.chosen, "all"),
            others=(*self.others(), *others),
            bounds=self.bounds,
            gap=self.largest_gain,
            robust=self.robust,
            stopped=self.limit.reason or None,
            trust=PublishedRuns.load(self.folder).trust,
        )

    def row(self, place: int, role: str) -> ChipForModels:
        """Chip of the space with its plans."""
        return self._row(role, self.chips[place], [model.on_chip(place) for model in self.models])

    def others(self) -> Iterator[ChipForModels]:
        """Yield the best chips of single models, where they are not the chosen one."""
        for place, name in self.best_of.items():
            if place != self.chosen:
                yield self.row(place, name)

    def outside(self, chip: Architecture, role: str) -> ChipForModels:
        """Chip that need not be in the space, with its plans."""
        sized = chip.model_copy(update={"area_mm2": self.goal.area_mm2(chip)})
        return self._row(role, sized, [model.on_architecture(sized) for model in self.models])

    def changed(self, key: str, value: object) -> ChipForModels:
        """Chosen chip with another value of one key, and its plans; `DERIVED` fields are as in the grid."""
        role = f"{key}={value}"
        fields = self.chips[self.chosen].model_dump(exclude={"area_mm2", *DERIVED})
        return self.outside(
            Architecture.parse({**fields, key: value, "name": f"{key}-{value}"}, f"chip: --explain {role}"),
            role,
        )

    def _row(self, role: str, chip: Architecture, evaluated: Sequence[Evaluated]) -> ChipForModels:
        pairs = zip(self.models, evaluated, strict=True)
        area = area_range(area_by_part(chip, self.goal.technology.area_um2).values())
        return ChipForModels(
            role=role,
            chip=chip,
            area_low_mm2=area.low,
            area_high_mm2=area.high,
            price=self.goal.price(chip),
            plans=tuple(self._plan_on(model, chip, plan) for model, plan in pairs),
        )

    def _plan_on(self, model: ModelChips, chip: Architecture, evaluated: Evaluated) -> PlanOnChip:
        priced = evaluated.priced
        if priced is None:
            return PlanOnChip(model=model.name, stopped=evaluated.stopped)
        rate, task, price = priced.tokens_per_s_per_device, priced.question.task, self.goal.price(chip)
        return PlanOnChip(
            model=model.name,
            plan=evaluated.planner.row(priced),
            stopped=evaluated.stopped,
            bound_s=evaluated.bound_s,
            times_best=evaluated.score / model.best_score,
            tokens_per_s_mm2=rate / self.goal.area_mm2(chip),
            tokens_per_j=task.global_batch * task.sequence / self.goal.joules(chip, priced),
            tokens_per_s_price=None if price is None else rate / price,
        )


def without_interval(_: PricedLayout) -> MeasuredInterval:
    """No interval, as no measured run has a chip of a grid."""
    return MeasuredInterval(None)


def nearest_chip(chips: Sequence[Architecture], other: Architecture) -> Architecture:
    """Chip whose numbers of cores, arrays and buffer are nearest to those of another, by their ratios."""

    def logs(chip: Architecture) -> Floats:
        return np.log2([getattr(chip, name) for name in GRID_SIZES], dtype=float)

    target = logs(other)
    return min(chips, key=lambda chip: float(np.abs(logs(chip) - target).sum()))
