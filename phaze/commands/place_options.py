"""Options of `phaze place`: a model and its cluster, or an instance file and its planner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from phaze.commands import options
from phaze.formulas.piper.choices import PiperChoices


@dataclass(frozen=True, kw_only=True)
class ModelOptions(options.ArchitectureOptions):
    """Command-line options for a model's training and the cluster to place it on."""

    gpus: options.GpusOption = None
    nodes: options.NodesOption = None
    global_batch: options.GlobalBatchOption = None
    batch_tokens: options.BatchTokensOption = None
    sequence: options.SequenceOption = None
    tensor: options.TensorOption = None
    microbatch: options.MicrobatchOption = None
    hbm_gib: Annotated[
        float | None, typer.Option(help="HBM of a device in GiB. Default: the architecture's, else 80.")
    ] = None
    recompute: Annotated[
        bool | None,
        typer.Option(
            "--recompute/--stash", help="Recompute activations, or store them. Default: whichever is faster."
        ),
    ] = None
    optimizer: Annotated[str, typer.Option(help="Optimizer, for its memory: sgd, sgd-momentum or adam.")] = (
        "adam"
    )
    precision: Annotated[str, typer.Option(help="Precision of the parameters: half, mixed or single.")] = (
        "mixed"
    )
    pipeline: Annotated[str, typer.Option(help="Pipeline schedule: 1f1b or gpipe.")] = "1f1b"
    tokens: Annotated[
        float | None,
        typer.Option(
            help="Tokens or images of the whole training run, for its duration. Default: 300e9 tokens.",
            parser=options.amount,
            metavar="N",
        ),
    ] = None
    backward: options.BackwardOption = "paired"


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(ModelOptions, PiperChoices):
    """Options of `phaze place`: a model or an instance file, and its planner."""

    context: typer.Context
    instance: Annotated[
        Path | None,
        typer.Argument(help="Instance file: the JSON of the planner's authors; see config/formats.md."),
    ] = None
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File for the placement. Default: standard output.")
    ] = None
    planner: Annotated[Literal["phaze", "piper"], typer.Option(help="Planner for the instance file.")] = (
        "phaze"
    )
    model: Annotated[str | None, options.MODEL] = None
    devices: Annotated[
        int | None, typer.Option(help="Number of devices. Default: the system's, or the instance's.", min=1)
    ] = None
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B",
            help="Values of a key of the architectures to compare, such as num_tc=4,8; at most two keys.",
        ),
    ] = None
    as_json: options.JsonOption = False
