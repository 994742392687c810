"""Intervals of predicted times, from the errors of the published runs that are most like a run.

How unlike two runs are is a distance: of stack, device, precision, kinds of parallelism, experts and model
FLOPs utilisation. A published run counts e^(-distance / REACH), and sources with many alike count with the
root of the number of their runs, as errors of a source are alike. The tenth, the fiftieth and the ninetieth
percentile of measured over predicted times are those of these weights. The ends are moved away from the
middle the more, the farther the nearest runs are: by 1 + a · distance, where a is found by leaving one source
out after the other, so that COVERED of the runs of sources that nobody has seen lie inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from phaze.base.arrays import Bools, Floats, Names
from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.plan.machines import device_of
from phaze.plan.plan import Machine
from phaze.spec.files import FOLDER
from phaze.spec.system import Calibration
from phaze.spec.training_plan import NearRun

ERRORS = "errors.csv"
"""File of the configuration with the errors of published runs, which `phaze validate --errors` makes."""
KEYS = ("stack", "device", "parallelism", "experts", "precision")
"""What makes runs alike, beside their utilisation."""
APART: dict[str, float] = {"stack": 1.0, "device": 1.5, "experts": 1.0, "precision": 0.5}
"""Distance of runs that differ in a key; half of it where they are of one family."""
EACH_AXIS = 0.25
"""Distance for each kind of parallelism that only one of two runs has."""
UTILISATION = 1.0
"""Distance of runs of which one uses its device e times as well."""
FAMILIES = {
    "hopper": ("h100", "h200", "h800", "gh200"),
    "blackwell": ("b200", "b300", "gb200", "gb300"),
    "ampere": ("a100",),
}
"""Devices of one generation, by how their names begin."""
REACH = 0.5
"""Distance over which a published run counts e times less."""
UNLIKE = 2.5
"""Distance of the nearest published run from which on nothing measured is like a run."""
COVERED = 0.8
"""Share of runs that intervals are to hold."""
LEAST_SPREAD = 0.01
"""Least distance between middle and end, as share of the time: what repeats of a run differ by."""
MEAN_ABSOLUTE = float(np.sqrt(np.pi / 2))
"""Standard deviation of a normal distribution over its mean absolute deviation."""
SHOWN = 5
"""Nearest runs that evidence lists."""

INTERVAL = ("time_low_s", "time_high_s")
"""Columns of the seconds between which COVERED of the runs are to lie."""


@dataclass(frozen=True)
class RunKind:
    """What of a run decides which others are like it."""

    stack: str
    device: str
    parallelism: str
    experts: str
    precision: str
    mfu: float = float("nan")
    """Model FLOPs utilisation that is predicted, nan where that is not known."""

    @classmethod
    def of(cls, machine: Machine, layout: Layout, mfu: float = float("nan")) -> RunKind:
        """Kind of a run of a layout on a machine."""
        experts = "yes" if layout.ep > 1 else "no"
        device = device_of(machine).name
        return cls(machine.stack.name, device, parallelism_of(layout), experts, layout.compute, mfu)


def parallelism_of(layout: Layout) -> str:
    """Kinds of parallelism of a layout, such as tp+dp; ZeRO 3 is one of its own."""
    widths = {"tp": layout.tp, "cp": layout.cp, "pp": layout.pp, "dp": layout.dp}
    found = [name for name, width in widths.items() if width > 1]
    return "+".join([*found, *(["fsdp"] if layout.zero == 3 else [])]) or "one"


@dataclass(frozen=True)
class Likeness:
    """What the runs that are most like a run took, over what is predicted of them."""

    low: float
    high: float
    """Factors between which COVERED of them lie."""
    nearest: tuple[NearRun, ...]


@dataclass(frozen=True, eq=False)
class PublishedErrors:
    """Measured over predicted times of published runs, a row each: source, label, KEYS, mfu, ratio."""

    table: pd.DataFrame

    @classmethod
    def load(cls, folder: Path = FOLDER) -> PublishedErrors:
        """Errors in the file of the configuration; PhazeError where it is none."""
        path = folder / ERRORS
        try:
            types = dict.fromkeys(("source", "label", *KEYS), str) | {"ratio": float, "mfu": float}
            table = pd.read_csv(path, dtype=types, keep_default_na=False)
            return cls(table[["source", "label", *KEYS, "mfu", "ratio"]])
        except (OSError, ValueError, KeyError) as error:
            raise PhazeError(
                f"{path}: holds no errors of runs ({error}); python -m phaze validate --errors {path}"
            ) from error

    def likest(self, kind: RunKind, but: str = "") -> Likeness | None:
        """Runs most like one, without those of a source; None where nothing measured is like it."""
        if but not in self._widths:
            self._widths[but] = self._calibrated(but)
        return self._likeness(kind, self._sources != but, self._widths[but])

    def _likeness(self, kind: RunKind, asked: Bools, width: float) -> Likeness | None:
        distances = self.distances(kind)
        known = kind.device in self._values["device"]
        if not known or not asked.any() or distances[asked].min() > UNLIKE:
            return None
        low, middle, high = self._percentiles(distances, asked)
        wider = 1.0 + width * float(distances[asked].min())
        ends = (
            middle - wider * max(middle - low, LEAST_SPREAD),
            middle + wider * max(high - middle, LEAST_SPREAD),
        )
        order = np.flatnonzero(asked)[np.argsort(distances[asked], kind="stable")][:SHOWN]
        nearest = [
            NearRun(
                source=str(self._sources[k]),
                label=str(self._labels[k]),
                distance=float(distances[k]),
                error=float(np.exp(-self._logs[k])) - 1,
            )
            for k in order
        ]
        return Likeness(float(np.exp(ends[0])), float(np.exp(ends[1])), tuple(nearest))

    def _percentiles(self, distances: Floats, asked: Bools) -> tuple[float, float, float]:
        """Tenth, fiftieth and ninetieth percentile of the logarithms of ratios by their weights."""
        alike = np.exp(-(distances - distances[asked].min()) / REACH) * asked
        weights = alike / np.sqrt(self._counts)
        tail = (1 - COVERED) / 2
        low, middle, high = _percentiles(self._logs[asked], weights[asked], np.array([tail, 0.5, 1 - tail]))
        return float(low), float(middle), float(high)

    def distances(self, kind: RunKind) -> Floats:
        """Distances of all published runs (R,) from one."""
        found = sum(
            (_apart(key, getattr(kind, key), self._values[key])[self._codes[key]] for key in APART),
            np.zeros(len(self.table)),
        )
        mine = set(kind.parallelism.split("+"))
        unlike = [len(mine ^ set(one.split("+"))) for one in self._values["parallelism"]]
        found += EACH_AXIS * np.array(unlike, float)[self._codes["parallelism"]]
        ratio = np.abs(np.log(kind.mfu / self._mfus))
        return np.asarray(found + UTILISATION * np.nan_to_num(ratio), float)

    def _calibrated(self, but: str) -> float:
        """How much wider ends are for each unit of distance, by leaving out each source but one."""
        asked = self._sources != but
        needed, weights = [], []
        for source in np.unique(self._sources[asked]):
            others, mine = asked & (self._sources != source), self._sources == source
            for k in np.flatnonzero(mine):
                distances = self._between[k]
                if not others.any() or distances[others].min() > UNLIKE:
                    continue
                low, middle, high = self._percentiles(distances, others)
                end = middle - low if self._logs[k] < middle else high - middle
                beyond = abs(self._logs[k] - middle) / max(end, LEAST_SPREAD) - 1.0
                needed.append(beyond / max(float(distances[others].min()), LEAST_SPREAD))
                weights.append(1.0 / mine.sum())
        if not needed:
            return 0.0
        found = _percentiles(np.array(needed), np.array(weights), np.array([COVERED]))
        return max(float(found[0]), 0.0)

    @cached_property
    def _between(self) -> Floats:
        """Distances between all published runs, (R, R)."""
        names = [*KEYS, "mfu"]
        kinds = [
            RunKind(**{str(key): one for key, one in row.items()})
            for row in self.table[names].to_dict("records")
        ]
        known = {kind: self.distances(kind) for kind in dict.fromkeys(kinds)}
        return np.stack([known[kind] for kind in kinds])

    @cached_property
    def _widths(self) -> dict[str, float]:
        """Calibrations that were found before, by the source that is left out."""
        return {}

    @cached_property
    def _values(self) -> dict[str, list[str]]:
        """Values of every key that runs have."""
        return {key: list(self.table[key].unique()) for key in KEYS}

    @cached_property
    def _codes(self) -> dict[str, np.ndarray]:
        """Keys of the runs (R,) as places among their values."""
        return {key: self.table[key].factorize()[0] for key in KEYS}

    @cached_property
    def _counts(self) -> Floats:
        """Runs of the source of every run (R,)."""
        return self.table.groupby("source")["ratio"].transform("size").to_numpy(float)

    @cached_property
    def _sources(self) -> Names:
        return self.table["source"].to_numpy(str)

    @cached_property
    def _labels(self) -> Names:
        return self.table["label"].to_numpy(str)

    @cached_property
    def _mfus(self) -> Floats:
        return self.table["mfu"].to_numpy(float)

    @cached_property
    def _logs(self) -> Floats:
        logs: Floats = np.log(self.table["ratio"].to_numpy(float))
        return logs


def _family(device: str) -> str:
    """Generation of a device."""
    return next((name for name, own in FAMILIES.items() if device.startswith(own)), device)


def _apart(key: str, mine: str, values: Sequence[str]) -> Floats:
    """Distances in a key (V,) of its values from one: half where they are of one family."""
    family = _family if key == "device" else lambda name: name.split("-")[0]
    kin = np.array([family(one) == family(mine) for one in values], bool)
    halves = np.where(kin & (key in ("device", "stack")), 0.5, 1.0)
    found: Floats = APART[key] * np.where(np.array(values) == mine, 0.0, halves)
    return found


def _percentiles(values: Floats, weights: Floats, shares: Floats) -> Floats:
    """Values below which shares (Q,) of the weight lie, between the middles of the weights of two."""
    order = np.argsort(values)
    below = np.cumsum(weights[order]) - weights[order] / 2
    return np.interp(shares, below / weights.sum(), values[order])


@cache
def published(folder: Path = FOLDER) -> PublishedErrors:
    """Errors of published runs of the configuration."""
    return PublishedErrors.load(folder)


def interval(
    machine: Machine, layout: Layout, seconds: float, mfu: float, folder: Path = FOLDER
) -> tuple[float, float] | None:
    """Seconds between which four of five runs of a layout with that predicted time are to lie; None where
    nothing that is measured is like it.
    """
    if machine.system is not None and machine.system.calibrated is not None:
        return _own(machine.system.calibrated, seconds)
    found = published(folder).likest(RunKind.of(machine, layout, mfu))
    return None if found is None else (found.low * seconds, found.high * seconds)


def _own(fitted: Calibration, seconds: float) -> tuple[float, float]:
    """The same from errors of a user's own runs, each by constants that are fitted to the others: Student's
    interval for one more run, of which 1.25 mean absolute errors are a standard deviation, as if normal.
    """
    spread = MEAN_ABSOLUTE * max(fitted.error_left_out, LEAST_SPREAD) * np.sqrt(1 + 1 / fitted.rows)
    end = float(np.exp(student.ppf((1 + COVERED) / 2, max(fitted.rows - 1, 1)) * spread))
    return seconds / end, seconds * end


def with_intervals(
    runs: pd.DataFrame, seconds: str = "time_s", but: str = "", folder: Path = FOLDER
) -> pd.DataFrame:
    """Runs with a predicted time in a column, KEYS and mfu, and INTERVAL from the errors of all sources but
    one.

    Rows without a predicted time have no interval, nor have those that nothing measured is like.
    """
    errors = published(folder)
    factors = np.full((2, len(runs)), np.nan)
    times = runs[seconds].to_numpy(float)
    rows = runs[[*KEYS, "mfu"]].to_dict("records")
    for place in np.flatnonzero(np.isfinite(times)):
        found = errors.likest(RunKind(**{str(key): value for key, value in rows[place].items()}), but)
        if found is not None:
            factors[:, place] = found.low, found.high
    return runs.assign(**dict(zip(INTERVAL, factors * times, strict=True)))


def error_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Measured over predicted times of the runs of a scoreboard that say both, as ERRORS holds them."""
    timed: pd.DataFrame = runs[np.isfinite(runs["measured_s"] / runs["predicted_s"])]
    ratio = (timed["measured_s"] / timed["predicted_s"]).round(4)
    return timed[["source", "label", *KEYS]].assign(mfu=timed["mfu"].astype(float).round(3), ratio=ratio)
