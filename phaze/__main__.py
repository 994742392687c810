"""The command line for single questions; a whole study is a run of Snakemake.

Verbs are the stages. Every verb prints a table for a reader, or with `--json` one for a program.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.errors import PhazeError

if TYPE_CHECKING:
    import pandas as pd

    from phaze.place.piper.question import Question as PiperQuestion

_OF_MODELS = frozenset(
    (
        "architecture", "system", "global_batch", "sequence", "tensor", "microbatch", "hbm_gib", "recompute",
        "optimizer", "precision", "pipeline", "tokens", "backward",
    )
)  # fmt: skip
"""Options that say how a model is placed, by parameter."""

app = typer.Typer(
    name="python -m phaze",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Which accelerator should be built for a model, and how should its training be spread?",
)


class Format(StrEnum):
    """Formats of exported tables."""

    CSV = "csv"
    JSON = "json"


class Planner(StrEnum):
    """Planners of instance files."""

    PHAZE = "phaze"
    PIPER = "piper"


class Backward(StrEnum):
    """Forms of the backward pass."""

    PAIRED = "paired"
    SPLIT = "split"


ModelOption = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="Spec in config/models, or path of one or of a Hugging Face config.json."
    ),
]
ArchitectureOption = Annotated[
    str, typer.Option("--architecture", "-a", help="File in config/architectures, or path of one.")
]
SequenceOption = Annotated[
    int | None, typer.Option(help="Tokens of a sample; the model's longest, or 2048, unless given.", min=1)
]
TensorOption = Annotated[list[int] | None, typer.Option(help="TMP width; may be repeated.", min=1)]
MicrobatchOption = Annotated[list[int] | None, typer.Option(help="Microbatch; may be repeated.", min=1)]
SystemOption = Annotated[str, typer.Option(help="File in config/systems, or path of one.")]
BackwardOption = Annotated[Backward, typer.Option(help="Gradients of an operator together, or apart.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def space(
    area_limit_mm2: Annotated[
        float | None, typer.Option(help="Largest area of a chip; that of TPUv4 unless given.", min=0)
    ] = None,
    minimum_share: Annotated[
        bool, typer.Option(help="Leave out what is below 30 % of the limit, as the paper's authors do.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Count the architectures of the searched space, with the smallest and the largest."""
    from phaze.answers import describe_space

    found = describe_space(area_limit_mm2, minimum_share=minimum_share)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo(f"{found['architectures']:,} architectures of at most {found['area_limit_mm2']:.5f} mm2")
    for which in ("smallest", "largest"):
        one = found[which]
        if isinstance(one, dict):
            typer.echo(f"{which}: {one['architecture']}, {one['area_mm2']:.5f} mm2")


@app.command()
def extract(
    model: ModelOption,
    sequence: SequenceOption = None,
    tensor: TensorOption = None,
    microbatch: MicrobatchOption = None,
    backward: BackwardOption = Backward.PAIRED,
    as_json: JsonOption = False,
) -> None:
    """Print the operators of a model's distinct layers, forward and backward, after fusion."""
    from phaze.answers import read_subject

    points = read_subject(model, sequence, tensor or [1], microbatch or [1], backward.value).points
    _print_tables([point.operators for point in points], as_json=as_json)


@app.command()
def estimate(
    model: ModelOption,
    architecture: ArchitectureOption = "tpu-v4",
    sequence: SequenceOption = None,
    tensor: TensorOption = None,
    microbatch: MicrobatchOption = None,
    system: SystemOption = "paper",
    backward: BackwardOption = Backward.PAIRED,
    as_json: JsonOption = False,
) -> None:
    """Print how long every operator takes on one core and on all, what binds it, and its energy."""
    from phaze.answers import estimate_subject, read_subject

    subject = read_subject(model, sequence, tensor or [1], microbatch or [1], backward.value)
    _print_tables(estimate_subject(subject, architecture, system), as_json=as_json)


