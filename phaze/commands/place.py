"""Place a model on a cluster, or the layers of an instance file by the planner it is written for."""

from __future__ import annotations

import json
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.commands import options
from phaze.commands.output import ended_at_once, refuse_outputs, telling, write_or_print

if TYPE_CHECKING:
    from phaze.commands.answers import PlacementQuestion
    from phaze.plan.piper.question import PiperQuestion

_OF_MODELS = frozenset(
    (
        "architecture", "system", "gpus", "flat_bandwidth", "global_batch", "batch_tokens", "sequence",
        "tensor", "microbatch", "hbm_gib", "recompute", "optimizer", "precision", "pipeline", "tokens",
        "backward",
    )
)  # fmt: skip
"""Options that say how a model is placed, by parameter."""

_OF_PIPER = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        "memory_gib", "microbatches", "bandwidth_gib", "exactly", "paper_table1", "exact_knapsack",
        "baselines", "levels", "max_downsets",
    )
}  # fmt: skip
"""Options that say nothing to Phaze's planner, by parameter."""


SAMPLES = 4096
"""Of a batch unless one is given."""


class PlannerOption(StrEnum):
    """Planners of instance files."""

    PHAZE = "phaze"
    PIPER = "piper"


def place(
    context: typer.Context,
    instance: Annotated[
        Path | None,
        typer.Argument(help="Instance in the JSON of the planner's authors; see config/formats.md."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File for the placement; else printed.")
    ] = None,
    planner: Annotated[
        PlannerOption, typer.Option(help="Whose planner, for an instance file.")
    ] = PlannerOption.PHAZE,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model, as for the other verbs.", callback=options.known_model),
    ] = None,
    architecture: options.ArchitectureOption = "tpu-v4-as-built",
    system: options.SystemOption = "tpu-v4-pod",
    gpus: options.GpusOption = None,
    flat_bandwidth: options.FlatBandwidthOption = None,
    devices: Annotated[
        int | None, typer.Option(help="Devices; the system's, or Piper's instance's, unless given.", min=1)
    ] = None,
    memory_gib: Annotated[
        float | None, typer.Option(help="Piper: memory of a device, GiB; the instance's unless given.", min=0)
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
    global_batch: Annotated[
        int | None,
        typer.Option(help="Samples in a batch; 4096 unless given.", parser=options.count, metavar="N"),
    ] = None,
    batch_tokens: options.BatchTokensOption = None,
    sequence: options.SequenceOption = None,
    tensor: options.TensorOption = None,
    microbatch: options.MicrobatchOption = None,
    hbm_gib: Annotated[
        float | None, typer.Option(help="HBM of a device in GiB; the architecture's, or 80, unless given.")
    ] = None,
    recompute: Annotated[
        bool | None, typer.Option("--recompute/--stash", help="Activations; the better one unless given.")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="sgd, sgd-momentum or adam, for its memory.")] = "adam",
    precision: Annotated[str, typer.Option(help="half, mixed or single: bytes of a parameter.")] = "mixed",
    pipeline: Annotated[str, typer.Option(help="1f1b or gpipe.")] = "1f1b",
    tokens: Annotated[
        float | None,
        typer.Option(
            help="Tokens or images to train on, for the time to train; 300e9 tokens unless given.",
            parser=options.amount,
            metavar="N",
        ),
    ] = None,
    backward: options.BackwardOption = options.Backward.PAIRED,
    as_json: options.JsonOption = False,
) -> None:
    """Spread the training of a model over a cluster: t, d, s, boundaries, memory, throughput, what binds.

    Either a model on an architecture (--model), or an instance file of layers with their latencies. An
    instance for Phaze's planner says what the cluster is; options that begin with "Piper" are for instances
    of --planner piper, and replace what those say.
    """
    if (instance is None) == (model is None):
        raise PhazeError("place: give either an instance file or --model")
    refuse_outputs(out, reads=(instance, model, architecture, system))
    if planner is PlannerOption.PHAZE:
        options.refuse(context, _OF_PIPER, "place: {} is for --planner piper only")
    if instance is not None and planner is PlannerOption.PHAZE:
        _refuse_options_of_models(context, devices=True)
        write_or_print(_by_phaze(instance) + "\n", out)
    elif instance is not None:
        from phaze.plan.piper.question import PiperQuestion

        _refuse_options_of_models(context, devices=False)
        piper = PiperQuestion(
            devices=devices, memory_gib=memory_gib, microbatches=microbatches, bandwidth_gib=bandwidth_gib,
            exactly=exactly, paper_table1=paper_table1, exact_knapsack=exact_knapsack, baselines=baselines,
            levels=levels, max_downsets=max_downsets,
        )  # fmt: skip
        write_or_print(_by_piper(instance, piper) + "\n", out)
    elif planner is PlannerOption.PIPER:
        raise PhazeError("place: give an instance file with --planner piper; a study plans models with it")
    elif model is not None:
        options.refuse_unless_positive("place", flat_bandwidth=flat_bandwidth, hbm_gib=hbm_gib, tokens=tokens)
        from phaze.commands.answers import PlacementQuestion

        if gpus is not None:
            architecture, system, devices = _cluster(context, gpus, (architecture, system, devices))
        question = PlacementQuestion(
            model=model, architecture=architecture, system=system, flat_bandwidth=flat_bandwidth,
            devices=devices, global_batch=_batch(model, global_batch, batch_tokens, sequence),
            sequence=sequence, widths=tuple(tensor or ()),
            microbatches=tuple(microbatch or ()),
            hbm_gib=hbm_gib, recompute=(False, True) if recompute is None else (recompute,),
            memory={"optimizer": optimizer, "precision": precision, "schedule": pipeline}, tokens=tokens,
            backward=backward.value,
        )  # fmt: skip
        _place_model(question, out, as_json=as_json)


