"""A training run as the file of its runtime says it: flags of Megatron-LM, or a torchtitan configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from phaze.base.errors import PhazeError
from phaze.runtimes.megatron_flags import megatron_software, read_megatron, says_devices
from phaze.runtimes.megatron_software import Software
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.torchtitan_read import read_torchtitan, torchtitan_unlike
from phaze.spec.model import Model
from phaze.spec.models import file_name
from phaze.spec.plain import read_source, shown
from phaze.spec.system import Stack


@dataclass(frozen=True)
class GivenRun:
    """A run that a file says."""

    file: Path
    runtime: str
    text: str
    recipe: Recipe
    unread: tuple[str, ...]
    """Flags that say nothing of the price."""
    few_devices: bool = False
    """Whether nothing says how many devices train, so that they are the fewest that the layout allows."""

    @classmethod
    def of_megatron(cls, file: Path, devices: int | None, words: int | None = None) -> Self:
        """Run of flags on so many devices; PhazeError naming the file."""
        text = read_source(file)
        try:
            recipe, unread = read_megatron(text, devices, file_name(file), words)
        except PhazeError as error:
            raise _named(file, error) from error
        return cls(file, "megatron", text, recipe, unread, devices is None and not says_devices(text))

    @classmethod
    def of_torchtitan(cls, file: Path, model: Model, devices: int) -> Self:
        """Run of a configuration of a model on so many devices; PhazeError naming the file."""
        text = read_source(file)
        if not any(map(str.isalpha, text)):
            raise PhazeError(f"{shown(file)}: holds no settings of torchtitan")
        try:
            return cls(file, "torchtitan", text, *read_torchtitan(text, model, devices))
        except PhazeError as error:
            raise _named(file, error) from error

    def software(self, stack: Stack) -> Software:
        """Software that the file says the run has; of what it cannot say, that of a stack."""
        if self.runtime == "torchtitan":
            unlike = torchtitan_unlike(self.text, self.recipe, stack)
            return Software(stack, unmodelled=tuple(f"stack {stack.name} is priced {one}" for one in unlike))
        try:
            return megatron_software(self.text, self.recipe, stack)
        except PhazeError as error:
            raise _named(self.file, error) from error

    def remarks(self, software: Software) -> tuple[str, ...]:
        """Sentences on what the price of the run leaves out, and what it assumes."""
        devices = (
            f"no number of devices is given: the fewest that the layout allows, {self.recipe.layout.devices}"
        )
        left_out = ", ".join(software.unmodelled)
        return (
            *[devices] * self.few_devices,
            *[f"changes time or memory and is not modelled: {left_out}"] * bool(left_out),
            *[f"not priced: {', '.join(self.unread)}"] * bool(self.unread),
        )


def _named(file: Path, error: PhazeError) -> PhazeError:
    """The same mistake with the name of its file in every line."""
    return PhazeError("\n".join(f"{shown(file)}: {line}" for line in str(error).splitlines()))
