"""Simulate a model on groups of tiles event by event: step time, what limits it, memory, trace and page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phaze.base.units import GIB, digits, percent
from phaze.commands import completion, options
from phaze.commands.output import refuse_outputs, telling
from phaze.commands.settings import given_settings, setting_params
from phaze.commands.tables import Titled, counts, print_rows
from phaze.commands.terminal import Verb

if TYPE_CHECKING:
    from phaze.commands.tables import Row
    from phaze.spec.models import AnyModel
    from phaze.spec.tiled_study import TiledPoint
    from phaze.tiles.chip import Chip
    from phaze.tiles.on_tiles import TiledOutcome

Simulated = list[tuple[dict[str, object], "TiledOutcome"]]
DECLARED = ("model", "system", "show")
"""Fields of `TiledPoint` that are options of this module, or the same for every simulation."""
RESOURCES = {"compute": "compute", "links": "links", "dram": "DRAM", "pipeline": "the pipeline"}
"""Names in sentences of the resources that may bound a step."""
COLUMNS = (
    Titled("mapping", "mapping"),
    counts("tensor", "t"),
    counts("data", "d"),
    counts("stages", "s"),
    counts("microbatches", "microbatches"),
    Titled("time_s", "step s", lambda value: digits(float(str(value)), 4), right=True),
    counts("samples_per_s", "samples/s"),
    counts("tokens_per_s", "tokens/s"),
    Titled("model_share", "utilisation", lambda value: percent(float(str(value))), right=True),
    Titled("bound_by", "bound by"),
    counts("tile_gib", "GiB/tile"),
)


class TilesVerb(Verb):
    """Command with an option for every setting of a simulation on tiles."""

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401  # Typer's own types are private
        """Options of the command; the nouns are imported only when the command is used."""
        from phaze.spec.tiled_study import TiledPoint

        names = {param.name for param in self.params}
        self.params += [p for p in setting_params(TiledPoint, DECLARED) if p.name not in names]
        return super().get_params(ctx)


@dataclass(frozen=True, kw_only=True)
class TilesOptions:
    """Options of `phaze tiles`: model, system, and output files."""

    context: typer.Context
    model: options.ModelOption
    system: Annotated[str, typer.Option(callback=options.known_system, autocompletion=completion.systems)] = (
        "wafer"
    )
    """System of tiles, or a cluster whose devices are the tiles: a name in config/systems, or a path."""
    trace: Path | None = None
    """File for a trace of the step, for Perfetto or chrome://tracing."""
    page: Path | None = None
    """Page of the step (.html): map of the tiles, timeline, memory and DRAM ports."""
    out: Annotated[Path | None, typer.Option("-o", "--out")] = None
    """Folder for the tables of runs, jobs and links (CSV)."""
    as_json: options.JsonOption = False


@options.takes(TilesOptions)
def tiles(request: TilesOptions) -> None:
    """Simulate a model on groups of tiles of a tiled accelerator, event by event.

    Prints the time of a step, its throughput, what limits it, utilisation, and the memory of a tile. Options
    with several values separated by commas are simulated in every combination, fastest first.
    """
    refuse_outputs(request.trace, request.page, reads=(request.model, request.system))
    from phaze.tiles.on_tiles import outcomes

    model, point, chip = _question(request)
    with telling("tiles"):
        simulated = sorted(
            outcomes("tiles", point, model, chip),
            key=lambda keyed: keyed[1].time_s / keyed[1].run.samples,
        )
    rows = [_row(point, *keyed) for keyed in simulated]
    _write(request, point, simulated, rows)
    if request.as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    for sentence in _sentences(rows[0], simulated[0][1]):
        typer.echo(sentence)
    if len(rows) > 1:
        typer.echo()
        print_rows(rows, COLUMNS)


