"""Published measurements of training runs: which a study compares with, and what is fitted to which."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phaze.spec.files import FOLDER
from phaze.spec.noun import Noun
from phaze.spec.values import Label, Name, Once, Positive, refuse_unknown

LIST = "measured.yaml"
"""File of the configuration that says what is measured."""


class MeasuredStudy(Noun):
    """Published runs that a study compares with predictions."""

    sources: Annotated[tuple[Name, ...], Once] = ()
    """Files of `config/measured`; none for no page of them."""


class KnownFrom(Noun):
    """A constant of a device or of a software stack that is fitted to measured runs."""

    part: Literal["device", "stack"]
    """Whose constant it is."""
    of: Name
    """Name of its file in config/devices or config/stacks."""
    key: Label
    """Key of the number there, with dots where it is inside others."""
    most: Positive
    """The largest that it may be."""
    sources: Annotated[tuple[Name, ...], Once] = Field(min_length=1)
    """Sources that it is fitted to."""


class PublishedRuns(Noun):
    """Sources of measured runs, constants that are fitted to them, and other tools that predict them."""

    sources: dict[Name, Label]
    """What each file of config/measured holds, for readers."""
    simulated: dict[Name, Label] = Field(default_factory=dict)
    """Sources whose times look simulated, and why: `validate` also shows the others without them."""
    fitted: tuple[KnownFrom, ...] = ()
    """Constants that are fitted to some of the sources."""
    tools: dict[Label, Label] = Field(default_factory=dict)
    """Where predictions of another tool, by its name in other-tools.csv, are published."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        refuse_unknown("simulated", self.simulated, self.sources, "sources")
        for constant in self.fitted:
            refuse_unknown(f"fitted: {constant.of}.{constant.key}", constant.sources, self.sources, "sources")
        return self

    @classmethod
    def load(cls, folder: Path = FOLDER) -> Self:
        """What the configuration says of measured runs."""
        return cls.from_file(folder / LIST)
