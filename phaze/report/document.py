"""What a report consists of: sections of prose, tables and figures, which page and Markdown both show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from phaze.report.words import fill


@dataclass(frozen=True)
class Prose:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Heading:
    """A small heading inside a section."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Sheet:
    """A table as shown, with the table that it is made from."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    """How many of the first columns hold words; the others hold numbers."""
    marked: frozenset[int] = frozenset()
    """Rows that stand out."""
    source: str = ""
    """Name of the result table with all columns and digits, empty if there is none."""
    folded: bool = False
    """If long, shown by its caption alone until it is opened: not needed to follow the report."""


Cell = str | Callable[[pd.Series], str]
"""Words of a row in one column: a template as `words.fill` takes it, or a function."""


def sheet_of(
    caption: str,
    table: pd.DataFrame,
    columns: Mapping[str, Cell],
    words: int = 1,
    marked: Iterable[bool] = (),
    source: str = "",
    *,
    folded: bool = False,
) -> Sheet:
    """A table as shown: a column for every heading, and a flag for every row that stands out."""
    rows = tuple(
        tuple(fill(cell, row) if isinstance(cell, str) else cell(row) for cell in columns.values())
        for _, row in table.iterrows()
    )
    standing = frozenset(i for i, flag in enumerate(marked) if flag)
    return Sheet(caption, tuple(columns), rows, words, standing, source, folded)


def in_form(column: str, form: Callable[[float], str]) -> Cell:
    """The value of a column in a form of `words`."""
    return lambda row: form(row[column])


Draw = Callable[[], Figure]
"""Draws a figure."""


@dataclass(frozen=True)
class Chart:
    """A figure, and how it is drawn."""

    name: str
    title: str
    """What it shows."""
    caption: str
    """How to read it."""
    draw: Draw


@dataclass(frozen=True)
class Gallery:
    """Figures side by side where there is room."""

    charts: tuple[Chart, ...]


Block = Prose | Heading | Items | Sheet | Chart | Gallery


@dataclass(frozen=True)
class Section:
    """A part of the report with a heading and one sentence on what it shows."""

    anchor: str
    title: str
    about: str
    blocks: tuple[Block, ...]

    @property
    def charts(self) -> Iterator[Chart]:
        """The figures from the top down."""
        for block in self.blocks:
            if isinstance(block, Chart):
                yield block
            elif isinstance(block, Gallery):
                yield from block.charts


@dataclass(frozen=True)
class FirstScreen:
    """The first screen: the question, the answer in a sentence, and the figures behind it."""

    question: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    """What is measured, and how much it is."""
    sheet: Sheet
