"""What PALM prints of tiled accelerators beside ours, table by table, as rows for a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phaze.spec.files import FOLDER
from phaze.tiles.grayskull import table_v
from phaze.tiles.group import Fidelity
from phaze.tiles.ratios import table_i


@dataclass(frozen=True)
class Beside:
    """A printed number beside ours."""

    table: str
    case: str
    reading: str
    """How the row is read."""
    unit: str
    published: float
    """What was published of the hardware: a ratio of Table I, a measured throughput."""
    simulated: float | None
    """What PALM simulates, where it does."""
    ours: float
    explanation: str
    """How ours comes about, and why it differs where it does."""

    @property
    def error(self) -> float:
        """Return the relative difference from the published number."""
        return self.ours / self.published - 1


def ratios_beside(folder: Path = FOLDER) -> list[Beside]:
    """Return the rows of Table I; `published` is the paper's own ratio."""
    units = {"sram-to-compute": "MiB per TFLOP/s", "hops-to-memory": "hops", "links-to-memory": "ratio"}
    return [
        Beside(
            "I",
            f"{row.system}, {row.kind}",
            row.reading,
            units[row.kind],
            row.published,
            None,
            row.ours,
            row.explanation,
        )
        for row in table_i(folder)
    ]


def grayskull_beside(fidelity: Fidelity = "tile-by-tile", folder: Path = FOLDER) -> list[Beside]:
    """Return the rows of Table V; it takes half a minute."""
    return [
        Beside(
            "V",
            row.case.model,
            row.case.reading,
            "samples per second",
            row.case.published,
            row.case.palm,
            row.ours.samples_per_s,
            "; ".join(filter(None, (row.mapping, row.case.explanation))),
        )
        for row in table_v(fidelity, folder)
    ]
