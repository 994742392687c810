"""Published plans to show beside a study's own; nothing is computed from them, nothing is tuned to them."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from phaze.spec.noun import Noun
from phaze.spec.settings import Name, PositiveFloat, PositiveInt

OUT_OF_MEMORY = "OOM"
_PRINTED = re.compile(r"\d+(\.\d+)?|OOM")


def _as_printed(text: str) -> str:
    if not _PRINTED.fullmatch(text):
        raise ValueError("must be a number as printed, or OOM")
    return text


Printed = Annotated[str, AfterValidator(_as_printed)]
"""A time with the digits that are printed, or OOM."""


class PrintedPlan(Noun):
    """A row of a printed table of plans."""

    devices: PositiveInt
    """Devices."""
    memory_gib: PositiveFloat
    """Memory of a device."""
    piper: Printed
    """Time per sample that Piper finds."""
    equi: Printed
    """Time per sample of the best equal stages."""


class PrintedRunningTime(Noun):
    """A running time of the planner that is printed."""

    blocks: PositiveInt
    """Layers of the model."""
    devices: PositiveInt
    """Devices."""
    microbatches: PositiveInt
    """N."""
    seconds: PositiveFloat
    """Time that the authors' program takes at most."""


class PublishedPlans(Noun):
    """A publication's plans."""

    title: str
    """Title."""
    citation: str
    """Authors, venue, year."""
    sources: dict[str, str]
    """Where each kind of figure is printed."""
    table: dict[Name, tuple[PrintedPlan, ...]] = Field(default_factory=dict)
    """Printed rows, by input."""
    equi_share: dict[Name, PositiveFloat] = Field(default_factory=dict)
    """Mean throughput of equal stages over Piper's where both exist, by input."""
    no_dp_stops: PositiveInt | None = None
    """Devices beyond which plans without data parallelism gain nothing."""
    equi_worse: tuple[PositiveFloat, PositiveFloat] | None = None
    """How much more time equal stages take for most numbers of devices, from and to."""
    running_times: tuple[PrintedRunningTime, ...] = ()
    """Running times of the authors' program."""
    missing: tuple[str, ...] = ()
    """What is printed and cannot be compared, and why; sentences."""
    notes: tuple[str, ...] = ()
    """What a reader of the comparison should know about the printed figures."""

    @model_validator(mode="after")
    def _every_figure_has_a_source(self) -> Self:
        given = [key for key in _SOURCED if getattr(self, key)]
        missing = [key for key in given if key not in self.sources]
        if missing:
            raise ValueError(f"sources: it is not said where {', '.join(missing)} is printed")
        return self


_SOURCED = ("table", "equi_share", "no_dp_stops", "equi_worse", "running_times")
