"""Show the searched space, and what a stage makes of one model: operators, their estimates, schedules."""

import json
from typing import Annotated

import typer

from phaze.commands import options
from phaze.commands.output import print_tables, tell_sequence, telling


def extract(
    model: options.ModelOption,
    sequence: options.SequenceOption = None,
    tensor: options.TensorOption = None,
    microbatch: options.MicrobatchOption = None,
    backward: options.BackwardOption = options.Backward.PAIRED,
    as_json: options.JsonOption = False,
) -> None:
    """Print the operators of a model's distinct layers, forward and backward, after fusion."""
    from phaze.commands.answers import read_workloads

    tell_sequence(model, sequence)
    points = read_workloads(model, sequence, tensor or [1], microbatch or [1], backward.value)
    print_tables([point.tables["operators"] for point in points], as_json=as_json)


def estimate(
    model: options.ModelOption,
    architecture: options.ArchitectureOption = "tpu-v4-as-built",
    sequence: options.SequenceOption = None,
    tensor: options.TensorOption = None,
    microbatch: options.MicrobatchOption = None,
    system: options.SystemOption = "tpu-v4-pod",
    flat_bandwidth: options.FlatBandwidthOption = None,
    backward: options.BackwardOption = options.Backward.PAIRED,
    as_json: options.JsonOption = False,
) -> None:
    """Print how long every operator takes on one core and on all, what binds it, and its energy."""
    from phaze.commands.answers import estimate_subject, read_subject

    options.refuse_unless_positive("estimate", flat_bandwidth=flat_bandwidth)
    tell_sequence(model, sequence)
    subject = read_subject(model, sequence, tensor or [1], microbatch or [1], backward.value)
    with telling("estimate"):
        tables = estimate_subject(subject, architecture, system, flat_bandwidth)
    print_tables(tables, as_json=as_json)


def schedule(
    model: options.ModelOption,
    architecture: options.ArchitectureOption = "tpu-v4-as-built",
    sequence: options.SequenceOption = None,
    tensor: options.TensorOption = None,
    microbatch: options.MicrobatchOption = None,
    system: options.SystemOption = "tpu-v4-pod",
    flat_bandwidth: options.FlatBandwidthOption = None,
    backward: options.BackwardOption = options.Backward.PAIRED,
    operators: Annotated[bool, typer.Option(help="Print every operator instead.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Print the latency of every layer with its bound, and who proved it."""
    from phaze.commands.answers import read_subject, schedule_subject

    options.refuse_unless_positive("schedule", flat_bandwidth=flat_bandwidth)
    tell_sequence(model, sequence)
    subject = read_subject(model, sequence, tensor or [1], microbatch or [1], backward.value)
    with telling("schedule"):
        solves, schedules = schedule_subject(subject, architecture, system, flat_bandwidth)
    print_tables([schedules if operators else solves], as_json=as_json)


def space(
    area_limit_mm2: Annotated[
        float | None, typer.Option(help="Largest area of a chip; that of TPUv4 unless given.", min=0)
    ] = None,
    minimum_share: Annotated[
        bool, typer.Option(help="Leave out what is below 30 % of the limit, as the paper's authors do.")
    ] = True,
    as_json: options.JsonOption = False,
) -> None:
    """Count the architectures of the searched space, with the smallest and the largest."""
    from phaze.commands.answers import describe_space

    found = describe_space(area_limit_mm2, minimum_share=minimum_share)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo(f"{found['architectures']:,} architectures of at most {found['area_limit_mm2']:.5f} mm2")
    for which in ("smallest", "largest"):
        one = found[which]
        if isinstance(one, dict):
            typer.echo(f"{which}: {one['architecture']}, {one['area_mm2']:.5f} mm2")
