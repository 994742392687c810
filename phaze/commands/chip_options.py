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

    models: Annotated[str, typer.Argument(autocompletion=completion.models)]
    """Models to train: names in config/models or paths, separated by commas."""
    devices: Annotated[int, typer.Option(min=1)] = 1024
    """Number of chips that train each model."""
    network: Annotated[list[str] | None, typer.Option(metavar="N@RATE,...")] = None
    """Network levels, innermost first: devices@bytes per second and direction of a device, such as
    8@450e9,1024@50e9. Default: the system's. Given again: one more case of --robust."""
    system: Annotated[str, typer.Option(callback=options.known_system, autocompletion=completion.systems)] = (
        SYSTEM
    )
    """System with the network, the clock and the HBM bandwidth of the chips."""
    area_limit: Annotated[str, typer.Option(metavar="AREA")] = "tpu-v4"
    """Largest area of a chip, such as 600mm2, or an architecture whose area is the limit."""
    technology: Annotated[str, typer.Option(metavar="NAME")] = "22nm"
    """Areas and energies of parts: 22nm, 16nm, 14nm, 10nm, 7nm or 5nm."""
    hbm: Annotated[str | None, typer.Option(metavar="GIB,...")] = None
    """HBM capacities in GiB, separated by commas. Default: the system's."""
    sweep: Annotated[list[str] | None, typer.Option(metavar="KEY=A,B")] = None
    """Values of a key of the designs, such as pe_x=64,128. Default: the grid of the Phaze paper."""
    explain: Annotated[list[str] | None, typer.Option(metavar="KEY=V")] = None
    """Add the chosen chip with another value, such as glb_mib=64."""
    sequence: options.SequenceOption = None
    global_batch: options.PlannedBatchOption = None
    fix: str | None = None
    """Fix fields of all layouts, such as cp=1,etp=1; fewer layouts are decided faster."""
    rank: Rank = RANK
    """Step time that is compared: prudent or expected."""
    objective: ChipObjective = "time"
    """What the chip is chosen for: least step time, or least area (mm2), energy (J) or cost (price of the
    chips) per throughput."""
    price_mm2: Annotated[float | None, typer.Option(parser=options.money, metavar="PRICE")] = None
    """Price of a mm2 of die with yield and packaging, such as 0.3USD, for --objective cost."""
    price_gib: Annotated[float | None, typer.Option(parser=options.money, metavar="PRICE")] = None
    """Price of a GiB of HBM, such as 12USD."""
    robust: bool = False
    """Choose the chip with the least regret over all models if bandwidths, vector cores, overlap or the load
    of experts are not as assumed. Takes a search per model and assumption."""
    gap: Annotated[float, typer.Option(min=0, max=0.5)] = GAP
    """Stop when each model's chip is proven within this share."""
    seconds: Annotated[float | None, typer.Option(metavar="N")] = None
    """Time limit of the search. Default: until the gap is closed."""
    as_json: options.JsonOption = False
    out: Annotated[Path | None, typer.Option("-o", "--out")] = None
    """File for the answer (JSON)."""
    page: Path | None = None
    """Page of the answer (.html): charts and tables, in one file."""
