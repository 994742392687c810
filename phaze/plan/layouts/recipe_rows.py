"""Published recipes for the model, devices and sequence of a planning request, priced like its plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.plan.layouts.priced import PricedLayout
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.machines import device_of
from phaze.runtimes.layout_string import equal_stages, stages_of
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.rules import ENDS, TrainingTask
from phaze.spec.files import FOLDER
from phaze.spec.recipes import PublishedRecipe, published_recipes
from phaze.spec.training_plan import RankedPlan, RecipeRow

MOST = 3
"""Maximum number of recipes that are priced."""


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
    for recipe in recipes_of(question, system, folder)[:MOST]:
        own = RecipeRow(
            source=recipe.source, release=recipe.release, shape=recipe.shape, stated_in=recipe.stated_in
        )
        try:
            priced = _priced(question, recipe)
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
    asked = (task.model.name, task.compute, task.devices, task.sequence)
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


def _priced(question: PlanQuestion, recipe: PublishedRecipe) -> PricedLayout:
    """Price a recipe, with the fastest virtual stages that fit if it does not specify them.

    ZeRO is the nearest stage that the runtime can run with the other options, as runtimes differ in these.
    Raises PhazeError if it can run none.
    """
    runs = [_run(question.task, recipe, vp) for vp in _virtual_stages(question.task, recipe)]
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


def _run(task: TrainingTask, recipe: PublishedRecipe, vp: int) -> Recipe:
    """Convert a published recipe to the runtime's format, with the requested batch."""
    model = task.model
    layout = recipe.layout(microbatch=1, vp=vp, load=task.load)
    stages = equal_stages(model.layers, model.mtp, layout.stages)
    if recipe.pipeline_layout:
        stages = _with_further(stages_of(recipe.pipeline_layout), model.mtp)
    blocks = tuple(stage.count("t") + stage.count("m") for stage in stages)
    most = recipe.recomputed_blocks
    again = tuple(n if most is None else min(n, most) for n in blocks)
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
