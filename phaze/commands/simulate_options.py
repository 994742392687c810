"""Options of the verb simulate: of a plan, and of training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PlacementArgument = Annotated[
    Path | None,
    typer.Argument(help="Plans of a study: results/plans/<scenario>/<model>.parquet, report/plans.parquet."),
]
RunsOption = Annotated[
    Path | None,
    typer.Option("--runs", help="CSV of transformer runs, one a row; see config/formats.md."),
]
SystemOption = Annotated[
    str | None,
    typer.Option(
        help="File in config/systems, or path of one; for --runs one with a device and levels. "
        "For a plan, unless given: the flat network that it was made for."
    ),
]
OutOption = Annotated[
    Path | None, typer.Option("-o", "--out", help="CSV for the runs with their predictions.")
]
ModelOption = Annotated[str | None, typer.Option("--model", "-m", help="Workload of the plan.")]
ArchitectureOption = Annotated[
    str | None, typer.Option("--architecture", "-a", help="Architecture of the plan.")
]
HbmGibOption = Annotated[float | None, typer.Option(help="HBM of the plan's devices, GiB.", min=0)]
PlannerOption = Annotated[str | None, typer.Option(help="Whose plan; the fastest unless given.")]
TraceOption = Annotated[
    Path | None, typer.Option(help="File for a trace of the plan, for Perfetto or chrome://tracing.")
]
PictureOption = Annotated[
    Path | None,
    typer.Option(help="File for a picture of the plan's pipeline over time: .svg, .png or .pdf."),
]
