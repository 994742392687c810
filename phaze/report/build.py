"""The report stage: from the tables of a study to result tables, Markdown and a page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import pandas as pd

from phaze.errors import PhazeError
from phaze.files import write_text
from phaze.report import front, inside, overview, planners, record, simulated, strategies
from phaze.report.answer import answer
from phaze.report.certificate import certificate
from phaze.report.document import Document
from phaze.report.findings import RESULT_TABLES, Findings, summarise
from phaze.report.inputs import Inputs
from phaze.report.page import render_markdown, render_page
from phaze.tables import TABLES, read_any

FORMATS = ("csv", "json")


@dataclass(frozen=True)
class Report:
    """A finished report."""

    findings: Findings
    document: Document

    @cached_property
    def page(self) -> str:
        """Return the report as one HTML page."""
        return render_page(self.document)

    @cached_property
    def markdown(self) -> str:
        """Return the report as Markdown."""
        return render_markdown(self.document)

    @property
    def failures(self) -> list[str]:
        """Return the checks that failed, each with its first example."""
        failed = self.findings.checks[~self.findings.checks["passed"]]
        return [f"{row['check']}: {row['example']}" for _, row in failed.iterrows()]


def build_report(inputs: Inputs) -> Report:
    """Return the report of a study."""
    findings = summarise(inputs)
    return Report(findings, compose(inputs, findings))


def compose(inputs: Inputs, findings: Findings) -> Document:
    """Return the report as a document."""
    shown = findings.in_order(inputs.study.models)
    parts = (
        *overview.PARTS, certificate, *front.PARTS, *inside.PARTS, *planners.PARTS, *simulated.SECTIONS,
        *strategies.PARTS, *record.PARTS,
    )  # fmt: skip
    name = next(iter(inputs.clusters))
    return Document(
        title="phaze",
        subtitle=f"{_count(len(inputs.study.models), 'workload')}, scenario {name}",
        answer=answer(inputs, shown),
        sections=tuple(chain.from_iterable(part(inputs, shown) for part in parts)),
        tables=findings.tables(),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def write_report(report: Report, folder: Path) -> None:
    """Write every result table as Parquet and CSV, then Markdown and the page."""
    folder.mkdir(parents=True, exist_ok=True)
    found = report.findings.tables()
    for name in RESULT_TABLES:
        TABLES[name].save(found[name], folder / f"{name}.parquet")
        write_text(folder / f"{name}.csv", as_text(found[name], "csv"))
    write_text(folder / "report.md", report.markdown)
    write_text(folder / "report.html", report.page)


def export_table(path: Path, form: str) -> str:
    """Return any table of phaze as CSV or JSON (a list of rows), with all columns and digits."""
    if form not in FORMATS:
        raise PhazeError(f"format {form!r} is not known; there are {', '.join(FORMATS)}")
    return as_text(read_any(path), form)


def as_text(frame: pd.DataFrame, form: str) -> str:
    """Return a frame as CSV or JSON; infinity is `inf` in CSV and null in JSON, which has no infinity."""
    if form == "csv":
        return frame.to_csv(index=False, lineterminator="\n")
    return frame.to_json(orient="records", indent=1, double_precision=15) + "\n"


assert set(RESULT_TABLES) <= TABLES.keys()
