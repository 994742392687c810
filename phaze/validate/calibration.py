"""Fit the constants of a system to a user's own runs, and report which constants the runs determine.

Residuals are logarithms of predicted over measured times, over NOISE. Every constant has a prior: its
previous value, with a quarter of the logarithm of its range as one standard deviation. Runs therefore move
only the constants that they determine. Outliers have less weight (soft L1). The fit is deterministic.

The left-out error of a run uses constants fitted to the other runs; equal runs, which only repeat a
measurement, are left out together. Left-out errors are also given by kind of layout, and show how many runs
lie in the 80 % interval that the others give them.

Measured memory determines one constant, the buffers of the framework: the median of measured minus predicted
memory is added to them. If this gap grows with the predicted memory, no constant is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import numpy as np
from scipy.optimize import least_squares

from phaze.base.arrays import Bools, Floats, Ints
from phaze.validate.constants import RESERVED, Constant, Site
from phaze.validate.intervals import end_of_own_runs
from phaze.validate.rows import RunRow
from phaze.validate.run_kinds import parallelism_of
from phaze.validate.table import log_errors, measured_of, predict_rows, settled

NOISE = 0.05
"""Relative error of a run that no constant explains: repeats on different days differ by this (BLOOM)."""
LEAST_EFFECT = 0.005
"""Minimum relative effect of a constant on some run, over its range, to count as identifiable."""
ALIKE = 0.95
"""Correlation of two constants' effects above which runs determine only their combined effect."""
MOST_ROWS = 60
"""Maximum number of runs in a fit, evenly spread; more runs take longer and hardly change the constants."""
FOLDS = 20
"""Maximum number of cross-validation fits: each holds out one run or one group of runs."""
LEAST_GIB = 0.1
"""Least standard deviation of a run's memory around its prediction, in GiB: the granularity of tables."""
LEAST_FOR_GROWTH, SIGNIFICANT = 4, 3.0
"""Minimum number of runs that show whether gaps grow with the predicted memory, and minimum growth in its
standard errors."""
DEVIATION, MEDIAN_ERROR = 1.4826, float(np.sqrt(np.pi / 2))
"""Of normally distributed values: standard deviation over median absolute deviation, and standard error of
the median over that of the mean."""
STEP = 0.01
"""Step in a constant's logarithm for finite differences.

It is large enough to smooth over tile edges and changes of the bound. A fit that stays inside its bounds ends
about this close to one.
"""
Curve = Callable[[Floats], Floats]
SAME = 1e-3
"""Change in a constant's logarithm below which the constant counts as unchanged.

A constant of 0 counts as unchanged up to a factor of e above the lower end of its range.
"""


@dataclass(frozen=True)
class FittedConstant:
    """Constant before and after a fit, and how well the runs determine it."""

    constant: Constant
    before: float
    after: float
    effect: float
    """Largest relative change of any run's time as the constant moves over its range."""
    uncertainty: float
    """Standard deviation after the fit, as a fraction of the value; nan if it is not identifiable."""
    growth: float = 0.0
    """Growth of measured minus predicted memory per GiB predicted, if no constant explains the gap."""

    @property
    def identifiable(self) -> bool:
        """True if the constant changes some run by at least LEAST_EFFECT, and can explain the errors."""
        return self.effect >= LEAST_EFFECT and not self.growth

    @property
    def implausible(self) -> tuple[float, float] | None:
        """Range of the configuration's devices that the value leaves by more than a standard deviation.

        None for a plausible value, and for constants that the runs do not determine.
        """
        usual = self.constant.usual() if self.identifiable and self.uncertainty < 1 else None
        if usual is None:
            return None
        near = (
            self.after * (1 + self.uncertainty) >= usual[0],
            self.after * (1 - self.uncertainty) <= usual[1],
        )
        return None if all(near) else usual

    @property
    def at_end(self) -> bool:
        """True if the fit ends within 1 % of an end of the range, a sign of another problem."""
        return any(abs(self.after / end - 1) <= STEP for end in (self.constant.low, self.constant.high))


@dataclass(frozen=True)
class LayoutErrors:
    """Left-out errors of the runs of one kind of layout, as fractions."""

    parallelism: str
    """Kinds of parallelism, such as tp+dp."""
    runs: int
    bias: float
    error: float
    """Mean absolute error."""


