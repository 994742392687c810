"""Options of `phaze place`: a model and its cluster, or an instance file and its planner."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import typer

from phaze.commands import completion, options
from phaze.commands.plan_options import AnswerOptions, LayoutSearchOptions, PlanOptions, QuestionOptions
from phaze.formulas.piper.choices import PiperChoices
from phaze.spec.questions import RunFields

SYSTEM = "tpu-v4"
"""Default system."""


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(QuestionOptions, LayoutSearchOptions, RunFields, AnswerOptions, PiperChoices):
    """Options of `phaze place`: a model and its cluster, or an instance file and its planner."""

    context: typer.Context
    instance: Annotated[Path | None, typer.Argument()] = None
    """Instance file: the JSON of the planner's authors; see config/formats.md."""
    planner: Literal["phaze", "piper"] = "phaze"
    """Planner for the instance file."""
    model: Annotated[str | None, options.MODEL] = None
    gpus: options.GpusOption = None
    system: options.LevelsOption = None
    architecture: Annotated[
        str | None, typer.Option("--architecture", "-a", autocompletion=completion.chips)
    ] = None
    """Chips: a name in config/architectures or config/devices, or a path; several are separated by commas.
    Default: the system's device."""
    sweep: Annotated[list[str] | None, typer.Option(metavar="KEY=A,B")] = None
    """Values of a key of the architectures to compare, such as num_tc=4,8; at most two keys."""

    @property
    def cluster(self) -> str | None:
        """System, or its default; None if `gpus` names one."""
        return SYSTEM if self.system is None and self.gpus is None else self.system

    def planned_on(self, architecture: str) -> PlanOptions:
        """The same question to `phaze plan --architecture --planners`."""
        shared = {field.name for field in fields(self)} & {field.name for field in fields(PlanOptions)}
        values = {name: getattr(self, name) for name in shared}
        return PlanOptions(
            **{**values, "system": self.cluster, "architecture": architecture, "planners": True}
        )
