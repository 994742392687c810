"""Options of the verb place: of the file, of Piper's planner, and of how a model is trained."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Planner(StrEnum):
    """Planners of instance files."""

    PHAZE = "phaze"
    PIPER = "piper"


InstanceArgument = Annotated[
    Path | None,
    typer.Argument(help="Instance in the JSON of the planner's authors; see config/formats.md."),
]
OutOption = Annotated[Path | None, typer.Option("-o", "--out", help="File for the placement; else printed.")]
PlannerOption = Annotated[Planner, typer.Option(help="Whose planner, for an instance file.")]
ModelOption = Annotated[str | None, typer.Option("--model", "-m", help="Model, as for the other verbs.")]
DevicesOption = Annotated[
    int | None, typer.Option(help="Devices; the system's, or Piper's instance's, unless given.", min=1)
]
MemoryGibOption = Annotated[
    float | None,
    typer.Option(help="Piper: memory of a device, GiB; the instance's unless given.", min=0),
]
MicrobatchesOption = Annotated[
    int | None,
    typer.Option(help="Piper: N, microbatches in a batch; the instance's unless given.", min=1),
]
BandwidthGibOption = Annotated[
    float | None,
    typer.Option(help="Piper: bandwidth of a device, GiB/s; the instance's unless given.", min=0),
]
ExactlyOption = Annotated[
    bool, typer.Option("--exactly", help="Piper: data widths sum up to N exactly, not at most.")
]
PaperTable1Option = Annotated[
    bool,
    typer.Option(
        "--paper-table1",
        help="Piper: as the paper's Table 1: one linear order, gradients exchanged every d microbatches.",
    ),
]
ExactKnapsackOption = Annotated[
    bool,
    typer.Option("--exact-knapsack", help="Piper: choose configurations exactly, not by the paper's rule."),
]
BaselinesOption = Annotated[
    bool, typer.Option("--baselines", help="Piper: add the plans of the paper's baselines.")
]
LevelsOption = Annotated[
    str | None,
    typer.Option(help="Piper: a network's levels from the inside out, devices@GiB/s, such as 8@300,8@25."),
]
MaxDownsetsOption = Annotated[
    int | None,
    typer.Option(
        help="Piper: downsets that a graph may have; 100,000 (2,000 with levels) unless given.", min=1
    ),
]
GlobalBatchOption = Annotated[int, typer.Option(help="Samples in a batch.", min=1)]
HbmGibOption = Annotated[
    float | None, typer.Option(help="HBM of a device in GiB; the architecture's, or 80, unless given.")
]
RecomputeOption = Annotated[
    bool | None,
    typer.Option("--recompute/--stash", help="Activations; the better one unless given."),
]
OptimizerOption = Annotated[str, typer.Option(help="sgd, sgd-momentum or adam, for its memory.")]
PrecisionOption = Annotated[str, typer.Option(help="half, mixed or single: bytes of a parameter.")]
PipelineOption = Annotated[str, typer.Option(help="1f1b or gpipe.")]
TokensOption = Annotated[
    float | None,
    typer.Option(
        help="Tokens or images to train on, for the time to train; 300e9 tokens unless given.", min=1
    ),
]
