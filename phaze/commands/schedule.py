"""Show how the layers of a model are scheduled on an architecture."""

from __future__ import annotations

from typing import Annotated

import typer

from phaze.commands import options
from phaze.commands.output import print_tables, telling


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
    subject = read_subject(model, sequence, tensor or [1], microbatch or [1], backward.value)
    with telling("schedule"):
        solves, schedules = schedule_subject(subject, architecture, system, flat_bandwidth)
    print_tables([schedules if operators else solves], as_json=as_json)
