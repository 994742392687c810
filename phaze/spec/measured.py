"""Published measurements of training runs, and the constants fitted to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phaze.base.units import percent
from phaze.spec.files import FOLDER
from phaze.spec.noun import Noun
from phaze.spec.values import NUMBER, Count, Label, Name, Once, Positive, Result, refuse_unknown

LIST = "measured.yaml"
"""Configuration file that lists the measured runs."""


class MeasuredStudy(Noun):
    """Published runs that a study compares with predictions."""

    sources: Annotated[tuple[Name, ...], Once] = ()
    """Names of files in `config/measured`; empty: no comparison page."""


class KnownFrom(Noun):
    """Constant of a device or software stack that is fitted to measured runs."""

    part: Literal["device", "stack"]
    """Owner of the constant: a device or a software stack."""
    of: Annotated[tuple[Name, ...], Once] = Field(min_length=1)
    """Names of the files in config/devices or config/stacks that share the constant."""
    key: Label
    """Key of the constant in that file; dots lead to nested keys."""
    most: Positive
    """Largest value that the constant may have."""
    sources: Annotated[tuple[Name, ...], Once] = Field(min_length=1)
    """Sources to which the constant is fitted."""

    @property
    def name(self) -> str:
        """Owners and key of the constant, such as `h100-80gb sustained_clock`."""
        return f"{', '.join(self.of)} {self.key}"


class HeldOutErrors(Noun):
    """Errors of predictions for a generation of devices that no constant was fitted to."""

    runs: Count
    """Number of measured runs or kernels."""
    mean: Result
    """Mean absolute error, as a share of the measured time."""
    most: Result
    """Largest absolute error, as a share of the measured time."""
    bias: Annotated[float, Field(strict=True, allow_inf_nan=False), NUMBER]
    """Mean error, as a share of the measured time; negative: predicted too fast."""


class PublishedRuns(Noun):
    """Sources of measured runs, constants fitted to the runs, and other tools that predict the runs."""

    sources: dict[Name, Label]
    """Description of each file of config/measured, for readers."""
    simulated: dict[Name, Label] = Field(default_factory=dict)
    """Sources whose times appear to be simulated, with the reason. `validate` also reports accuracy without
    them."""
    fitted: tuple[KnownFrom, ...] = ()
    """Constants fitted to some of the sources."""
    tools: dict[Label, Label] = Field(default_factory=dict)
    """Publication of another tool's predictions, by the tool's name in other-tools.csv."""

    held_out: dict[Literal["training", "scheduled", "products"], HeldOutErrors] = Field(default_factory=dict)
    """Errors for B200, GB200 and MI355X by public figures, with what software reaches on earlier devices
    (`python -m tests.held_out`): dense training with kernels; the same in bf16 under a static schedule, as
    chips of architectures are priced; and products."""

    @property
    def trust(self) -> str:
        """Sentence on how far the time of a chip that does not exist can be trusted."""
        training, scheduled = self.held_out["training"], self.held_out["scheduled"]
        return (
            f"How far a chip that does not exist can be trusted: predictions for B200 and GB200, by public "
            f"figures and with software as on H100, miss {training.runs} measured dense runs by "
            f"{percent(training.mean, 0)} in the mean and {percent(training.most, 0)} at most; with the "
            f"static schedule of an architecture they are {percent(-scheduled.bias, 0)} shorter than "
            f"{scheduled.runs} measured runs."
        )

    @model_validator(mode="after")
    def _known(self) -> Self:
        refuse_unknown("simulated", self.simulated, self.sources, "sources")
        for constant in self.fitted:
            refuse_unknown(f"fitted: {constant.name}", constant.sources, self.sources, "sources")
        return self

    @classmethod
    def load(cls, folder: Path = FOLDER) -> Self:
        """Load the list of measured runs from the configuration."""
        return cls.from_file(folder / LIST)