@dataclass(frozen=True)
class Calibrated:
    """Site with constants fitted to runs, and mean absolute errors of the runs' times, as fractions."""

    site: Site
    constants: tuple[FittedConstant, ...]
    alike: tuple[tuple[str, str, float], ...]
    """Pairs of constants whose effects the runs cannot separate, with the correlation of the effects."""
    rows: int
    """Number of runs to which the constants are fitted."""
    error_before: float
    error: float
    error_left_out: float
    covered: float
    """Share of runs in the 80 % interval that the left-out errors of the other runs give them."""
    layouts: tuple[LayoutErrors, ...]


def calibrated(site: Site, rows: Sequence[RunRow]) -> Calibrated:
    """Fit the constants of a system to rows that have `measured_s` and can be predicted."""
    sample = np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).round().astype(int)
    sampled_rows = [rows[k] for k in sample]
    fitted_rows = tuple(settled(sampled_rows, predict_rows(sampled_rows, site.machine)))
    runs = [run for row in fitted_rows for run in row.runs]
    effects = {c: _effect(site, fitted_rows, c) if site.affects(c, runs) else 0.0 for c in site.constants}
    fit = Fit(site, fitted_rows, tuple(c for c, effect in effects.items() if effect >= LEAST_EFFECT))
    solution = fit.solve()
    memory = _fitted_memory(site, fitted_rows)  # with the chosen microbatches
    jacobian, after = fit.jacobian(solution), fit.at(solution)
    before, errors = log_errors(rows, site.machine), log_errors(rows, after.machine)
    # Rows outside the sample took no part in the fit, so their errors are held out already.
    left_out = errors.copy()
    left_out[sample] = fit.left_out(solution, jacobian)
    spreads = dict(zip(fit.constants, _deviations(jacobian, fit.widths, errors[sample]), strict=True))
    constants = [
        FittedConstant(c, site.value(c), after.value(c), effect, spreads.get(c, float("nan")))
        for c, effect in effects.items()
    ]
    return Calibrated(
        after,
        (*constants, *memory),
        tuple(_inseparable_pairs(fit.constants, jacobian)),
        len(fitted_rows),
        error_before=_mean(before),
        error=_mean(errors),
        error_left_out=_mean(left_out),
        covered=_covered(left_out),
        layouts=tuple(_by_layout(rows, left_out)),
    )


def _mean(errors: Floats) -> float:
    """Mean absolute error, as a share of the measured times, of log errors (R,)."""
    return float(np.abs(np.expm1(errors)).mean())


def _fitted_memory(site: Site, rows: Sequence[RunRow]) -> Iterator[FittedConstant]:
    """Yield the buffers of the framework that measured memory determines; nothing without such rows."""
    measured_rows, before = [row for row in rows if row.measured_gib is not None], site.value(RESERVED)
    if not measured_rows:
        return
    low, high = (
        predict_rows(measured_rows, site.with_values({RESERVED: gib}).machine)["memory_gib"].to_numpy(float)
        for gib in (before, before + 1.0)
    )
    # A GiB of buffers takes more of a device whose allocator leaves fragments, and nothing of a full one.
    grows = high > low
    if not grows.any():
        return
    gaps = (measured_of(measured_rows, "measured_gib") - low)[grows] / (high - low)[grows]
    # Buffers cannot be negative: runs that need less than predicted leave them at their lower end.
    after = float(np.clip(before + np.median(gaps), min(before, RESERVED.low), RESERVED.high))
    # Standard error of a median of normally distributed gaps, from their median absolute deviation.
    deviation = DEVIATION * float(np.median(np.abs(gaps - np.median(gaps))))
    error = max(deviation, LEAST_GIB) * MEDIAN_ERROR / np.sqrt(len(gaps))
    effect = float(np.abs(gaps).max() / site.device.hbm_gib)
    if growth := _growth(low[grows], gaps):
        yield FittedConstant(RESERVED, before, before, effect, float("nan"), growth)
        return
    yield FittedConstant(RESERVED, before, float(f"{after:.4g}"), effect, error / max(after, RESERVED.low))