@app.command()
def schedule(
    model: ModelOption,
    architecture: ArchitectureOption = "tpu-v4",
    sequence: SequenceOption = None,
    tensor: TensorOption = None,
    microbatch: MicrobatchOption = None,
    system: SystemOption = "paper",
    backward: BackwardOption = Backward.PAIRED,
    operators: Annotated[bool, typer.Option(help="Print every operator instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the latency of every layer with its bound, and who proved it."""
    from phaze.answers import read_subject, schedule_subject

    subject = read_subject(model, sequence, tensor or [1], microbatch or [1], backward.value)
    solves, schedules = schedule_subject(subject, architecture, system)
    _print_tables([schedules if operators else solves], as_json=as_json)


@app.command()
def place(
    context: typer.Context,
    instance: Annotated[
        Path | None,
        typer.Argument(
            help="Instance in the JSON of the planner's authors; see the section on it in README.md."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File for an instance's placement; else printed.")
    ] = None,
    planner: Annotated[Planner, typer.Option(help="Whose planner, for an instance file.")] = Planner.PHAZE,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model, as for the other verbs.")] = None,
    architecture: ArchitectureOption = "tpu-v4",
    system: SystemOption = "paper",
    devices: Annotated[
        int | None, typer.Option(help="Devices; the system's, or Piper's instance's, unless given.", min=1)
    ] = None,
    memory_gib: Annotated[
        float | None,
        typer.Option(help="Piper: memory of a device, GiB; the instance's unless given.", min=0),
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(help="Piper: N, microbatches in a batch; the instance's unless given.", min=1),
    ] = None,
    bandwidth_gib: Annotated[
        float | None,
        typer.Option(help="Piper: bandwidth of a device, GiB/s; the instance's unless given.", min=0),
    ] = None,
    exactly: Annotated[
        bool, typer.Option("--exactly", help="Piper: data widths sum up to N exactly, not at most.")
    ] = False,
    paper_table1: Annotated[
        bool,
        typer.Option(
            "--paper-table1",
            help="Piper: as the paper's Table 1: one linear order, gradients exchanged every d microbatches.",
        ),
    ] = False,
    exact_knapsack: Annotated[
        bool,
        typer.Option(
            "--exact-knapsack", help="Piper: choose configurations exactly, not by the paper's rule."
        ),
    ] = False,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Piper: add the plans of the paper's baselines.")
    ] = False,
    levels: Annotated[
        str | None,
        typer.Option(
            help="Piper: a network's levels from the inside out, devices@GiB/s, such as 8@300,8@25."
        ),
    ] = None,
    max_downsets: Annotated[
        int | None,
        typer.Option(
            help="Piper: downsets that a graph may have; 100,000 (2,000 with levels) unless given.", min=1
        ),
    ] = None,
    global_batch: Annotated[int, typer.Option(help="Samples in a batch.", min=1)] = 4096,
    sequence: SequenceOption = None,
    tensor: TensorOption = None,
    microbatch: MicrobatchOption = None,
    hbm_gib: Annotated[
        float | None, typer.Option(help="HBM of a device; the architecture's, or 80, unless given.", min=0)
    ] = None,
    recompute: Annotated[
        bool | None,
        typer.Option("--recompute/--stash", help="Activations; the better one unless given."),
    ] = None,
    optimizer: Annotated[str, typer.Option(help="sgd, sgd-momentum or adam, for its memory.")] = "sgd",
    precision: Annotated[str, typer.Option(help="half, mixed or single: bytes of a parameter.")] = "half",
    pipeline: Annotated[str, typer.Option(help="1f1b or gpipe.")] = "1f1b",
    tokens: Annotated[float, typer.Option(help="Tokens to train on, for the time to train.", min=1)] = 300e9,
    backward: BackwardOption = Backward.PAIRED,
    as_json: JsonOption = False,
) -> None:
    """Spread the training of a model over a cluster: t, d, s, boundaries, memory, throughput, what binds.

    Either a model on an architecture (--model), or an instance file of layers with their latencies. An
    instance for Phaze's planner says what the cluster is; options that begin with "Piper" are for instances
    of --planner piper, and replace what those say.
    """
    if (instance is None) == (model is None):
        raise PhazeError("place: give either an instance file or --model")
    from phaze.place.piper.question import Question as PiperQuestion

    piper = PiperQuestion(
        devices=devices,
        memory_gib=memory_gib,
        microbatches=microbatches,
        bandwidth_gib=bandwidth_gib,
        exactly=exactly,
        paper_table1=paper_table1,
        exact_knapsack=exact_knapsack,
        baselines=baselines,
        levels=levels,
        max_downsets=max_downsets,
    )
    if instance is not None:
        _refuse_options_of_models(context, devices=planner is Planner.PHAZE)
    if planner is Planner.PIPER:
        _place_by_piper(instance, piper, out)
        return
    _refuse_options_of_piper(piper)
    if instance is not None:
        _place_instance(instance, out)
        return
    from phaze.answers import Question, answer, describe_placement, in_one_line

    assert model is not None
    question = Question(
        model=model,
        architecture=architecture,
        system=system,
        devices=devices,
        global_batch=global_batch,
        sequence=sequence,
        widths=tuple(tensor or ()),
        microbatches=tuple(microbatch or ()),
        hbm_gib=hbm_gib,
        recompute=(False, True) if recompute is None else (recompute,),
        memory={"optimizer": optimizer, "precision": precision, "schedule": pipeline},
        tokens=tokens,
        backward=backward.value,
    )
    found = describe_placement(question, answer(question))
    typer.echo(json.dumps(found, indent=2) if as_json else in_one_line(found))


def _place_instance(instance: Path, out: Path | None) -> None:
    from phaze.place.instance import place_instance, read_instance, result_text, write_result

    problem = read_instance(instance)
    try:
        result = place_instance(problem)
    except PhazeError as error:
        raise PhazeError(f"{instance}: {error}") from error
    if out is None:
        typer.echo(result_text(result))
    else:
        write_result(result, out)


def _place_by_piper(instance: Path | None, question: PiperQuestion, out: Path | None) -> None:
    from phaze.place.piper.instance import read_instance
    from phaze.place.piper.nested_results import answer_levels
    from phaze.place.piper.results import answer, as_text, result_text
    from phaze.place.reading import write_text
    from phaze.theory.downsets import DownsetsError

    if instance is None:
        raise PhazeError("place: give an instance file with --planner piper; a study plans models with it")
    given = read_instance(instance)
    hierarchy = question.hierarchy(given)
    try:
        if hierarchy is None:
            text = result_text(*answer(given, question))
        else:
            text = as_text(answer_levels(given, question, hierarchy))
    except DownsetsError as error:
        raise PhazeError(f"{instance}: {error}; see --max-downsets and --paper-table1") from error
    if out is None:
        typer.echo(text)
    else:
        write_text(text + "\n", out)


def _refuse_options_of_models(context: typer.Context, *, devices: bool) -> None:
    """Refuse what says nothing about an instance file; `devices`: that option too."""
    for name in filter(lambda name: _is_given(context, name), context.params):
        if name in _OF_MODELS or (devices and name == "devices"):
            option = name.replace("_", "-")
            raise PhazeError(f"place: --{option} is not for the instance file of this planner")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse_options_of_piper(question: PiperQuestion) -> None:
    for name in question.given():
        if name != "devices":
            raise PhazeError(f"place: --{name.replace('_', '-')} is for --planner piper only")


@app.command()
def simulate(
    placement: Annotated[
        Path | None,
        typer.Argument(
            help="Plans of a study: results/plans/<scenario>/<model>.parquet, report/plans.parquet."
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option("--runs", help="CSV of transformer runs, one a row; see the section in README.md."),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            help="File in config/systems, or path of one; for --runs one with a device and levels. "
            "For a plan, unless given: paper."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="CSV for the runs with their predictions.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Workload of the plan.")] = None,
    architecture: Annotated[
        str | None, typer.Option("--architecture", "-a", help="Architecture of the plan.")
    ] = None,
    hbm_gib: Annotated[float | None, typer.Option(help="HBM of the plan's devices, GiB.", min=0)] = None,
    planner: Annotated[str | None, typer.Option(help="Whose plan; the fastest unless given.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="File for a trace of the plan, for Perfetto or chrome://tracing.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a plan of a study event by event, or predict training runs of transformers on a cluster.

    A plan: its planner's time, the simulated time, and what the difference consists of; of all that a file
    holds, the fastest that the options allow. Runs (--runs): time, memory and what binds, beside measured
    times.
    """
    if (placement is None) == (runs is None):
        raise PhazeError("simulate: give either the file of a study's plans or --runs")
    if placement is not None:
        if out is not None:
            raise PhazeError("simulate: -o is for --runs only; --trace writes the trace of a plan")
        choice = (model, architecture, hbm_gib, planner)
        _simulate_plan(placement, choice, system or "paper", trace, as_json=as_json)
        return
    for name, value in (
        ("--model", model), ("--architecture", architecture), ("--hbm-gib", hbm_gib), ("--planner", planner),
        ("--trace", trace), ("--json", as_json or None),
    ):  # fmt: skip
        if value is not None:
            raise PhazeError(f"simulate: {name} is for a plan, not for --runs")
    if runs is None or system is None or out is None:
        raise PhazeError("simulate: --runs needs --system and -o")
    _simulate_runs(runs, system, out)


def _simulate_plan(
    placement: Path,
    choice: tuple[str | None, str | None, float | None, str | None],
    system: str,
    trace: Path | None,
    *,
    as_json: bool,
) -> None:
    from phaze.config import load_system
    from phaze.simulate.single import Wanted, simulate_file
    from phaze.simulate.trace import write_trace

    answer = simulate_file(placement, Wanted(*choice), load_system(system).network_bandwidth_bytes_per_s)
    if trace is not None:
        write_trace(answer.found.timeline, trace)
    typer.echo(json.dumps(answer.as_row(), indent=2) if as_json else answer.in_words())


def _simulate_runs(runs: Path, system: str, out: Path) -> None:
    from phaze.runs.machine import load_machine
    from phaze.runs.table import OK, predict_table, write_table

    table, accuracy = predict_table(runs, load_machine(system))
    write_table(table, out)
    typer.echo(f"{len(table)} runs, {int((table['status'] == OK).sum())} ok: {out}")
    if accuracy is not None:
        typer.echo(str(accuracy))


@app.command()
def export(
    table: Annotated[Path, typer.Argument(help="A Parquet table of a run.")],
    form: Annotated[Format, typer.Option("--format", help="Format to write.")] = Format.CSV,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File; else printed.")] = None,
) -> None:
    """Write any table of a run as CSV or JSON."""
    from phaze.job import atomic_path
    from phaze.report import export_table

    text = export_table(table, form.value)
    if out is None:
        typer.echo(text, nl=False)
        return
    with atomic_path(out) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _print_tables(frames: list[pd.DataFrame], *, as_json: bool) -> None:
    """Print tables one below the other."""
    import pandas as pd

    frame = pd.concat(frames, ignore_index=True)
    if as_json:
        typer.echo(frame.to_json(orient="records", indent=1, double_precision=15))
    else:
        typer.echo(frame.to_string(index=False, float_format=lambda value: f"{value:.4g}"))


def main() -> int:
    """Run the command line; a mistake of the user is one message and exit status 1."""
    try:
        app()
    except PhazeError as error:
        typer.echo(f"phaze: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
