"""Fit constants to a user's own runs or kernels, and write the system or device file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import compress
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from phaze.base.errors import PhazeError
from phaze.base.files import refuse_unwritable, write_text
from phaze.layout import SHARED_OPTIONS, Load
from phaze.spec.files import is_path
from phaze.spec.system import Calibration, Cluster, Device, LayoutResidual
from phaze.spec.systems import load_device
from phaze.validate.calibration import Calibrated, calibrated
from phaze.validate.constants import Site
from phaze.validate.intervals import features_needed
from phaze.validate.parts.base import KernelPart, in_a_loop, site_of
from phaze.validate.parts.registry import PARTS
from phaze.validate.parts.scores import ComparedKernels, PartScore
from phaze.validate.rows import RunRow, read_rows
from phaze.validate.table import predict_rows

LEAST_RUNS = 3
"""Minimum number of runs; fewer do not determine several constants."""
LARGER = "does not fit the memory as described"
UNMEASURED = "measured_s is not given"
LONGEST_NAME = 200
ROOM = 1.1
"""Maximum ratio of predicted to device memory at which a completed run counts as described correctly.

The margin is the error of memory predictions (torchtitan's runs, 8 %).
"""
LEAST_ROWS = 5
"""Minimum number of rows to fit a kind of kernel."""
OF_SYSTEMS = ("collectives",)
"""Kinds of kernels whose constants belong to a system's levels, not to a device."""


@dataclass(frozen=True)
class UserRuns:
    """User's own runs on a system that are measured and can be predicted, all with one software stack."""

    site: Site
    rows: tuple[RunRow, ...]
    unused: Mapping[str, int]
    """Number of unused rows, by reason."""
    named: bool
    """True if the rows name their system, which then overrides the system given to the command."""


def user_runs(path: Path, system: str) -> UserRuns:
    """Read a table's runs on a system; PhazeError for fewer than three runs, or for several stacks.

    A row is unused if it names another system, has no `measured_s`, or cannot be predicted. Experts of rows
    without a load have that which the software stack expects of training, not the balanced one of benchmarks.
    """
    table, rows = read_rows(path)
    reasons = [_unusable(row, system) for row in rows]
    usable = [not reason for reason in reasons]
    usable_rows = list(compress(rows, usable))
    site = Site.load(system, _common_stack(path, usable_rows, system))
    # A row's own names would load the shipped files, not the system that is being fitted.
    unnamed_rows = [replace(row, system="", stack="") for row in usable_rows]
    routed, has_load = site.machine.stack.load.expected, compress(_has_load(table), usable)
    unnamed_rows = [
        row if given else _with_load(row, routed) for row, given in zip(unnamed_rows, has_load, strict=True)
    ]
    mistakes = _mistakes(unnamed_rows, site)
    reasons += [mistake for mistake in mistakes if mistake]
    valid_rows = [row for row, mistake in zip(unnamed_rows, mistakes, strict=True) if not mistake]
    unused = Counter(reason for reason in reasons if reason)
    larger = sum(mistake.startswith(LARGER) for mistake in mistakes)
    # Completed runs that do not fit as described point to a wrong column, so they must not prevail.
    if len(valid_rows) < max(LEAST_RUNS, larger):
        why = "".join(f"; {line}" for line in in_words(unused))
        raise PhazeError(
            f"{path}: {len(valid_rows)} runs on {system} are measured and can be predicted; at least "
            f"{max(LEAST_RUNS, larger)} are needed{why}{_hint(unnamed_rows, mistakes, site)}"
        )
    return UserRuns(site, tuple(valid_rows), unused, any(row.system for row in usable_rows))


def _has_load(table: pd.DataFrame) -> list[bool]:
    """True for the lines of a table that give the load of experts."""
    columns = table[[name for name in ("load", "capacity") if name in table]]
    return [any(map(str.strip, line)) for line in columns.itertuples(index=False)]


def _with_load(row: RunRow, load: Load) -> RunRow:
    """Row of a model with experts under another load; other rows stay as they are."""
    if not row.has_experts:
        return row
    return replace(row, runs=tuple(replace(run, layout=replace(run.layout, load=load)) for run in row.runs))


def _mistakes(rows: Sequence[RunRow], site: Site) -> list[str]:
    """Reason why each row's description must be wrong (invalid layout, too much memory), or empty."""
    predicted = predict_rows(rows, site.machine)
    larger = predicted["memory_gib"].to_numpy(float) > ROOM * site.device.hbm_gib
    reasons = []
    for status, large in zip(predicted["status"].astype(str), larger, strict=True):
        fits = "" if not large else f"{LARGER}, though it ran"
        reasons.append(status.removeprefix("invalid: ") if status.startswith("invalid") else fits)
    return reasons


def _hint(rows: Sequence[RunRow], mistakes: Sequence[str], site: Site) -> str:
    """Hint at the column that is probably wrong if completed runs do not fit in memory as described."""
    wrong = [row for row, mistake in zip(rows, mistakes, strict=True) if mistake.startswith(LARGER)]
    if not wrong:
        return ""
    other = [
        replace(row, runs=tuple(replace(run, flash_attention=True) for run in row.runs)) for row in wrong
    ]
    fit = sum(not mistake for mistake in _mistakes(other, site))
    # Without flash attention the scores are stored, which takes much memory: the first suspect.
    if 2 * fit >= len(wrong):
        return f"; with flash_attention true {fit} of these {len(wrong)} fit: check that column"
    *columns, last = "recompute", "zero", "sequence_parallel", *SHARED_OPTIONS
    return f"; check that {', '.join(columns)} and {last} are those of the run"


def in_words(unused: Mapping[str, int]) -> Iterator[str]:
    """Yield one line per reason for unused rows, with the number of rows; the most frequent reason first."""
    for reason, count in sorted(unused.items(), key=lambda pair: (-pair[1], pair[0])):
        yield f"not used: {count} × {reason}"


def _unusable(row: RunRow, system: str) -> str:
    """Reason why a row cannot be used for a system; empty for a usable row."""
    if not row.runs:
        return row.problem
    if row.system not in ("", system):
        return f"system is {row.system}"
    return "" if row.measured_s is not None else UNMEASURED


def _common_stack(path: Path, rows: Sequence[RunRow], system: str) -> str | None:
    """Software stack that all rows have in common; None for the system's own."""
    default = Site.load(system).cluster.stack
    counts = Counter(row.stack or default or "" for row in rows)
    if len(counts) > 1:
        shown = ", ".join(f"{count} of {name or 'none'}" for name, count in counts.most_common())
        raise PhazeError(f"{path}: column stack: must be the same for all runs on {system}, got {shown}")
    return next(iter(counts), "") or None


def calibrate(path: Path, system: str, out: Path) -> tuple[UserRuns, Calibrated]:
    """Fit a system's constants to the runs of a table, and write the fitted system to a YAML file."""
    refuse_as_file(out, "--system")
    runs = user_runs(path, system)
    _refuse_elsewhere(runs.site.cluster, system, out)
    calibration = calibrated(runs.site, runs.rows)
    write_text(out, system_text(calibration, runs.rows, path, system))
    return runs, calibration


def system_text(calibration: Calibrated, rows: Sequence[RunRow], path: Path, system: str) -> str:
    """Text of a system file, with the constants fitted to the runs of a table, and the runs' features."""
    old = calibration.site.cluster.calibrated
    fitted = Calibration(
        runs=path.name[-LONGEST_NAME:],
        cluster=Path(system).stem,
        software=calibration.site.stack.name,
        date=max(row.date for row in rows) or f"{datetime.now(UTC):%Y-%m}",
        rows=calibration.rows,
        features=features_needed(predict_rows(rows, calibration.site.machine)),
        device={**(old.device if old else {}), **_changed(calibration, "device")},
        stack={**(old.stack if old else {}), **_changed(calibration, "stack")},
        error_before=round(calibration.error_before, 5),
        error=round(calibration.error, 5),
        error_left_out=round(calibration.error_left_out, 5),
        covered=round(calibration.covered, 3),
        uncertainty={
            constant.constant.name: float(f"{constant.uncertainty:.3g}")
            for constant in calibration.constants
            if constant.identifiable
        },
        layouts={
            errors.parallelism: LayoutResidual(
                runs=errors.runs, bias=round(errors.bias, 5), error=round(errors.error, 5)
            )
            for errors in calibration.layouts
        },
    )
    cluster = calibration.site.cluster.model_copy(update={"calibrated": fitted})
    about = f"# {Path(system).stem} with constants fitted to runs (python -m phaze calibrate).\n"
    plain = cluster.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return about + yaml.safe_dump(plain, sort_keys=False)


def _changed(calibration: Calibrated, part: str) -> dict[str, float]:
    return {
        fitted.constant.key: fitted.after
        for fitted in calibration.constants
        if fitted.constant.part == part and not np.isclose(fitted.after, fitted.before)
    }


def refuse_as_file(out: Path, option: str) -> None:
    """Raise PhazeError if an option would not accept the path as a file, or if it cannot be written."""
    if not is_path(out.name):
        raise PhazeError(f"{out}: must end in .yaml or .yml, so that {option} accepts it as a file")
    refuse_unwritable(out)


def _refuse_elsewhere(cluster: Cluster, system: str, out: Path) -> None:
    """Raise PhazeError if the system names its device by a path and `out` is in another folder."""
    if is_path(cluster.device) and out.resolve().parent != Path(system).resolve().parent:
        raise PhazeError(
            f"{out}: must be in the folder of {system}, which names its device by a relative path: "
            f"{cluster.device}"
        )


@dataclass(frozen=True)
class FittedPart:
    """Scores of one kind of kernel on a device, before and after the fit."""

    part: str
    before: PartScore
    after: PartScore


def fit_device(path: Path, name: str, out: Path) -> tuple[FittedPart, ...]:
    """Fit a device to the kernels of a table, and write the device file.

    Raises PhazeError if the table has kernels of several devices, or none that belong to a device.
    """
    refuse_as_file(out, "--device")
    site = _site(load_device(name))
    parts = []
    for part in PARTS.values():
        if part.name not in OF_SYSTEMS and part.reads(path):
            rows = _device_rows(part, path)
            fitted = _fitted(part, rows, site)
            parts.append(FittedPart(part.name, _score(part, rows, site), _score(part, rows, fitted)))
            site = fitted
    if not parts:
        raise PhazeError(
            f"{path}: has no rows of products, experts or attention; `phaze measure` writes such a "
            "table, and config/formats.md lists its columns"
        )
    plain = site.device.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude={"name"})
    about = f"# {Path(name).stem} with kernels fitted to {path.name} (phaze calibrate --kernels).\n"
    write_text(out, about + yaml.safe_dump(plain, sort_keys=False))
    return tuple(parts)


