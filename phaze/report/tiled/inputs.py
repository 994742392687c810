"""What the page of tiled accelerators is made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from phaze.spec.published_tiled import PrintedWafer, PublishedTiled
from phaze.spec.tiled_study import TiledCase, TiledStudy

RUN = "case", "system", "model", "layout", "placed", "tensor", "microbatches"
"""Columns that say which run it is."""
LAYOUTS = {"line": "line", "s-shaped": "S", "own": "own"}


@dataclass(frozen=True)
class TiledInputs:
    """Tables of all cases of a study."""

    tiled: TiledStudy
    runs: pd.DataFrame
    jobs: pd.DataFrame
    links: pd.DataFrame
    networks: pd.DataFrame
    besides: pd.DataFrame
    flops: float
    """Peak of the system of tiles that printed figures are scaled to, 16 bits; 0: no published results."""
    published: PublishedTiled | None = None

    def of(self, show: str) -> Iterator[tuple[str, TiledCase]]:
        """Yield the cases that are shown so."""
        yield from ((name, case) for name, case in self.tiled.cases.items() if case.show == show)

    def rows(self, case: str) -> pd.DataFrame:
        """Return the runs of a case."""
        return self.runs[self.runs["case"] == case]

    def compares_best(self, exchange: str) -> bool:
        """Return whether a reading of Figure 12 compares strategies with their best numbers of adapters."""
        given = self.tiled.exchanges.get(exchange)
        return given is None or given.compare == "best"

    def measured(self, row: PrintedWafer) -> float:
        """Return the samples per second of a measured run, scaled by peak from its GPUs to the tiles."""
        published = self.published
        assert published is not None
        return row.batch / row.measured_s * self.flops / (row.gpus * published.gpu_flops)


def mapped(row: pd.Series) -> str:
    """Return where a run lies, in short."""
    return f"{LAYOUTS[str(row['layout'])]}, {row['placed']}"
