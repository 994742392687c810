"""Options of the verb partition: of the graph, of the devices, and of the search."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from phaze.spec.names import MOST


class Flow(StrEnum):
    """How a graph is cut."""

    FULL = "full"
    PAPER = "paper"


GraphArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|GRAPH.json",
        help="Spec in config/models, path of one, or operators in JSON; see config/formats.md.",
    ),
]
StagesOption = Annotated[int | None, typer.Option(help="Stages S; searched unless given.", min=1, max=MOST)]
ReplicasOption = Annotated[int | None, typer.Option(help="Replicas R of every stage.", min=1, max=MOST)]
DevicesOption = Annotated[
    int | None, typer.Option(help="Devices D = S R, for the search of S and R.", min=1, max=MOST)
]
HyperOperatorsOption = Annotated[
    int | None,
    typer.Option(
        "--hyper-operators",
        "-k",
        help="K, up to which operators are clustered; the model's unless given, or 4 S, at least 48.",
        min=1,
    ),
]
MicrobatchOption = Annotated[
    int | None, typer.Option(help="Samples in a microbatch of a model; 1 unless given.", min=1, max=MOST)
]
MicrobatchesOption = Annotated[
    int, typer.Option(help="MB, microbatches of a step on each replica.", min=1, max=MOST)
]
MemoryGibOption = Annotated[
    float | None, typer.Option(help="Memory of a device, GiB; no limit unless given.")
]
BandwidthGbpsOption = Annotated[float, typer.Option(help="Bandwidth between any two devices, 10^9 bytes/s.")]
RecomputeOption = Annotated[bool, typer.Option(help="Whether backward passes repeat the forward pass.")]
FlowOption = Annotated[
    Flow, typer.Option(help="paper: clusters, dynamic program, refinement; full: goes on from there.")
]
SlackOption = Annotated[
    float,
    typer.Option(
        help="By which share the slowest stage may be slower than it must, if the step gets faster.",
        min=0,
    ),
]
SystemOption = Annotated[
    str | None, typer.Option(help="System whose device runs a model; titan-v-ethernet unless given.")
]
SequenceOption = Annotated[
    int | None, typer.Option(help="Tokens of a sample of a model; its longest unless given.", min=1)
]
BaselinesOption = Annotated[
    bool,
    typer.Option(
        "--baselines", help="Compare with PipeDream, one topological order, Piper and Phaze by layer."
    ),
]
GraphOutOption = Annotated[Path | None, typer.Option(help="File for the graph of operators.")]
OutOption = Annotated[Path | None, typer.Option("-o", "--out", help="File for the stages.")]
