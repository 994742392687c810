"""Simulate plans of studies and training runs on clusters, and audit the certificate of a plan."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.commands import completion, options
from phaze.commands.output import named_with_nearest, refuse_as_picture, refuse_outputs, refuse_table, telling

if TYPE_CHECKING:
    from phaze.pipeline.timeline import Timeline


_PLAN_OPTIONS = {"trace": "--trace", "picture": "--picture", "as_json": "--json"}
"""Options, by field, that apply to plans but not to --runs."""
_RUNS_OPTIONS = {"gpus": "--gpus", "system": "--system", "out": "-o"}
"""Options, by field, that apply to --runs but not to plans."""


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """Options of `phaze simulate`: plan or runs, cluster, and output files."""

    context: typer.Context
    placement: Annotated[Path | None, typer.Argument(metavar="PLAN")] = None
    """Plan written by `phaze plan -o` or `phaze place -o`."""
    runs: Path | None = None
    """CSV of training runs, one per row; see config/formats.md."""
    gpus: options.GpusOption = None
    system: Annotated[str | None, typer.Option(autocompletion=completion.systems)] = None
    """System: a name in config/systems, or a path. With --runs it must have a device and network levels."""
    out: Annotated[Path | None, typer.Option("-o", "--out")] = None
    """CSV for the runs with their predictions; --runs needs it."""
    trace: Path | None = None
    """File for a trace of the plan, for Perfetto or chrome://tracing."""
    picture: Path | None = None
    """Picture of the plan's pipeline over time (.svg, .png or .pdf)."""
    as_json: options.JsonOption = False


@options.takes(SimulateOptions)
def simulate(request: SimulateOptions) -> None:
    """Replay a plan event by event, or predict training runs.

    For a plan it prints the price that its file states, and today's. For runs (--runs) it predicts time,
    memory and the bottleneck, and compares them with measured times.
    """
    if (request.placement is None) == (request.runs is None):
        both = ", not both" * (request.runs is not None)
        raise PhazeError(f"simulate: give a plan or --runs{both}")
    system, devices = options.optional_cluster("simulate", request.gpus, request.system, None)
    reads = (request.placement, request.runs, system)
    refuse_outputs(request.out, request.trace, request.picture, reads=reads)
    if request.placement is not None:
        message = "simulate: {} applies to --runs only; a plan has its own system"
        options.refuse(request.context, _RUNS_OPTIONS, message)
        refuse_table("simulate", request.placement)
        options.readable(request.placement)
        refuse_as_picture(request.picture)
        _replay(request.placement, request)
        return
    options.refuse(request.context, _PLAN_OPTIONS, "simulate: {} applies to plans, not to --runs")
    if request.runs is None or request.out is None:
        raise PhazeError("simulate: --runs needs -o, a CSV for the predictions")
    _simulate_runs(request.runs, system, devices, request.out)


def _replay(file: Path, request: SimulateOptions) -> None:
    """Replay a plan written by `phaze plan` on the system that it stores."""
    from phaze.spec.documents import read_as
    from phaze.spec.training_plan import TrainingPlan

    plan = read_as(TrainingPlan, file)  # before slow imports
    from phaze.plan.answer.replay import ReplayedPlan

    with telling("simulate"):
        answer = ReplayedPlan.of(plan, str(file))
        timeline = answer.now.price.timeline
    _write_timeline(answer.which(), timeline, request)
    typer.echo(json.dumps(answer.as_row(), indent=1) if request.as_json else answer.in_words())


def _write_timeline(title: str, timeline: Timeline, request: SimulateOptions) -> None:
    """Write the requested trace and picture of a plan."""
    if request.trace is not None:
        from phaze.pipeline.trace import write_trace

        write_trace(timeline, request.trace)
    if request.picture is not None:
        from phaze.pages.pipeline_picture import picture, timeline_picture
        from phaze.pages.vega import save

        save(request.picture, picture(timeline_picture(title, timeline)))


def _simulate_runs(runs: Path, system: str | None, devices: int | None, out: Path) -> None:
    options.readable(runs)
    from phaze.plan.machines import load_machine
    from phaze.plan.terms.memory import OK
    from phaze.validate.rows import COLUMNS, unknown_columns
    from phaze.validate.table import ADDED, STACK, predict_table, write_table

    with telling("simulate"):
        machine = None if system is None else load_machine(system, devices=devices)
        table, accuracy = predict_table(runs, machine)
    write_table(table, out)
    predicted, fit = int(table["time_s"].notna().sum()), int(table["status"].str.startswith(OK).sum())
    typer.echo(f"{len(table)} run{'s' * (len(table) != 1)}, {predicted} predicted, of which {fit} fit: {out}")
    stacks = ", ".join(map(str, table[STACK].dropna().unique()))
    typer.echo(f"software stacks (for rows that name none, those of their systems): {stacks or 'none'}")
    copied = [name for name in unknown_columns(table) if name not in ADDED]
    if copied:
        typer.echo(f"unknown columns, copied unchanged: {named_with_nearest(copied, COLUMNS)}")
    if accuracy is not None:
        typer.echo(str(accuracy))


@dataclass(frozen=True, kw_only=True)
class CertifyOptions:
    """Options of `phaze certify`: the plan, and the random plans to price."""

    file: options.PlanArgument
    draws: Annotated[int, typer.Option(min=1, max=100_000)] = 200
    """Number of random plans to price."""
    seed: Annotated[int, typer.Option(min=0, max=2**62)] = 0
    """Seed of the random plans."""
    as_json: options.JsonOption = False


@options.takes(CertifyOptions)
def certify(request: CertifyOptions) -> None:
    """Try to refute a plan's lower bound with random plans.

    Random layouts and pipeline splits are priced without the search. A plan that fits and is faster than the
    certificate's lower bound is a counterexample: exit status 1.
    """
    from phaze.spec.documents import read_as
    from phaze.spec.training_plan import TrainingPlan

    file, draws = request.file, request.draws
    plan = read_as(TrainingPlan, file)  # before slow imports
    from phaze.certify.plans import certify_plan
    from phaze.plan.answer.replay import ReplayedPlan

    with telling("certify"):
        replayed = ReplayedPlan.of(plan, str(file))
        if not replayed.same:
            raise PhazeError(
                f"{file}: {replayed.figures}; its certificate holds for other prices: run `phaze plan` again"
            )
        audit = certify_plan(plan, draws, request.seed)
    if not audit.counterexamples or request.as_json:
        typer.echo(json.dumps(audit.as_row(), indent=1) if request.as_json else audit.in_words())
    if audit.counterexamples:
        raise PhazeError(
            f"{file}: certificate.bound_s: {len(audit.counterexamples)} of {draws} plans are faster than "
            f"{audit.bound_s:.6g} s, the fastest {audit.counterexamples[0]}"
        )
