"""Elements of a report (sections of prose, tables and figures), rendered as a page and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from phaze.pages.words import fill

if TYPE_CHECKING:
    from altair import TopLevelMixin

_SENTENCE = re.compile(r"(?<=[.?!]) (?=[A-Z])")
"""Pattern for the gap between two sentences."""
Draw = Callable[[], "TopLevelMixin"]
"""Function that builds a chart (data and encodings), which the browser draws."""


@dataclass(frozen=True)
class Prose:
    """Paragraph of text."""

    text: str


@dataclass(frozen=True)
class Heading:
    """Minor heading inside a section."""

    text: str


@dataclass(frozen=True)
class Items:
    """Bulleted list of sentences."""

    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Sheet:
    """Report table with formatted cells, and the name of its source table."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    """Number of leading text columns; the other columns are numeric."""
    marked: frozenset[int] = frozenset()
    """Indices of highlighted rows."""
    source: str = ""
    """Name of the result table with all columns and digits; empty if there is none."""
    folded: bool = False
    """True to collapse a long table to its caption, because the report can be followed without it."""
    filtered: bool = False
    """True to offer a search box that filters the rows by words."""


def sheet_of(
    caption: str,
    table: pd.DataFrame,
    columns: Mapping[str, str],
    words: int = 1,
    marked: Iterable[bool] = (),
    source: str = "",
    *,
    folded: bool = False,
) -> Sheet:
    """Build a report table with one cell template per heading; rows flagged in `marked` are highlighted."""
    rows = tuple(tuple(fill(cell, row) for cell in columns.values()) for _, row in table.iterrows())
    standing = frozenset(i for i, flag in enumerate(marked) if flag)
    return Sheet(caption, tuple(columns), rows, words, standing, source, folded)


@dataclass(frozen=True)
class Chart:
    """Figure with its title and caption, drawn on demand."""

    name: str
    title: str
    """Heading that says what the figure shows."""
    caption: str
    """Hint on how to read the figure."""
    draw: Draw


@dataclass(frozen=True)
class Gallery:
    """Figures shown side by side where the page is wide enough."""

    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Listing:
    """Text to copy, such as the flags of a program."""

    caption: str
    text: str
    anchor: str = ""
    """Name by which links find it; empty: none do."""


Block = Prose | Heading | Items | Sheet | Chart | Gallery | Listing


@dataclass(frozen=True)
class Section:
    """Section of the report: a heading, a summary and its blocks."""

    anchor: str
    title: str
    about: str
    blocks: tuple[Block, ...]

    @property
    def sheets(self) -> Iterator[Sheet]:
        """Tables of the section, from top to bottom."""
        yield from (block for block in self.blocks if isinstance(block, Sheet))

    @property
    def summary(self) -> str:
        """First sentence of the introduction, shown while the section is folded."""
        return _SENTENCE.split(self.about, maxsplit=1)[0]

    @property
    def details(self) -> str:
        """Further sentences of the introduction; empty if there are none."""
        return self.about[len(self.summary) :].strip()

    @property
    def charts(self) -> Iterator[Chart]:
        """Figures of the section, from top to bottom."""
        for block in self.blocks:
            if isinstance(block, Chart):
                yield block
            elif isinstance(block, Gallery):
                yield from block.charts


@dataclass(frozen=True)
class FirstScreen:
    """First screen of a page: the question, the answer in two sentences, and its key figures."""

    question: str
    sentence: str
    """The result and its caveats."""
    facts: tuple[tuple[str, str], ...]
    """Key figures: pairs of a formatted value and its meaning."""
    sheet: Sheet
    details: str = ""
    """Further sentences, shown with the table."""
    unfolded: bool = False
    """True to show the table unfolded."""
    listings: tuple[Listing, ...] = ()
    """Texts to copy, below the result."""
    figures: tuple[str, ...] = ()
    """Names of the figures that stay unfolded, most important first; empty: the first of each section."""
