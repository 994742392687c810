"""Print tables: formatted by rich on a terminal, in plain columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import typer

from phaze.base.printed import printable
from phaze.base.units import digits
from phaze.commands.terminal import is_rich, tell, unescaped

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

Row = Mapping[str, object]
UNKNOWN, ELLIPSIS = "–", "…"
NARROW = 80
"""Terminal width, in columns, below which names and numbers wrap too."""
LEAST = 10
"""Minimum width of a text column that wraps, including the space before it."""
WIDE = 10_000
"""Line width at which no line wraps, to measure columns."""


def number(value: object) -> str:
    """Format a number with three digits; whole numbers keep all digits."""
    return f"{value:,}" if isinstance(value, int) else digits(float(str(value)))


@dataclass(frozen=True)
class Titled:
    """Column of a printed table: its key, title and format."""

    key: str
    """Key of the column's values in a row."""
    title: str
    words: Callable[[object], str] = str
    """Function that formats a value as text."""
    right: bool = False
    """True to align the column right, as for numbers."""
    wraps: bool = False
    """True if the text may wrap; on a terminal that is too narrow, all columns wrap."""

    def cell(self, row: Row) -> str:
        """Formatted value of a row; a dash if it is unknown."""
        value = row[self.key]
        return UNKNOWN if value is None else printable(self.words(value))


def counts(key: str, title: str) -> Titled:
    """Right-aligned column of numbers."""
    return Titled(key, title, number, right=True)


def scaled(key: str, title: str, unit: float) -> Titled:
    """Column of numbers divided by a unit, such as 1e-6 to show seconds as microseconds."""
    return Titled(key, title, lambda value: digits(float(str(value)) / unit), right=True)


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """Rows of a table; missing values are None."""
    # Numeric columns would turn None back into NaN.
    values = frame.astype(object).where(frame.notna(), None)
    return [{str(key): value for key, value in row.items()} for row in values.to_dict(orient="records")]


def print_rows(rows: Sequence[Row], columns: Sequence[Titled], width: int = WIDE) -> None:
    """Print a table, fitted to the terminal; elsewhere with one line per row, texts cut to a width.

    Where a text is cut, a message on standard error names the option that prints all of it.
    """
    from rich.console import Console

    wide = Console(width=WIDE, color_system=None)
    fixed = [column for column in columns if not column.wraps]
    # Columns that wrap shrink to their minimum before names and numbers wrap too.
    needed = wide.measure(_table(rows, fixed, fits=True)).maximum + LEAST * (len(columns) - len(fixed))
    if is_rich(sys.stdout):
        console = Console(file=unescaped(sys.stdout), highlight=False)
        console.print(_table(rows, columns, fits=max(needed, NARROW) <= console.width))
        return
    lines = Console(width=max(width, needed), color_system=None)
    wrapping = len(columns) - len(fixed)
    room = width - (needed - LEAST * wrapping)
    # Sources stand last: without room for them and the text before, the other texts matter more.
    drops = wrapping > 1 and columns[-1].wraps and room < 2 * LEAST * wrapping
    printed = columns[:-1] if drops else columns
    cuts = [column for column in printed if column.wraps]
    whole = [column for column in printed if column not in cuts[-1:]]
    # Only the last text is cut if the others leave room for it.
    if wide.measure(_table(rows, whole, fits=True)).maximum + LEAST <= width:
        cuts = cuts[-1:]
    with lines.capture() as captured:
        lines.print(_table(rows, printed, fits=True, cuts=cuts))
    text = captured.get()
    typer.echo("\n".join(line.rstrip() for line in text.splitlines()))
    if drops or text.count(ELLIPSIS) > sum(
        column.cell(row).count(ELLIPSIS) for row in rows for column in printed
    ):
        tell(f"texts beyond {width} columns are not printed; --json has all of them")


def _table(
    rows: Sequence[Row], columns: Sequence[Titled], *, fits: bool, cuts: Sequence[Titled] | None = None
) -> Table:
    """Build a rich table; if `fits`, only columns with `wraps` wrap, or texts of `cuts` are cut instead."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.right else "left"
        no_wrap = column not in cuts if cuts is not None else fits and not column.wraps
        table.add_column(column.title, justify=justify, no_wrap=no_wrap, overflow="fold")
    for row in rows:
        texts = (
            Text(column.cell(row), no_wrap=True, overflow="ellipsis")
            if cuts and column in cuts
            else Text(column.cell(row))
            for column in columns
        )
        table.add_row(*texts)
    return table
