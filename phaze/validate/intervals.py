"""Prediction intervals for times, from the errors of the most similar published runs.

The distance of two runs depends on stack, device, precision, kinds of parallelism, experts, number of devices
and model FLOPs utilisation. A published run has weight e^(-distance / REACH), divided by the square root of
the number of runs of its source, because errors of one source are correlated. The interval is based on the
tenth, fiftieth and ninetieth weighted percentile of measured over predicted times. The distance of its ends
from the median is multiplied by 1 + a · distance of the nearest run. The factor a is calibrated by leaving
out one source at a time, so that a fraction COVERED of the runs of unseen sources lies inside.

There is no interval if fewer than LEAST_RUNS published runs of other sources have one of the run's features:
the family of its stack, its chip, precision, schedule, and others that no distance expresses. A system that
is calibrated to a user's own runs has the interval of their left-out error.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Bools, Floats, Names
from phaze.base.errors import PhazeError
from phaze.plan.answer.priced import MeasuredInterval, PricedLayout
from phaze.spec.files import FOLDER
from phaze.spec.measured import PublishedRuns
from phaze.spec.training_plan import NearRun
from phaze.validate.run_kinds import KEYS, PROPERTIES, RunKind, team_of

if TYPE_CHECKING:
    import pandas as pd

    Records = np.ndarray[tuple[int, ...], np.dtype[np.void]]

ERRORS = "errors.csv"
"""Configuration file with the errors of published runs, written by `phaze validate --errors`."""
APART: dict[str, float] = {"stack": 2.0, "device": 1.5, "experts": 1.0, "precision": 0.5}
"""Distance that a difference in each property adds; half of it if both values belong to one family.

Experts with natural and with balanced routing are one family: few runs are routed naturally.

Software matters most: with each source predicted from the others, the published runs had the lowest interval
score (Gneiting and Raftery, JASA 2007) with 2, of six weights from 0.5 to 3.
"""
EACH_AXIS = 0.25
"""Distance for each kind of parallelism that only one of two runs uses."""
UTILISATION = 1.0
"""Distance between runs whose utilisation differs by a factor of e."""
SIZE = 0.1
"""Distance between runs whose numbers of devices differ by a factor of e."""
AGE = 0.5
"""Distance for each year between a run and the software that its stack describes."""
LEAST_RUNS = 5
"""Minimum number of published runs with a feature for it to count as measured."""
FAMILIES = {
    "hopper": ("h100", "h200", "h800", "h20", "gh200"),
    "blackwell": ("b200", "b300", "gb200", "gb300"),
    "ampere": ("a100",),
    "cdna-3": ("mi300", "mi325"),
}
"""Devices of each generation, by prefixes of their names."""
REACH = 1.0
"""Distance at which the weight of a published run has fallen by a factor of e."""
UNLIKE = APART["stack"] + APART["device"]
"""Distance to the nearest published run above which no run counts as similar."""
COVERED = 0.8
"""Fraction of runs that prediction intervals are meant to contain."""
LEAST_SPREAD = 0.05
"""Minimum distance from the median to an end, as a fraction of the time: about twice the standard deviation
of repeats within a cluster and release, which `phaze validate --repeats` prints."""
BEYOND = 0.6
"""Widening of an interval per unit of distance in years, or in devices beyond all measured ones: assumed."""
LEAST_WITHIN = 0.01
"""Minimum error of a fit to a user's own runs, and minimum distance of runs: the spread of repeats."""
MEAN_ABSOLUTE = float(np.sqrt(np.pi / 2))
"""Ratio of a normal distribution's standard deviation to its mean absolute deviation."""
SHOWN = 5
"""Number of nearest runs listed as evidence."""

INTERVAL = ("time_low_s", "time_high_s")
"""Columns with the ends of the interval, in seconds."""
UNMEASURED = "unmeasured"
"""Column with the features of a run that no measured run has, for which there is no interval."""
NO_INTERVAL = (float("nan"), float("nan"))
"""Ends of an interval that there is not."""


