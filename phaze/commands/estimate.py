"""Show what the operators of a model take on an architecture."""

from __future__ import annotations

from phaze.commands import options
from phaze.commands.output import print_tables, telling


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
    subject = read_subject(model, sequence, tensor or [1], microbatch or [1], backward.value)
    with telling("estimate"):
        tables = estimate_subject(subject, architecture, system, flat_bandwidth)
    print_tables(tables, as_json=as_json)
