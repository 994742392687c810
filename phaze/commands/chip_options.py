"""Options of `phaze chip`: models, cluster, designs, objective and search."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from phaze.commands import completion, options
from phaze.commands.place_options import SYSTEM
from phaze.spec.names import RANK, ChipObjective, Rank

GAP = 0.01
"""Default gap of the search on each model."""


@dataclass(frozen=True, kw_only=True)
class ChipOptions:
    """Options of `phaze chip`: models, cluster, designs and search."""

    models: Annotated[
        str,
        typer.Argument(
            help="Models to train: names in config/models or paths, separated by commas.",
            autocompletion=completion.models,
        ),
    ]
    devices: Annotated[int, typer.Option(help="Number of chips that train each model.", min=1)] = 1024
    network: Annotated[
        list[str] | None,
        typer.Option(
            help="Network levels, innermost first: devices@bytes per second and direction of a device, such "
            "as 8@450e9,1024@50e9. Default: the system's. Given again: one more case of --robust.",
            metavar="N@RATE,...",
        ),
    ] = None
    system: Annotated[
        str,
        typer.Option(
            help="System with the network, the clock and the HBM bandwidth of the chips.",
            callback=options.known_system,
            autocompletion=completion.systems,
        ),
    ] = SYSTEM
    area_limit: Annotated[
        str,
        typer.Option(
            help="Largest area of a chip, such as 600mm2, or an architecture whose area is the limit.",
            metavar="AREA",
        ),
    ] = "tpu-v4"
    technology: Annotated[
        str,
        typer.Option(help="Areas and energies of parts: 22nm, 16nm, 14nm, 10nm, 7nm or 5nm.", metavar="NAME"),
    ] = "22nm"
    hbm: Annotated[
        str | None,
        typer.Option(
            help="HBM capacities in GiB, separated by commas. Default: the system's.", metavar="GIB,..."
        ),
    ] = None
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B",
            help="Values of a key of the designs, such as pe_x=64,128. Default: the grid of the Phaze paper.",
        ),
    ] = None
    explain: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V", help="Add the chosen chip with another value, such as glb_mib=64."),
    ] = None
    sequence: options.SequenceOption = None
    global_batch: options.PlannedBatchOption = None
    fix: Annotated[
        str | None,
        typer.Option(help="Fix fields of all layouts, such as cp=1,etp=1; fewer layouts are decided faster."),
    ] = None
    rank: Annotated[Rank, typer.Option(help="Step time that is compared: prudent or expected.")] = RANK
    objective: Annotated[
        ChipObjective,
        typer.Option(
            help="What the chip is chosen for: least step time, or least area (mm2), energy (J) or cost "
            "(price of the chips) per throughput."
        ),
    ] = "time"
    price_mm2: Annotated[
        float | None,
        typer.Option(
            help="Price of a mm2 of die with yield and packaging, such as 0.3USD, for --objective cost.",
            parser=options.money,
            metavar="PRICE",
        ),
    ] = None
    price_gib: Annotated[
        float | None,
        typer.Option(help="Price of a GiB of HBM, such as 12USD.", parser=options.money, metavar="PRICE"),
    ] = None
    robust: Annotated[
        bool,
        typer.Option(
            "--robust",
            help="Choose the chip with the least regret over all models if bandwidths, vector cores, overlap "
            "or the load of experts are not as assumed. Takes a search per model and assumption.",
        ),
    ] = False
    gap: Annotated[
        float,
        typer.Option(help="Stop when each model's chip is proven within this share.", min=0, max=0.5),
    ] = GAP
    seconds: Annotated[
        float | None,
        typer.Option(help="Time limit of the search. Default: until the gap is closed.", metavar="N"),
    ] = None
    as_json: options.JsonOption = False
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File for the answer (JSON).")] = None
    page: Annotated[
        Path | None, typer.Option(help="Page of the answer (.html): charts and tables, in one file.")
    ] = None
