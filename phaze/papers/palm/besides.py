"""PALM's Tables I, IV and V compared with our figures, as rows of table tiled_besides."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

from phaze.papers.palm.hardware import inference_beside, ratios_beside
from phaze.papers.palm.published import MeasuredRun, PublishedTiled
from phaze.plan.machines import device_of, load_machine
from phaze.plan.plan import Machine
from phaze.spec.files import FOLDER
from phaze.spec.tiled_study import PrintedTable
from phaze.tables import TiledBesides
from phaze.validate.rows import RunRow, read_row
from phaze.validate.table import fitted_sustained_hbm, predict_rows, with_sustained_hbm

GPUS = "a100-selene"
"""System of the measured runs of Table IV."""
SEEN = "constants of the device's file, fitted on ten runs among others, these six among them"
UNSEEN = "share of HBM's bandwidth fitted on the other four of the ten runs; the clock has seen all ten"
"""Readings of Table IV, by the overlap of its runs with those that the machine's constants are fitted on."""
Row = dict[str, object]


def besides(
    asked: Iterable[PrintedTable], published: PublishedTiled | None, folder: Path = FOLDER
) -> pd.DataFrame:
    """Table tiled_besides for the requested tables; Table IV needs the published rows."""
    rows = [row for table in asked for row in _rows(table, published, folder)]
    return TiledBesides.check(pd.DataFrame(rows)) if rows else TiledBesides.empty()


def _rows(table: PrintedTable, published: PublishedTiled | None, folder: Path) -> Iterator[Row]:
    if table == "IV":
        yield from _gpus(published, folder) if published else ()
    else:
        yield from ratios_beside(folder) if table == "I" else inference_beside(folder=folder)


def _gpus(published: PublishedTiled, folder: Path) -> Iterator[Row]:
    """Yield the runs of Table IV, predicted as by `simulate --runs`, with seen and unseen fits."""
    machine = load_machine(GPUS, folder)
    yield from _gpus_on(machine, published, SEEN)
    if published.other_runs:
        share = fitted_sustained_hbm([_run(row) for row in published.other_runs.values()], machine)
        yield from _gpus_on(with_sustained_hbm(machine, share), published, UNSEEN)


def _gpus_on(machine: Machine, published: PublishedTiled, reading: str) -> Iterator[Row]:
    found = predict_rows([_run(row) for row in published.gpus.values()], machine)
    for (name, row), time_s, chosen in zip(
        published.gpus.items(), found["time_s"], found["microbatch_used"], strict=True
    ):
        batch = int(row.run["global_batch"])
        yield {
            "table": "IV",
            "case": name,
            "reading": reading,
            "unit": "sequences per second",
            "published": row.printed,
            "palm": row.palm,
            "measured": batch / row.measured_s,
            "ours": batch / float(time_s),
            "explanation": (
                f"{GPUS}, {device_of(machine).sustained_hbm:.2f} of HBM's bandwidth, microbatch {chosen}; "
                "with attention and vocabulary, as measured"
            ),
        }


def _run(row: MeasuredRun) -> RunRow:
    texts = {key: str(value) for key, value in row.run.items()}
    return read_row({**texts, "measured_s": str(row.measured_s)})
