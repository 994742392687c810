"""Export the tables of a study."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.commands.output import refuse_outputs, write_or_print


class Format(StrEnum):
    """Formats of exported tables."""

    CSV = "csv"
    JSON = "json"


def export(
    table: Annotated[Path, typer.Argument(help="Parquet table of a study.")],
    form: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.CSV,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File to write. Default: standard output.")
    ] = None,
) -> None:
    """Write any table of a study as CSV or JSON."""
    refuse_outputs(out, reads=(table,))
    write_or_print(export_table(table, form.value), out)


def export_table(path: Path, form: str) -> str:
    """Convert a table to CSV (infinity becomes `inf`) or JSON (a list of rows; infinity becomes null)."""
    from phaze.tables.layouts import read_any

    if form not in list(Format):
        raise PhazeError(f"--format {form!r} is unknown; must be one of {', '.join(Format)}")
    frame = read_any(path)
    if form == Format.CSV:
        return frame.to_csv(index=False, lineterminator="\n")
    return frame.to_json(orient="records", indent=1, double_precision=15) + "\n"
