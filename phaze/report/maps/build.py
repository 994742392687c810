"""The page of the mappings as one HTML page, and as Markdown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from phaze.files import write_text
from phaze.report.document import Answer, Document, Section, Sheet
from phaze.report.maps.checks import check_maps, failures
from phaze.report.maps.inputs import MapInputs, geometric_mean, speed_ups, steps
from phaze.report.maps.sections import (
    clusters_section,
    partitioners_section,
    pictures_section,
    throughput_section,
    topologies_section,
)
from phaze.report.page import render_markdown, render_page
from phaze.spec.map_study import MapCase
from phaze.tables import Checks, Mappings, SpeedUps, Table

TABLES: dict[str, type[Table]] = {"mappings": Mappings, "speed-ups": SpeedUps, "map-checks": Checks}
"""The tables beside the page, by file name."""
SHOWN: dict[str, Callable[[MapInputs, str, MapCase], Section]] = {
    "topologies": topologies_section,
    "partitioners": partitioners_section,
    "throughput": throughput_section,
    "clusters": clusters_section,
}


@dataclass(frozen=True)
class MapReport:
    """A finished page with its tables."""

    document: Document
    tables: dict[str, pd.DataFrame]

    @property
    def failures(self) -> list[str]:
        """Return the checks that failed, each with its first example."""
        return failures(self.tables["map-checks"])


def build_map_report(inputs: MapInputs) -> MapReport:
    """Return the page of the mappings of a study."""
    gains = SpeedUps.check(speed_ups(steps(inputs.mappings)))
    tables = {"mappings": inputs.mappings, "speed-ups": gains, "map-checks": check_maps(inputs)}
    cases = (SHOWN[show](inputs, name, case) for show in SHOWN for name, case in inputs.of(show))
    document = Document(
        title="phaze",
        subtitle="mappings of Parmesan",
        answer=_answer(inputs, gains),
        sections=(*cases, pictures_section(inputs), _checks_section(tables["map-checks"])),
        tables=tables,
        page="maps.html",
    )
    return MapReport(document, tables)


def _answer(inputs: MapInputs, gains: pd.DataFrame) -> Answer:
    """Return the first screen: speed-ups by topology, proofs, times."""
    rows = []
    for topology, one in inputs.maps.topologies.items():
        mine = gains[gains["topology"] == topology]
        if len(mine):
            means = (geometric_mean(mine[key]) for key in ("over_consecutive", "over_heuristics"))
            rows.append((one.label, *(f"{mean:.2f}" for mean in means), str(len(mine))))
    header = ("topology", "over CS map", "over CS and p2p map", "cases")
    sheet = Sheet("Speed-up, geometric mean over cases", header, tuple(rows), 1, source="speed-ups")
    searched = inputs.mappings[inputs.mappings["way"].isin(("p2p", "allreduce", "exact"))]
    seconds = inputs.durations.groupby([*gains.columns[:6], "topology", "seed"])["seconds"].sum()
    mean = geometric_mean(gains["over_consecutive"])
    sentence = (
        f"A simulated training step with the mappings found here is {mean:.2f} times as fast as with "
        f"consecutive devices, the geometric mean over {len(gains)} cases."
    )
    facts = (
        (f"{geometric_mean(gains['over_heuristics']):.2f}×", "over the better of CS map and p2p map"),
        (f"{int(searched['proven'].sum())} of {len(searched)}", "searches ended with a proof"),
        (f"{seconds.max():.0f} s", "for the slowest case"),
    )
    return Answer("What does a mapping to the topology gain?", sentence, facts, sheet)


def _checks_section(checks: pd.DataFrame) -> Section:
    """Return the checks of the mappings."""
    cells = [
        (
            "passed" if row["passed"] else "FAILED",
            row["check"],
            row["example"],
            f"{row['rows']:,}",
            f"{row['failures']:,}",
        )
        for _, row in checks.iterrows()
    ]
    marked = frozenset(i for i, passed in enumerate(checks["passed"]) if not passed)
    header = ("", "what must hold", "first failure", "rows", "failures")
    sheet = Sheet("Checks", header, tuple(cells), 3, marked, "map-checks")
    return Section("checks", "Checks", "What must hold of any mappings, checked on these.", (sheet,))


def write_map_report(report: MapReport, folder: Path) -> None:
    """Write every table as Parquet and CSV, then Markdown and the page."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in TABLES.items():
        table.save(report.tables[name], folder / f"{name}.parquet")
        write_text(folder / f"{name}.csv", report.tables[name].to_csv(index=False, lineterminator="\n"))
    write_text(folder / "maps.md", render_markdown(report.document))
    write_text(folder / "maps.html", render_page(report.document))
