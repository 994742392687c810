"""Compare a run with a plan, change by change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.commands import options
from phaze.commands.output import telling

if TYPE_CHECKING:
    from phaze.plan.layouts.comparison import Comparison
    from phaze.spec.training_plan import TrainingPlan
    from phaze.validate.rows import RunRow


def compare(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="CSV of runs, as for simulate --runs, or a file of flags or settings of the plan's runtime.",
        ),
    ],
    planned: options.PlanArgument,
    row: Annotated[
        int | None,
        typer.Option(help="Number of the run's row in the CSV, from 1; needed if there are several."),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show how much faster a run would be with a plan.

    Run and plan have the same model, batch and devices. Changes are made one at a time, the most valuable
    first.
    """
    from phaze.spec.documents import read_as
    from phaze.spec.training_plan import TrainingPlan

    plan = read_as(TrainingPlan, planned)
    if row is not None and run.suffix != ".csv":
        raise PhazeError(f"compare: --row selects a row of a CSV; {run} is not a CSV")
    with telling("compare"):
        found = _of_row(run, row, plan) if run.suffix == ".csv" else _of_flags(run, plan)
        found.check(str(run))
        for sentence in found.remarks:
            typer.echo(f"compare: {sentence}", err=True)
        said = json.dumps(found.as_row(), indent=1) if as_json else found.in_words()
    typer.echo(said)


def _of_flags(told: Path, plan: TrainingPlan) -> Comparison:
    """Run from flags or a configuration. A torchtitan configuration does not name the model: the plan's is
    used.
    """
    from phaze.plan.layouts.comparison import Comparison
    from phaze.runtimes.given import GivenRun
    from phaze.runtimes.megatron_flags import NAMES
    from phaze.spec.systems import load_cluster, load_stack

    asked = plan.question
    if asked.runtime not in ("megatron", "torchtitan"):
        raise PhazeError(f"compare: cannot read flags of {asked.runtime}", "give the run as a row of a CSV")
    if asked.runtime == "torchtitan":
        given = GivenRun.of_torchtitan(told, asked.model, asked.devices)
    else:
        blackwell = load_cluster(asked.system)[1].is_blackwell
        given = GivenRun.of_megatron(told, asked.devices, asked.model.vocabulary, blackwell=blackwell)
    software = given.software(load_stack(asked.stack))
    for sentence in given.remarks(software):
        typer.echo(f"compare: {sentence}", err=True)
    names = NAMES if asked.runtime == "megatron" else {}
    return Comparison(given.recipe, plan, software.stack, flash=software.flash, names=names)


def _of_row(file: Path, row: int | None, plan: TrainingPlan) -> Comparison:
    """Run from a row of a table; open fields take the fastest choice that fits."""
    from phaze.plan.layouts.comparison import Comparison, recipe_of_run
    from phaze.plan.machines import load_machine
    from phaze.validate.table import predict_rows, settled

    asked, found = plan.question, _row(file, row)
    if found.system not in ("", asked.system):
        raise PhazeError(f"{file}: system must be {asked.system}, as in the plan, got {found.system}")
    machine = load_machine(asked.system, stack=found.stack or asked.stack, devices=asked.devices)
    runs = found.runs
    if len(runs) > 1:
        runs = next(settled([found], predict_rows([found], machine))).runs
    if not runs:
        raise PhazeError(f"{file}: {found.problem or 'no microbatch or number of chunks fits'}")
    chosen = runs[0]
    recipe = recipe_of_run(chosen, asked.model)
    return Comparison(recipe, plan, chosen.stack_of(machine), flash=chosen.flash_on(machine))


def _row(file: Path, row: int | None) -> RunRow:
    """Selected row; PhazeError if several match."""
    from phaze.validate.rows import read_rows

    rows = read_rows(file)[1]
    if not 1 <= (row or len(rows)) <= len(rows) or (row is None and len(rows) > 1):
        raise PhazeError(f"{file}: --row: must be a number from 1 to {len(rows)}, got {row or 'none'}")
    return rows[(row or 1) - 1]
