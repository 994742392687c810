"""Finished report: a page with its tables and failed checks, and its output files."""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from phaze.base.files import write_text
from phaze.pages.document import (
    Chart,
    FirstScreen,
    Gallery,
    Heading,
    Items,
    Listing,
    Prose,
    Section,
    Sheet,
)
from phaze.pages.style import COLOURS
from phaze.pages.vega import Drawn, draw, library
from phaze.pages.verdicts import Checklist, checks_section, failures, run_checks
from phaze.tables import Checks, Table

Subject = TypeVar("Subject")
log = logging.getLogger(__name__)

MOST_OPEN = 5
"""Number of figures that a page shows unfolded."""

NamedTables = Mapping[str, tuple[type[Table], pd.DataFrame]]
"""Tables to write with a page, by file name, each with its table class."""
# "<" before a letter, "/", "!" or "?", where a renderer of Markdown begins a tag
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
# spaces between a number and its unit, at which a line must not break
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[munµ]?s|[KMGT]iB|[kMGTP]?B/s|mm²|microbatch)(?!\w))")
_BRACES = re.compile(r"\{[^{}]*\}")


def case_page(
    page: str,
    subtitle: str,
    subject: Subject,
    checks: tuple[str, Checklist[Subject], str],
    tables: NamedTables,
    answer: FirstScreen,
    sections: Iterable[Section],
    notes: Iterable[str],
) -> Report:
    """Build the page of a study's cases, with its checks, and notes on how the numbers are computed.

    `checks` has the name of their table, the checklist, and the subject of the checks as text.
    """
    name, checklist, subject_name = checks
    verdicts = run_checks(checklist, subject)
    judged = checks_section(verdicts, name, f"What must hold of any {subject_name}")
    about = "What to know when reading them."
    method = Section("method", "How these numbers are made", about, (Items(tuple(notes)),))
    shown = (*sections, judged, method)
    return page_of(page, subtitle, answer, shown, {**tables, name: (Checks, verdicts)})


def page_of(
    name: str,
    subtitle: str,
    answer: FirstScreen,
    sections: Iterable[Section],
    tables: NamedTables,
    shown: Mapping[str, pd.DataFrame] | None = None,
) -> Report:
    """Build the report of a page; `tables` are also written as files, `shown` appear only on the page."""
    frames = {table: frame for table, (_, frame) in tables.items()} | dict(shown or {})
    contracts = {table: contract for table, (contract, _) in tables.items()}
    return Report(name, subtitle, answer, tuple(sections), frames, contracts)


@dataclass(frozen=True)
class Report:
    """Page with its downloadable tables; most of them are also written as files next to it."""

    name: str
    """File name of the page."""
    subtitle: str
    answer: FirstScreen
    sections: tuple[Section, ...]
    tables: Mapping[str, pd.DataFrame]
    written: Mapping[str, type[Table]]
    """Classes of the tables that are also written as files, by file name."""
    title: str = "phaze"

    @property
    def charts(self) -> Iterator[Chart]:
        """All figures, from top to bottom."""
        for section in self.sections:
            yield from section.charts

    @cached_property
    def page(self) -> str:
        """Self-contained HTML page with figures and tables, without external requests.

        Its content security policy permits only the page's own scripts.
        """
        environment = _environment()
        scripts = [environment.get_template("page.js").render()]
        if any(drawn.spec for drawn in self.drawn.values()):
            scripts.append(library(environment.get_template("charts.js").render(colours=COLOURS)))
        # a Content-Security-Policy names permitted scripts by the base64 of their SHA-256
        digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
        return environment.get_template("page.html").render(report=self, scripts=scripts, digests=digests)

    @cached_property
    def drawn(self) -> Mapping[str, Drawn]:
        """All figures as rendered for the page, by name."""
        return {chart.name: draw(chart) for chart in self.charts}

    @cached_property
    def leading(self) -> tuple[tuple[Section, Chart], ...]:
        """Figures that stay unfolded, with their sections; by default the first of each section."""
        figures = {
            chart.name: (section, chart)
            for section in self.sections
            for chart in section.charts
            if not self.drawn[chart.name].only
        }
        # reversed, so that the first figure of a section overrides its later ones
        first = {section.anchor: chart.name for section, chart in reversed(figures.values())}
        names = self.answer.figures or tuple(first.values())[::-1]
        return tuple(figures[name] for name in names if name in figures)[:MOST_OPEN]

    @property
    def opened(self) -> set[str]:
        """Names of the figures that stay unfolded."""
        return {chart.name for _, chart in self.leading}

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the tables that the page offers for download."""
        sheets = (self.answer.sheet, *(sheet for section in self.sections for sheet in section.sheets))
        return tuple(dict.fromkeys(sheet.source for sheet in sheets if sheet.source))

    @cached_property
    def markdown(self) -> str:
        """Report for a terminal: all tables, with the titles of figures."""
        return _environment(_without_html).get_template("report.md").render(report=self)

    def download(self, table: str) -> str:
        """Table as a data URL, so that the single-file page includes its tables."""
        return "data:text/csv;base64," + base64.b64encode(as_csv(self.tables[table]).encode()).decode()

    @property
    def lead(self) -> str:
        """First paragraph: failed checks, if any, then the answer."""
        if not self.failures:
            return self.answer.sentence
        count, first = len(self.failures), self.failures[0]
        return (
            f"{count} check{'s' * (count > 1)} of these results FAILED, so that they may be wrong "
            f"({first}). {self.answer.sentence}"
        )

    @property
    def failures(self) -> list[str]:
        """Failed checks, each with its first example."""
        checks = (self.tables[name] for name, table in self.written.items() if table is Checks)
        return [failure for table in checks for failure in failures(table)]


def write_report(report: Report, folder: Path) -> None:
    """Write all tables as Parquet and CSV, then Markdown and the page; warn of failed checks."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in report.written.items():
        table.save(report.tables[name], folder / f"{name}.parquet")
        write_text(folder / f"{name}.csv", as_csv(report.tables[name]))
    page = folder / report.name
    write_text(page.with_suffix(".md"), report.markdown)
    write_text(page, report.page)
    for failure in report.failures:
        log.warning("does not hold: %s", failure)


def as_csv(frame: pd.DataFrame) -> str:
    """Convert a frame to CSV; infinity becomes `inf`."""
    return frame.to_csv(index=False, lineterminator="\n")


def _without_html(value: object) -> object:
    """Escape text that starts an HTML tag, because Markdown would render it as one."""
    return _TAG.sub("&lt;", value) if isinstance(value, str) else value


def _environment(finalize: Callable[[object], object] | None = None) -> Environment:
    environment = Environment(
        loader=PackageLoader("phaze.pages"),
        autoescape=select_autoescape(["html"]),
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for kind in (Prose, Heading, Items, Sheet, Chart, Gallery, Listing):
        # a default argument binds the kind of this iteration
        environment.tests[kind.__name__.lower()] = lambda block, kind=kind: isinstance(block, kind)
    environment.filters["cell"] = _cell
    environment.filters["glued"] = _glued
    return environment


def _glued(text: str) -> str:
    """Insert non-breaking spaces between numbers and units, and inside braces."""
    return _UNIT.sub("\u00a0", _BRACES.sub(lambda match: match[0].replace(" ", "\u00a0"), text))


def _cell(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split()) or " "