@dataclass(frozen=True)
class SimilarRuns:
    """Interval of the ratio of measured to predicted time, from the most similar runs."""

    ends: tuple[float, float]
    """Ends that contain the fraction COVERED of runs, if multiplied by the predicted time; or NO_INTERVAL."""
    nearest: tuple[NearRun, ...]
    """Most similar runs, also if there is no interval; empty if none is similar."""
    unmeasured: tuple[str, ...]
    """Features that no measured run has."""


@dataclass(frozen=True, eq=False)
class PublishedErrors:
    """Published runs, each with its ratio of measured to predicted time and the properties of the run."""

    table: Records
    """Runs (R,) with the columns source, label, KEYS, mfu and ratio."""

    @classmethod
    def load(cls, folder: Path = FOLDER) -> PublishedErrors:
        """Read the configuration's errors file; PhazeError if it is missing or malformed."""
        path = folder / ERRORS
        try:
            with path.open(encoding="utf-8", newline="") as lines:
                rows = list(csv.DictReader(lines))
            kinds: dict[str, type] = dict.fromkeys(("source", "label", *KEYS), str)
            kinds |= {"mfu": float, "devices": int, "ratio": float}
            columns: dict[str, NDArray[np.generic]] = {
                name: np.array([row[name] for row in rows], kind) for name, kind in kinds.items()
            }
            table = np.empty(len(rows), [(name, column.dtype) for name, column in columns.items()])
            for name, column in columns.items():
                table[name] = column
            return cls(table)
        except (OSError, ValueError, KeyError) as error:
            raise PhazeError(
                f"{path}: contains no errors of runs ({error}); python -m phaze validate --errors "
                f"{path} writes them"
            ) from error

    def most_similar(self, kind: RunKind, held_out: str = "") -> SimilarRuns:
        """Interval from the runs most similar to `kind` except source `held_out`, or the unmeasured features.

        A calibrated system has the interval of its own runs, whose features also count as measured.
        """
        fitted, others, distances = kind.calibrated, self._sources != held_out, self.distances(kind)
        if held_out not in self._measured:
            self._measured[held_out] = features_needed(self.table[others], LEAST_RUNS)
        # A file of an older version names no features: its runs have this stack, device and precision.
        measured = {*self._measured[held_out], *((fitted.features or kind.needed[:3]) if fitted else ())}
        unmeasured = tuple(name for name in kind.needed if name not in measured)
        alike = others.any() and distances[others].min() <= UNLIKE
        nearest = tuple(self._nearest(kind, distances, others)) if alike else ()
        if unmeasured or not (alike or fitted):
            return SimilarRuns(NO_INTERVAL, nearest, unmeasured)
        if fitted:
            end = end_of_own_runs(fitted.error_left_out, fitted.rows)
            return SimilarRuns((1 / end, end), nearest, ())
        # Calibration takes all pairs of runs, so it is done once per held-out source.
        if held_out not in self._widths:
            self._widths[held_out] = self._widening(held_out)
        ends = self._ends(distances, others, self._widths[held_out], self._beyond(kind, others))
        return SimilarRuns(ends, nearest, ())

    def _beyond(self, kind: RunKind, others: Bools) -> float:
        """Widening for later software or more devices than in any run of the mask `others`."""
        most = np.nanmax(self._devices[others], initial=1.0)
        further = SIZE * max(float(np.log(kind.devices / most)), 0.0) if kind.devices else 0.0
        return BEYOND * (AGE * float(np.nan_to_num(kind.years)) + further)

    def _ends(self, distances: Floats, others: Bools, width: float, beyond: float) -> tuple[float, float]:
        """Ends of the interval from the runs of the mask `others`, with a widening per unit of distance."""
        low, middle, high = map(float, self._percentiles(distances[None], others)[0])
        wider = 1.0 + width * float(distances[others].min()) + beyond
        ends = (
            middle - wider * max(middle - low, LEAST_SPREAD),
            middle + wider * max(high - middle, LEAST_SPREAD),
        )
        return float(np.exp(ends[0])), float(np.exp(ends[1]))

    def _nearest(self, kind: RunKind, distances: Floats, others: Bools) -> Iterator[NearRun]:
        """Yield the most similar runs of the mask `others`, nearest first."""
        order = np.flatnonzero(others)[np.argsort(distances[others], kind="stable")][:SHOWN]
        for k, run in zip(order, _kinds(self.table[order]), strict=True):
            yield NearRun(
                source=str(self._sources[k]),
                label=str(self.table["label"][k]),
                distance=float(distances[k]),
                error=float(np.exp(-self._logs[k])) - 1,
                differs=tuple(_differences(kind, run)),
            )

    def _percentiles(self, distances: Floats, mask: Bools) -> Floats:
        """Weighted 10th, 50th and 90th percentile of the log ratios of measured to predicted time, (K, 3).

        Weights of the runs in the mask (R,) follow from their distances (K, R) from K runs.
        """
        # Only ratios of weights count; measured from the nearest run, they cannot all vanish.
        of_mask = distances[:, mask]
        alike = np.exp(-(of_mask - of_mask.min(axis=1, keepdims=True)) / REACH)
        tail = (1 - COVERED) / 2
        return _percentiles(
            self._logs[mask], alike / np.sqrt(self._counts[mask]), np.array([tail, 0.5, 1 - tail])
        )

    def distances(self, kind: RunKind) -> Floats:
        """Distance of every published run from a kind of run, (R,)."""
        distances = np.zeros(len(self.table))
        for key in APART:
            codes, values = self._coded[key]
            distances += _value_distances(key, getattr(kind, key), values)[codes]
        codes, values = self._coded["parallelism"]
        axes = set(kind.parallelism.split("+"))
        differing = [len(axes ^ set(name.split("+"))) for name in values]
        distances += EACH_AXIS * np.array(differing, float)[codes]
        ratio = np.abs(np.log(kind.mfu / self.table["mfu"].astype(float)))
        sizes = SIZE * np.abs(np.log(kind.devices / self._devices)) if kind.devices else 0.0
        distances += AGE * np.nan_to_num(kind.years) + np.nan_to_num(sizes)
        return np.asarray(distances + UTILISATION * np.nan_to_num(ratio), float)

    def mfus(self, kind: RunKind, folder: Path = FOLDER) -> tuple[float, ...]:
        """Measured utilisations on a run's device in its precision, without simulated sources."""
        key = kind.device, kind.precision
        if key not in self._mfus:
            simulated = list(PublishedRuns.load(folder).simulated)
            alike = (self.table["device"] == key[0]) & (self.table["precision"] == key[1])
            runs = self.table[alike & ~np.isin(self._sources, simulated)]
            self._mfus[key] = tuple((runs["mfu"].astype(float) / runs["ratio"].astype(float)).tolist())
        return self._mfus[key]

    def _widening(self, held_out: str) -> float:
        """Widening of the interval per unit of distance, calibrated by holding out each source in turn."""
        included = self._sources != held_out
        needed, weights = [], []
        for source in np.unique(self._sources[included]):
            others, of_source = included & (self._sources != source), self._sources == source
            if not others.any():
                continue
            nearest = self._between[np.ix_(of_source, others)].min(axis=1)
            alike = np.flatnonzero(of_source)[nearest <= UNLIKE]
            percentiles = self._percentiles(self._between[alike], others)
            for k, distance, (low, middle, high) in zip(
                alike, nearest[nearest <= UNLIKE], percentiles, strict=True
            ):
                end = middle - low if self._logs[k] < middle else high - middle
                # The end on the run's side must be farther from the median by this fraction to reach the run.
                beyond = abs(self._logs[k] - middle) / max(end, LEAST_SPREAD) - 1.0
                needed.append(beyond / max(float(distance), LEAST_WITHIN))
                # Every source counts once, however many runs it has.
                weights.append(1.0 / of_source.sum())
        if not needed:
            return 0.0
        percentiles = _percentiles(np.array(needed), np.array([weights]), np.array([COVERED]))
        return max(float(percentiles[0, 0]), 0.0)

    @cached_property
    def _between(self) -> Floats:
        """Distances between all pairs of published runs, (R, R), used for calibration."""
        kinds, mfu = _kinds(self.table), self.table["mfu"].astype(float)
        # Few kinds of run are distinct but for the two numbers, which are added for all pairs at once.
        by_kind = {kind: self.distances(kind) for kind in dict.fromkeys(kinds)}
        ratio = np.abs(np.log(mfu[:, None] / mfu))
        sizes = np.abs(np.log(self._devices[:, None] / self._devices))
        between: Floats = np.stack([by_kind[kind] for kind in kinds]) + UTILISATION * np.nan_to_num(ratio)
        return between + SIZE * np.nan_to_num(sizes)

    @cached_property
    def _devices(self) -> Floats:
        """Number of devices of each run, (R,); nan if unknown."""
        devices = self.table["devices"].astype(float)
        return np.where(devices > 0, devices, np.nan)

    @cached_property
    def _measured(self) -> dict[str, tuple[str, ...]]:
        """Cache of the measured features, keyed by the held-out source."""
        return {}

    @cached_property
    def _mfus(self) -> dict[tuple[str, str], tuple[float, ...]]:
        """Cache of the measured utilisations, keyed by device and precision."""
        return {}

    @cached_property
    def _widths(self) -> dict[str, float]:
        """Cache of the calibrated widening of intervals, keyed by the held-out source."""
        return {}

    @cached_property
    def _coded(self) -> dict[str, tuple[np.ndarray, list[str]]]:
        """Properties of the runs as indices (R,) into their distinct values, and these values."""
        factors = {key: np.unique(self.table[key], return_inverse=True) for key in KEYS}
        return {key: (codes, list(values)) for key, (values, codes) in factors.items()}

    @cached_property
    def _counts(self) -> Floats:
        """Number of runs in the source of each run, (R,)."""
        _, codes, counts = np.unique(self._sources, return_inverse=True, return_counts=True)
        return np.asarray(counts[codes], float)

    @cached_property
    def _sources(self) -> Names:
        return np.asarray(self.table["source"], str)

    @cached_property
    def _logs(self) -> Floats:
        logs: Floats = np.log(self.table["ratio"].astype(float))
        return logs


