"""Tables: of rich on a terminal, in plain columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import typer

from phaze.base.printed import printable
from phaze.base.units import digits
from phaze.commands.terminal import is_rich, unescaped

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

Row = Mapping[str, object]
UNKNOWN = "–"
NARROW = 80
"""Columns of a terminal below which also names and numbers wrap."""
LEAST = 10
"""Columns of a terminal that text which wraps has at least, with the space before it."""
WIDE = 10_000
"""Columns of a pipe, in which no line is wrapped."""


def number(value: object) -> str:
    """Number with three digits, or with all of a whole number."""
    return f"{value:,}" if isinstance(value, int) else digits(float(str(value)))


@dataclass(frozen=True)
class Titled:
    """Column of a printed table."""

    key: str
    """Key of its values in a row."""
    title: str
    words: Callable[[object], str] = str
    """Text of a value."""
    right: bool = False
    """True for numbers."""
    wraps: bool = False
    """True for text that may continue on the next line; all columns do where they would be cut otherwise."""

    def cell(self, row: Row) -> str:
        """Text of a row's value, a dash if it is unknown."""
        value = row[self.key]
        return UNKNOWN if value is None else printable(self.words(value))


def counts(key: str, title: str) -> Titled:
    """Column of numbers."""
    return Titled(key, title, number, right=True)


def scaled(key: str, title: str, unit: float) -> Titled:
    """Column of numbers in a unit, such as 1e-6 for microseconds."""
    return Titled(key, title, lambda value: digits(float(str(value)) / unit), right=True)


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """Rows of a table; missing values are None."""
    known = frame.astype(object).where(frame.notna(), None)
    return [{str(key): value for key, value in row.items()} for row in known.to_dict(orient="records")]


def print_rows(rows: Sequence[Row], columns: Sequence[Titled]) -> None:
    """Print a table: fitted to the terminal, else one line for each row."""
    from rich.console import Console

    wide = Console(width=WIDE, color_system=None)
    if is_rich(sys.stdout):
        console = Console(file=unescaped(sys.stdout), highlight=False)
        fixed = [column for column in columns if not column.wraps]
        needed = wide.measure(_table(rows, fixed, whole=True)).maximum + LEAST * (len(columns) - len(fixed))
        console.print(_table(rows, columns, whole=max(needed, NARROW) <= console.width))
        return
    with wide.capture() as lines:
        wide.print(_table(rows, columns, whole=True))
    typer.echo("\n".join(line.rstrip() for line in lines.get().splitlines()))


def _table(rows: Sequence[Row], columns: Sequence[Titled], *, whole: bool) -> Table:
    """Table of rich; if `whole`, only columns of text wrap."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.right else "left"
        no_wrap = whole and not column.wraps
        table.add_column(column.title, justify=justify, no_wrap=no_wrap, overflow="fold")
    for row in rows:
        table.add_row(*(Text(column.cell(row)) for column in columns))
    return table
