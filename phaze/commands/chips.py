"""Compare the best plans of a model on chips of several architectures and on their variants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import yaml

from phaze.base.errors import PhazeError
from phaze.base.nearest import did_you_mean
from phaze.base.units import UM2_PER_MM2, digits, percent
from phaze.commands.output import ended_at_once, restored_interrupts
from phaze.commands.plan import answers_of, prepared
from phaze.commands.tables import Titled, counts
from phaze.cost.space import area_um2
from phaze.plan.answer.answer import NoPlanInTime
from phaze.plan.answer.words import unfit_in_words
from phaze.spec.architecture import TECHNOLOGY, Architecture, load_technology
from phaze.spec.files import read_mapping
from phaze.spec.names import REFERENCE_CHIP
from phaze.spec.strict_yaml import load
from phaze.spec.system import Device
from phaze.spec.systems import chip_path

if TYPE_CHECKING:
    from phaze.commands.place_options import PlaceOptions
    from phaze.commands.plan_phases import PlanPhases
    from phaze.commands.tables import Row

MOST_KEYS = 2
COLUMNS = (
    Titled("architecture", "architecture"),
    Titled("step_s", "step s", lambda value: digits(float(str(value)), 4), right=True),
    Titled("mfu", "MFU", lambda value: percent(float(str(value))), right=True),
    counts("memory_gib", "GiB"),
    Titled("bound_by", "bound by"),
    counts("area_mm2", "mm2"),
    counts("tp", "tp"),
    counts("dp", "dp"),
    counts("pp", "pp"),
    counts("microbatch", "mbs"),
    Titled("claimed_s", "formula s", lambda value: digits(float(str(value)), 4), right=True),
    Titled("priced_s", "priced s", lambda value: digits(float(str(value)), 4), right=True),
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
    """Table rows with the best plan on every architecture and variant."""
    if len(sweeps) > MOST_KEYS:
        raise PhazeError(f"place: --sweep: at most {MOST_KEYS} keys, got {len(sweeps)}")
    variants = [Variant.of(text) for text in sweeps]
    # Variants are written as files, because every later step loads an architecture by name or path.
    with TemporaryDirectory() as folder:
        chips = [path for name in names for path in _variants(name, variants, Path(folder))]
        # TPU v4 as built is the reference row.
        chips += [REFERENCE_CHIP] * (REFERENCE_CHIP not in names)
        rows: list[Row] = []
        with ended_at_once():
            # All are checked before the first one is planned.
            for phases in [prepared(request.planned_on(chip), tells=chip == chips[0]) for chip in chips]:
                with restored_interrupts():
                    rows.append(_row(phases))
                if any(phase.interrupted for phase in phases):
                    break
        return rows


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


def _row(phases: list[PlanPhases]) -> Row:
    """Row of one architecture, with the reason if there is no plan.

    Raises PhazeError for several numbers of devices.
    """
    if len(phases) > 1:
        raise PhazeError(
            f"place: --devices: must be one number for a table, got {len(phases)}",
            "pass one number of devices, or one architecture without --sweep",
        )
    device = phases[0].question.stored_machine().device
    row: dict[str, object] = {
        "architecture": device.name,
        "area_mm2": area_um2(device, load_technology(TECHNOLOGY).area_um2) / UM2_PER_MM2,
    }
    empty = dict[str, object]({column.key: None for column in COLUMNS}) | row
    try:
        (answer,) = answers_of(phases)
    except NoPlanInTime as error:
        return empty | {"reason": str(error)}
    if answer.format == "phaze-no-plan":
        return empty | {"reason": unfit_in_words(answer)}
    phaze = next((planner for planner in answer.planners if planner.planner == "phaze"), None)
    widths = answer.layout.model_dump(include={"tp", "dp", "pp", "microbatch"})
    return row | {
        "step_s": answer.time_s,
        "mfu": answer.mfu,
        "memory_gib": max(answer.memory_gib),
        "bound_by": answer.bound_by,
        **widths,
        "claimed_s": phaze and phaze.planned_s,
        "priced_s": phaze and phaze.time_s,
    }
