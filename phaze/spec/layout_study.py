"""Studies that plan training over all layouts of a runtime, on systems of several sizes."""

from typing import Annotated, Self

from pydantic import model_validator

from phaze.spec.names import GAP, TrainingRuntime
from phaze.spec.noun import Noun
from phaze.spec.values import Count, Location, Name, Once, Part, Positive, PositiveInt


class LayoutPoint(Noun):
    """Planning job: a model on a number of devices of one system."""

    model: Name
    """Name of a file in config/models."""
    system: Name
    """Name of a file in config/systems that has a device and levels."""
    devices: Count
    """Number of devices to train on."""


class LayoutStudy(Noun):
    """Training plans over all layouts of a runtime, for each model, system and number of devices."""

    models: Annotated[tuple[Name, ...], Once] = ()
    """Names of transformer specs in config/models; empty: no layouts are planned."""
    systems: Annotated[tuple[Name, ...], Once] = ("h100",)
    """Names of files in config/systems that have a device and levels."""
    devices: Annotated[tuple[Count, ...], Once] = (256, 512, 1024)
    """Numbers of devices to train on. A number above the system's size extends its outermost level, if that
    can grow."""
    global_batch: PositiveInt = 1024
    """Samples per training step."""
    sequence: PositiveInt = 8192
    """Tokens per sample."""
    runtime: TrainingRuntime | None = None
    """Training software, whose layouts are considered; default: megatron, or maxtext on TPUs."""
    stack: Location | None = None
    """Software stack, a file in config/stacks; default: the system's if it belongs to this runtime, else the
    runtime's."""
    architecture: Location | None = None
    """Chips to plan on instead of the systems' devices, without a runtime: an architecture or device by name
    or path, or several separated by commas, of which the best one is chosen; default: the systems' devices.
    """
    gap: Part = GAP
    """Optimality gap at which the search stops, as a share of the best plan's step time."""
    top: PositiveInt = 10
    """Number of plans in each ranked table."""
    tokens: Positive = 1e12
    """Training tokens, for the duration in days."""

    @model_validator(mode="after")
    def _without_runtime(self) -> Self:
        for name in ("runtime", "stack"):
            if self.architecture is not None and getattr(self, name) is not None:
                raise ValueError(f"{name}: an architecture has no runtime: leave out {name} or architecture")
        return self

    @property
    def points(self) -> dict[str, LayoutPoint]:
        """Planning jobs, by a name that can also be a file name."""
        return {
            f"{model}.{system}.{devices}": LayoutPoint(model=model, system=system, devices=devices)
            for model in self.models
            for system in self.systems
            for devices in self.devices
        }
