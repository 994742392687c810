"""Show the operators of a model."""

from __future__ import annotations

from phaze.commands import options
from phaze.commands.output import print_tables


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

    points = read_workloads(model, sequence, tensor or [1], microbatch or [1], backward.value)
    print_tables([point.tables["operators"] for point in points], as_json=as_json)
