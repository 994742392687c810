"""Where answers go: to a file that is whole or absent, or to the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from phaze.errors import PhazeError

if TYPE_CHECKING:
    import pandas as pd


def write_or_print(text: str, out: Path | None) -> None:
    """Write a text that ends with a line break to a file, or print it where none is given."""
    from phaze import files

    if out is None:
        typer.echo(text, nl=False)
    else:
        files.refuse_unwritable(out)
        files.write_text(out, text)


def refuse_unwritable(*outs: Path | None) -> None:
    """Raise PhazeError for files that cannot be written, before what takes long."""
    from phaze import files

    for out in outs:
        if out is not None:
            files.refuse_unwritable(out)


PICTURES = (".svg", ".png", ".pdf")
"""How files of pictures may end."""


def refuse_as_picture(path: Path | None) -> None:
    """Raise PhazeError for a file that no picture can be written as."""
    if path is not None and path.suffix.lower() not in PICTURES:
        raise PhazeError(f"--picture {path}: must end in {', '.join(PICTURES)}")


def print_tables(frames: list[pd.DataFrame], *, as_json: bool) -> None:
    """Print tables one below the other."""
    import pandas as pd

    frame = pd.concat(frames, ignore_index=True)
    if as_json:
        typer.echo(frame.to_json(orient="records", indent=1, double_precision=15))
    else:
        typer.echo(frame.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
