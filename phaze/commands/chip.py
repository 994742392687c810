"""Choose the chip to build for some models: design, network and layout together, with a proof."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.base.extras import needs
from phaze.base.nearest import did_you_mean
from phaze.base.units import digits
from phaze.commands import completion, options
from phaze.commands.output import INTERRUPTED, ended_at_once, refuse_outputs, stop_gently, telling
from phaze.commands.place_options import SYSTEM
from phaze.commands.plan import questions_of
from phaze.commands.plan_options import PlanOptions
from phaze.commands.terminal import tell
from phaze.spec.names import RANK, Rank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from phaze.plan.answer.chip_choice import ChipChooser
    from phaze.plan.chips import Chips
    from phaze.plan.time_limit import TimeLimit
    from phaze.spec.architecture import Architecture
    from phaze.spec.chip_choice import ChipChoice, ChipQuestion
    from phaze.spec.study import ArchitectureSpace
    from phaze.spec.system import Cluster, Device

BUILT, TEMPLATE = "tpu-v4-as-built", "h100-80gb"
"""Architectures beside the answer: as it was built, and the nearest design of the space to its template."""
GAP = 0.01
"""Default gap of the search on each model."""
LEVEL = re.compile(r"(\d{1,8})@([0-9.]+(?:e[+-]?\d{1,3})?)")


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
        str | None,
        typer.Option(
            help="Network levels, innermost first: devices@bytes per second and direction of a device, such "
            "as 8@450e9,1024@50e9. Default: the system's.",
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
    global_batch: Annotated[
        int | None,
        typer.Option(
            "--global-batch",
            "--gbs",
            help="Samples in a global batch. Default: 4 Mi tokens, or 1,024 tokens per device if more.",
            parser=options.count,
            metavar="N",
        ),
    ] = None
    fix: Annotated[
        str | None,
        typer.Option(help="Fix fields of all layouts, such as cp=1,etp=1; fewer layouts are decided faster."),
    ] = None
    rank: Annotated[Rank, typer.Option(help="Step time that is compared: prudent or expected.")] = RANK
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


@options.takes(ChipOptions, {ChipOptions: "Options"})
def chip(request: ChipOptions) -> None:
    """Choose the accelerator to build for some models on a cluster.

    Of all designs within an area limit and all layouts of every model, the answer is the chip with the least
    step time in the geometric mean, the best chip of each model, and a proof of what any other design could
    gain at most. Beside it stand TPU v4 as built and the design nearest to an H100.
    """
    refuse_outputs(request.out)
    with ended_at_once():
        choice, interrupted = chosen_chip(request)
        from phaze.plan.answer.chip_words import choice_in_words
        from phaze.spec.documents import text_of, write_document

        if request.out is not None:
            write_document(choice, request.out)
        typer.echo(text_of(choice) if request.as_json else choice_in_words(choice), nl=not request.as_json)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def chosen_chip(request: ChipOptions) -> tuple[ChipChoice, bool]:
    """Answer to the options, and whether the user ended the search."""
    options.refuse_unless_positive("chip", seconds=request.seconds)
    chooser, question, limit = _prepared(request)
    stop_gently(limit)
    with telling("chip"):
        choice = _choice(chooser, question, request)
    return choice, limit.interrupted


def _prepared(request: ChipOptions) -> tuple[ChipChooser, ChipQuestion, TimeLimit]:
    """Chooser of the options, with its question and time limit; PhazeError for invalid options."""
    # Checked before slow imports.
    hbm_gib = _capacities(request.hbm)
    grid = dict(_pair("--sweep", text) for text in request.sweep or ())
    for text in request.explain or ():
        _pair("--explain", text)
    names = [str(options.known_model(name.strip())) for name in request.models.split(",")]
    if len(set(names)) < len(names):
        raise PhazeError(f"chip: models must be distinct, got {request.models}", "name each once")
    needs("pandas")
    from phaze.plan.answer.chip_choice import ChipChooser
    from phaze.plan.chips import chip_machine
    from phaze.plan.time_limit import TimeLimit
    from phaze.spec.architecture import load_technology
    from phaze.spec.chip_choice import ChipQuestion, ModelOnChips
    from phaze.spec.systems import load_cluster

    cluster, device = load_cluster(request.system)
    if request.network is not None:
        cluster = _network(request.network, cluster, request.devices)
    space = _space(request, grid)
    chips = _chips(space, cluster, device, hbm_gib)
    machine = chip_machine(cluster, device)
    on_chips = machine.on_architecture(chips[0], machine.stack), chips
    shared = ("sequence", "global_batch", "rank", "fix")
    planned = PlanOptions(model="", **{name: getattr(request, name) for name in shared})
    number = str(request.devices)
    requests = [
        questions_of(replace(planned, model=name), request.system, number, on_chips)[0] for name in names
    ]
    question = ChipQuestion(
        models=tuple(
            ModelOnChips(model=asked.model.name, sequence=asked.sequence, global_batch=asked.global_batch)
            for asked in requests
        ),
        devices=request.devices,
        cluster=cluster,
        space=space,
        hbm_gib=tuple(sorted({chip.hbm_gib for chip in chips if chip.hbm_gib})),
        rank=request.rank,
        gap=request.gap,
    )
    limit = TimeLimit(request.seconds or inf)
    technology = load_technology(space.technology)
    return ChipChooser(tuple(requests), request.gap, limit, technology), question, limit


def _capacities(text: str | None) -> tuple[float, ...]:
    """HBM capacities in GiB; PhazeError if malformed."""
    if text is None:
        return ()
    try:
        capacities = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise PhazeError(
            f"chip: --hbm: must be GiB separated by commas, got {text}", "--hbm 64,96"
        ) from error
    if not all(0 < capacity < inf for capacity in capacities):
        raise PhazeError(f"chip: --hbm: must be positive, got {text}", "--hbm 64,96")
    return capacities


def _pair(option: str, text: str) -> tuple[str, list[object]]:
    """Key of an architecture with its values; PhazeError if malformed."""
    from phaze.spec.architecture import GRID_SIZES
    from phaze.spec.strict_yaml import load

    key, equals, values = text.partition("=")
    if not (key and equals and values):
        raise PhazeError(f"chip: {option}: must be KEY=VALUE, such as glb_mib=64, got {text}")
    if key not in GRID_SIZES:
        raise PhazeError(
            f"chip: {option}: {key}: is not a size of a design; it may be {', '.join(GRID_SIZES)}",
            did_you_mean(key, GRID_SIZES, "config/reference/architectures.md"),
        )
    return key, [load(value) for value in values.split(",")]


def _network(text: str, cluster: Cluster, devices: int) -> Cluster:
    """Cluster with the levels of --network; PhazeError if they are malformed or have too few devices."""
    from phaze.spec.system import Cluster

    parts = [LEVEL.fullmatch(part.strip()) for part in text.split(",")]
    if not all(parts):
        raise PhazeError(
            f"chip: --network: must be DEVICES@BYTES_PER_S of every level, got {text}",
            "--network 8@450e9,1024@50e9",
        )
    levels = [
        {"devices": int(part[1]), "bandwidth_bytes_per_s": float(part[2])}
        for part in parts
        if part is not None
    ]
    if (largest := max(int(str(level["devices"])) for level in levels)) < devices:
        raise PhazeError(
            f"chip: --network: has {largest:,} devices, and --devices asks for {devices:,}",
            f"give the outermost level at least {devices:,} devices",
        )
    return Cluster.parse({"device": cluster.device, "levels": levels}, "chip: --network")


def _space(request: ChipOptions, grid: Mapping[str, object]) -> ArchitectureSpace:
    """Space of designs within the area limit."""
    from phaze.spec.study import ArchitectureSpace

    amount = re.fullmatch(r"([0-9.]+)\s*(?:mm2|mm²)?", request.area_limit)
    limit: float | str = float(amount[1]) if amount else request.area_limit
    return ArchitectureSpace.parse(
        {"grid": dict(grid), "area_limit_mm2": limit, "technology": request.technology}, "chip"
    )


def _chips(space: ArchitectureSpace, cluster: Cluster, device: Device, hbm_gib: Sequence[float]) -> Chips:
    """Chips of a space with each HBM capacity; PhazeError if no design is within the area limit."""
    from phaze.plan.chips import architectures_of, chips_of

    interfaces = {
        "hbm_bandwidth_bytes_per_s": device.hbm_bandwidth_bytes_per_s,
        "link_bandwidth_bytes_per_s": cluster.levels[0].bandwidth_bytes_per_s,
    }

    def designs(space: ArchitectureSpace) -> list[Architecture]:
        """Designs with each capacity, whose interfaces to HBM and links are part of their area."""
        return [
            design
            for capacity in hbm_gib or (device.hbm_gib,)
            for design in architectures_of(space, shared={**interfaces, "hbm_gib": capacity})
        ]

    within = designs(space)
    if not within:
        every = designs(space.model_copy(update={"area_limit_mm2": 1e6}))
        least = min(design.area_mm2 or inf for design in every)
        raise PhazeError(
            f"chip: --area-limit {space.area_limit_mm2}: no design of the grid is that small",
            f"the smallest one takes {digits(least)} mm2",
        )
    if len(within) == 1:
        raise PhazeError(
            f"chip: the space has only the design {within[0].name}",
            "pass more values with --sweep, or a larger --area-limit",
        )
    return chips_of(within, device)


def _choice(chooser: ChipChooser, question: ChipQuestion, request: ChipOptions) -> ChipChoice:
    """Answer of a chooser, with the chips of --explain and the references."""
    from phaze.plan.answer.chip_choice import nearest_chip
    from phaze.spec.chip_choice import ChipChoice
    from phaze.spec.config import load_architecture
    from phaze.spec.measured import PublishedRuns

    changes = [_pair("--explain", text) for text in request.explain or ()]
    chosen = chooser.row(chooser.chosen, "all")
    tell(f"chip: build {chosen.chip.name}; now comparing it with other chips")
    others = [*chooser.others()]
    others += [chooser.changed(key, value) for key, values in changes for value in values]
    others.append(chooser.outside(load_architecture(BUILT), "built"))
    template = nearest_chip(chooser.chips, load_architecture(TEMPLATE))
    others.append(chooser.outside(template, "template"))
    return ChipChoice(
        question=question,
        designs=len({chip.name for chip in chooser.chips}),
        chosen=chosen,
        others=tuple(others),
        bounds=chooser.bounds,
        gap=chooser.largest_gain,
        stopped=chooser.limit.reason or None,
        trust=PublishedRuns.load().trust,
    )
