"""A finished report: a page with its tables, the checks of them that failed, and all of it as files."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from phaze.base.files import write_text
from phaze.report.document import (
    Answer,
    Chart,
    Document,
    Gallery,
    Heading,
    Items,
    Prose,
    Section,
    Sheet,
    as_csv,
)
from phaze.report.style import Drawn, draw
from phaze.report.verdicts import failures
from phaze.tables import Checks, Table

log = logging.getLogger(__name__)

Written = Mapping[str, tuple[type[Table], pd.DataFrame]]
"""Tables of a page by file name, each with its contract."""


def page_of(
    page: str,
    subtitle: str,
    answer: Answer,
    sections: Iterable[Section],
    tables: Written,
    shown: Mapping[str, pd.DataFrame] | None = None,
) -> Report:
    """The report of a page beside which its tables lie; those that are only shown are in the page alone."""
    frames = {name: frame for name, (_, frame) in tables.items()} | dict(shown or {})
    document = Document("phaze", subtitle, answer, tuple(sections), frames, page)
    return Report(document, {name: table for name, (table, _) in tables.items()})


@dataclass(frozen=True)
class Report:
    """A page, and which of its tables lie beside it."""

    document: Document
    written: Mapping[str, type[Table]]
    """The tables of the document that are files too, by file name."""

    @cached_property
    def page(self) -> str:
        """The report as one HTML page."""
        return render_page(self.document, {chart.name: draw(chart) for chart in self.document.charts})

    @cached_property
    def markdown(self) -> str:
        """The report as Markdown."""
        return render_markdown(self.document)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by name."""
        return self.document.tables

    @property
    def failures(self) -> list[str]:
        """The checks that failed, each with its first example."""
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


_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def _without_html(value: object) -> object:
    """Text in which nothing begins a tag: readers of Markdown would take it for one."""
    return _TAG.sub("&lt;", value) if isinstance(value, str) else value


def _environment(finalize: Callable[[object], object] | None = None) -> Environment:
    environment = Environment(
        loader=PackageLoader("phaze.report"),
        autoescape=select_autoescape(["html"]),
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for kind in (Prose, Heading, Items, Sheet, Chart, Gallery):
        environment.tests[kind.__name__.lower()] = lambda block, kind=kind: isinstance(block, kind)
    environment.filters["cell"] = _cell
    environment.filters["glued"] = _glued
    return environment


_UNIT = re.compile(r"(?<=\d) (?=(?:%|[munµ]?s|[KMGT]iB|[kMGTP]?B/s|mm²|microbatch)(?!\w))")
_BRACES = re.compile(r"\{[^{}]*\}")


def _glued(text: str) -> str:
    """Prose whose numbers do not part from their units, nor braces in the middle."""
    return _UNIT.sub("\u00a0", _BRACES.sub(lambda found: found[0].replace(" ", "\u00a0"), text))


def _cell(text: str) -> str:
    """Text that cannot end a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split()) or " "


def render_page(document: Document, drawn: Mapping[str, Drawn]) -> str:
    """The HTML page: figures by name and tables inside, no script, no request to anywhere."""
    return _environment().get_template("page.html").render(document=document, drawn=drawn)


def render_markdown(document: Document) -> str:
    """The report for a terminal: all tables, with figures by their title."""
    return _environment(_without_html).get_template("report.md").render(document=document)