def generation(device: str) -> str:
    """Generation of a device; the device's own name if it belongs to no known generation."""
    return next((name for name, prefixes in FAMILIES.items() if device.startswith(prefixes)), device)


_FAMILIES_OF: dict[str, Callable[[str], str]] = {
    "device": generation, "stack": team_of, "experts": lambda routing: "no" if routing == "no" else "yes",
}  # fmt: skip
"""Families of a property's values; values of other properties have none."""


def _value_distances(key: str, value: str, values: Sequence[str]) -> Floats:
    """Distances from one value of a property to each of `values`, (V,); halved within a family."""
    family = _FAMILIES_OF.get(key, str)
    same_family = np.array([family(other) == family(value) for other in values], bool)
    halves = np.where(same_family, 0.5, 1.0)
    return APART[key] * np.where(np.array(values) == value, 0.0, halves)


def _differences(kind: RunKind, run: RunKind) -> Iterator[str]:
    """Yield the properties of a measured run that differ from those of a kind of run."""
    for key in ("stack", "device", "precision"):
        if getattr(kind, key) != getattr(run, key):
            yield f"{key} {getattr(run, key)}"
    if "no" not in (kind.experts, run.experts) and kind.experts != run.experts:
        yield f"{run.experts} routing"
    parts, usual = _parts_of(run), _parts_of(kind)
    yield from (f"with {name}" for name in parts if name not in usual)
    yield from (f"without {name}" for name in usual if name not in parts)


