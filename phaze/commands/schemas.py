"""JSON Schemas of the files that phaze reads and writes, for editors and other programs."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from phaze.base.errors import PhazeError
from phaze.base.nearest import did_you_mean
from phaze.commands.output import refuse_outputs, write_or_print

if TYPE_CHECKING:
    from phaze.spec.noun import Noun

FILES = {
    "plan": "phaze.spec.training_plan:TrainingPlan",
    "chip": "phaze.spec.chip_choice:ChipChoice",
    "study": "phaze.spec.study:Study",
    "model": "phaze.spec.model:Model",
    "traced-model": "phaze.spec.traced:Traced",
    "torch-module": "phaze.spec.torch_module:TorchModule",
    "system": "phaze.spec.system:Cluster",
    "device": "phaze.spec.system:Device",
    "device-by-figures": "phaze.spec.system:DeviceFigures",
    "stack": "phaze.spec.system:Stack",
    "architecture": "phaze.spec.architecture:Architecture",
    "technology": "phaze.spec.architecture:Technology",
    "operators": "phaze.spec.operators:StoredOperators",
    "stages": "phaze.spec.stages:StoredStages",
    "mapping": "phaze.spec.mapping:StoredMapping",
}
"""Module and class of each kind of file."""


def schema_of(name: str) -> dict[str, object]:
    """Return the JSON Schema of a kind of file; PhazeError for an unknown kind."""
    if name not in FILES:
        raise PhazeError(
            f"schema: there is no kind of file {name}", did_you_mean(name, [*FILES], "phaze schema")
        )
    module, _, noun = FILES[name].partition(":")
    described = cast("type[Noun]", getattr(import_module(module), noun)).model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **described}


def schema(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help=f"Kind of file: {', '.join(FILES)}. Default: list them.",
            autocompletion=lambda incomplete: [kind for kind in FILES if kind.startswith(incomplete)],
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File for the schema (.json).")] = None,
) -> None:
    """Print the JSON Schema of a kind of file."""
    refuse_outputs(out)
    text = "\n".join(FILES) if name is None else json.dumps(schema_of(name), indent=1)
    write_or_print(f"{text}\n", out)