def _site(device: Device) -> Site:
    """System with the given device; its network does not affect kernels."""
    site = site_of(device.name) or site_of(device.assumed_from or "h100-80gb")
    if site is None:
        raise PhazeError(f"device {device.name}: no system in config/systems uses it")
    return replace(site, device=device)


def _fitted(part: KernelPart, rows: pd.DataFrame, site: Site) -> Site:
    """Site with constants fitted to kernels timed in a loop; the sustained clock is unchanged."""
    device = part.fitted(rows, in_a_loop(site)).device
    # Loops of kernels are too short for the power limit, so they say nothing of the sustained clock.
    fitted = device.model_copy(update={"sustained_clock": site.device.sustained_clock})
    return replace(site, device=fitted)


def _device_rows(part: KernelPart, path: Path) -> pd.DataFrame:
    rows = part.read(path)
    devices = list(dict.fromkeys(rows["device"]))
    if len(devices) > 1:
        raise PhazeError(f"{path}: must have kernels of one device, got {', '.join(devices[:5])}")
    if len(rows) < LEAST_ROWS:
        raise PhazeError(f"{path}: has {len(rows)} rows of {part.name}, at least {LEAST_ROWS} are needed")
    return rows


def _score(part: KernelPart, rows: pd.DataFrame, site: Site) -> PartScore:
    return ComparedKernels(part, rows, part.predicted_s(rows, in_a_loop(site))).score
