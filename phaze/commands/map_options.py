"""Options of the verb map: of the network, and of the search."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Choice(StrEnum):
    """What a search counts of a stage's time, or how that is chosen."""

    P2P = "p2p"
    ALLREDUCE = "allreduce"
    EXACT = "exact"
    AUTO = "auto"
    AUTHORS = "authors"
    ENSEMBLE = "ensemble"


StagesArgument = Annotated[
    Path,
    typer.Argument(
        help="Stages, as `partition` writes them, or plans of a study: "
        "results/plans/<scenario>/<model>.parquet, report/plans.parquet."
    ),
]
TopologyOption = Annotated[
    str,
    typer.Option(help="Topology (config/topologies/*.yaml), or a matrix or graph: .csv, .json, .graphml."),
]
OutOption = Annotated[
    Path | None, typer.Option("-o", "--out", help="File for the mapping; else a summary is printed.")
]
InstantiationOption = Annotated[
    Choice,
    typer.Option(
        help="Stage time that the search counts: messages, all-reduce, or both; auto: the first or the "
        "second by their bytes; authors: the better of these two; ensemble: all three and a local search, "
        "the shortest step of them."
    ),
]
SeedOption = Annotated[int, typer.Option(help="Of all random numbers.", min=0)]
HeuristicsOption = Annotated[
    bool, typer.Option(help="Let CS and p2p map be the answer, and bound the searches.")
]
TriesOption = Annotated[int, typer.Option(help="Devices tried for a target before it is given up.", min=1)]
StepsOption = Annotated[int, typer.Option(help="Steps of each chain of the local search.", min=0)]
TimeLimitSOption = Annotated[
    float,
    typer.Option(
        "--time-limit",
        help="Seconds for the whole command; what is found may then differ, and bounds are coarser.",
        min=0,
    ),
]
MemoryGibPerSOption = Annotated[float, typer.Option(help="Memory bandwidth of the update, GiB/s.", min=1e-9)]
TimesOption = Annotated[Path | None, typer.Option(help="File for the seconds that each way took.")]
PictureOption = Annotated[
    Path | None,
    typer.Option(
        help="File for a picture of the mapping beside CS and p2p map, .svg, .png or .pdf: bandwidths with "
        "the devices in the order of replicas and stages."
    ),
]
