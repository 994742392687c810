"""Answer to a planning request: search, ranked plans, published recipes, explanations and the plan file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path

import numpy as np

from phaze.base.errors import PhazeError
from phaze.base.units import GIB, digits
from phaze.cost.products import speed_of
from phaze.plan import effort
from phaze.plan.answer.assumptions import above_measured, assumptions, uncalibrated, versions
from phaze.plan.answer.priced import MeasuredInterval, PricedLayout
from phaze.plan.answer.ranked_table import fields_in_words
from phaze.plan.answer.regrets import COMPARED, Assumptions, Regrets, scenarios
from phaze.plan.answer.what_if import made_to_fit, other_batch, what_if
from phaze.plan.bounds.families import UnfitLayout
from phaze.plan.machines import device_of, planned_machine
from phaze.plan.question import PlanQuestion
from phaze.plan.search.chips import ChipSearch
from phaze.plan.search.planned import LayoutPlans, PlannedLayout
from phaze.plan.search.search import LayoutPlanner, LayoutSearch
from phaze.plan.splits.split import even_split
from phaze.plan.time_limit import TimeLimit
from phaze.runtimes.grid import COLUMNS
from phaze.runtimes.layout_string import equal_counts, equal_stages, stages_of
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.registry import RUNTIMES
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


def fewest(request: AskedPlan, folder: Path = FOLDER) -> FewestNodes:
    """Smallest number of whole nodes, within the requested devices, on which at least one layout fits.

    Numbers are tried in increasing order, so that each smaller one is ruled out by its own bound. Raises
    PhazeError if the model fits on none of them.
    """
    machine = request.stored_machine(folder)
    node, smaller = min(machine.cluster.levels[0].devices, request.devices), dict[str, object]()
    # Weights alone: gradients and optimizer states only add to them, so fewer nodes are never enough.
    least = request.model.parameters * WEIGHT_BYTES / (machine.device.hbm_gib * GIB * node)
    for nodes in range(max(ceil(least), 1), request.devices // node + 1):
        question = question_of(request.model_copy(update={"devices": nodes * node}), folder)
        ranked, label = question.ranked(request.rank), f"nodes {nodes}: "
        planner = LayoutPlanner(fixed=request.fixed, gap=effort.FEWEST_GAP, number=1, label=label)
        plans = planner(ranked)
        if plans.plans:
            return FewestNodes.parse({"nodes": nodes, "devices": nodes * node, **smaller}, "plan: --fewest")
        # Dominated layouts need at least the memory of the layout that dominates them: they are decided.
        undecided = plans.certificate.bounded["layout"]
        lacking_gib = plans.closest and plans.closest.lacking_bytes / GIB
        smaller = {"undecided": undecided, "lacking_gib": lacking_gib, "smaller": nodes}
    limit = f"no number of nodes up to {request.devices} devices"
    raise PhazeError(f"plan: --fewest: {request.model.name} fits on {limit}")


Interval = Callable[[PricedLayout], MeasuredInterval]
"""Function that returns the step-time interval of measured runs similar to a prediction."""
Fixed = Mapping[str, int | str]


def plan_count(top: int) -> int:
    """Number of plans for a table of `top` rows: at least `COMPARED` are compared under other assumptions."""
    return max(top, COMPARED)


class NoPlanInTime(PhazeError):  # noqa: N818  # like OutOfTime, of which it is the answer
    """A search ended before its first plan."""


@dataclass(frozen=True, eq=False)
class TrainingPlanner:
    """Planner for one planning request: it searches layouts, ranks plans and explains them."""

    request: AskedPlan
    interval: Interval
    gap: float
    folder: Path = FOLDER
    """Configuration folder that contains the system files."""
    limit: TimeLimit = field(default_factory=TimeLimit)
    chip: int | None = None
    """Index of the request's chip on which plans are searched; None: not chosen yet, or a device."""

    @cached_property
    def stored(self) -> AskedPlan:
        """Planning request as a plan file stores it, with the contents of the files that it names."""
        return self.request.stored(self.folder)

    @cached_property
    def expected(self) -> PlanQuestion:
        """Planning request with expected (not conservative) estimates of time and memory."""
        return question_of(self.stored, self.folder)

    @property
    def question(self) -> PlanQuestion:
        """Planning request with the estimates, expected or prudent, by which plans are ranked."""
        return self.expected.ranked(self.request.rank)

    def search(
        self, fixed: Fixed, on_better: Callable[[LayoutSearch], None] = lambda _: None
    ) -> LayoutSearch:
        """Search for the fastest plans with additional fixed fields, not yet run.

        With a wide gap, a search by expected time starts from the plan of a short search by prudent time.
        """
        return replace(self._layout_planner(fixed), on_better=on_better).search(self.question)

    def search_chips(self, on_better: Callable[[ChipSearch], None] = lambda _: None) -> ChipSearch:
        """Search for the fastest plans on all chips of the request, or on its device, not yet run."""
        stored = (self.request.on_chip(place) for place in range(len(self.request.chips or ())))
        chips = [request.stored_machine(self.folder).device for request in stored]

        def question_on(place: int) -> PlanQuestion:
            return self.on_chip(place).question

        return ChipSearch(question_on, self._layout_planner({}), chips, on_better)

    def on_chip(self, place: int) -> TrainingPlanner:
        """Planner for one of the request's chips; this one if the request has only a device."""
        if self.request.chips is None or place == self.chip:
            return self
        if place not in self._on_chips:
            self._on_chips[place] = replace(self, request=self.request.on_chip(place), chip=place)
        return self._on_chips[place]

    @cached_property
    def _on_chips(self) -> dict[int, TrainingPlanner]:
        return {}

    def _layout_planner(self, fixed: Fixed) -> LayoutPlanner:
        """Planner of layouts with additional fixed fields."""
        label = f"with {','.join(f'{name}={value}' for name, value in fixed.items())}: " if fixed else ""
        fixed = {**self.request.fixed, **fixed}
        # A wide gap may already hold for a poor first plan: the prudent plan is usually a better start.
        wide = self.request.rank == "expected" and self.gap > GAP and self.request.chips is None
        first = self._briefly(self.expected.prudent, fixed) if wide else ()
        return LayoutPlanner(fixed=fixed, gap=self.gap, label=label, limit=self.limit, first=first)

    def best(self, top: int) -> LayoutPlans:
        """Best `top` plans, and at least `COMPARED` plans to compare under other assumptions."""
        search = self.search_chips()
        search.run(plan_count(top))
        search.extend(top)
        return self.on_chip(search.place).safest_first(search.plans(plan_count(top), top))

    def safest_first(self, search_plans: LayoutPlans) -> LayoutPlans:
        """Plans in the order of their worst regret if the request asks for it, else as they are.

        The best plans of short searches under the other assumptions are compared as well.
        """
        if not (self.request.robust and search_plans.plans):
            return search_plans
        ordered = self._with_others(search_plans.plans)
        regrets = self._regrets([PricedLayout.of(self.question, plan) for plan in ordered])
        plans = tuple(ordered[place] for place in regrets.order)
        first_s = regrets.plans[regrets.order[0]].price.time_s
        bound_s = search_plans.certificate.bound_s
        proof = {"gap": 0.0 if bound_s is None else 1 - bound_s / first_s, "rows": 0}
        return replace(
            search_plans, plans=plans, certificate=search_plans.certificate.model_copy(update=proof)
        )

    def _with_others(self, plans: Sequence[PlannedLayout]) -> list[PlannedLayout]:
        """Plans, followed by the best ones of short searches under each of the assumptions."""
        by_layout = {(plan.layout, plan.schedule): plan for plan in plans}
        for scenario in self._scenarios:
            for plan in self._briefly(scenario.question, self.request.fixed):
                priced = PricedLayout.of(scenario.question, plan).priced_for(self.question)
                key = priced.staged.layout, priced.staged.schedule
                # A plan of another scenario may not fit under the assumptions that rank plans.
                if key not in by_layout and priced.lacking_gib <= 0:
                    by_layout[key] = PlannedLayout(priced.staged, priced.split, priced.price.time_s)
        return [*by_layout.values()]

    @cached_property
    def _scenarios(self) -> tuple[Assumptions, ...]:
        # A file stores the load that was planned with: another than the stack's was given.
        usual = self.stored.stored_machine(self.folder).stack.load.expected
        return scenarios(
            self.expected, loads_given=self.request.load is not None and self.stored.load != usual
        )

    def _regrets(self, ranked: Sequence[PricedLayout]) -> Regrets:
        """Regrets of plans, in the order in which they are ranked, under all assumptions."""
        return Regrets(tuple(ranked), self._scenarios)

    def _briefly(self, question: PlanQuestion, fixed: Fixed) -> tuple[PlannedLayout, ...]:
        """Plan of a short search by the other kind of time; empty if it finds none."""
        label = f"ranked by {question.rank} time for comparison: "
        planner = LayoutPlanner(
            fixed=fixed, number=1, gap=self.gap, prove=False, label=label, limit=self.limit
        )
        return planner(question).plans

    @cached_property
    def _fastest_expected(self) -> tuple[PlannedLayout, ...]:
        """Plan of a short search by expected time; empty if it finds none."""
        return self._briefly(self.expected, self.request.fixed)

    def try_fastest_expected(self, search: ChipSearch, *, with_all: bool) -> None:
        """Offer the fastest plan by expected time to a search that ranks by prudent time.

        That plan may be faster by both times while the gap is open. As in `further`, the short
        search runs only with `with_all`, or if a known plan is faster by expected time than the first one.
        """
        has_room = search.bound_s < search.best_s * (1 - TIE)
        if self.request.rank == "expected" or not has_room or self.limit.reason:
            return
        plans = search.plans(COMPARED).plans
        if with_all or self._prudence([PricedLayout.of(self.question, plan) for plan in plans]):
            for plan in self._fastest_expected:
                search.search.try_plan(plan)

    def check(self, fixed: Fixed, where: str) -> None:
        """Raise PhazeError, prefixed with `where`, for layout fields or values unknown to the runtime."""
        question = self.question  # its own errors are not those of `where`
        try:
            given_values(question.runtime, question.task, fixed)
        except PhazeError as error:
            raise PhazeError(f"{where}: {error}") from error

    def answer(
        self, search_plans: LayoutPlans, top: int | None = None, *, alone: bool = False
    ) -> TrainingPlan | UnfitPlan:
        """Build the answer from a search result: a plan with `top` table rows, or why none fits.

        With `alone` it is that of a search that goes on: the first plan, without comparisons.
        """
        if (planner := self.on_chip(search_plans.place)) is not self:
            return planner.answer(search_plans, top, alone=alone)
        if not search_plans.plans:
            if self.limit.reason and search_plans.certificate.stopped == self.limit.reason:
                raise NoPlanInTime(
                    f"plan: no plan was found: {self.limit.reason}",
                    "pass more --seconds, or fix fields of the layout, such as --fix cp=1,etp=1",
                )
            return self._unfit(search_plans)
        plans = search_plans.plans[:1] if alone else search_plans.plans
        ranked = [PricedLayout.of(self.question, plan) for plan in plans]
        twins = [
            [PricedLayout.of(self.question, twin).priced_for(self.expected).chosen for twin in plan.twins]
            for plan in plans[:top]
        ]
        rows = tuple(
            self.row(priced).model_copy(update={"twins": tuple(chosen)})
            for priced, chosen in zip(ranked[:top], twins, strict=True)
        )
        first, expected = ranked[0], ranked[0].priced_for(self.expected)
        measured = self.interval(expected)
        answer = TrainingPlan(
            **dict(rows[0]),
            question=self.stored,
            stages=first.stages,
            times_s=expected.parts_s,
            memory=tuple(expected.memory),
            certificate=search_plans.certificate,
            alternatives=rows,
            chips=search_plans.chips,
            next_longer_s=ranked[1].longer_s(first) if len(ranked) > 1 else {},
            evidence=measured.nearest,
            uncalibrated=None if measured.ends_s else uncalibrated(self.expected.machine, measured),
            above_measured=above_measured(
                self.expected.machine, self.request.precision, expected.mfu, measured
            ),
            assumptions=tuple(assumptions(self.question, first.staged.layout)),
            versions=versions(self.expected),
        )
        if alone:
            return answer
        recipes = recipe_rows(self.question, self.request.system, first.price.time_s, self.row, self.folder)
        comparisons = {
            "recipes": tuple(recipes),
            "prudence": self._prudence(ranked) if self.request.rank == "prudent" else None,
            "rests_on": (self._regrets(ranked).in_words(len(rows)),),
        }
        return answer.model_copy(update=comparisons)

    def further(
        self, plan: TrainingPlan, search_plans: LayoutPlans, *, with_all: bool, with_why: bool = False
    ) -> TrainingPlan:
        """Add the parts of an answer that need short searches of their own.

        Without `with_all` only by what may change the choice: a plan that surely fits, another batch, and the
        best plan by expected time where that orders the plans in another way. With `with_why` the plans that
        are best under other assumptions are compared as well. After the time limit only a plan that surely
        fits is searched.
        """
        if self.limit.interrupted:
            return plan
        fixed = self.request.fixed
        ranked = [PricedLayout.of(self.question, planned) for planned in search_plans.plans]
        expected = [priced.priced_for(self.expected) for priced in ranked]
        # A start that fails for lack of memory costs more than the seconds of this search.
        early = TimeLimit(effort.SURE_S) if self.limit.reason else None
        changes: dict[str, object] = {"may_fit": made_to_fit(ranked, expected, fixed, early)}
        # Other short searches also take seconds: none begins after the time limit.
        if self.limit.reason:
            return plan.model_copy(update=changes)
        changes["other_batch"] = other_batch(ranked[0], fixed)
        if plan.question.rank == "prudent" and (with_all or plan.prudence):
            best = [PricedLayout.of(self.expected, planned) for planned in self._fastest_expected]
            none = "Ranking by expected time gives the same plan (short search)."
            changes["prudence"] = self._prudence([*ranked, *best]) or none
        if with_why:
            regrets = self._regrets(
                [PricedLayout.of(self.question, planned) for planned in self._with_others(search_plans.plans)]
            )
            changes["rests_on"] = (regrets.in_words(len(plan.alternatives)),)
        if with_all:
            changes["what_if"] = tuple(what_if(ranked[0], fixed))
        return plan.model_copy(update=changes)

    def measure_first(self, search_plans: LayoutPlans, shown: int) -> Iterator[str]:
        """Yield sentences on the plans worth measuring first, and on the conclusion from each outcome."""
        ranked = [PricedLayout.of(self.question, planned) for planned in search_plans.plans]
        return self._regrets(ranked).measure_first(shown)

    def row(self, priced: PricedLayout) -> RankedPlan:
        """Row of the ranked table for one priced layout."""
        expected, prudent = map(priced.priced_for, (self.expected, self.expected.prudent))
        return expected.row(self.interval(expected), prudent.price.time_s)

    def _prudence(self, ranked: Sequence[PricedLayout]) -> str | None:
        """Sentence on the plan that takes least expected time; None if the first one does."""
        expected = [priced.priced_for(self.expected) for priced in ranked]
        chosen, best = expected[0], min(expected, key=lambda priced: priced.price.time_s)
        if chosen.price.time_s / best.price.time_s - 1 < TIE:
            return None
        faster = 1 - best.price.time_s / chosen.price.time_s
        prudently = best.priced_for(self.expected.prudent)
        drawback = f"prudent {prudently.price.time_s:.4g} s"
        if prudently.lacking_gib > 0:
            drawback = f"but it may lack {digits(prudently.lacking_gib)} GiB"
        layout = ", ".join(fields_in_words(best.chosen, best.recomputed_layers))
        if "none" == best.chosen.recompute != chosen.chosen.recompute:
            layout += ", recompute none"
        return (
            f"Ranking by expected time would choose {layout}: "
            f"expected {best.price.time_s:.4g} s ({100 * faster:.1f} % faster), {drawback}."
        )

    def explained(self, best: PlannedLayout, fixed: Fixed) -> Explained:
        """Best plan with some fields fixed, compared with the overall best, or why there is none."""
        fixed_fields, first = dict(fixed), PricedLayout.of(self.question, best)
        try:
            search = self.search(fixed)
        except PhazeError as error:
            return Explained(fixed=fixed_fields, reason=str(error))
        search.run(1)
        plans = search.plans(1)
        if plans.plans:
            priced = PricedLayout.of(self.question, plans.plans[0])
            return Explained(fixed=fixed_fields, best=self.row(priced), longer_s=priced.longer_s(first))
        if plans.certificate.stopped:
            return Explained(fixed=fixed_fields, reason=f"not known, as {plans.certificate.stopped}")
        if plans.closest is None:
            return Explained(fixed=fixed_fields, reason=self.refused(fixed, first.chosen))
        nearest = self._nearest(plans.closest)
        return Explained(
            fixed=fixed_fields,
            lacking_gib=nearest.lacking_gib,
            closest=nearest.chosen,
            memory=tuple(nearest.memory),
        )

    def refused(self, fixed: Fixed, best: ChosenLayout | None = None) -> str:
        """Reason why the runtime cannot run the layout closest to `best` that has the fixed fields."""
        question, place = self.question, 0
        grid = space(question.runtime, question.task, {**self.request.fixed, **fixed})
        # The first broken rule is named, which helps most for a layout that is otherwise the best plan.
        if best is not None:
            values = {**best.model_dump(), "schedule": grid.schedules.index(best.schedule)}
            values |= {"recompute": grid.recomputes.index(best.recompute), "cp_kind": 0}
            place = int(np.argmax(sum(getattr(grid, name) == values[name] for name in COLUMNS)))
        reason = question.runtime.why_not(question.task, grid.layout(place), grid.schedule_of(place))
        return reason or f"{question.runtime.name} cannot run any layout with these fields"

    def _nearest(self, closest: UnfitLayout) -> PricedLayout:
        """Layout with the smallest memory shortfall, split evenly and fully recomputed if possible."""
        staged = self.question.staged(closest.layout, closest.schedule)
        return PricedLayout(self.question, staged, even_split(staged))

    def _unfit(self, plans: LayoutPlans) -> UnfitPlan:
        # The closest layout is priced below: its shortfall replaces the lower bound of the certificate.
        certificate = plans.certificate.model_copy(update={"lacking_gib": None})
        if plans.closest is None:
            reason = f"{self.refused({})}; of {certificate.layouts:,} layouts none is legal"
            return UnfitPlan(question=self.stored, certificate=certificate, reason=reason, chips=plans.chips)
        nearest = self._nearest(plans.closest)
        limit_gib = self.question.limit_bytes(plans.closest.layout) / GIB
        unknown = certificate.bounded["layout"]  # dominated layouts need no less memory
        none = f"no plan found, {unknown:,} layouts unknown, others exceed" if unknown else "no layout fits"
        device, would_do = device_of(self.question.machine), ""
        if self.request.runtime == "chip":  # the HBM of a chip is a choice, that of a device is not
            least_gib = ceil(100 * (device.hbm_gib + nearest.lacking_gib)) / 100
            would_do = f"; {least_gib:g} GiB of HBM on {device.name} would do"
        return UnfitPlan(
            question=self.stored,
            certificate=certificate,
            reason=f"{none} the {limit_gib:.4g} GiB that a device has for tensors: the one that "
            f"comes closest lacks {digits(nearest.lacking_gib)} GiB on the rank with peak memory{would_do}",
            chips=plans.chips,
            layout=nearest.chosen,
            lacking_gib=nearest.lacking_gib,
            memory=tuple(nearest.memory),
        )


