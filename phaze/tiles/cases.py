"""The cases of a study on tiles, simulated: rows of tables tiled_runs, tiled_jobs and tiled_links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import pandas as pd

from phaze.base.errors import PhazeError
from phaze.pipeline.rows import job_rows
from phaze.spec.model import Model
from phaze.spec.tiled_study import Layout, TiledPoint
from phaze.tables import Table, TiledJobs, TiledLinks, TiledRuns
from phaze.tiles.chip import Chip
from phaze.tiles.mapping import Placed, Tiles, line, own, s_shaped
from phaze.tiles.on_tiles import OnTiles, TiledRun, simulate_on_tiles
from phaze.tiles.operators import communication_size

Row = dict[str, object]


@dataclass(frozen=True)
class Choice:
    """One combination of what a point lists."""

    layout: Layout
    placed: Placed
    tensor: int
    microbatches: int

    def key(self, case: str, point: TiledPoint) -> Row:
        """Return the columns that say which run it is."""
        return {"case": case, "system": point.system, "model": point.model, **vars(self)}


def simulate_point(case: str, point: TiledPoint, model: Model, chip: Chip) -> dict[str, pd.DataFrame]:
    """Return the tables of a point; jobs and links only of a case that shows its pipeline."""
    rows: dict[type[Table], list[Row]] = {TiledRuns: [], TiledJobs: [], TiledLinks: []}
    for choice in choices(point):
        found = simulate_on_tiles(chip, run_of(chip, point, model, choice))
        key = choice.key(case, point)
        rows[TiledRuns].append(key | run_row(found))
        if point.show == "pipeline":
            rows[TiledJobs] += [key | row for row in job_rows(found.carried.timeline)]
            rows[TiledLinks] += [key | row for row in link_rows(found)]
    return {
        table.name: table.check(pd.DataFrame(some, columns=list(table.fields()))) if some else table.empty()
        for table, some in rows.items()
    }


def choices(point: TiledPoint) -> Iterator[Choice]:
    """Yield every combination."""
    for combination in product(point.layouts, point.placed, point.tensor, point.microbatches):
        yield Choice(*combination)


def run_of(chip: Chip, point: TiledPoint, model: Model, choice: Choice) -> TiledRun:
    """Return what is simulated; raise PhazeError where tiles cannot be divided so."""
    groups = mapping(chip, point, choice.layout)
    size = len(groups[0])
    if size % choice.tensor:
        raise PhazeError(f"tiled: tensor must divide the {size} tiles of a stage, got {choice.tensor}")
    return TiledRun(
        model.layers, model.hidden, model.heads, point.sequence, point.batch, choice.microbatches,
        size // choice.tensor, choice.tensor, groups, choice.placed,
    )  # fmt: skip


def mapping(chip: Chip, point: TiledPoint, layout: Layout) -> tuple[Tiles, ...]:
    """Return the tiles of every stage: rows, blocks along an S, or a user's own."""
    if layout == "own":
        return own(chip.grid, point.own or ())
    if layout == "line":
        return line(chip.grid, point.stages)
    return s_shaped(chip.grid, *_block(chip, point.stages))


def _block(chip: Chip, stages: int) -> tuple[int, int]:
    """Return the rows and columns of a stage's block: the chip's own if they fit, else the squarest."""
    size, left = divmod(chip.grid.tiles, stages)
    shapes = [
        (rows, size // rows)
        for rows in range(1, size + 1)
        if size % rows == 0 and chip.grid.rows % rows == 0 and chip.grid.columns % (size // rows) == 0
    ]
    if left or not shapes:
        raise PhazeError(
            f"tiled: {stages} stages cannot fill {chip.grid.rows} × {chip.grid.columns} tiles as blocks"
        )
    return min(shapes, key=lambda shape: (shape != chip.wires.block, sum(shape)))


def run_row(found: OnTiles) -> Row:
    """Return the row of table tiled_runs, without its key."""
    run = found.run
    tiles = len(run.groups[0])
    return {
        "data": run.data,
        "stages": len(run.groups),
        "batch": run.samples,
        "time_s": found.time_s,
        "samples_per_s": found.samples_per_s,
        "alone_s": found.alone_s,
        "uncontended_s": found.uncontended_s,
        "compute_share": found.compute_share,
        "model_share": found.model_share,
        "link_busy_s": found.link_busy_s,
        "most_link_share": found.most_link_share,
        "dram_share": found.dram_share,
        "most_dram_share": found.most_dram_share,
        "bound_by": found.bound_by,
        "strategy": ",".join(dict.fromkeys(found.strategies)),
        "layer_bytes": communication_size(run.samples, run.sequence, run.hidden, run.tensor, tiles),
        "sent_bytes": float(found.carried.sent_bytes.sum()),
        "received_bytes": float(found.carried.received_bytes.sum()),
    }


def link_rows(found: OnTiles) -> Iterator[Row]:
    """Yield the links between tiles."""
    topology, grid = found.chip.topology, found.chip.grid
    busy = found.carried.busy_s / found.time_s
    for number, link in enumerate(topology.links):
        if max(link.source, link.target) >= grid.tiles:
            continue
        (row, column), (to_row, to_column) = grid.place(link.source), grid.place(link.target)
        yield {
            "link": number,
            "source_row": row,
            "source_column": column,
            "target_row": to_row,
            "target_column": to_column,
            "bytes": float(found.carried.link_bytes[number]),
            "busy_share": float(busy[topology.resource_of[number]]),
        }