def _growth(predicted_gib: Floats, gaps_gib: Floats) -> float:
    """Growth of gaps (R,) per GiB of predicted memory; 0 if it is not significant, or there are few runs.

    A gap that grows is a share of the memory, such as fragments of the allocator. A constant fitted to it
    would be wrong for larger and for smaller models.
    """
    centred = predicted_gib - predicted_gib.mean()
    if len(gaps_gib) < LEAST_FOR_GROWTH or np.ptp(predicted_gib) < LEAST_GIB:
        return 0.0
    growth = float(centred @ gaps_gib / (centred @ centred))
    residuals = gaps_gib - gaps_gib.mean() - growth * centred
    noise = max(float(np.sqrt(residuals @ residuals / (len(gaps_gib) - 2))), LEAST_GIB)
    return growth if growth > SIGNIFICANT * noise / float(np.sqrt(centred @ centred)) else 0.0


def _covered(errors: Floats) -> float:
    """Share of log errors (R,) inside the interval that the mean absolute error of the others gives."""
    sizes = np.abs(np.expm1(errors))
    of_others = (sizes.sum() - sizes) / max(len(sizes) - 1, 1)
    ends = np.log([end_of_own_runs(float(error), max(len(sizes) - 1, 1)) for error in of_others])
    return float((np.abs(errors) <= ends).mean())


def _by_layout(rows: Sequence[RunRow], errors: Floats) -> Iterator[LayoutErrors]:
    """Yield bias and mean absolute error of log errors (R,) by the kinds of parallelism of the rows."""
    kinds = np.array([parallelism_of(row.runs[0].layout) for row in rows])
    for kind in dict.fromkeys(kinds.tolist()):
        of_kind = np.expm1(errors[kinds == kind])
        yield LayoutErrors(kind, len(of_kind), float(of_kind.mean()), float(np.abs(of_kind).mean()))


def _effect(site: Site, rows: Sequence[RunRow], constant: Constant) -> float:
    """Largest relative change of any run's time as one constant moves over its range."""
    ends = [site.with_values({constant: value}).machine for value in (constant.low, constant.high)]
    low, high = (log_errors(rows, machine) for machine in ends)
    return float(np.expm1(np.abs(high - low).max()))


