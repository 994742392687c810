"""The command line for single questions; a whole study is a run of Snakemake.

Verbs are the stages. Every verb prints a table for a reader, or with `--json` one for a program.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from phaze.errors import PhazeError

app = typer.Typer(
    name="python -m phaze",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Which accelerator should be built for a model, and how should its training be spread?",
)


class Format(StrEnum):
    """Formats of exported tables."""

    CSV = "csv"
    JSON = "json"


@app.command()
def space(
    area_limit_mm2: Annotated[
        float | None, typer.Option(help="Largest area of a chip; that of TPUv4 unless given.", min=0)
    ] = None,
    minimum_share: Annotated[
        bool, typer.Option(help="Leave out what is below 30 % of the limit, as the paper's authors do.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count the architectures of the searched space, with the smallest and the largest."""
    from phaze.answers import describe_space

    found = describe_space(area_limit_mm2, minimum_share=minimum_share)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['architectures']:,} architectures of at most {found['area_limit_mm2']:.5f} mm2")
    for which in ("smallest", "largest"):
        print(f"{which}: {found[which]['architecture']}, {found[which]['area_mm2']:.5f} mm2")


@app.command()
def export(
    table: Annotated[Path, typer.Argument(help="A Parquet table of a run.")],
    form: Annotated[Format, typer.Option("--format", help="Format to write.")] = Format.CSV,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File to write; printed unless given.")] = None,
) -> None:
    """Write any table of a run as CSV or JSON."""
    from phaze.job import atomic_path
    from phaze.report import export_table

    text = export_table(table, form.value)
    if out is None:
        sys.stdout.write(text)
        return
    with atomic_path(out) as temporary:
        temporary.write_text(text, encoding="utf-8")


def main() -> int:
    """Run the command line; a mistake of the user is one message and exit status 1."""
    try:
        app(standalone_mode=True)
    except PhazeError as error:
        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(f"phaze: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
