"""Intervals of predicted times, from the errors of the published runs that are most like a run.

Most like it are those of the same software stack on the same device with the same kinds of parallelism;
where these are few, or of one source only, broader groups. Sources count alike, however many runs each has:
the next run is of another one. The tenth and the ninetieth percentile of measured over predicted times are
then moved away from the median by sqrt(1 + 1/S), since S sources tell only so much of the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.plan.lowered import device_of
from phaze.plan.plan import Machine
from phaze.spec.files import FOLDER

ERRORS = "errors.csv"
"""File of the configuration with the errors of published runs, which `phaze validate --errors` makes."""
KEYS = ("stack", "device", "parallelism")
"""What makes runs alike."""
GROUPS = (KEYS, KEYS[:2], KEYS[1:], KEYS[1:2], KEYS[:1], KEYS[2:], ())
"""By which of them runs are alike, the narrowest group first."""
LEAST_RUNS = 20
LEAST_SOURCES = 2
"""Runs and sources without which a group says too little."""
COVERED = 0.8
"""Share of runs that intervals are to hold."""


INTERVAL = ("time_low_s", "time_high_s")
"""Columns of the seconds between which COVERED of the runs are to lie."""


def kind_of(machine: Machine, layout: Layout) -> tuple[str, str, str]:
    """Values of KEYS of a run of that layout on a machine."""
    return machine.stack.name, device_of(machine).name, parallelism_of(layout)


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

    @cached_property
    def _likest(self) -> dict[tuple[str, ...], Likeness]:
        """What was found before."""
        return {}

    def likest(self, kind: tuple[str, ...], but: str = "") -> Likeness:
        """Runs most like one with these values of KEYS, without those of a source."""
        if (*kind, but) not in self._likest:
            self._likest[*kind, but] = _likeness(*self._alike(kind, self.table["source"] != but))
        return self._likest[*kind, but]

    def _alike(self, kind: tuple[str, ...], asked: pd.Series) -> tuple[pd.DataFrame, tuple[str, ...]]:
        """Rows of the narrowest group that says enough, and in what they agree."""
        agree = {key: self.table[key] == value for key, value in zip(KEYS, kind, strict=True)}
        for keys in GROUPS:
            mine = self.table[np.logical_and.reduce([asked, *(agree[key] for key in keys)])]
            if len(mine) >= LEAST_RUNS and mine["source"].nunique() >= LEAST_SOURCES:
                break
        return mine, keys


def _likeness(runs: pd.DataFrame, alike: tuple[str, ...]) -> Likeness:
    sources = runs.groupby("source")["ratio"]
    logs, weights = np.log(runs["ratio"].to_numpy(float)), 1 / sources.transform("size").to_numpy(float)
    tail = (1 - COVERED) / 2
    low, middle, high = _percentiles(logs, weights, np.array([tail, 0.5, 1 - tail]))
    wider = np.sqrt(1 + 1 / sources.ngroups)
    low, high = (float(np.exp(middle + (end - middle) * wider)) for end in (low, high))
    return Likeness(low, high, alike, len(runs), sources.ngroups)


def _percentiles(values: Floats, weights: Floats, shares: Floats) -> Floats:
    """Values below which shares (Q,) of the weight lie, between the middles of the weights of two."""
    order = np.argsort(values)
    below = np.cumsum(weights[order]) - weights[order] / 2
    return np.interp(shares, below / weights.sum(), values[order])


@cache
def _published(folder: Path) -> PublishedErrors:
    return PublishedErrors.load(folder)


def interval(machine: Machine, layout: Layout, seconds: float, folder: Path = FOLDER) -> tuple[float, float]:
    """Seconds between which four of five runs of a layout with that predicted time are to lie."""
    found = _published(folder).likest(kind_of(machine, layout))
    return found.low * seconds, found.high * seconds


def with_intervals(
    runs: pd.DataFrame, seconds: str = "time_s", but: str = "", folder: Path = FOLDER
) -> pd.DataFrame:
    """Runs with a predicted time in a column and KEYS, and INTERVAL from the errors of all sources but one.

    Rows without a predicted time have no interval.
    """
    errors = _published(folder)
    factors = np.full((2, len(runs)), np.nan)
    times = runs[seconds].to_numpy(float)
    for place in np.flatnonzero(np.isfinite(times)):
        found = errors.likest(tuple(runs[list(KEYS)].iloc[place]), but)
        factors[:, place] = found.low, found.high
    return runs.assign(**dict(zip(INTERVAL, factors * times, strict=True)))


def error_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Measured over predicted times of the runs of a scoreboard that say both, as ERRORS holds them."""
    timed: pd.DataFrame = runs[np.isfinite(runs["measured_s"] / runs["predicted_s"])]
    return timed[["source", *KEYS]].assign(ratio=(timed["measured_s"] / timed["predicted_s"]).round(4))