@dataclass(frozen=True)
class Fit:
    """Least-squares fit of a system's constants to measured runs; x (C,) holds the constants' logarithms."""

    site: Site
    rows: tuple[RunRow, ...]
    constants: tuple[Constant, ...]
    _last: dict[str, Floats] = field(default_factory=dict)
    """Constants `x` for which errors were computed last, and these `errors`."""

    @cached_property
    def bounds(self) -> tuple[Floats, Floats]:
        """Logarithms of the lower and upper ends of the constants' ranges, (C,) each."""
        ranges = np.log([(c.low, c.high) for c in self.constants]).reshape(-1, 2)
        return ranges[:, 0], ranges[:, 1]

    @cached_property
    def start(self) -> Floats:
        """Logarithms of the constants before the fit, clipped to their ranges, (C,)."""
        return np.log([min(max(self.site.value(c), c.low), c.high) for c in self.constants])

    @cached_property
    def widths(self) -> Floats:
        """Standard deviations of the prior on the logarithms, (C,)."""
        low, high = self.bounds
        return (high - low) / 4

    def at(self, x: Floats) -> Site:
        """Site with constants `x`, rounded to four digits; constants that hardly changed keep their value."""
        # The logarithm of 0 is clipped to the lower end, so that a small move away from it means little.
        positive = [self.site.value(c) > 0 for c in self.constants]
        moved = np.abs(x - self.start) > np.where(positive, SAME, 1)
        values = zip(self.constants, np.exp(x), moved, strict=True)
        return self.site.with_values({c: float(f"{value:.4g}") for c, value, new in values if new})

    def errors(self, x: Floats, mask: Bools | None = None) -> Floats:
        """Logarithms of predicted over measured times at constants `x`, for all rows or those in `mask`."""
        if mask is not None:
            return self._errors_of([self.rows[k] for k in np.flatnonzero(mask)], x)
        # A Jacobian starts from the errors of the step that the fit has just accepted.
        if not np.array_equal(x, self._last.get("x", ())):
            self._last.update(x=x.copy(), errors=self._errors_of(self.rows, x))
        return self._last["errors"]

    def _errors_of(self, rows: Sequence[RunRow], x: Floats) -> Floats:
        site = self.site.with_values(dict(zip(self.constants, np.exp(x).tolist(), strict=True)))
        return log_errors(rows, site.machine)

    def jacobian(self, x: Floats) -> Floats:
        """Derivatives of the runs' log times with respect to the constants' logarithms, (R, C)."""
        errors, (_, high) = self.errors(x), self.bounds
        slopes = np.zeros((len(self.rows), len(x)))
        for k in range(len(x)):
            # A step must not leave the range, where values may be invalid (a share above 1).
            step = STEP if x[k] + STEP <= high[k] else -STEP
            moved = x + step * (np.arange(len(x)) == k)
            slopes[:, k] = (self._errors_of(self.rows, moved) - errors) / step
        return slopes

    def solve(self) -> Floats:
        """Logarithms of the constants that minimise the residuals, (C,)."""
        return self._minimise(self.start, self.errors, self.jacobian)

    def left_out(self, solution: Floats, jacobian: Floats) -> Floats:
        """Cross-validated log errors of the rows, each predicted with constants fitted to other rows.

        Leaving out a few rows changes constants little, so the fit linearises the times of the others with
        the Jacobian (R, C) at the constants found. The left-out rows are then predicted in full.
        """
        folds, errors = self._folds(), np.zeros(len(self.rows))
        fitted_errors = self.errors(solution)
        for fold in range(int(folds.max()) + 1):
            held_out = folds == fold
            x = self._refit(solution, fitted_errors[~held_out], jacobian[~held_out])
            errors[held_out] = self.errors(x, held_out)
        return errors

    def _refit(self, solution: Floats, errors: Floats, slopes: Floats) -> Floats:
        """Logarithms of the constants, (C,), fitted to rows whose errors are linear around a solution."""
        return self._minimise(solution, lambda x: errors + slopes @ (x - solution), lambda _: slopes)

    def _minimise(self, x: Floats, errors: Curve, slopes: Curve) -> Floats:
        """Logarithms of the constants that minimise the residuals, starting from `x`.

        `errors` and `slopes` give the logarithms of predicted over measured times and their derivatives.
        """
        if not len(x):
            return x
        fit = least_squares(
            # The prior enters as one more residual per constant, in its standard deviations.
            lambda at: np.concatenate([errors(at) / NOISE, (at - self.start) / self.widths]),
            x,
            jac=lambda at: np.vstack([slopes(at) / NOISE, np.diag(1 / self.widths)]),
            bounds=self.bounds,
            loss="soft_l1",
            xtol=SAME,
            ftol=SAME,
            max_nfev=12,
        )
        return np.asarray(fit.x, np.float64)

    def _folds(self) -> Ints:
        """Index of the cross-validation fold that holds out each row; identical runs share a fold."""
        distinct = list(dict.fromkeys(row.runs for row in self.rows))
        return np.array([distinct.index(row.runs) % FOLDS for row in self.rows])


def _deviations(jacobian: Floats, widths: Floats, errors: Floats) -> Floats:
    """Standard deviations of the constants' logarithms after a fit, (C,), from its Jacobian."""
    # Errors larger than NOISE show what the model does not explain, and widen the uncertainty.
    noise = max(NOISE, float(np.sqrt(np.square(errors).mean())))
    # Gauss-Newton Hessian with the prior; its inverse is the covariance of the logarithms.
    curvature = jacobian.T @ jacobian / noise**2 + np.diag(widths**-2)
    return np.sqrt(np.diag(np.linalg.inv(curvature)))


def _inseparable_pairs(constants: Sequence[Constant], jacobian: Floats) -> Iterator[tuple[str, str, float]]:
    """Yield pairs of constants with nearly proportional effects on runs, and the cosine of the effects."""
    lengths = np.linalg.norm(jacobian, axis=0)
    for a, b in combinations(range(len(constants)), 2):
        cosine = float(jacobian[:, a] @ jacobian[:, b] / max(lengths[a] * lengths[b], np.finfo(float).tiny))
        if abs(cosine) >= ALIKE:
            yield constants[a].name, constants[b].name, cosine
