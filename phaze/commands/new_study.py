"""Write a study of one's own: a model on some accelerators, with what every line means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.commands import completion, options
from phaze.commands.output import refuse_outputs, write_or_print

if TYPE_CHECKING:
    from phaze.spec.models import AnyModel
    from phaze.spec.plain import Plain

COMPARED = ("tpu-v4-as-built", "tpu-v4")
"""Accelerators of every study: what was built, and the Phaze paper's model of it, which limits the area."""
WIDTHS = (1, 2, 4, 8)
TEMPLATE = """\
# yaml-language-server: $schema={schema}
# How would {model} be trained on {accelerators}?
#
{save}# Run it in a checkout of phaze:
#   .venv/bin/snakemake --cores 4 --configfile {file}
# and open results/report/report.html. `.venv/bin/phaze status --configfile {file}` shows the progress.
#
# Keys that are absent here have the values of config/config.yaml, the default study;
# config/reference/study.md explains every key. The first line lets editors complete and check keys.

models: [{model}]

workloads:
  {model}:
    # A name in config/models, or a path of a spec or of a Hugging Face config.json.
    model: {given}
    # Tokens in a sample.
    sequence: {sequence}
    # Tensor-parallel widths to try.
    tensor: {widths}

architectures:
  grid: null  # without this line the study also searches the 29,360 accelerators of the Phaze paper
  # tpu-v4-as-built is the chip as built; tpu-v4 is the Phaze paper's model of it, with an eighth of its
  # vector lanes.
  named: [{named}]

training:
  microbatches: [1, 2, 4, 8]
  hbm_gib: [32, 80]  # HBM sizes to try on accelerators whose files give none
  recompute: [false, true]

scenarios:
  tpu-v4-pod: {{system: tpu-v4-pod, global_batch: {batch}}}

report:
  strategies: {{models: []}}  # no comparison of search strategies
measured: {{sources: []}}  # no comparison of predictions with measured runs
"""


def new_study(
    model: options.ModelOption,
    architecture: Annotated[
        list[str] | None,
        typer.Option(
            "--architecture",
            "-a",
            help="Accelerator: a name in config/architectures or config/devices, or a path; can be repeated. "
            "TPU v4 is always compared.",
            autocompletion=completion.chips,
        ),
    ] = None,
    sequence: options.SequenceOption = None,
    global_batch: Annotated[
        int, typer.Option(help="Samples in a global batch.", parser=options.count, metavar="N")
    ] = 4096,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File for the study (.yaml).")] = None,
) -> None:
    """Write a study of one model on some accelerators.

    The file runs with `snakemake --configfile` and explains its keys.
    """
    refuse_outputs(out, reads=[model, *(architecture or ())])
    if out is not None and out.suffix not in (".yaml", ".yml"):
        raise PhazeError(f"new-study: -o {out}: must end in .yaml")
    if out is not None and out.exists():
        raise PhazeError(f"{out}: exists, and may have been edited", "name another file, or remove it")
    from phaze.spec.models import load_model_named

    text = _text(load_model_named(model), model, architecture or [], sequence, global_batch, out)
    _check(text, out)
    write_or_print(text, out)


def _text(
    model: AnyModel, given: str, chips: list[str], sequence: int | None, batch: int, out: Path | None
) -> str:
    """Study as YAML; PhazeError for a model that no study can place."""
    from phaze.spec.files import FOLDER

    model.check_chain("new-study")
    tokens = model.usual_sequence if sequence is None else sequence
    model.check_sequence(tokens, "new-study")
    named = [*dict.fromkeys((*chips, *COMPARED))]
    return TEMPLATE.format(
        schema=os.path.relpath(FOLDER / "schema.json", Path() if out is None else out.parent),
        model=model.name,
        given=given,
        accelerators=" and ".join(chips or COMPARED[:1]),
        file=out or "my.yaml",
        save="" if out else "# Save this as my.yaml.\n",
        sequence=tokens,
        widths=[width for width in WIDTHS if model.divides(width)],
        named=", ".join(named),
        batch=batch,
    )


def _check(text: str, out: Path | None) -> None:
    """Raise PhazeError if the study cannot be run."""
    from phaze.spec.config import load_settings
    from phaze.spec.files import FOLDER
    from phaze.spec.plain import read_yaml
    from phaze.spec.strict_yaml import load

    merged = _merged(read_yaml(FOLDER / "config.yaml"), load(text))
    assert isinstance(merged, dict)
    load_settings(dict(merged), folder=FOLDER, source=str(out or "study"))


def _merged(base: Plain, own: Plain) -> Plain:
    """Configuration as Snakemake merges it: mappings by key, everything else replaced."""
    if not isinstance(base, dict) or not isinstance(own, dict):
        return own
    return {**base, **{key: _merged(base.get(key), value) for key, value in own.items()}}
