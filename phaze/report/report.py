"""A finished report: a page with its tables, the checks of them that failed, and all of it as files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import pandas as pd

from phaze.base.files import write_text
from phaze.report.document import Document
from phaze.report.drawing import Drawn, draw
from phaze.report.export import as_csv
from phaze.report.page import render_markdown, render_page
from phaze.report.verdicts import failures
from phaze.tables import Checks, Table

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """A page, and which of its tables lie beside it."""

    document: Document
    written: Mapping[str, type[Table]]
    """The tables of the document that are files too, by file name."""
    asked: Mapping[str, Callable[[], Drawn]] = field(default_factory=dict)
    """What waits for figures that others draw, by name; this process draws all others."""

    @cached_property
    def page(self) -> str:
        """Return the report as one HTML page."""
        waiting = {chart.name: partial(draw, chart) for chart in self.document.charts} | dict(self.asked)
        return render_page(self.document, {name: wait() for name, wait in waiting.items()})

    @cached_property
    def markdown(self) -> str:
        """Return the report as Markdown."""
        return render_markdown(self.document)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables by name."""
        return self.document.tables

    @property
    def failures(self) -> list[str]:
        """Return the checks that failed, each with its first example."""
        checks = (self.tables[name] for name, table in self.written.items() if table is Checks)
        return [failure for table in checks for failure in failures(table)]


def write_report(report: Report, folder: Path) -> None:
    """Write every table as Parquet and CSV, then Markdown and the page; warn of checks that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in report.written.items():
        table.save(report.tables[name], folder / f"{name}.parquet")
        write_text(folder / f"{name}.csv", as_csv(report.tables[name]))
    page = folder / report.document.page
    write_text(page.with_suffix(".md"), report.markdown)
    write_text(page, report.page)
    for failure in report.failures:
        log.warning("does not hold: %s", failure)
