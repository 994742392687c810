"""Place a model on a cluster, or plan an instance file of Phaze's or Piper's planner."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phaze.base.errors import PhazeError
from phaze.commands import options
from phaze.commands.output import ended_at_once, refuse_outputs, telling, write_or_print
from phaze.formulas.piper.choices import PiperChoices

if TYPE_CHECKING:
    from collections.abc import Collection

SAMPLES = 4096
"""Default global batch, in samples."""
PIPER = {
    "memory_gib": typer.Option(help="Piper: memory of a device in GiB. Default: the instance's.", min=0),
    "microbatches": typer.Option(help="Piper: microbatches in a batch, N. Default: the instance's.", min=1),
    "bandwidth_gib": typer.Option(
        help="Piper: bandwidth of a device in GiB/s. Default: the instance's.", min=0
    ),
    "exactly": typer.Option("--exactly", help="Piper: data widths must sum to exactly N, not at most N."),
    "paper_table1": typer.Option(
        "--paper-table1",
        help="Piper: count as the paper's Table 1: one linear order, gradients exchanged every d "
        "microbatches.",
    ),
    "exact_knapsack": typer.Option(
        "--exact-knapsack", help="Piper: choose configurations exactly, not by the paper's greedy rule."
    ),
    "baselines": typer.Option("--baselines", help="Piper: add plans of the paper's baselines."),
    "levels": typer.Option(
        help="Piper: network levels from the inside out, each units@GiB/s, such as 8@300,8@25."
    ),
    "max_downsets": typer.Option(
        help="Piper: maximum number of downsets of a graph. Default: 100,000, or 2,000 with --levels.",
        min=1,
    ),
}
"""Command-line options for the fields of `PiperChoices`."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(options.ArchitectureOptions):
    """Command-line options for a model's training and the cluster to place it on."""

    gpus: options.GpusOption = None
    global_batch: Annotated[
        int | None,
        typer.Option(help="Samples in a batch. Default: 4096.", parser=options.count, metavar="N"),
    ] = None
    batch_tokens: options.BatchTokensOption = None
    sequence: options.SequenceOption = None
    tensor: options.TensorOption = None
    microbatch: options.MicrobatchOption = None
    hbm_gib: Annotated[
        float | None, typer.Option(help="HBM of a device in GiB. Default: the architecture's, else 80.")
    ] = None
    recompute: Annotated[
        bool | None,
        typer.Option(
            "--recompute/--stash", help="Recompute activations, or store them. Default: whichever is faster."
        ),
    ] = None
    optimizer: Annotated[str, typer.Option(help="Optimizer, for its memory: sgd, sgd-momentum or adam.")] = (
        "adam"
    )
    precision: Annotated[str, typer.Option(help="Precision of the parameters: half, mixed or single.")] = (
        "mixed"
    )
    pipeline: Annotated[str, typer.Option(help="Pipeline schedule: 1f1b or gpipe.")] = "1f1b"
    tokens: Annotated[
        float | None,
        typer.Option(
            help="Tokens or images of the whole training run, for its duration. Default: 300e9 tokens.",
            parser=options.amount,
            metavar="N",
        ),
    ] = None
    backward: options.BackwardOption = "paired"


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(ModelOptions, PiperChoices):
    """Options of `phaze place`: a model or an instance file, and its planner."""

    context: typer.Context
    instance: Annotated[
        Path | None,
        typer.Argument(help="Instance file: the JSON of the planner's authors; see config/formats.md."),
    ] = None
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File for the placement. Default: standard output.")
    ] = None
    planner: Annotated[Literal["phaze", "piper"], typer.Option(help="Planner for the instance file.")] = (
        "phaze"
    )
    model: Annotated[str | None, options.MODEL] = None
    devices: Annotated[
        int | None, typer.Option(help="Number of devices. Default: the system's, or the instance's.", min=1)
    ] = None
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B",
            help="Values of a key of the architectures to compare, such as num_tc=4,8; at most two keys.",
        ),
    ] = None
    as_json: options.JsonOption = False


