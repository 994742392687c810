"""Export the tables of a study."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from phaze.commands.output import refuse_outputs, write_or_print


class Format(StrEnum):
    """Formats of exported tables."""

    CSV = "csv"
    JSON = "json"


def export(
    table: Annotated[Path, typer.Argument(help="A Parquet table of a run.")],
    form: Annotated[Format, typer.Option("--format", help="Format to write.")] = Format.CSV,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File; else printed.")] = None,
) -> None:
    """Write any table of a run as CSV or JSON."""
    from phaze.report.export import export_table

    refuse_outputs(out, reads=(table,))
    write_or_print(export_table(table, form.value), out)
