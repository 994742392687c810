"""Fit a device to a user's own measured kernels, and write its file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import yaml

from phaze.base.errors import PhazeError
from phaze.base.files import write_text
from phaze.spec.system import Device
from phaze.spec.systems import load_device
from phaze.validate.constants import Site
from phaze.validate.own_runs import refuse_as_file
from phaze.validate.parts.base import KernelPart, in_a_loop, site_of
from phaze.validate.parts.registry import PARTS
from phaze.validate.parts.scores import ComparedKernels, PartScore

LEAST_ROWS = 5
"""Minimum rows of a part to fit it."""
OF_SYSTEMS = ("collectives",)
"""Parts whose constants belong to a system's levels, not to a device."""


@dataclass(frozen=True)
class FittedPart:
    """Scores of a part of a device before and after it is fitted."""

    part: str
    before: PartScore
    after: PartScore


def fit_device(path: Path, name: str, out: Path) -> tuple[FittedPart, ...]:
    """Fit a device to the kernels of a table, and write its file.

    Raises PhazeError if the table has kernels of several devices, or none that belong to a device.
    """
    refuse_as_file(out, "--device")
    site = _site(load_device(name))
    found = []
    for part in PARTS.values():
        if part.name not in OF_SYSTEMS and part.reads(path):
            rows = _rows(part, path)
            fitted = _fitted(part, rows, site)
            found.append(FittedPart(part.name, _score(part, rows, site), _score(part, rows, fitted)))
            site = fitted
    if not found:
        raise PhazeError(
            f"{path}: has no rows of products, experts or attention; `phaze measure` writes such a "
            "table, and config/formats.md lists its columns"
        )
    write_text(out, device_text(site.device, path, name))
    return tuple(found)


def device_text(device: Device, path: Path, base: str) -> str:
    """Device file with the kernels fitted to a table and all other fields of the base device."""
    plain = device.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude={"name"})
    about = f"# {Path(base).stem} with kernels fitted to {path.name} (phaze calibrate --kernels).\n"
    return about + yaml.safe_dump(plain, sort_keys=False)


def _site(device: Device) -> Site:
    """System with the device. Its network does not affect kernels."""
    found = site_of(device.name) or site_of(device.assumed_from or "h100-80gb")
    if found is None:
        raise PhazeError(f"device {device.name}: no system in config/systems uses it")
    return replace(found, device=device)


def _fitted(part: KernelPart, rows: pd.DataFrame, site: Site) -> Site:
    """Site with constants fitted to kernels in a loop; the sustained clock is unchanged."""
    device = part.fitted(rows, in_a_loop(site)).device
    kept = device.model_copy(update={"sustained_clock": site.device.sustained_clock})
    return replace(site, device=kept)


def _rows(part: KernelPart, path: Path) -> pd.DataFrame:
    rows = part.read(path)
    devices = list(dict.fromkeys(rows["device"]))
    if len(devices) > 1:
        raise PhazeError(f"{path}: must have kernels of one device, got {', '.join(devices[:5])}")
    if len(rows) < LEAST_ROWS:
        raise PhazeError(f"{path}: has {len(rows)} rows of {part.name}, at least {LEAST_ROWS} are needed")
    return rows


def _score(part: KernelPart, rows: pd.DataFrame, site: Site) -> PartScore:
    return ComparedKernels(part, rows, part.predicted_s(rows, in_a_loop(site))).score
