"""PALM's Tables I, IV and V beside ours, as rows of table tiled_besides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from phaze.config import load_technology
from phaze.runs.machine import TECHNOLOGY, Machine
from phaze.runs.rows import read_row
from phaze.runs.table import predict_rows
from phaze.spec.files import FOLDER
from phaze.spec.published_tiled import PublishedTiled
from phaze.spec.tiled_study import PrintedTable
from phaze.systems import load_cluster
from phaze.tables import TiledBesides
from phaze.tiled.published import Beside, grayskull_beside, ratios_beside

GPUS = "a100-selene"
"""System of the measured runs of Table IV."""
Row = dict[str, object]


@dataclass(frozen=True)
class Asked:
    """Which tables, beside which publication."""

    tables: tuple[PrintedTable, ...]
    published: PublishedTiled | None


def besides(asked: Asked, folder: Path = FOLDER) -> pd.DataFrame:
    """Return the tables asked for; Table IV only with the published rows."""
    rows = [row for table in asked.tables for row in _rows(table, asked.published, folder)]
    return TiledBesides.check(pd.DataFrame(rows)) if rows else TiledBesides.empty()


def _rows(table: PrintedTable, published: PublishedTiled | None, folder: Path) -> Iterator[Row]:
    if table == "IV":
        yield from _gpus(published, folder) if published else ()
        return
    for beside in ratios_beside(folder) if table == "I" else grayskull_beside(folder=folder):
        yield _row(beside)


def _row(beside: Beside) -> Row:
    return {
        "table": beside.table,
        "case": beside.case,
        "unit": beside.unit,
        "published": beside.published,
        "palm": beside.simulated or 0.0,
        "measured": 0.0,
        "ours": beside.ours,
        "explanation": beside.explanation,
    }


def _gpus(published: PublishedTiled, folder: Path) -> Iterator[Row]:
    """Yield the runs of Table IV as `simulate --runs` predicts them."""
    machine = Machine(*load_cluster(GPUS, folder), load_technology(TECHNOLOGY, folder))
    texts = [{key: str(value) for key, value in row.run.items()} for row in published.gpus.values()]
    found = predict_rows([read_row(row) for row in texts], machine)
    for (name, row), time_s, chosen in zip(
        published.gpus.items(), found["time_s"], found["microbatch_used"], strict=True
    ):
        batch = int(row.run["global_batch"])
        yield {
            "table": "IV",
            "case": name,
            "unit": "sequences per second",
            "published": row.printed,
            "palm": row.palm,
            "measured": batch / row.measured_s,
            "ours": batch / float(time_s),
            "explanation": f"{GPUS}, microbatch {chosen}; with attention and vocabulary, as measured",
        }
