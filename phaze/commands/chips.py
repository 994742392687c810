"""Compare the best placements of a model on several accelerators and on their variants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import yaml

from phaze.base.errors import PhazeError
from phaze.base.nearest import did_you_mean
from phaze.base.units import GIB, UM2_PER_MM2, digits, percent
from phaze.commands.answers import answer
from phaze.commands.tables import Titled, counts
from phaze.spec.architecture import Architecture
from phaze.spec.files import read_mapping
from phaze.spec.strict_yaml import load
from phaze.spec.system import Device
from phaze.spec.systems import chip_path, load_system_of
from phaze.tables.columns import layout_of

if TYPE_CHECKING:
    from phaze.commands.place_options import PlaceOptions
    from phaze.commands.tables import Row

BUILT = "tpu-v4-as-built"
"""Accelerator that every comparison includes, if the system specifies its clock and memory."""
MOST_KEYS = 2
COLUMNS = (
    Titled("architecture", "architecture"),
    Titled("step_s", "step s", lambda value: digits(float(str(value)), 4), right=True),
    Titled("mfu", "MFU", lambda value: percent(float(str(value))), right=True),
    counts("memory_gib", "GiB"),
    Titled("bound_by", "bound by"),
    counts("area_mm2", "mm2"),
    counts("watts", "W"),
    counts("tensor", "t"),
    counts("data", "d"),
    counts("stages", "s"),
    counts("microbatch", "mbs"),
)


@dataclass(frozen=True)
class Variant:
    """Architecture key to sweep, with the values to try."""

    key: str
    values: tuple[object, ...]

    @classmethod
    def of(cls, text: str) -> Variant:
        """Parse a sweep such as num_tc=4,8; PhazeError if malformed."""
        key, equals, values = text.partition("=")
        if not (key and equals and values):
            raise PhazeError(f"place: --sweep: must be KEY=VALUE,VALUE such as num_tc=4,8, got {text}")
        keys = sorted({*Architecture.model_fields, *Device.model_fields} - {"name"})
        if key not in keys:
            raise PhazeError(
                f"place: --sweep: {key}: is not a key of an architecture",
                did_you_mean(key, keys, "config/reference/architectures.md"),
            )
        return cls(key, tuple(load(value) for value in values.split(",")))


def compared(request: PlaceOptions, names: Sequence[str], sweeps: Sequence[str]) -> list[Row]:
    """Table rows with the best placement on every accelerator and variant."""
    if len(sweeps) > MOST_KEYS:
        raise PhazeError(f"place: --sweep: at most {MOST_KEYS} keys, got {len(sweeps)}")
    variants = [Variant.of(text) for text in sweeps]
    # Variants are written as files, because every later step loads an architecture by name or path.
    with TemporaryDirectory() as folder:
        chips = [path for name in names for path in _variants(name, variants, Path(folder))]
        # TPU v4 as built is the reference row, unless the system lacks the clock and HBM bandwidth for it.
        if BUILT not in names and _is_known(request):
            chips.append(BUILT)
        return [_row(request, chip) for chip in chips]


def _variants(name: str, variants: Sequence[Variant], folder: Path) -> Iterator[str]:
    """Yield the path of a written file per combination of swept values; without sweeps, the name."""
    if not variants:
        yield name
        return
    path = chip_path(name)
    fields = read_mapping(path)
    for values in product(*(variant.values for variant in variants)):
        changes = dict(zip((variant.key for variant in variants), values, strict=True))
        stem = "-".join([path.stem, *(f"{key}{value}" for key, value in changes.items())])
        file = folder / f"{stem}.yaml"
        file.write_text(yaml.safe_dump({**fields, **changes, "name": stem}), encoding="utf-8")
        yield str(file)


def _is_known(request: PlaceOptions) -> bool:
    """True if `load_system_of` accepts the system for the real TPU v4."""
    try:
        load_system_of(BUILT, request.system, flat=request.flat_bandwidth)
    except PhazeError:
        return False
    return True


def _row(request: PlaceOptions, chip: str) -> Row:
    placement = answer(replace(request, architecture=chip))
    best, placed = placement.best, placement.best["status"] == "placed"
    layout = layout_of(best)
    joules_per_s = float(best["joules_per_sample"]) * float(best["samples_per_s"])
    return {
        "architecture": str(best["architecture"]),
        "step_s": float(best["time_per_batch_s"]) if placed else None,
        "mfu": float(best["mfu"]) if placed else None,
        "memory_gib": float(placement.stages["memory_bytes"].max()) / GIB if placed else None,
        "bound_by": str(best["binding"]),
        "area_mm2": float(placement.evaluation.architectures["area_um2"].iloc[0]) / UM2_PER_MM2,
        "watts": joules_per_s / int(best["devices_used"]) if placed else None,
        "tensor": layout.tp,
        "data": int(best["data"]),
        "stages": int(best["stages"]),
        "microbatch": layout.microbatch,
    }
