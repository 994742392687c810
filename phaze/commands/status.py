"""Say what of a study is done, what is stale and why, and how long the rest takes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.commands.options import JsonOption

if TYPE_CHECKING:
    from phaze.commands.study_status import Stage


def status(
    configfile: Annotated[
        Path | None, typer.Option(help="The study; the default study unless given.")
    ] = None,
    directory: Annotated[Path, typer.Option(help="Folder in which it runs.")] = Path(),
    cores: Annotated[
        int | None,
        typer.Option(help="Cores to share the rest among; all of this machine unless given.", min=1),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print for every stage of a study how much is done, what is stale and why, and the time for the rest.

    Also while it runs. Times are those that jobs took before.
    """
    from phaze.commands.study_status import seconds_left, study_status

    stages = study_status(directory, configfile)
    left, shared = seconds_left(stages), cores or os.cpu_count() or 1
    if as_json:
        rows = [asdict(stage) for stage in stages]
        typer.echo(json.dumps({"stages": rows, "work_left_s": left, "cores": shared}, indent=2))
        return
    for stage in stages:
        typer.echo(_line(stage))
    typer.echo(_summary(stages, left, shared))


def _line(stage: Stage) -> str:
    total = stage.done + stage.left
    why = f"   {stage.left} to run: {', '.join(stage.reasons)}" if stage.left else ""
    return f"{stage.rule:24} {stage.done:5} of {total:5} done{why}"


def _summary(stages: list[Stage], left_s: float | None, cores: int) -> str:
    jobs = sum(stage.left for stage in stages)
    if not jobs:
        return "all is done"
    if left_s is None:
        return f"{jobs} jobs left; no job has run yet that would say how long they take"
    return f"{jobs} jobs left: {in_words(left_s)} of work, about {in_words(left_s / cores)} on {cores} cores"


def in_words(seconds: float) -> str:
    """Return a time as a reader says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
