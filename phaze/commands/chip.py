"""Choose the chip to build for some models: design, network and layout together, with a proof."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import typer

from phaze.base.errors import PhazeError
from phaze.base.extras import needs
from phaze.base.nearest import did_you_mean
from phaze.base.units import digits
from phaze.commands import options
from phaze.commands.chip_options import ChipOptions
from phaze.commands.output import INTERRUPTED, ended_at_once, refuse_outputs, stop_gently, telling
from phaze.commands.plan import questions_of
from phaze.commands.plan_options import PlanOptions
from phaze.commands.terminal import tell
from phaze.spec.names import REFERENCE_CHIP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from phaze.plan.answer.chip_choice import ChipChooser
    from phaze.plan.chips import Chips
    from phaze.spec.architecture import ArchitectureSpace
    from phaze.spec.chip_choice import ChipChoice, ChipPrices
    from phaze.spec.system import Cluster, Device

TEMPLATE = "h100-80gb"
"""Architecture beside the answer: the nearest design of the space to its template."""
Changes = list[tuple[str, list[object]]]
"""Keys of the chosen chip with other values."""
LEVEL = re.compile(r"(\d{1,8})@([0-9.]+(?:e[+-]?\d{1,3})?)")


@dataclass(frozen=True, eq=False)
class ChosenChip:
    """Answer to the options of `phaze chip`, with the search that found it."""

    choice: ChipChoice
    chooser: ChipChooser

    @property
    def interrupted(self) -> bool:
        """True if the user ended the search."""
        return self.chooser.limit.interrupted

    def page(self) -> str:
        """Page of the answer as HTML; it bounds every design."""
        from phaze.plan.answer.chip_designs import designs_of
        from phaze.report.chip_page import chip_page

        with telling("chip"):
            designs = designs_of(self.chooser)
        return chip_page(self.choice, designs).page


@options.takes(ChipOptions, {ChipOptions: "Options"})
def chip(request: ChipOptions) -> None:
    """Choose the accelerator to build for some models on a cluster.

    Of all designs within an area limit and all layouts of every model, the answer is the chip with the least
    step time in the geometric mean, the best chip of each model, and a proof of what any other design could
    gain at most. Other objectives are area, energy and cost per throughput. Beside it stand TPU v4 as built
    and the design nearest to an H100.
    """
    refuse_outputs(request.out, request.page)
    needs(*(["pandas"] if request.page is None else ["altair", "pandas"]))
    with ended_at_once():
        chosen = chosen_chip(request)
        from phaze.plan.answer.chip_words import choice_in_words
        from phaze.spec.documents import text_of, write_document

        choice = chosen.choice
        if request.out is not None:
            write_document(choice, request.out)
        if request.page is not None:
            from phaze.base.files import write_text

            write_text(request.page, chosen.page())
        typer.echo(text_of(choice) if request.as_json else choice_in_words(choice), nl=not request.as_json)
    if chosen.interrupted:
        raise typer.Exit(INTERRUPTED)


def chosen_chip(request: ChipOptions) -> ChosenChip:
    """Answer to the options; PhazeError for invalid ones."""
    options.refuse_unless_positive(
        "chip", seconds=request.seconds, price_mm2=request.price_mm2, price_gib=request.price_gib
    )
    changes = [_pair("--explain", text) for text in request.explain or ()]
    chooser, space = _prepared(request)
    stop_gently(chooser.limit)
    with telling("chip"):
        return ChosenChip(_choice(chooser, space, changes), chooser)


def _prepared(request: ChipOptions) -> tuple[ChipChooser, ArchitectureSpace]:
    """Chooser of the options, with its space of designs; PhazeError for invalid options."""
    # Checked before slow imports.
    hbm_gib = _capacities(request.hbm)
    grid = dict(_pair("--sweep", text) for text in request.sweep or ())
    names = [str(options.known_model(name.strip())) for name in request.models.split(",")]
    if len(set(names)) < len(names):
        raise PhazeError(f"chip: models must be distinct, got {request.models}", "name each once")
    from phaze.plan.answer.chip_choice import ChipChooser
    from phaze.plan.answer.chip_objectives import ChipGoal
    from phaze.plan.chips import chip_machine
    from phaze.plan.time_limit import TimeLimit
    from phaze.spec.architecture import load_technology
    from phaze.spec.systems import load_cluster

    space = _space(request, grid)
    goal = ChipGoal(request.objective, load_technology(space.technology), _prices(request))
    cluster, device = load_cluster(request.system)
    networks = {text: _network(text, cluster, request.devices) for text in request.network or ()}
    if len(networks) > 1 and not request.robust:
        raise PhazeError(
            f"chip: --network: {len(networks)} networks are cases of --robust, which is not given",
            "add --robust, or name one network",
        )
    if networks:
        # The first network is assumed, and the others are cases.
        cluster = networks.pop(next(iter(networks)))
    chips = _chips(space, cluster, device, hbm_gib)
    machine = chip_machine(cluster, device)
    on_chips = machine.on_architecture(chips[0], machine.stack), chips
    shared = ("sequence", "global_batch", "rank", "fix")
    planned = PlanOptions(model="", **{name: getattr(request, name) for name in shared})
    number = str(request.devices)
    requests = [
        questions_of(replace(planned, model=name), request.system, number, on_chips)[0] for name in names
    ]
    limit = TimeLimit(request.seconds or inf)
    return ChipChooser(tuple(requests), request.gap, limit, goal, request.robust, networks=networks), space


def _prices(request: ChipOptions) -> ChipPrices | None:
    """Prices of the parts of a chip; None without any, PhazeError for one alone or for two currencies."""
    from phaze.spec.chip_choice import ChipPrices

    prices = request.price_mm2, request.price_gib
    if None in prices:
        if prices != (None, None):
            missing = "--price-mm2" if prices[0] is None else "--price-gib"
            raise PhazeError(f"chip: {missing} is missing", "pass both prices, or leave both out")
        return None
    currencies = [getattr(price, "currency", "") for price in prices]
    if len(set(currencies)) > 1:
        raise PhazeError(
            f"chip: --price-gib: must have the currency of --price-mm2, {currencies[0] or 'none'}, "
            f"got {currencies[1] or 'none'}"
        )
    per_mm2, per_gib = (float(price) for price in prices if price is not None)
    return ChipPrices(per_mm2=per_mm2, per_gib=per_gib, currency=currencies[0] or None)


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
    from phaze.spec.architecture import ArchitectureSpace

    amount = re.fullmatch(r"([0-9.]+)\s*(?:mm2|mm²)?", request.area_limit)
    limit: float | str = float(amount[1]) if amount else request.area_limit
    # The grid leaves out small designs, as no fast one is small; for other objectives one may be the best.
    small = {} if request.objective == "time" else {"minimum_area_share": None}
    return ArchitectureSpace.parse(
        {"grid": {**grid, **small}, "area_limit_mm2": limit, "technology": request.technology}, "chip"
    )


def _chips(space: ArchitectureSpace, cluster: Cluster, device: Device, hbm_gib: Sequence[float]) -> Chips:
    """Chips of a space with each HBM capacity; PhazeError if no design is within the area limit."""
    from phaze.plan.chips import designs_within_area

    within = designs_within_area(space, cluster, device, hbm_gib)
    if not within:
        grid = space.grid and space.grid.model_copy(update={"minimum_area_share": None})
        every = space.model_copy(update={"area_limit_mm2": 1e6, "grid": grid})
        areas = designs_within_area(every, cluster, device, hbm_gib)
        least, most = (end(design.area_mm2 or inf for design in areas) for end in (min, max))
        share = (space.grid and space.grid.minimum_area_share) or 0.0
        shares = f"{100 * share:.0f} to 100 %"
        raise PhazeError(
            f"chip: --area-limit {space.area_limit_mm2}: no design of the grid has {shares} of that area",
            f"designs take {digits(least)} to {digits(most)} mm2",
        )
    if len(within) == 1:
        raise PhazeError(
            f"chip: the space has only the design {within[0].name}",
            "pass more values with --sweep, or a larger --area-limit",
        )
    return within


def _choice(chooser: ChipChooser, space: ArchitectureSpace, changes: Changes) -> ChipChoice:
    """Answer of a chooser, with the chosen chip under each change and the references."""
    from phaze.plan.answer.chip_choice import nearest_chip
    from phaze.spec.config import load_architecture

    tell(f"chip: build {chooser.chips[chooser.chosen].name}; now comparing it with other chips")
    others = [chooser.changed(key, value) for key, values in changes for value in values]
    others.append(chooser.outside(load_architecture(REFERENCE_CHIP), "built"))
    template = nearest_chip(chooser.chips, load_architecture(TEMPLATE))
    others.append(chooser.outside(template, "template"))
    return chooser.choice(space, others)