def question_of(request: AskedPlan, folder: Path = FOLDER) -> PlanQuestion:
    """Build the planning request with expected (not conservative) estimates; PhazeError if invalid."""
    request = request.stored(folder)
    machine = planned_machine(request, folder)
    speed_of(device_of(machine), request.precision, "precision")
    return PlanQuestion(TrainingTask.of(request), machine, RUNTIMES[request.runtime])


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
    for recipe in recipes_of(question, system, folder)[: effort.MOST_RECIPES]:
        stated = RecipeRow(
            source=recipe.source, release=recipe.release, shape=recipe.shape, stated_in=recipe.stated_in
        )
        try:
            priced = _priced_recipe(question, recipe)
        except PhazeError as error:
            yield stated.model_copy(update={"reason": str(error)})
            continue
        chosen = {name: getattr(priced.staged.layout, name) for name in ("vp", "microbatch", "zero")}
        figures = {
            "shape": recipe.model_copy(update=chosen).shape,
            "plan": row(priced),
            "over_plan": priced.price.time_s / plan_s,
            "lacking_gib": priced.lacking_gib if priced.lacking_gib > 0 else None,
        }
        yield stated.model_copy(update=figures)


def recipes_of(question: PlanQuestion, system: str, folder: Path = FOLDER) -> list[PublishedRecipe]:
    """Published recipes for the request's model, devices, sequence and precision that fit its batch.

    Their microbatch size × dp divides the batch. Of equal layouts only the newest is listed.
    """
    task, names = question.task, (device_of(question.machine).name, Path(system).stem)
    # Recipes are for devices and runtimes, which chips of an architecture have not.
    if task.model.lora or question.machine.stack.scheduled:
        return []
    systems = {name.split("-", maxsplit=1)[0] for name in names}
    sizes = task.compute, task.devices, task.sequence
    candidates = [
        recipe
        for recipe in published_recipes(folder)
        if recipe.system in systems
        and (recipe.precision, recipe.gpus, recipe.sequence) == sizes
        and task.global_batch % max(recipe.dp * (recipe.microbatch or 1), 1) == 0
    ]
    # To know a model by its sizes, all models with recipes are read: only if it matters.
    model = published_model(task.model, folder) if candidates else ""
    matching = [recipe for recipe in candidates if recipe.model == model]
    oldest_first = sorted(matching, key=lambda recipe: recipe.release)
    by_layout = {(recipe.shape, recipe.vp, recipe.pipeline_layout): recipe for recipe in oldest_first}
    newest_first = [*by_layout.values()][::-1]
    sources = [recipe.source for recipe in newest_first]
    # The newest recipe of every source comes before the second of any, however many one source has.
    newer = [sources[:i].count(source) for i, source in enumerate(sources)]
    return [newest_first[i] for i in sorted(range(len(newer)), key=newer.__getitem__)]


