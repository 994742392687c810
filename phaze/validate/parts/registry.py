"""Kinds of kernels that are compared with measured ones, by name."""

from __future__ import annotations

from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.spec.files import FOLDER
from phaze.validate.parts.attention import AttentionPart
from phaze.validate.parts.base import KernelPart
from phaze.validate.parts.collectives import Collectives
from phaze.validate.parts.products import ExpertsPart, ProductsPart

KERNELS = FOLDER / "measured" / "kernels"
"""Folder of the configuration's measured kernels, one table per part."""

PARTS: dict[str, KernelPart] = {
    part.name: part for part in (ProductsPart(), ExpertsPart(), AttentionPart(), Collectives())
}


def part_named(name: str) -> KernelPart:
    """Part with the given name; PhazeError if it is unknown."""
    if name not in PARTS:
        raise PhazeError(f"--part must be one of {', '.join(PARTS)}, got {name}")
    return PARTS[name]


def kernel_files(part: KernelPart) -> list[Path]:
    """Tables in the configuration with a part's measured kernels."""
    return [KERNELS / f"{part.name}.csv"]
