"""Time kernels and collectives on the GPUs of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.commands.output import refuse_outputs, telling


def measure(
    out: Annotated[
        Path, typer.Option("-o", "--out", help="CSV for the times, for `phaze calibrate --kernels`.")
    ],
) -> None:
    """Time products, attention and collectives on this machine.

    Collectives are timed if there are several GPUs. Needs PyTorch, which the extra torch of phaze
    installs, and takes a few minutes.
    """
    refuse_outputs(out)
    from phaze.validate.table import write_table

    try:
        from phaze.validate import measuring
    except ImportError as error:
        raise PhazeError("measure: PyTorch is not installed", "run pip install 'phaze[torch]'") from error
    with telling("measure"):
        found = measuring.measured()
    write_table(found, out)
    typer.echo(f"{len(found)} kernels timed on {found['device'].iloc[0]}: {out}")
