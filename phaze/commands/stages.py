"""Show the search space, and a model's operators, estimates and schedules."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.commands import options
from phaze.commands.output import print_tables, tell_sequence, telling

if TYPE_CHECKING:
    from phaze.search.cosearch import Subject


@options.takes(options.WorkloadOptions)
def extract(asked: options.WorkloadOptions) -> None:
    """Print the operators of a model's distinct layers.

    Operators are those of both passes, after fusion.
    """
    from phaze.commands.answers import read_workloads

    tell_sequence(asked.model, asked.sequence)
    widths, microbatches = asked.tensor or [1], asked.microbatch or [1]
    points = read_workloads(asked.model, asked.sequence, widths, microbatches, asked.backward.value)
    print_tables([point.tables["operators"] for point in points], as_json=asked.as_json)


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(options.WorkloadOptions, options.ArchitectureOptions):
    """Model on an architecture."""


@options.takes(EstimateOptions)
def estimate(asked: EstimateOptions) -> None:
    """Print the time and energy of every operator.

    Times are on one core and on all cores, with what binds them.
    """
    from phaze.commands.answers import estimate_subject

    options.refuse_unless_positive("estimate", flat_bandwidth=asked.flat_bandwidth)
    subject = _read(asked)
    with telling("estimate"):
        tables = estimate_subject(subject, asked.architecture, asked.system, asked.flat_bandwidth)
    print_tables(tables, as_json=asked.as_json)


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions(EstimateOptions):
    """Model on an architecture, and the table to print."""

    operators: Annotated[bool, typer.Option(help="Print every operator instead of layers.")] = False


@options.takes(ScheduleOptions)
def schedule(asked: ScheduleOptions) -> None:
    """Print the latency of every layer.

    Each has its lower bound and the solver that proved it.
    """
    from phaze.commands.answers import schedule_subject

    options.refuse_unless_positive("schedule", flat_bandwidth=asked.flat_bandwidth)
    subject = _read(asked)
    with telling("schedule"):
        solves, schedules = schedule_subject(subject, asked.architecture, asked.system, asked.flat_bandwidth)
    print_tables([schedules if asked.operators else solves], as_json=asked.as_json)


def _read(asked: options.WorkloadOptions) -> Subject:
    """Model with all requested TMP widths and microbatches."""
    from phaze.commands.answers import read_subject

    tell_sequence(asked.model, asked.sequence)
    widths, microbatches = asked.tensor or [1], asked.microbatch or [1]
    return read_subject(asked.model, asked.sequence, widths, microbatches, asked.backward.value)


def space(
    area_limit_mm2: Annotated[
        float | None, typer.Option(help="Largest area of a chip in mm2. Default: the area of TPUv4.", min=0)
    ] = None,
    minimum_share: Annotated[
        bool,
        typer.Option(help="Leave out architectures below 30 % of the area limit, as the Phaze paper does."),
    ] = True,
    as_json: options.JsonOption = False,
) -> None:
    """Print the size of the search space of architectures.

    Also prints the smallest and the largest architecture.
    """
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