def _parts_of(kind: RunKind) -> Collection[str]:
    """Kinds of parallelism and features of a run."""
    axes = [name for name in kind.parallelism.split("+") if name in ("tp", "pp", "dp")]
    return [*axes, *["ep"] * (kind.experts != "no"), *filter(None, kind.features.split("+"))]


def _percentiles(values: Floats, weights: Floats, shares: Floats) -> Floats:
    """Quantiles (K, Q) of values (R,) with weights (K, R), interpolated between midpoints of the weights."""
    order = np.argsort(values)
    ordered = weights[:, order]
    # Midpoints of the weights treat both tails alike.
    below = np.cumsum(ordered, axis=1) - ordered / 2
    totals = weights.sum(axis=1)
    ends = [np.interp(shares, row / total, values[order]) for row, total in zip(below, totals, strict=True)]
    return np.array(ends).reshape(-1, len(shares))


@cache
def published(folder: Path = FOLDER) -> PublishedErrors:
    """Load the errors of the published runs, once per configuration folder."""
    return PublishedErrors.load(folder)


def interval(priced: PricedLayout, folder: Path = FOLDER) -> MeasuredInterval:
    """80 % interval of a layout's predicted time, from the measured runs most like it."""
    kind = RunKind.of(
        priced.question.machine,
        priced.staged.layout,
        priced.staged.schedule,
        priced.question.task.model,
        priced.mfu,
    )
    runs = published(folder).most_similar(kind)
    low_s, high_s = (end * priced.price.time_s for end in runs.ends)
    ends_s = None if np.isnan(low_s) else (low_s, high_s)
    return MeasuredInterval(ends_s, runs.nearest, runs.unmeasured, published(folder).mfus(kind, folder))