def _question(request: TilesOptions) -> tuple[AnyModel, TiledPoint, Chip]:
    """Model, settings and tiles of the simulation; PhazeError names the option of an invalid value."""
    from phaze.spec.model import Model
    from phaze.spec.models import load_model_named
    from phaze.spec.tiled_study import TiledPoint
    from phaze.tiles.chip import load_chip
    from phaze.tiles.runs import default_batch

    model = load_model_named(request.model)
    settings = given_settings(request.context, TiledPoint)
    named = {"show": "pipeline", "system": Path(request.system).stem, "model": model.name}
    point = TiledPoint.parse({"batch": 1, **settings, **named}, "tiles")
    if isinstance(model, Model) and "sequence" not in settings and model.position_count:
        shorter = min(point.sequence, model.position_count)
        point = point.model_copy(update={"sequence": shorter})
    chip = load_chip(request.system, point.devices)
    if "batch" not in settings:
        point = point.model_copy(update={"batch": default_batch(point, chip)})
    return model, point, chip


def _row(point: TiledPoint, key: dict[str, object], outcome: TiledOutcome) -> Row:
    """Row of the answer: the run's row of table `tiled_runs`, tokens per second, and memory of a tile."""
    peaks = outcome.carried.timeline.peak_bytes
    tokens = 1 if point.inference == "decode" else outcome.run.chain.sequence
    return {
        "system": point.system,
        "model": point.model,
        **{name: value for name, value in key.items() if name not in ("case", "system", "model")},
        "mapping": f"{key['layout']}, {key['placed']}",
        **outcome.row,
        "sequence": outcome.run.chain.sequence,
        "tokens_per_s": outcome.samples_per_s * tokens,
        "parts_by_stage": [*outcome.run.parts_of],
        "tile_gib": float(peaks.max()) / GIB,
        "tile_gib_by_stage": [peak / GIB for peak in peaks.tolist()],
    }


def _sentences(row: Row, outcome: TiledOutcome) -> Iterator[str]:
    """Answer in words: the mapping, the step, its limits, and the memory of a tile."""
    used = sum(len(tiles) for tiles in outcome.run.groups)
    grid = outcome.chip.sites
    yield (
        f"{row['model']} on {row['system']}: {row['stages']} stages on {used:,} of {grid.tiles:,} tiles "
        f"({grid.rows} × {grid.columns}), tensor {row['tensor']} × data {row['data']} in each, "
        f"{row['microbatches']} microbatches, {row['batch']:,} samples"
        + (f" of {row['sequence']:,} tokens" if outcome.run.chain.sequence > 1 else "")
    )
    yield (
        f"step {digits(outcome.time_s, 4)} s: {digits(float(str(row['samples_per_s'])))} samples/s, "
        f"{digits(float(str(row['tokens_per_s'])))} tokens/s; bound by {RESOURCES[str(row['bound_by'])]}"
    )
    yield (
        f"without contention {digits(outcome.uncontended_s, 4)} s, without communication and memory accesses "
        f"{digits(outcome.alone_s, 4)} s"
    )
    shares = {
        "compute": "compute_share",
        "busiest link": "most_link_share",
        "busiest DRAM port": "most_dram_share",
        "FLOPs of the model over the peak": "model_share",
    }
    yield "share of the step: " + ", ".join(
        f"{name} {percent(float(str(row[key])))}" for name, key in shares.items()
    )
    yield (
        f"memory of a tile: at most {digits(float(str(row['tile_gib'])))} GiB, of which SRAM has "
        f"{digits(outcome.chip.tile.sram_bytes / GIB)} GiB; tensors in it by strategy {row['strategy']}"
    )


def _write(request: TilesOptions, point: TiledPoint, simulated: Simulated, rows: Sequence[Row]) -> None:
    """Write the requested trace, page and tables; trace and page show the fastest run."""
    from phaze.tiles.on_tiles import tables_of

    fastest = simulated[0][1]
    if request.trace is not None:
        from phaze.pipeline.trace import write_trace

        write_trace(fastest.carried.timeline, request.trace)
    if request.page is not None:
        from phaze.base.files import write_text
        from phaze.report.tiles_page import TilesPage

        cells = tuple(tuple(column.cell(row) for column in COLUMNS) for row in rows)
        header = tuple(column.title for column in COLUMNS)
        page = TilesPage(fastest, [*_sentences(rows[0], fastest)], header, cells)
        write_text(request.page, page.report().page)
    if request.out is not None:
        from phaze.base.files import write_text
        from phaze.pages.page import as_csv

        request.out.mkdir(parents=True, exist_ok=True)
        for name, frame in tables_of(point, simulated).items():
            write_text(request.out / f"{name}.csv", as_csv(frame))
