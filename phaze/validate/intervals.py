"""Intervals of predicted times, from the errors of the published runs that are most like a run.

Most like it are those of the same software stack on the same device with the same kinds of parallelism, and
with experts on ranks of their own if it has such; where these are few, or of one source only, broader groups.
Sources count alike, however many runs each has: the next run is of another one. The tenth and the ninetieth
percentile of measured over predicted times are moved away from the median, as errors of a source are alike:
by sqrt(1 + 1/S), since S sources in a group tell only so much of the next, and then by one factor that is
calibrated by leaving one source out after the other. It is the quantile of how far runs lie from the median
of the other sources' runs, over where these say that the end is, at the level (1 + 1/S) COVERED that holds
for the runs of a source that nobody has seen (conformal prediction that pools groups: Dunn, Wasserman and
Ramdas, Distribution-free prediction sets for two-layer hierarchical models, JASA 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats, Ints, Names
from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.plan.machines import device_of
from phaze.plan.plan import Machine
from phaze.spec.files import FOLDER

ERRORS = "errors.csv"
"""File of the configuration with the errors of published runs, which `phaze validate --errors` makes."""
KEYS = ("stack", "device", "parallelism", "experts")
"""What makes runs alike."""
GROUPS = ((0, 1, 2, 3), (0, 1, 3), (1, 2, 3), (1, 3), (0, 3), (2, 3), (3,), ())
"""By which of them runs are alike, the narrowest group first."""
LEAST_RUNS = 20
LEAST_SOURCES = 2
"""Runs and sources without which a group says too little."""
COVERED = 0.8
"""Share of runs that intervals are to hold."""
LEAST_SPREAD = 1e-3
"""Least distance between median and end that others are compared with, as share of the time."""

INTERVAL = ("time_low_s", "time_high_s")
"""Columns of the seconds between which COVERED of the runs are to lie."""


def kind_of(machine: Machine, layout: Layout) -> tuple[str, ...]:
    """Values of KEYS of a run of that layout on a machine."""
    experts = "yes" if layout.ep > 1 else "no"
    return machine.stack.name, device_of(machine).name, parallelism_of(layout), experts


def parallelism_of(layout: Layout) -> str:
    """Kinds of parallelism of a layout, such as tp+dp; context parallelism is data parallelism here."""
    widths = {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp * layout.cp}
    return "+".join(name for name, width in widths.items() if width > 1) or "one"


@dataclass(frozen=True)
class Likeness:
    """What the runs that are most like a run took, over what is predicted of them."""

    low: float
    high: float
    """Factors between which COVERED of them lie."""
    alike: tuple[str, ...]
    """Of KEYS, in which they agree with the run."""
    runs: int
    sources: int


@dataclass(frozen=True)
class _Alike:
    """Runs of a group, as logarithms of measured over predicted times."""

    middle: float
    """Their median."""
    low: float
    high: float
    """Ends of their interval, before it is calibrated."""
    keys: tuple[int, ...]
    runs: int
    sources: int

    def distances(self, logs: Floats) -> Floats:
        """How far others (R,) are from the median, over how far the end on their side is."""
        below, above = self.middle - self.low, self.high - self.middle
        ends = np.where(logs < self.middle, below, above)
        return np.abs(logs - self.middle) / np.maximum(ends, LEAST_SPREAD)


@dataclass(frozen=True, eq=False)
class PublishedErrors:
    """Measured over predicted times of published runs, a row each, with source and KEYS."""

    table: pd.DataFrame

    @classmethod
    def load(cls, folder: Path = FOLDER) -> PublishedErrors:
        """Errors in the file of the configuration; PhazeError where it is none."""
        path = folder / ERRORS
        try:
            table = pd.read_csv(path, dtype=dict.fromkeys(("source", *KEYS), str) | {"ratio": float})
            return cls(table[["source", *KEYS, "ratio"]])
        except (OSError, ValueError, KeyError) as error:
            raise PhazeError(
                f"{path}: holds no errors of runs ({error}); python -m phaze validate --errors {path}"
            ) from error

    def has_device(self, kind: tuple[str, ...]) -> bool:
        """Whether some run is of the device of these values of KEYS."""
        place = KEYS.index("device")
        return kind[place] in self._values[place]

    @cached_property
    def _likest(self) -> dict[tuple[str, ...], Likeness]:
        """What was found before."""
        return {}

    @cached_property
    def _factors(self) -> dict[str, float]:
        """Calibrations that were found before, by the source that is left out."""
        return {}

    def likest(self, kind: tuple[str, ...], but: str = "") -> Likeness:
        """Runs most like one with these values of KEYS, without those of a source."""
        if (*kind, but) not in self._likest:
            if but not in self._factors:
                self._factors[but] = self._calibrated(self._sources != but)
            self._likest[*kind, but] = self._interval(kind, self._sources != but, self._factors[but])
        return self._likest[*kind, but]

    def _interval(self, kind: tuple[str, ...], asked: Bools, factor: float) -> Likeness:
        found = self._alike(self._codes_of(kind), asked)
        low, high = (
            float(np.exp(found.middle + factor * (end - found.middle))) for end in (found.low, found.high)
        )
        return Likeness(low, high, tuple(KEYS[key] for key in found.keys), found.runs, found.sources)

    def _calibrated(self, asked: Bools) -> float:
        """Times farther from the median that the ends are to be, by leaving out each source that is asked."""
        distances = np.zeros(len(self.table))
        sources = np.unique(self._sources[asked])
        if len(sources) < LEAST_SOURCES:
            return 1.0
        for source in sources:
            mine = self._sources == source
            for kind in np.unique(self._codes[mine], axis=0):
                same = mine & (self._codes == kind).all(axis=1)
                distances[same] = self._alike(kind, asked & ~mine).distances(self._logs[same])
        level = min((1 + 1 / len(sources)) * COVERED, 1.0)
        weights = 1 / _counts(self._sources[asked])
        return float(_percentiles(distances[asked], weights, np.array([level]))[0])

    def _alike(self, kind: Ints, asked: Bools) -> _Alike:
        """The narrowest group of runs that says enough of those with such codes of KEYS."""
        agree = self._codes == kind
        for keys in GROUPS:
            mine = asked & agree[:, list(keys)].all(axis=1)
            sources = len(np.unique(self._sources[mine]))
            if mine.sum() >= LEAST_RUNS and sources >= LEAST_SOURCES:
                break
        weights, tail = 1 / _counts(self._sources[mine]), (1 - COVERED) / 2
        low, middle, high = _percentiles(self._logs[mine], weights, np.array([tail, 0.5, 1 - tail]))
        low, high = (float(middle + (end - middle) * np.sqrt(1 + 1 / sources)) for end in (low, high))
        return _Alike(float(middle), low, high, keys, int(mine.sum()), sources)

    def _codes_of(self, kind: tuple[str, ...]) -> Ints:
        """Values of KEYS (4,) as numbers, -1 for those that no run has."""
        pairs = zip(self._values, kind, strict=True)
        return np.array([values.index(value) if value in values else -1 for values, value in pairs])

    @cached_property
    def _values(self) -> list[tuple[str, ...]]:
        """Values of every key that runs have."""
        return [tuple(self.table[key].unique()) for key in KEYS]

    @cached_property
    def _codes(self) -> Ints:
        """KEYS of the runs (R, 4) as numbers."""
        return np.stack([self.table[key].factorize()[0] for key in KEYS], axis=1)

    @cached_property
    def _sources(self) -> Names:
        return self.table["source"].to_numpy(str)

    @cached_property
    def _logs(self) -> Floats:
        logs: Floats = np.log(self.table["ratio"].to_numpy(float))
        return logs


def _counts(names: Names) -> Ints:
    """How many of the names (R,) are the same as each."""
    _, place, counts = np.unique(names, return_inverse=True, return_counts=True)
    return counts[place]


def _percentiles(values: Floats, weights: Floats, shares: Floats) -> Floats:
    """Values below which shares (Q,) of the weight lie, between the middles of the weights of two."""
    order = np.argsort(values)
    below = np.cumsum(weights[order]) - weights[order] / 2
    return np.interp(shares, below / weights.sum(), values[order])


@cache
def _published(folder: Path) -> PublishedErrors:
    return PublishedErrors.load(folder)


def interval(
    machine: Machine, layout: Layout, seconds: float, folder: Path = FOLDER
) -> tuple[float, float] | None:
    """Seconds between which four of five runs of a layout with that predicted time are to lie; None where no
    run of the device is measured.
    """
    errors, kind = _published(folder), kind_of(machine, layout)
    if not (machine.calibrated or errors.has_device(kind)):
        return None
    found = errors.likest(kind)
    return found.low * seconds, found.high * seconds


def with_intervals(
    runs: pd.DataFrame, seconds: str = "time_s", but: str = "", folder: Path = FOLDER
) -> pd.DataFrame:
    """Runs with a predicted time in a column and KEYS, and INTERVAL from the errors of all sources but one.

    Rows without a predicted time have no interval, nor have those of devices of which no run is measured.
    """
    errors = _published(folder)
    factors = np.full((2, len(runs)), np.nan)
    times = runs[seconds].to_numpy(float)
    for place in np.flatnonzero(np.isfinite(times)):
        kind = tuple(runs[list(KEYS)].iloc[place])
        if errors.has_device(kind):
            found = errors.likest(kind, but)
            factors[:, place] = found.low, found.high
    return runs.assign(**dict(zip(INTERVAL, factors * times, strict=True)))


def error_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Measured over predicted times of the runs of a scoreboard that say both, as ERRORS holds them."""
    timed: pd.DataFrame = runs[np.isfinite(runs["measured_s"] / runs["predicted_s"])]
    return timed[["source", *KEYS]].assign(ratio=(timed["measured_s"] / timed["predicted_s"]).round(4))
