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
    from rich.table import Table

Row = Mapping[str, object]
UNKNOWN = "–"
NARROW = 80
"""Columns of a terminal below which also names and numbers wrap."""
WIDE = 10_000
"""Columns of a pipe, in which no line is wrapped."""


def number(value: object) -> str:
    """Number with three digits, or with all of a whole number."""
    return f"{value:,}" if isinstance(value, int) else digits(float(str(value)))


@dataclass(frozen=True)
class Column:
    """Column of a table."""

    key: str
    """Key of its values in a row."""
    title: str
    words: Callable[[object], str] = str
    """Text of a value."""
    right: bool = False
    """True for numbers."""
    wraps: bool = False
    """True for text that may continue on the next line; all columns do on a terminal of fewer than 80."""

    def cell(self, row: Row) -> str:
        """Text of a row's value, a dash if it is unknown."""
        value = row[self.key]
        return UNKNOWN if value is None else printable(self.words(value))


def counts(key: str, title: str) -> Column:
    """Column of numbers."""
    return Column(key, title, number, right=True)


def print_rows(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    """Print a table: fitted to the terminal, else one line for each row."""
    from rich.console import Console

    if is_rich(sys.stdout):
        console = Console(file=unescaped(sys.stdout), highlight=False)
        console.print(_table(rows, columns, whole=console.width >= NARROW))
        return
    console = Console(width=WIDE, color_system=None)
    with console.capture() as lines:
        console.print(_table(rows, columns, whole=True))
    typer.echo("\n".join(line.rstrip() for line in lines.get().splitlines()))


def _table(rows: Sequence[Row], columns: Sequence[Column], *, whole: bool) -> Table:
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
