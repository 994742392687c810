"""Answer to a planning request: search, ranked plans, published recipes, explanations and the plan file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path

import numpy as np

from phaze.base.errors import PhazeError
from phaze.base.units import GIB, digits
from phaze.cost.products import speed_of
from phaze.layout import Layout
from phaze.plan.layouts.assumptions import assumptions, uncalibrated, versions
from phaze.plan.layouts.divisions import Division, even_blocks
from phaze.plan.layouts.found import LayoutPlans, PlannedLayout
from phaze.plan.layouts.priced import MeasuredInterval, PricedLayout
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.search import LayoutSearch, layout_search, plan_layouts
from phaze.plan.layouts.time_limit import TimeLimit
from phaze.plan.layouts.what_if import COMPARED, made_to_fit, other_batch, rests_on, what_if
from phaze.plan.layouts.words import fields_in_words
from phaze.plan.machines import device_of, planned_machine
from phaze.runtimes.grid import COLUMNS
from phaze.runtimes.known import RUNTIMES
from phaze.runtimes.layout_string import equal_counts, equal_stages, stages_of
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.rules import ENDS, TrainingTask
from phaze.runtimes.space import given_values, space
from phaze.spec.files import FOLDER
from phaze.spec.names import GAP
from phaze.spec.recipes import PublishedRecipe, published_model, published_recipes
from phaze.spec.training_plan import (
    TIE,
    AskedPlan,
    ChosenLayout,
    Explained,
    FewestNodes,
    RankedPlan,
    RecipeRow,
    TrainingPlan,
    UnfitPlan,
)

WEIGHT_BYTES = 2
"""Minimum bytes per parameter: a cluster with less total memory cannot store the model."""
MOST_RECIPES = 3
"""Maximum number of recipes that are priced."""
ENOUGH = 0.5
"""Optimality gap for the search of `fewest`, in which any plan that fits is good enough."""


def fewest(asked: AskedPlan, folder: Path = FOLDER) -> FewestNodes:
    """Smallest number of whole nodes, within the requested devices, on which at least one layout fits.

    Numbers are tried in increasing order, so that each smaller one is ruled out by its own bound. Raises
    PhazeError if the model fits on none of them.
    """
    machine = asked.stored_machine(folder)
    node, smaller = min(machine.cluster.levels[0].devices, asked.devices), dict[str, object]()
    least = asked.model.parameters * WEIGHT_BYTES / (machine.device.hbm_gib * GIB * node)
    for nodes in range(max(ceil(least), 1), asked.devices // node + 1):
        question = question_of(asked.model_copy(update={"devices": nodes * node}), folder)
        found = plan_layouts(
            question.ranked(asked.rank), asked.fixed, gap=ENOUGH, wanted=1, named=f"nodes {nodes}: "
        )
        if found.plans:
            return FewestNodes.parse({"nodes": nodes, "devices": nodes * node, **smaller}, "plan: --fewest")
        smaller = _ruled_out(found) | {"smaller": nodes}
    raise PhazeError(
        f"plan: --fewest: {asked.model.name} fits on no number of nodes up to {asked.devices} devices"
    )


def _ruled_out(found: LayoutPlans) -> dict[str, object]:
    """Evidence that a node count is too small: smallest memory shortfall and number of undecided layouts.

    Dominated layouts need at least the memory of the layout that dominates them.
    """
    undecided = found.certificate.bounded["layout"]
    lacking_gib = None if found.closest is None else found.closest[2] / GIB
    return {"undecided": undecided, "lacking_gib": lacking_gib}


Interval = Callable[[PricedLayout], MeasuredInterval]
"""Function that returns the step-time interval of measured runs similar to a prediction."""
Fixed = Mapping[str, int | str]


def wanted(top: int) -> int:
    """Number of plans for a table of `top` rows: at least `COMPARED` are compared without overlap."""
    return max(top, COMPARED)


@dataclass(frozen=True, eq=False)
class TrainingPlanner:
    """Planner for one planning request: it searches layouts, ranks plans and explains them."""

    asked: AskedPlan
    interval: Interval
    gap: float
    folder: Path = FOLDER
    """Configuration folder that contains the system files."""
    limit: TimeLimit = field(default_factory=TimeLimit)

    @cached_property
    def stored(self) -> AskedPlan:
        """Planning request as a plan file stores it, with the contents of the files that it names."""
        return self.asked.stored(self.folder)

    @cached_property
    def expected(self) -> PlanQuestion:
        """Planning request with expected (not conservative) estimates of time and memory."""
        return question_of(self.stored, self.folder)

    @property
    def question(self) -> PlanQuestion:
        """Planning request with the estimates, expected or prudent, by which plans are ranked."""
        return self.expected.ranked(self.asked.rank)

    def search(
        self, fixed: Fixed, on_better: Callable[[LayoutSearch], None] = lambda _: None
    ) -> LayoutSearch:
        """Search for the fastest plans with additional fixed fields, not yet run.

        With a wide gap, a search by expected time starts from the plan of a short search by prudent time.
        """
        named = f"with {','.join(f'{name}={value}' for name, value in fixed.items())}: " if fixed else ""
        fixed = {**self.asked.fixed, **fixed}
        wide = self.asked.rank == "expected" and self.gap > GAP
        return layout_search(
            self.question, fixed, gap=self.gap, on_better=on_better, named=named, limit=self.limit,
            first=self._briefly(self.expected.prudent, fixed) if wide else (),
        )  # fmt: skip

    def best(self, top: int) -> LayoutPlans:
        """Best `top` plans, and at least `COMPARED` plans to compare without overlap."""
        search = self.search({})
        search.run(wanted(top))
        search.run_on(top)
        return search.plans(wanted(top), top)

    def _briefly(self, question: PlanQuestion, fixed: Fixed) -> tuple[PlannedLayout, ...]:
        """Plan of a short search by the other kind of time; empty if it finds none."""
        return plan_layouts(
            question, fixed, gap=self.gap, wanted=1, prove=False,
            named=f"ranked by {question.rank} time for comparison: ", limit=self.limit,
        ).plans  # fmt: skip

    def check(self, fixed: Fixed, where: str) -> None:
        """Raise PhazeError, prefixed with `where`, for layout fields or values unknown to the runtime."""
        question = self.question  # its own errors are not those of `where`
        try:
            given_values(question.runtime, question.task, fixed)
        except PhazeError as error:
            raise PhazeError(f"{where}: {error}") from error

    def answer(
        self, found: LayoutPlans, top: int | None = None, *, alone: bool = False
    ) -> TrainingPlan | UnfitPlan:
        """Build the answer from a search result: a plan with `top` table rows, or why none fits.

        With `alone` it is that of a search that goes on: the first plan, without comparisons.
        """
        if not found.plans:
            return self._unfit(found)
        plans = found.plans[:1] if alone else found.plans
        ranked = [PricedLayout.of(self.question, one) for one in plans]
        rows = tuple(
            self.row(one).model_copy(update={"twins": tuple(self._chosen(twin) for twin in plan.twins)})
            for one, plan in zip(ranked[:top], plans[:top], strict=True)
        )
        first = ranked[0]
        expected = first.asked(self.expected)
        measured = self.interval(expected)
        plan = TrainingPlan(
            **dict(rows[0]),
            question=self.stored,
            stages=first.stages,
            times_s=expected.parts_s,
            memory=tuple(expected.memory),
            certificate=found.certificate,
            alternatives=rows,
            next_longer_s=ranked[1].longer_s(first) if len(ranked) > 1 else {},
            evidence=measured.nearest,
            uncalibrated=None if measured.ends_s else uncalibrated(self.expected.machine, measured),
            assumptions=tuple(assumptions(self.question)),
            versions=versions(self.expected),
        )
        return plan if alone else plan.model_copy(update=self._compared(ranked, len(rows)))

    def _compared(self, ranked: Sequence[PricedLayout], rows: int) -> dict[str, object]:
        """Parts of the answer that compare the first plan with recipes and with the other plans."""
        plan_s = ranked[0].price.time_s
        recipes = recipe_rows(self.question, self.asked.system, plan_s, self.row, self.folder)
        return {
            "recipes": tuple(recipes),
            "prudence": self._prudence(ranked) if self.asked.rank == "prudent" else None,
            "rests_on": tuple(rests_on(ranked, rows)),
        }

    def further(self, plan: TrainingPlan, found: LayoutPlans, *, whole: bool) -> TrainingPlan:
        """Complete an answer by what takes short searches, unless its time is over.

        Without `whole` only by what may change the choice: a plan that surely fits, another batch, and the
        best plan by expected time where that orders the plans in another way.
        """
        if self.limit.reason:
            return plan
        ranked, fixed = [PricedLayout.of(self.question, one) for one in found.plans], self.asked.fixed
        expected = [one.asked(self.expected) for one in ranked]
        changes: dict[str, object] = {
            "may_fit": made_to_fit(ranked, expected, fixed, len(plan.alternatives)),
            "other_batch": other_batch(ranked[0], fixed),
        }
        if plan.question.rank == "prudent" and (whole or plan.prudence):
            best = [PricedLayout.of(self.expected, one) for one in self._briefly(self.expected, fixed)]
            none = "A short search by expected time found no faster plan."
            changes["prudence"] = self._prudence([*ranked, *best]) or none
        if whole:
            changes["what_if"] = tuple(what_if(ranked[0], fixed))
        return plan.model_copy(update=changes)

    def row(self, priced: PricedLayout) -> RankedPlan:
        """Row of the ranked table for one priced layout."""
        expected, prudent = (priced.asked(question) for question in (self.expected, self.expected.prudent))
        return expected.row(self.interval(expected), prudent.price.time_s)

    def _chosen(self, planned: PlannedLayout) -> ChosenLayout:
        return PricedLayout.of(self.question, planned).asked(self.expected).chosen

    def _prudence(self, ranked: Sequence[PricedLayout]) -> str | None:
        """Sentence on the plan that takes least expected time; None if the first one does."""
        expected = [one.asked(self.expected) for one in ranked]
        chosen, best = expected[0], min(expected, key=_time_s)
        if chosen.price.time_s / best.price.time_s - 1 < TIE:
            return None
        faster = 1 - best.price.time_s / chosen.price.time_s
        prudently = best.asked(self.expected.prudent)
        lacking_gib = prudently.lacking_gib
        but = (
            f"but it may lack {digits(lacking_gib)} GiB"
            if lacking_gib > 0
            else f"prudent {prudently.price.time_s:.4g} s"
        )
        named = ", ".join(fields_in_words(best.chosen, best.recomputed_layers))
        return (
            f"Ranking by expected time would choose {named}: "
            f"expected {best.price.time_s:.4g} s ({100 * faster:.1f} % faster), {but}."
        )

    def explained(self, best: PlannedLayout, fixed: Fixed) -> Explained:
        """Best plan with some fields fixed, compared with the overall best, or why there is none."""
        own, first = dict(fixed), PricedLayout.of(self.question, best)
        try:
            search = self.search(fixed)
        except PhazeError as error:
            return Explained(fixed=own, reason=str(error))
        search.run(1)
        found = search.plans(1)
        if found.plans:
            priced = PricedLayout.of(self.question, found.plans[0])
            return Explained(fixed=own, best=self.row(priced), longer_s=priced.longer_s(first))
        if found.closest is None:
            return Explained(fixed=own, reason=self.refused(fixed, first.chosen))
        nearest = self._nearest(found.closest)
        return Explained(
            fixed=own,
            lacking_gib=nearest.lacking_gib,
            closest=nearest.chosen,
            memory=tuple(nearest.memory),
        )

    def refused(self, fixed: Fixed, best: ChosenLayout | None = None) -> str:
        """Reason why the runtime cannot run the layout closest to `best` that has the fixed fields."""
        question, place = self.question, 0
        grid = space(question.runtime, question.task, {**self.asked.fixed, **fixed})
        if best is not None:
            own = {**best.model_dump(), "schedule": grid.schedules.index(best.schedule)}
            own |= {"recompute": grid.recomputes.index(best.recompute), "cp_kind": 0}
            place = int(np.argmax(sum(getattr(grid, name) == own[name] for name in COLUMNS)))
        reason = question.runtime.why_not(question.task, grid.layout(place), grid.schedule_of(place))
        return reason or f"{question.runtime.name} cannot run any layout with these fields"

    def _nearest(self, closest: tuple[Layout, str, float]) -> PricedLayout:
        """Layout with the smallest memory shortfall, split evenly and fully recomputed if possible."""
        layout, schedule, _ = closest
        divided = self.question.divided(layout, schedule)
        blocks = even_blocks(divided)
        return PricedLayout(
            self.question, divided, Division(blocks, blocks if divided.partial else (0,) * len(blocks))
        )

    def _unfit(self, found: LayoutPlans) -> UnfitPlan:
        certificate = found.certificate.model_copy(update={"lacking_gib": None})
        if found.closest is None:
            reason = f"{self.refused({})}; of {certificate.layouts:,} layouts none is legal"
            return UnfitPlan(question=self.stored, certificate=certificate, reason=reason)
        nearest = self._nearest(found.closest)
        lacking_gib = nearest.lacking_gib
        limit_gib = self.question.limit_bytes(found.closest[0]) / GIB
        unknown = certificate.bounded["layout"]  # dominated layouts need no less memory
        none = f"no plan found, {unknown:,} layouts unknown, others exceed" if unknown else "no layout fits"
        return UnfitPlan(
            question=self.stored,
            certificate=certificate,
            reason=f"{none} the {limit_gib:.4g} GiB that a device has for tensors: the one that "
            f"comes closest lacks {digits(lacking_gib)} GiB on the rank with peak memory",
            layout=nearest.chosen,
            lacking_gib=lacking_gib,
            memory=tuple(nearest.memory),
        )


def _time_s(priced: PricedLayout) -> float:
    return priced.price.time_s


def question_of(asked: AskedPlan, folder: Path = FOLDER) -> PlanQuestion:
    """Build the planning request with expected (not conservative) estimates; PhazeError if invalid."""
    asked = asked.stored(folder)
    machine = planned_machine(asked, folder)
    speed_of(device_of(machine), asked.precision, "precision")
    return PlanQuestion(TrainingTask.of(asked), machine, RUNTIMES[asked.runtime])


def recipe_rows(
    question: PlanQuestion,
    system: str,
    plan_s: float,
    row: Callable[[PricedLayout], RankedPlan],
    folder: Path = FOLDER,
) -> Iterator[RecipeRow]:
    """Yield the rows of a request's distinct recipes, each compared with the plan's step time.

    The newest recipe of each source comes before older ones. `row` makes a row of the ranked table.
    """
    for recipe in recipes_of(question, system, folder)[:MOST_RECIPES]:
        own = RecipeRow(
            source=recipe.source, release=recipe.release, shape=recipe.shape, stated_in=recipe.stated_in
        )
        try:
            priced = _priced_recipe(question, recipe)
        except PhazeError as error:
            yield own.model_copy(update={"reason": str(error)})
            continue
        chosen = {name: getattr(priced.divided.layout, name) for name in ("vp", "microbatch", "zero")}
        figures = {
            "shape": recipe.model_copy(update=chosen).shape,
            "plan": row(priced),
            "over_plan": priced.price.time_s / plan_s,
            "lacking_gib": priced.lacking_gib if priced.lacking_gib > 0 else None,
        }
        yield own.model_copy(update=figures)


def recipes_of(question: PlanQuestion, system: str, folder: Path = FOLDER) -> list[PublishedRecipe]:
    """Published recipes for the request's model, devices, sequence and precision that fit its batch.

    Their microbatch size × dp divides the batch. Of equal layouts only the newest is listed.
    """
    task, names = question.task, (device_of(question.machine).name, Path(system).stem)
    if task.model.lora:
        return []
    systems = {name.split("-", maxsplit=1)[0] for name in names}
    asked = (published_model(task.model, folder), task.compute, task.devices, task.sequence)
    found = [
        one
        for one in published_recipes(folder)
        if one.system in systems
        and (one.model, one.precision, one.gpus, one.sequence) == asked
        and task.global_batch % max(one.dp * (one.microbatch or 1), 1) == 0
    ]
    newest = sorted(found, key=lambda one: one.release)
    distinct = list({(one.shape, one.vp, one.pipeline_layout): one for one in newest}.values())[::-1]
    before: Counter[str] = Counter()
    places = []
    for one in distinct:
        places.append(before[one.source])
        before[one.source] += 1
    return [distinct[i] for i in sorted(range(len(distinct)), key=places.__getitem__)]


def _priced_recipe(question: PlanQuestion, recipe: PublishedRecipe) -> PricedLayout:
    """Price a recipe, with the fastest virtual stages that fit if it does not specify them.

    ZeRO is the nearest stage that the runtime can run with the other options, as runtimes differ in these.
    Raises PhazeError if it can run none.
    """
    runs = [_recipe_of(question.task, recipe, vp) for vp in _virtual_stages(question.task, recipe)]
    nearest = sorted(question.runtime.zeros, key=lambda zero: (abs(zero - recipe.zero), zero))
    for zero in nearest:
        own = [replace(run, layout=replace(run.layout, zero=zero)) for run in runs]
        legal = [one for one in own if not question.runtime.why_not(one.task, one.layout, one.schedule)]
        for one in legal:
            one.check(question.runtime)
        if legal:
            priced = [PricedLayout.of_recipe(question, one) for one in legal]
            return min(priced, key=lambda one: (one.lacking_gib > 0, one.price.time_s))
    raise PhazeError(str(question.runtime.why_not(runs[0].task, runs[0].layout, runs[0].schedule)))


def _virtual_stages(task: TrainingTask, recipe: PublishedRecipe) -> list[int]:
    """Numbers of virtual stages per rank to try: the recipe's, or all that split the model evenly."""
    if recipe.pipeline_layout:
        return [max(len(stages_of(recipe.pipeline_layout)) // recipe.pp, 1)]
    if recipe.vp or recipe.pp == 1:
        return [recipe.vp or 1]
    layers = task.model.layers + task.model.mtp
    most = range(1, (layers + ENDS) // recipe.pp + 1)
    even = [v for v in most if 0 in (layers % (recipe.pp * v), (layers + ENDS) % (recipe.pp * v))]
    return even or [1]


def _recipe_of(task: TrainingTask, recipe: PublishedRecipe, vp: int) -> Recipe:
    """Convert a published recipe to the runtime's format, with the requested batch."""
    model = task.model
    layout = recipe.layout(microbatch=1, vp=vp, load=task.load)
    stages = equal_stages(model.layers, model.mtp, layout.stages)
    if recipe.pipeline_layout:
        stages = _with_further(stages_of(recipe.pipeline_layout), model.mtp)
    blocks = tuple(stage.count("t") + stage.count("m") for stage in stages)
    most = recipe.recomputed_blocks
    again = blocks if most is None else equal_counts(blocks, model.mtp, most)
    return Recipe(
        model=model,
        sequence=task.sequence,
        global_batch=task.global_batch,
        layout=layout,
        schedule=recipe.schedule or ("interleaved" if layout.vp > 1 else "1f1b"),
        blocks=blocks,
        recomputed=again if layout.recompute == "full" else (0,) * len(blocks),
    )


def _with_further(stages: tuple[str, ...], mtp: int) -> tuple[str, ...]:
    """Stages with `mtp` multi-token-prediction layers, put before the loss if their number changes."""
    if "".join(stages).count("m") == mtp:
        return stages
    *before, last = (stage.replace("m", "") for stage in stages)
    return (*before, last.replace("L", "m" * mtp + "L"))
