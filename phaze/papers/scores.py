"""How near readings of what a publication leaves open come to what it prints: scores for every page."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pandas as pd


def geometric_mean(values: pd.Series | Sequence[float]) -> float:
    """Geometric mean, NaN of nothing."""
    found = np.asarray(values, dtype=np.float64)
    return float(np.exp(np.log(found).mean())) if len(found) else float("nan")


def mean_factor(figures: pd.DataFrame) -> float:
    """Factor by which figures are off at the geometric mean, up or down: 1 where all agree, NaN of none.

    `figures` has columns `ours` and `printed`; where the printed is 0, nothing is printed.
    """
    known = figures[figures["printed"] > 0]
    logs = np.log(known["ours"].to_numpy(np.float64) / known["printed"].to_numpy(np.float64))
    return float(np.exp(np.abs(logs).mean())) if len(logs) else float("nan")


def rms_factor(ratios: pd.Series) -> float:
    """Factor by which ratios to printed figures are off, at the root mean square of their logarithms.

    Ratios of 0, where nothing fits, do not count; 0 of none.
    """
    logs = np.log(ratios[ratios > 0])
    return float(np.exp(np.sqrt((logs**2).mean()))) if len(logs) else 0.0


def relative_errors(printed: float, ours: Sequence[float]) -> list[float]:
    """Differences from a printed figure over it, without their signs."""
    return [abs(one / printed - 1) for one in ours]


def mean_error(errors: Sequence[Sequence[float]]) -> float:
    """Mean over printed figures of the mean error of what stands beside each: all count alike."""
    return fmean(fmean(some) for some in errors)
