"""Training run described by a runtime's own file: Megatron-LM flags or a torchtitan configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from phaze.base.errors import PhazeError
from phaze.runtimes.megatron_flags import megatron_software, read_megatron, says_devices
from phaze.runtimes.megatron_software import Software
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.settings import settings_of
from phaze.runtimes.torchtitan_config import read_torchtitan, torchtitan_software
from phaze.spec.model import Model
from phaze.spec.models import file_name
from phaze.spec.plain import read_source, shown
from phaze.spec.system import Stack


@dataclass(frozen=True)
class GivenRun:
    """Training run read from a runtime's file: its recipe, and the flags that do not affect the price."""

    file: Path
    runtime: str
    text: str
    recipe: Recipe
    unread: tuple[str, ...]
    """Flags that do not affect the price."""
    few_devices: bool = False
    """True if the device count is not given, so that the layout's minimum is assumed."""
    blackwell: bool = False
    """True if the devices are of this generation or later."""

    @classmethod
    def of_megatron(
        cls, file: Path, devices: int | None, words: int | None = None, *, blackwell: bool = False
    ) -> Self:
        """Read a run from Megatron-LM flags for `devices` devices; PhazeError names the file."""
        text = read_source(file)
        try:
            recipe, unread = read_megatron(text, devices, file_name(file), words, blackwell=blackwell)
        except PhazeError as error:
            raise _named(file, error) from error
        few = devices is None and not says_devices(text)
        return cls(file, "megatron", text, recipe, unread, few, blackwell)

    @classmethod
    def of_torchtitan(cls, file: Path, model: Model, devices: int) -> Self:
        """Read a run from a torchtitan configuration for a model and devices; PhazeError names the file."""
        text = read_source(file)
        try:
            return cls(file, "torchtitan", text, *read_torchtitan(text, model, devices))
        except PhazeError as error:
            raise _named(file, error) from error

    def software(self, stack: Stack) -> Software:
        """Training software of the run; the stack supplies settings that are not in the file."""
        if self.runtime == "torchtitan":
            return torchtitan_software(self.text, self.recipe, stack)
        try:
            return megatron_software(self.text, self.recipe, stack, blackwell=self.blackwell)
        except PhazeError as error:
            raise _named(self.file, error) from error

    def remarks(self, software: Software) -> tuple[str, ...]:
        """Remarks on what the predicted time omits and assumes."""
        devices = (
            "number of devices is missing: assuming the fewest that the layout allows, "
            f"{self.recipe.layout.devices} (set it with --devices)"
        )
        left_out = ", ".join(software.unmodelled)
        subjects = settings_of(self.runtime).by_subject(self.unread) if self.unread else ""
        return (
            *[devices] * self.few_devices,
            *[f"not modelled, but changes time or memory: {left_out}"] * bool(left_out),
            *[f"changes neither time nor memory: {subjects}"] * bool(subjects),
        )


def _named(file: Path, error: PhazeError) -> PhazeError:
    """Copy of an error with the file name in front of every line."""
    return PhazeError("\n".join(f"{shown(file)}: {line}" for line in error.wrong.splitlines()), error.fix)
