"""Training run described by a file of its runtime: Megatron-LM, torchtitan or DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

from phaze.base.errors import PhazeError
from phaze.layout import NATURAL, Load
from phaze.runtimes.deepspeed_config import deepspeed_software, read_deepspeed
from phaze.runtimes.megatron_flags import megatron_software, read_megatron, sets_devices
from phaze.runtimes.megatron_software import Software
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.settings import settings_of
from phaze.runtimes.torchtitan_config import ROUTED, read_torchtitan, torchtitan_software
from phaze.spec.model import Model
from phaze.spec.models import file_name
from phaze.spec.plain import read_source, shown
from phaze.spec.system import Stack


@dataclass(frozen=True)
class RunFile:
    """Training run read from a runtime's file: its recipe, and the flags that do not affect the price."""

    file: Path
    runtime: str
    text: str
    recipe: Recipe
    unread: tuple[str, ...]
    """Flags that do not affect the price."""
    assumed: tuple[str, ...] = ()
    """Sentences on sizes that the file does not have."""
    blackwell: bool = False
    """True if the devices are of this generation or later."""

    @classmethod
    def of_megatron(
        cls,
        file: Path,
        devices: int | None,
        words: int | None = None,
        *,
        blackwell: bool = False,
        routed: Load = NATURAL,
    ) -> Self:
        """Read a run from Megatron-LM flags for `devices` devices; PhazeError names the file.

        `routed` is the expert load if the file has none.
        """
        text = read_source(file)
        try:
            recipe, unread = read_megatron(
                text, devices, file_name(file), words, blackwell=blackwell, routed=routed
            )
        except PhazeError as error:
            raise _named(file, error) from error
        few = (
            "number of devices is missing: assuming the fewest that the layout allows, "
            f"{recipe.layout.devices} (set it with --devices)"
        )
        assumed = (few,) * (devices is None and not sets_devices(text))
        return cls(file, "megatron", text, recipe, unread, assumed, blackwell)

    @classmethod
    def of_torchtitan(cls, file: Path, model: Model, devices: int, routed: Load = ROUTED) -> Self:
        """Read a run from a torchtitan configuration for a model and devices; PhazeError names the file.

        `routed` is the expert load if the file has none.
        """
        text = read_source(file)
        try:
            return cls(file, "torchtitan", text, *read_torchtitan(text, model, devices, routed))
        except PhazeError as error:
            raise _named(file, error) from error

    @classmethod
    def of_deepspeed(
        cls,
        file: Path,
        model: Model,
        devices: int,
        options: Mapping[str, int | str] = MappingProxyType({}),
        routed: Load = NATURAL,
    ) -> Self:
        """Read a run from DeepSpeed's JSON for a model and devices; `options` are set by the script.

        `routed` is the expert load if the script sets none.
        """
        text = read_source(file)
        try:
            recipe, unread = read_deepspeed(text, model, devices, options, routed)
        except PhazeError as error:
            raise _named(file, error) from error
        usual = f"sequence is missing: assuming {recipe.sequence:,} tokens (set it with --layout sequence=…)"
        return cls(file, "deepspeed", text, recipe, unread, (usual,) * ("sequence" not in options))

    def software(self, stack: Stack) -> Software:
        """Training software of the run; the stack supplies settings that are not in the file."""
        if self.runtime != "megatron":
            read = torchtitan_software if self.runtime == "torchtitan" else deepspeed_software
            return read(self.text, self.recipe, stack)
        try:
            return megatron_software(self.text, self.recipe, stack, blackwell=self.blackwell)
        except PhazeError as error:
            raise _named(self.file, error) from error

    def remarks(self, software: Software) -> tuple[str, ...]:
        """Remarks on omissions and assumptions of the predicted time."""
        left_out = ", ".join(software.unmodelled)
        subjects = settings_of(self.runtime).by_subject(self.unread) if self.unread else ""
        return (
            *self.assumed,
            *[f"not modelled, but changes time or memory: {left_out}"] * bool(left_out),
            *[f"changes neither time nor memory: {subjects}"] * bool(subjects),
        )


def _named(file: Path, error: PhazeError) -> PhazeError:
    """Copy of an error with the file name in front of every line."""
    return PhazeError("\n".join(f"{shown(file)}: {line}" for line in error.wrong.splitlines()), error.fix)
