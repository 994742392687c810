"""Write a recipe as changes to a torchtitan configuration.

torchtitan takes the model from its own registry. The changes set the batch, the layout, the compute format
and the pipeline split. A schedule without a torchtitan name is a CSV file with one row per rank; a cell such
as 2F0 has the stage, the pass and the microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from phaze.layout import Compute
from phaze.pipeline.durations import JobKind
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.schedules import SCHEDULES as ORDERS
from phaze.runtimes.flags import Emitted
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.runtimes.torchtitan_layout import CHECKPOINT, CHECKPOINTING, CSV, SCHEDULES, written
from phaze.runtimes.torchtitan_read import read_torchtitan
from phaze.runtimes.torchtitan_software import converters, software
from phaze.runtimes.untimed import unsettable_fields
from phaze.spec.system import Stack

LETTERS = {
    JobKind.FORWARD: "F", JobKind.BACKWARD: "B", JobKind.INPUT_GRADIENT: "I", JobKind.WEIGHT_GRADIENT: "W",
}  # fmt: skip
"""Letters that stand for passes: forward, backward, input gradient and weight gradient."""

SCALES: dict[Compute, tuple[str, ...]] = {"fp8-cs": ("scales of float8: of rows instead of whole tensors",)}
"""Differences between `Float8LinearConverter` and the priced format."""


def emit_torchtitan(recipe: Recipe, stack: Stack | None = None) -> Emitted:
    """Write a recipe and a software stack as changes to a torchtitan configuration.

    Raises PhazeError for a recipe that torchtitan cannot run. torchtitan recomputes all blocks in full or
    none. The result lists every difference from the plan.
    """
    recipe.check(TORCHTITAN)
    lines = list(_lines(recipe, stack or Stack()))
    text = "\n".join(lines)
    model = recipe.model.model_copy(update={"lora": None})
    again = read_torchtitan(text, model, recipe.layout.devices)[0]
    beyond = (*recipe.beyond(again), *SCALES.get(recipe.layout.compute, ()))
    further = f" (num_mtp_layers={model.mtp})" if model.mtp else ""
    elsewhere = (f"model {model.name}{further}", *unsettable_fields(model))
    header = [
        f"# torchtitan {TORCHTITAN.version}, {model.name}{further} on {recipe.layout.devices} devices",
        *(f"# Unlike the plan, {sentence}" for sentence in beyond),
        *(f"# Set this yourself: {name}" for name in elsewhere),
    ]
    files = {"plan.py": "\n".join([*header, text])}
    if recipe.schedule not in SCHEDULES:
        files[CSV] = schedule_csv(recipe)
    return Emitted(f"torchtitan {TORCHTITAN.version}", files, beyond, elsewhere)


def _lines(recipe: Recipe, stack: Stack) -> Iterator[str]:
    """Yield the lines of a Python file that defines the function `planned`."""
    settings = dict([*written(recipe), *software(recipe, stack)])
    kinds = converters(recipe)
    again = recipe.layout.recompute if recipe.layout.recompute != "full" or any(recipe.recomputed) else "none"
    yield "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC"
    for module in ("quantization", "lora"):
        names = [name for name in kinds if name.startswith("LoRA") == (module == "lora")]
        if names:
            yield f"from torchtitan.components.{module} import {', '.join(names)}"
    yield from ("", "", "def planned(config):")
    yield '    """A configuration of config_registry, its model without converters, trained as planned."""'
    yield from (f"    config.{name} = {value!r}" for name, value in settings.items())
    yield f"    config.{CHECKPOINT} = {CHECKPOINTING[again]}"
    for name, told in kinds.items():
        compiled = {} if name.startswith("LoRA") else {"model_compile_enabled": bool(stack.compiled)}
        said = ", ".join(f"{key}={value!r}" for key, value in {**told, **compiled}.items())
        yield f"    converter = {name}.Config({said}).build()"
        yield "    config.model_spec.model = converter.convert(config.model_spec.model)"
    yield from ("    return config", "")


def schedule_csv(recipe: Recipe) -> str:
    """CSV text with the passes of every rank in execution order, one line per rank."""
    layout, count = recipe.layout, recipe.layout.microbatches(recipe.global_batch)
    stages, schedule = (StageCost(0.0),) * layout.stages, ORDERS[recipe.schedule]
    pipeline = Pipeline(stages, count, schedule.name, chunks=layout.vp, data=(1,) * layout.pp)
    rows = []
    for rank in range(layout.pp):
        kinds, stage, microbatch = (
            each.tolist() for each in schedule.order(pipeline, rank, np.arange(count))
        )
        cells = zip(stage, kinds, microbatch, strict=True)
        rows.append(",".join(f"{q}{LETTERS[JobKind(kind)]}{m}" for q, kind, m in cells))
    return "\n".join(rows) + "\n"
