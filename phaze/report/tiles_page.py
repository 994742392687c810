"""Page for an answer of `phaze tiles`: what limits the step, map of the tiles, timeline, memory and ports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd

from phaze.base.units import MIB, percent
from phaze.pages import tile_charts
from phaze.pages.document import FirstScreen, Items, Section, Sheet
from phaze.pages.page import Report, page_of
from phaze.pages.page_words import words_of
from phaze.pages.pipeline_picture import PipelinePicture, left_out, timeline_picture
from phaze.tiles.blocks import TileBlock
from phaze.tiles.on_tiles import TiledOutcome

WORDS = words_of("tiles")
ROWS, PASSES = 24, 96
"""Maximum number of stages, and of passes per stage, that the page draws."""
MOST_PORTS = 64
"""Maximum number of ports in the chart; of more, the busiest ones are drawn."""
Cells = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class TilesPage:
    """Page about one simulated step, with the table of all simulated combinations."""

    outcome: TiledOutcome
    sentences: Sequence[str]
    """Answer in words, the question first."""
    header: tuple[str, ...]
    rows: Cells
    """Cells of the table of all combinations, fastest first."""

    @cached_property
    def drawn(self) -> PipelinePicture:
        """Simulated pipeline, prepared for drawing."""
        picture = timeline_picture("", self.outcome.carried.timeline)
        return replace(picture, most_rows=ROWS, most_passes=PASSES)

    @cached_property
    def busy(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Share of the step for which each resource of the network is busy, in %."""
        return 100 * self.outcome.carried.busy_s / self.outcome.time_s

    def report(self) -> Report:
        """Build the page."""
        parts = (self.limits, self.map, self.timeline, self.memory, self.dram, self.assumed)
        sections = [section for part in parts for section in part()]
        return page_of("tiles.html", "step on tiles", self.answer(), sections, {})

    def answer(self) -> FirstScreen:
        """First screen: the question, the step and its limits, and all combinations."""
        row = self.outcome.row
        question, step, *details = self.sentences
        facts = (
            (f"{self.outcome.time_s:.4g} s", "time of a step"),
            (f"{float(str(row['samples_per_s'])):.4g}", "samples per second"),
            (percent(float(str(row["model_share"]))), "FLOPs of the model over the peak of all tiles"),
            (str(row["bound_by"]), "limits the step"),
        )
        sheet = Sheet("Simulated combinations, fastest first.", self.header, self.rows, marked=frozenset({0}))
        return FirstScreen(
            question, step, facts, sheet, " ".join(details), figures=("limits", "map", "timeline")
        )

    def limits(self) -> Iterator[Section]:
        """Yield the section on the busy shares of compute, links and ports."""
        outcome, topology = self.outcome, self.outcome.carried.topology
        work = 100 * outcome.carried.work_s[: len(outcome.run.groups)] / outcome.time_s
        parts = {
            "compute": work,
            "links": self.busy[outcome.traffic.links(topology)],
            "DRAM ports": self.busy[topology.buffers],
        }
        shares = pd.DataFrame(
            [
                (what, of, float(part(values)))
                for what, values in parts.items()
                for of, part in (("busiest", np.max), ("mean", np.mean))
                if values.size
            ],
            columns=["what", "of", "busy"],
        )
        chart = WORDS.chart("limits", partial(tile_charts.limits, shares), bound_by=outcome.row["bound_by"])
        sentence = WORDS.sentence(
            "contention", time_s=outcome.time_s, uncontended_s=outcome.uncontended_s, alone_s=outcome.alone_s
        )
        yield WORDS.section("limits", (chart, Items((sentence,))))

    def map(self) -> Iterator[Section]:
        """Yield the section with the maps of stages and links."""
        charts = [WORDS.chart("map", partial(tile_charts.tile_map, self._groups()))]
        links = pd.DataFrame(self.outcome.link_rows)
        if len(links):
            cells = WORDS.sentences["cells"] if self._aggregated else ""
            charts.append(WORDS.chart("links", partial(tile_charts.heat, links), cells=cells))
        yield WORDS.section("map", charts)

    @property
    def _aggregated(self) -> bool:
        return isinstance(self.outcome.run.groups[0], TileBlock)

    def _groups(self) -> pd.DataFrame:
        """Rectangles of the stages, one for each tile unless a stage is a block."""
        outcome = self.outcome
        # Rounded, because equal stages differ by rounding errors, which colours would show.
        busy = np.round(100 * outcome.carried.work_s / outcome.time_s, 3)
        rows = []
        for stage, tiles in enumerate(outcome.run.groups):
            if isinstance(tiles, TileBlock):
                places = [(tiles.row, tiles.column, tiles.row + tiles.rows, tiles.column + tiles.columns)]
            else:
                places = [
                    (row, column, row + 1, column + 1) for row, column in map(outcome.chip.grid.place, tiles)
                ]
            rows += [(stage, float(busy[stage]), *place) for place in places]
        return pd.DataFrame(rows, columns=["stage", "busy", "row", "column", "to_row", "to_column"])

    def timeline(self) -> Iterator[Section]:
        """Yield the section on the pipeline over time."""
        omitted = "".join(f" {sentence}" for sentence in left_out(self.drawn))
        yield WORDS.section("pipeline", [WORDS.chart("timeline", self.drawn.timeline, left_out=omitted)])

    def memory(self) -> Iterator[Section]:
        """Yield the section on the memory of a tile over time."""
        row, sram_bytes = self.outcome.row, self.outcome.chip.tile.sram_bytes
        chart = WORDS.chart(
            "memory", partial(self.drawn.memory), sram_mib=sram_bytes / MIB, strategy=row["strategy"]
        )
        yield WORDS.section("memory", [chart])

    def dram(self) -> Iterator[Section]:
        """Yield the section on the load of the memory ports, if there are any."""
        places = self.outcome.traffic.port_places(self.outcome.carried.topology)
        ports = pd.DataFrame(
            [
                (f"{row:.0f}, {column:.0f}", float(self.busy[k]), row, column)
                for k, (row, column) in places.items()
            ],
            columns=["port", "busy", "row", "column"],
        )
        if not len(ports):
            return
        few = ports.nlargest(MOST_PORTS, "busy").sort_values(["row", "column"])
        draw = partial(tile_charts.port_load, few)
        yield WORDS.section("dram", [WORDS.chart("ports", draw, count=len(few), ports=len(ports))])

    def assumed(self) -> Iterator[Section]:
        """Yield the section on how the step is simulated."""
        links = WORDS.sentences["groups" if self._aggregated else "each"]
        yield WORDS.section("assumed", [Items((links,))])