def _priced_recipe(question: PlanQuestion, recipe: PublishedRecipe) -> PricedLayout:
    """Price a recipe, with the fastest virtual stages that fit if it does not specify them.

    ZeRO is the nearest stage that the runtime can run with the other options, as runtimes differ in these.
    Raises PhazeError if it can run none.
    """
    runs = [_recipe_of(question.task, recipe, vp) for vp in _virtual_stages(question.task, recipe)]
    why_not = question.runtime.why_not
    for zero in sorted(question.runtime.zeros, key=lambda zero: (abs(zero - recipe.zero), zero)):
        at_zero = [replace(run, layout=replace(run.layout, zero=zero)) for run in runs]
        legal = [run for run in at_zero if not why_not(run.task, run.layout, run.schedule)]
        for run in legal:
            run.check(question.runtime)
        if legal:
            priced = [PricedLayout.of_recipe(question, run) for run in legal]
            return min(priced, key=lambda plan: (plan.lacking_gib > 0, plan.price.time_s))
    raise PhazeError(str(why_not(runs[0].task, runs[0].layout, runs[0].schedule)))


def _virtual_stages(task: TrainingTask, recipe: PublishedRecipe) -> list[int]:
    """Numbers of virtual stages per rank to try: the recipe's, or all that split the model evenly."""
    if recipe.pipeline_layout:
        return [max(len(stages_of(recipe.pipeline_layout)) // recipe.pp, 1)]
    if recipe.vp or recipe.pp == 1:
        return [recipe.vp or 1]
    # Runtimes split evenly with embedding and loss counted as layers, or not.
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
        stages = _with_mtp(stages_of(recipe.pipeline_layout), model.mtp)
    blocks = tuple(stage.count("t") + stage.count("m") for stage in stages)
    most = recipe.recomputed_blocks
    recomputed = blocks if most is None else equal_counts(blocks, model.mtp, most)
    if layout.recompute != "full":
        recomputed = (0,) * len(blocks)
    schedule = recipe.schedule or ("interleaved" if layout.vp > 1 else "1f1b")
    return Recipe(model, task.sequence, task.global_batch, layout, schedule, blocks, recomputed)


def _with_mtp(stages: tuple[str, ...], mtp: int) -> tuple[str, ...]:
    """Stages with `mtp` multi-token-prediction layers, put before the loss if their number changes."""
    if "".join(stages).count("m") == mtp:
        return stages
    *before, last = (stage.replace("m", "") for stage in stages)
    return (*before, last.replace("L", "m" * mtp + "L"))