@options.takes(PlaceOptions, PIPER)
def place(asked: PlaceOptions) -> None:
    """Place a model on a cluster of a given accelerator.

    Prints the widths t and d, the stages s with their layers and memory, the throughput, and the
    bottleneck. The input is either a model on an architecture (--model), or an instance file of layers with
    their latencies. An instance of Phaze's planner also defines the cluster. Options that begin with
    "Piper" override the values of an instance of --planner piper. With several architectures, separated by
    commas, or with --sweep it prints a table of them, with TPU v4 as built.
    """
    if (asked.instance is None) == (asked.model is None):
        raise PhazeError("place: give either an instance file or --model, not both")
    refuse_outputs(asked.out, reads=(asked.instance, asked.model, asked.architecture, asked.system))
    piper = asked.planner == "piper"
    if not piper:
        options.refuse(
            asked.context, options.flags(PiperChoices), "place: {} applies to --planner piper only"
        )
    if asked.instance is not None:
        of_models = [*options.flags(ModelOptions), "sweep", *["devices"] * (not piper)]
        _refuse_options_of_models(asked.context, of_models)
        text = _by_piper(asked.instance, asked) if piper else _by_phaze(asked.instance)
        write_or_print(text + "\n", asked.out)
    elif piper:
        raise PhazeError(
            "place: --planner piper needs an instance file", "to plan a model with Piper, run a study"
        )
    else:
        _place_model(asked)


def _place_model(asked: PlaceOptions) -> None:
    """Place a model, and print the placement or write it to a file."""
    given = {name: getattr(asked, name) for name in ("flat_bandwidth", "hbm_gib", "tokens")}
    options.refuse_unless_positive("place", **given)
    from phaze.commands.answers import PlacementQuestion, answer, describe_placement, in_one_line

    asked = replace(asked, global_batch=_batch(asked), **_cluster(asked))
    names = asked.architecture.split(",")
    if asked.sweep or len(names) > 1:
        from phaze.commands.chips import compared, print_chips

        if asked.out is not None:
            raise PhazeError("place: -o applies to one architecture only", "print with --json instead")
        with telling("place"):
            rows = compared(asked, names, asked.sweep or ())
        print_chips(rows, as_json=asked.as_json)
        return
    question = PlacementQuestion(str(asked.model), asked)
    with telling("place"):
        found = describe_placement(question, answer(question))
    text = json.dumps(found, indent=2) if asked.as_json else in_one_line(found)
    write_or_print(text + "\n", asked.out)


def _batch(asked: PlaceOptions) -> int:
    """Batch size in samples, from --global-batch, --batch-tokens or the default."""
    if asked.batch_tokens is None or asked.global_batch is not None:
        return options.batch_samples("place", asked.global_batch, asked.batch_tokens, 1) or SAMPLES
    from phaze.spec.models import load_model_named

    tokens = load_model_named(str(asked.model)).usual_sequence if asked.sequence is None else asked.sequence
    return options.batch_samples("place", None, asked.batch_tokens, tokens) or SAMPLES


def _cluster(asked: PlaceOptions) -> dict[str, Any]:
    """Values that --gpus supplies in place of other options: system, number of devices and architecture.

    The system's device is the architecture unless --architecture is given.
    """
    if asked.gpus is None:
        return {}
    own = asked.system if options.is_given(asked.context, "system") else None
    named, number = options.grown("place", asked.gpus, own, asked.devices)
    found: dict[str, Any] = {"system": named or asked.system, "devices": number}
    if named is not None and not options.is_given(asked.context, "architecture"):
        from phaze.spec.files import is_path, read_mapping, system_path

        path = system_path(named)
        device = str(read_mapping(path).get("device", asked.architecture))
        found["architecture"] = str(path.parent / device) if is_path(device) else device
    return found


def _by_phaze(instance: Path) -> str:
    from phaze.formulas.phaze.instance import place_instance, read_instance, result_text

    problem = read_instance(instance)
    try:
        with telling("place"):
            result = place_instance(problem)
    except PhazeError as error:
        raise error.under(str(instance)) from error
    return result_text(result)


def _by_piper(instance: Path, asked: PlaceOptions) -> str:
    from phaze.formulas.downsets import DownsetsError
    from phaze.formulas.piper.instance import read_instance
    from phaze.formulas.piper.question import PiperQuestion
    from phaze.formulas.piper.results import answer, as_text

    given = {name: getattr(asked, name) for name in options.flags(PiperChoices)}
    question = PiperQuestion(devices=asked.devices, **given)
    stored = read_instance(instance)
    try:
        with telling("place"), ended_at_once() if question.levels else nullcontext():
            return as_text(answer(stored, question))
    except DownsetsError as error:
        raise PhazeError(f"{instance}: {error}", "see --max-downsets and --paper-table1") from error


def _refuse_options_of_models(context: typer.Context, names: Collection[str]) -> None:
    """Raise PhazeError for options that do not apply to an instance file."""
    for name in filter(lambda name: options.is_given(context, name), context.params):
        if name in names:
            option = name.replace("_", "-")
            raise PhazeError(f"place: --{option} does not apply to the instance file of this planner")
