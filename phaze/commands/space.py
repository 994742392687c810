"""Count the architectures of the searched space."""

import json
from typing import Annotated

import typer

from phaze.commands.options import JsonOption


def space(
    area_limit_mm2: Annotated[
        float | None, typer.Option(help="Largest area of a chip; that of TPUv4 unless given.", min=0)
    ] = None,
    minimum_share: Annotated[
        bool, typer.Option(help="Leave out what is below 30 % of the limit, as the paper's authors do.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Count the architectures of the searched space, with the smallest and the largest."""
    from phaze.commands.answers import describe_space

    found = describe_space(area_limit_mm2, minimum_share=minimum_share)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo(f"{found['architectures']:,} architectures of at most {found['area_limit_mm2']:.5f} mm2")
    for which in ("smallest", "largest"):
        one = found[which]
        if isinstance(one, dict):
            typer.echo(f"{which}: {one['architecture']}, {one['area_mm2']:.5f} mm2")