def _batch(model: str, global_batch: int | None, batch_tokens: int | None, sequence: int | None) -> int:
    """Samples of a batch, which is given in samples or in tokens."""
    if batch_tokens is None or global_batch is not None:
        return options.batch_samples("place", global_batch, batch_tokens, 1) or SAMPLES
    from phaze.spec.models import load_model_named

    tokens = load_model_named(model).usual_sequence if sequence is None else sequence
    return options.batch_samples("place", None, batch_tokens, tokens) or SAMPLES


def _cluster(
    context: typer.Context, gpus: str, others: tuple[str, str, int | None]
) -> tuple[str, str, int | None]:
    """Architecture, system and number of devices of --gpus; the architecture is its device unless given."""
    architecture, system, devices = others
    own = system if options.is_given(context, "system") else None
    named, number = options.grown("place", gpus, own, devices)
    if named is not None and not options.is_given(context, "architecture"):
        from phaze.spec.files import is_path, read_mapping, system_path

        path = system_path(named)
        device = str(read_mapping(path).get("device", architecture))
        architecture = str(path.parent / device) if is_path(device) else device
    return architecture, named or system, number


def _place_model(question: PlacementQuestion, out: Path | None, *, as_json: bool) -> None:
    from phaze.commands.answers import answer, describe_placement, in_one_line

    with telling("place"):
        found = describe_placement(question, answer(question))
    write_or_print((json.dumps(found, indent=2) if as_json else in_one_line(found)) + "\n", out)


def _by_phaze(instance: Path) -> str:
    from phaze.plan.phaze.instance import place_instance, read_instance, result_text

    problem = read_instance(instance)
    try:
        with telling("place"):
            result = place_instance(problem)
    except PhazeError as error:
        raise PhazeError(f"{instance}: {error}") from error
    return result_text(result)


def _by_piper(instance: Path, question: PiperQuestion) -> str:
    from phaze.plan.downsets import DownsetsError
    from phaze.plan.piper.instance import read_instance
    from phaze.plan.piper.results import answer, as_text

    stored = read_instance(instance)
    try:
        with telling("place"), ended_at_once() if question.levels else nullcontext():
            return as_text(answer(stored, question))
    except DownsetsError as error:
        raise PhazeError(f"{instance}: {error}; see --max-downsets and --paper-table1") from error


def _refuse_options_of_models(context: typer.Context, *, devices: bool) -> None:
    """Refuse what says nothing about an instance file; `devices`: that option too."""
    for name in filter(lambda name: options.is_given(context, name), context.params):
        if name in _OF_MODELS or (devices and name == "devices"):
            option = name.replace("_", "-")
            raise PhazeError(f"place: --{option} is not for the instance file of this planner")
