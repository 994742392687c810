"""Models whose training is planned over all layouts of a runtime, on systems of several sizes."""

from typing import Annotated, Literal

from phaze.spec.noun import Noun
from phaze.spec.values import Count, Location, Name, Once, Part, Positive, PositiveInt


class LayoutPoint(Noun):
    """One job: a model on one system of one size."""

    model: Name
    """Name of a spec in config/models."""
    system: Name
    """Name of a file in config/systems with a device and levels."""
    devices: Count
    """Devices that train."""


class LayoutStudy(Noun):
    """Plans of models over all layouts of a runtime, in every combination of what is listed."""

    models: Annotated[tuple[Name, ...], Once] = ()
    """Names of specs of transformers in config/models; without any there is nothing to plan."""
    systems: Annotated[tuple[Name, ...], Once] = ("h100",)
    """Names of files in config/systems with a device and levels."""
    devices: Annotated[tuple[Count, ...], Once] = (256, 512, 1024)
    """Devices that train; beyond a system's own size where its outermost level can grow."""
    global_batch: PositiveInt = 1024
    """Samples of a batch."""
    sequence: PositiveInt = 8192
    """Tokens of a sample."""
    runtime: Literal["megatron", "torchtitan", "deepspeed", "maxtext"] = "megatron"
    """Software whose rules a layout keeps."""
    stack: Location | None = None
    """Software stack, a file in config/stacks; the system's own, or the runtime's, unless given."""
    gap: Part = 0.005
    """Share of the best plan's time by which a better one may be faster when the search ends."""
    top: PositiveInt = 10
    """Plans in the ranked table of every size."""
    tokens: Positive = 1e12
    """Tokens to train on, for the days that it takes."""

    @property
    def points(self) -> dict[str, LayoutPoint]:
        """Jobs by a name that is also a file name."""
        return {
            f"{model}.{system}.{devices}": LayoutPoint(model=model, system=system, devices=devices)
            for model in self.models
            for system in self.systems
            for devices in self.devices
        }
