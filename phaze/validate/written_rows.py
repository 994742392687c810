"""Write runs as rows of a table that `simulate --runs` and `compare` can read."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

import yaml

from phaze.base.errors import PhazeError
from phaze.base.files import write_text
from phaze.plan.runs import GRADIENT_BYTES
from phaze.runtimes.layout_string import layout_string
from phaze.runtimes.megatron_software import Software
from phaze.runtimes.recipe import Recipe
from phaze.spec.systems import load_stack
from phaze.validate.rows import LAYOUT

_OF_COLUMNS = {"overlap": None, "gradient_bytes": None}
"""Properties of a stack that columns of a row override."""


def write_run(recipe: Recipe, system: str, stack: str, software: Software, out: Path) -> None:
    """Write a table of one run, its model spec next to it, and its software stack if needed.

    The stack is written if it differs from the named one in a property that has no column. Raises PhazeError
    if stages recompute different numbers of blocks: a row has one number.
    """
    spec, row = model_file(out), _row(recipe, software)
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    own = software.stack.model_dump(mode="json")
    if {**own, **_OF_COLUMNS} != {**load_stack(stack).model_dump(mode="json"), **_OF_COLUMNS}:
        stack = str(stack_file(out).resolve())
        write_text(stack_file(out), yaml.safe_dump(own, sort_keys=False))
    said = {"model": spec.name, "system": system, "stack": stack, **row}
    table.writerows([list(said), list(said.values())])
    fields = recipe.model.model_dump(mode="json", exclude_none=True, exclude={"lora"})
    write_text(spec, yaml.safe_dump(fields, sort_keys=False))
    write_text(out, text.getvalue())


def stack_file(out: Path) -> Path:
    """Path of the software stack that is written with a table."""
    return out.with_name(f"{out.stem}-stack.yaml")


def model_file(out: Path) -> Path:
    """Path of the model spec that is written with a table."""
    return out.with_suffix(".yaml")


def _row(recipe: Recipe, software: Software) -> dict[str, str]:
    layout, model, stack = recipe.layout, recipe.model, software.stack
    said = {
        "seq": recipe.sequence,
        "gpus": layout.devices,
        "global_batch": recipe.global_batch,
        "schedule": recipe.schedule,
        "flash_attention": software.flash,
        "gradients": {size: word for word, size in GRADIENT_BYTES.items()}[stack.gradient_bytes],
        "overlap": software.overlap(recipe),  # a row rejects an overlap that its layout lacks
        "mtp": model.mtp,
        "lora": model.lora or 0,
        "pipeline_layout": layout_string(recipe.blocks, model.mtp),
        **{column: getattr(layout, name) for column, name in LAYOUT.items()},
        "recompute": _recompute(recipe),
    }
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in said.items()
    }


def _recompute(recipe: Recipe) -> str:
    """Recompute option, with a number of blocks per stage if not all blocks are recomputed."""
    again, blocks = recipe.recomputed, recipe.blocks
    if recipe.layout.recompute != "full" or again == blocks:
        return recipe.layout.recompute
    most = max(again)
    if most == 0 or again != tuple(min(most, count) for count in blocks):
        raise PhazeError(
            "recompute: a row has one number of blocks for all stages, got "
            f"{', '.join(map(str, again))} of {', '.join(map(str, blocks))}"
        )
    return f"full:{most}"