def end_of_own_runs(error: float, rows: int) -> float:
    """Upper end of the 80 % interval over the predicted time, from the left-out error of this many own runs.

    The lower end is its inverse. This is Student's prediction interval for one more run. Its standard
    deviation is 1.25 mean absolute errors, as for normally distributed errors.
    """
    from scipy.special import stdtrit  # only here, because the import takes a fifth of a second

    # 1 + 1/n: the new run scatters around a mean that is itself estimated from n runs.
    spread = MEAN_ABSOLUTE * max(error, LEAST_WITHIN) * np.sqrt(1 + 1 / rows)
    return float(np.exp(stdtrit(max(rows - 1, 1), (1 + COVERED) / 2) * spread))


def with_intervals(
    runs: pd.DataFrame, seconds: str = "time_s", held_out: str = "", folder: Path = FOLDER
) -> pd.DataFrame:
    """Add prediction intervals (columns INTERVAL) to runs, from the errors of all sources except `held_out`.

    Runs need a column of predicted times and PROPERTIES, of which `calibrated` is dropped. Rows without a
    predicted time or without a similar measured run get no interval. Column UNMEASURED has the features that
    no measured run has.
    """
    errors = published(folder)
    factors, unmeasured = np.full((2, len(runs)), np.nan), [""] * len(runs)
    times = runs[seconds].to_numpy(float)
    kinds = _kinds(runs, [name for name in PROPERTIES if name in runs.columns])
    for row in np.flatnonzero(np.isfinite(times)):
        similar = errors.most_similar(kinds[row], held_out)
        factors[:, row], unmeasured[row] = similar.ends, "; ".join(similar.unmeasured)
    ends = dict(zip(INTERVAL, factors * times, strict=True))
    return runs.drop(columns="calibrated").assign(**ends).assign(**{UNMEASURED: unmeasured})


def features_needed(runs: Records | pd.DataFrame, least: int = 1) -> tuple[str, ...]:
    """Features that at least `least` runs have; a run with any other feature gets no interval.

    Runs need the columns KEYS.
    """
    numbers: Counter[str] = Counter()
    for kind, count in Counter(_kinds(runs)).items():
        numbers.update(dict.fromkeys(kind.needed, count))
    return tuple(sorted(name for name, number in numbers.items() if number >= least))


def _kinds(runs: Records | pd.DataFrame, names: Sequence[str] = KEYS) -> list[RunKind]:
    """Kind of each run, from its columns of these names."""
    columns = [runs[name].tolist() for name in names]
    return [RunKind(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def error_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Ratios of measured to predicted time of the scoreboard's runs, in the format of ERRORS."""
    timed: pd.DataFrame = runs[np.isfinite(runs["measured_s"] / runs["predicted_s"])]
    ratio = (timed["measured_s"] / timed["predicted_s"]).round(4)
    numbers = {"mfu": timed["mfu"].astype(float).round(3), "devices": timed["devices"], "ratio": ratio}
    return timed[["source", "label", *KEYS]].assign(**numbers)
