"""Choose the chip to build for some models: the best one for each, and the best one for all.

The best chip of a model is found by `ChipSearch`, with a lower bound on the step time on every chip. A
smaller chip is taken instead as long as the same plan takes at most `SPARE` longer. The chip for all models
has the smallest geometric mean of step times, each relative to the best chip of its model. Candidates are the
models' best chips. The bounds of all models bound the mean on every chip, so that the answer says what
another chip of the space could gain at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.base.progress import busy, counted
from phaze.base.units import UM2_PER_MM2
from phaze.cost.space import area_by_part, area_range, area_um2
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.chip_energy import step_joules
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.answer.recommended import without_interval
from phaze.plan.bounds.chips import GROWING
from phaze.plan.search.chips import ChipSearch
from phaze.plan.search.search import LayoutPlanner
from phaze.plan.time_limit import TimeLimit
from phaze.spec.architecture import GRID_SIZES, Architecture, EnergyFigures, Technology
from phaze.spec.chip_choice import BoundForModel, ChipForModels, PlanOnChip
from phaze.spec.files import FOLDER
from phaze.spec.training_plan import AskedPlan

SPARE = 0.005
"""Relative increase of the step time that a smaller chip may cost, below all errors of a prediction."""
DERIVED = ("pe_vc", "glb_words_per_cycle", "l2_tc_kib", "l2_vc_kib")
"""Fields of a design that follow from its sizes."""


@dataclass(frozen=True)
class Evaluated:
    """Best plan of a model on a chip, None if nothing fits, with the lower bound of all layouts there."""

    planner: TrainingPlanner
    priced: PricedLayout | None
    bound_s: float
    stopped: str | None = None
    """Reason why the search ended early."""

    @property
    def time_s(self) -> float:
        """Step time in seconds; infinite if nothing fits."""
        return inf if self.priced is None else self.priced.price.time_s


@dataclass(frozen=True, eq=False)
class ModelChips:
    """Search for the best chip of one model."""

    planner: TrainingPlanner
    _evaluated: dict[int, Evaluated] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.planner.request.model.name

    @property
    def chips(self) -> Sequence[Architecture]:
        """Chips of the space."""
        return self.planner.request.chips or ()

    @cached_property
    def search(self) -> ChipSearch:
        """Finished search over all chips; PhazeError if the model fits on none."""
        with busy(self.name):
            search = self.planner.search_chips()
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
        """The fastest plan on any chip."""
        return PricedLayout.of(self.search.question, self.search.fastest)

    @cached_property
    def best_s(self) -> float:
        """Step time of the fastest plan on any chip."""
        return self.best.price.time_s

    @cached_property
    def smallest(self) -> int:
        """Smallest chip that is nearly as fast as the best one under the same plan."""
        place, smaller = self.search.place, True
        places = {_sizes(chip): number for number, chip in enumerate(self.chips)}
        while smaller:
            smaller = False
            for name in GROWING:
                number = _next_smaller(self.chips, places, place, name)
                if number is None:
                    continue
                planner = self.planner.on_chip(number)
                priced = self.best.priced_for(planner.question)
                if priced.lacking_gib <= 0 and priced.price.time_s <= self.best_s * (1 + SPARE):
                    self._evaluated[number] = Evaluated(planner, priced, self.search.bound_s)
                    place, smaller = number, True
        return place

    def on_chip(self, place: int) -> Evaluated:
        """Best plan on a chip of the space."""
        if place not in self._evaluated:
            self._evaluated[place] = self._planned(self.planner.on_chip(place), self.chips[place].name)
        return self._evaluated[place]

    def on_architecture(self, chip: Architecture) -> Evaluated:
        """Best plan on a chip that need not be in the space."""
        machine = self.planner.request.stored_machine()
        changes = {"chips": None, "machine": machine.on_architecture(chip, machine.stack)}
        request = self.planner.request.model_copy(update=changes)
        return self._planned(replace(self.planner, request=request), chip.name)

    def _planned(self, planner: TrainingPlanner, name: str) -> Evaluated:
        # The layout of the best plan is often a good one on another chip.
        first, label = (self.search.fastest,), f"{self.name} on {name}: "
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
        return Evaluated(planner, priced, bound_s, plans.certificate.stopped)


@dataclass(frozen=True, eq=False)
class ChipChooser:
    """Choice of a chip for several models on the same space of chips."""

    requests: tuple[AskedPlan, ...]
    """Planning request of every model, each with the same chips."""
    gap: float
    limit: TimeLimit
    technology: Technology
    """Areas and energies of the parts of a chip."""
    folder: Path = FOLDER

    @cached_property
    def models(self) -> tuple[ModelChips, ...]:
        """Searches of the models."""
        planners = (
            TrainingPlanner(request, without_interval, self.gap, self.folder, self.limit)
            for request in self.requests
        )
        return tuple(ModelChips(planner) for planner in planners)

    @property
    def chips(self) -> Sequence[Architecture]:
        """Chips of the space."""
        return self.models[0].chips

    @cached_property
    def candidates(self) -> dict[int, str]:
        """Chips of the space that are compared for all models, with the model of which each is the best."""
        best, seconds = dict[int, str](), self.limit.seconds
        for number, model in enumerate(counted(self.models, "models"), 1):
            # Each model has its share of the time, so that every search has a plan.
            self.limit.seconds = seconds * number / len(self.models)
            best.setdefault(model.smallest, model.name)
        return best

    @cached_property
    def chosen(self) -> int:
        """Chip with the smallest geometric mean of relative step times."""
        return min(self.candidates, key=self._mean)

    def _mean(self, place: int) -> float:
        times_s = [model.on_chip(place).time_s / model.best_s for model in self.models]
        return float(np.exp(np.mean(np.log(times_s))))

    @property
    def least_mean(self) -> float:
        """Lower bound on the geometric mean of relative step times on every chip of the space."""
        bounds = [np.log(np.minimum(model.search.bounds_s, model.best_s * 1e9)) for model in self.models]
        best = [np.log(model.best_s) for model in self.models]
        return float(np.exp(np.min(np.mean(bounds, axis=0)) - np.mean(best)))

    @property
    def largest_gain(self) -> float:
        """Most by which any chip of the space can be faster than the chosen one, in the geometric mean."""
        return max(0.0, 1.0 - self.least_mean / self._mean(self.chosen))

    @property
    def bounds(self) -> tuple[BoundForModel, ...]:
        """Fastest step and lower bound of every model on any chip."""
        return tuple(
            BoundForModel(model=model.name, step_s=model.best_s, bound_s=model.search.bound_s)
            for model in self.models
        )

    def row(self, place: int, role: str) -> ChipForModels:
        """Chip of the space with its plans."""
        return self._row(role, self.chips[place], [model.on_chip(place) for model in self.models])

    def others(self) -> Iterator[ChipForModels]:
        """Yield the best chips of single models, where they are not the chosen one."""
        for place, name in self.candidates.items():
            if place != self.chosen:
                yield self.row(place, name)

    def outside(self, chip: Architecture, role: str) -> ChipForModels:
        """Chip that need not be in the space, with its plans."""
        sized = chip.model_copy(update={"area_mm2": area_um2(chip, self.technology.area_um2) / UM2_PER_MM2})
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
        figures = self.technology.energy
        plans = (
            _plan_on(model, chip, plan, figures) for model, plan in zip(self.models, evaluated, strict=True)
        )
        area = area_range(area_by_part(chip, self.technology.area_um2).values())
        return ChipForModels(
            role=role, chip=chip, area_low_mm2=area.low, area_high_mm2=area.high, plans=tuple(plans)
        )


def _plan_on(
    model: ModelChips, chip: Architecture, evaluated: Evaluated, figures: EnergyFigures
) -> PlanOnChip:
    priced = evaluated.priced
    if priced is None:
        return PlanOnChip(model=model.name, stopped=evaluated.stopped)
    rate, task = priced.tokens_per_s_per_device, priced.question.task
    joules = sum(step_joules(priced, figures, chip.area_mm2 or 0.0).values())
    return PlanOnChip(
        model=model.name,
        plan=evaluated.planner.row(priced),
        stopped=evaluated.stopped,
        bound_s=evaluated.bound_s,
        times_best=evaluated.time_s / model.best_s,
        tokens_per_s_mm2=chip.area_mm2 and rate / chip.area_mm2,
        tokens_per_j=task.global_batch * task.sequence / joules,
    )


def nearest_chip(chips: Sequence[Architecture], other: Architecture) -> Architecture:
    """Chip whose numbers of cores, arrays and buffer are nearest to those of another, by their ratios."""

    def logs(chip: Architecture) -> Floats:
        return np.log2([getattr(chip, name) for name in GRID_SIZES], dtype=float)

    target = logs(other)
    return min(chips, key=lambda chip: float(np.abs(logs(chip) - target).sum()))


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
