"""Time kernels and collectives on the GPUs of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.commands.output import refuse_outputs, telling


def measure(
    out: Annotated[
        Path, typer.Option("-o", "--out", help="CSV for the times, which calibrate --kernels takes.")
    ],
) -> None:
    """Time products, attention and, where there are several GPUs, collectives on this machine.

    Needs PyTorch, which is installed with `pip install phaze[torch]`, and takes a few minutes.
    """
    refuse_outputs(out)
    from phaze.validate.table import write_table

    try:
        from phaze.validate import measuring
    except ImportError as error:
        raise PhazeError(
            "measure: needs PyTorch, which is not installed; pip install 'phaze[torch]'"
        ) from error
    with telling("measure"):
        found = measuring.measured()
    write_table(found, out)
    typer.echo(f"{len(found)} kernels timed on {found['device'].iloc[0]}: {out}")
