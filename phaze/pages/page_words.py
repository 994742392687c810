"""Texts of a page as data: headings, captions and columns, filled in with rows of tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pandas as pd
from pydantic import Field

from phaze.pages.document import Block, Chart, Draw, Items, Section, Sheet, sheet_of
from phaze.pages.words import fill
from phaze.spec.noun import Noun

TEXTS = Path(__file__).parent / "texts"
"""Folder with the texts of pages."""


class SectionWords(Noun):
    """Heading of a section, and an introductory sentence."""

    title: str
    about: str


class ChartWords(Noun):
    """Title of a chart, and a caption that explains it."""

    title: str
    caption: str


class SheetWords(Noun):
    """Caption of a table and templates of its columns, text columns first; `across` makes a wide table."""

    caption: str
    words: dict[str, str] = Field(default_factory=dict)
    columns: dict[str, str] = Field(default_factory=dict)
    across: str = ""
    """Column of the data whose values become columns of the table."""
    cell: str = "{cell}"
    """Template of a cell in the columns that `across` makes."""
    source: str = ""
    folded: bool = False


class PageWords(Noun):
    """Texts of a page: templates, filled in with rows of tables and keyword arguments."""

    sections: dict[str, SectionWords] = Field(default_factory=dict)
    charts: dict[str, ChartWords] = Field(default_factory=dict)
    sheets: dict[str, SheetWords] = Field(default_factory=dict)
    sentences: dict[str, str] = Field(default_factory=dict)

    def section(self, name: str, blocks: Iterable[Block], /, **placeholders: object) -> Section:
        """Build a section from its filled-in texts and the given blocks."""
        words = self.sections[name]
        return Section(name, fill(words.title, placeholders), fill(words.about, placeholders), tuple(blocks))

    def chart(self, name: str, draw: Draw, anchor: str = "", /, **placeholders: object) -> Chart:
        """Build a chart from its filled-in texts, under an anchor name."""
        words = self.charts[name]
        return Chart(anchor or name, fill(words.title, placeholders), fill(words.caption, placeholders), draw)

    def sheet(
        self,
        name: str,
        rows: pd.DataFrame,
        marked: Iterable[bool] = (),
        /,
        heads: Mapping[str, str] | None = None,
        **placeholders: object,
    ) -> Sheet:
        """Build a report table from rows; with `across`, it has one column per value of that column.

        `heads` maps each value to its heading and sets the order of columns; by default that of the rows.
        """
        words, count = self.sheets[name], len(self.sheets[name].words)
        caption = fill(words.caption, placeholders)
        if not words.across:
            columns = {**words.words, **words.columns}
            return sheet_of(caption, rows, columns, count, marked, words.source, folded=words.folded)
        # rows with the same texts share a line of the table
        lines: dict[tuple[str, ...], dict[str, str]] = {}
        for _, row in rows.iterrows():
            labels = tuple(fill(template, row) for template in words.words.values())
            lines.setdefault(labels, {})[str(row[words.across])] = fill(words.cell, row)
        # in the order in which the values occur in the rows
        across = heads or {name: name for cells in lines.values() for name in cells}
        cells = tuple((*labels, *(line.get(key, "–") for key in across)) for labels, line in lines.items())
        header = (*words.words, *across.values())
        lit = frozenset(place for place, flag in enumerate(marked) if flag)
        return Sheet(caption, header, cells, count, lit, words.source, words.folded)

    def sentence(self, name: str, /, **placeholders: object) -> str:
        """Fill values into the sentence with the given name."""
        return fill(self.sentences[name], placeholders)

    def items(self, name: str, rows: pd.DataFrame) -> Items:
        """Build a bulleted list with one sentence per row."""
        return Items(tuple(fill(self.sentences[name], row) for _, row in rows.iterrows()))


@cache
def words_of(page: str, folder: Path = TEXTS) -> PageWords:
    """Texts of a page, loaded from its YAML file once."""
    return PageWords.from_file(folder / f"{page}.yaml")
