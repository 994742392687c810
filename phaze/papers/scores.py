"""Scores of agreement between our figures and published ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd


def geometric_mean(values: pd.Series | Sequence[float]) -> float:
    """Geometric mean of some values; NaN if there are none."""
    array = np.asarray(values, dtype=np.float64)
    return float(np.exp(np.log(array).mean())) if len(array) else float("nan")


def mean_factor(figures: pd.DataFrame) -> float:
    """Mean factor by which figures deviate from published ones, in either direction; 1 if all agree.

    `figures` has columns `ours` and `printed`; 0 in `printed` marks a missing figure. NaN if all are missing.
    """
    printed = figures[figures["printed"] > 0]
    # In logarithms, twice and half the published figure are equally far off.
    logs = np.log(printed["ours"].to_numpy(np.float64) / printed["printed"].to_numpy(np.float64))
    return float(np.exp(np.abs(logs).mean())) if len(logs) else float("nan")


def rms_factor(ratios: pd.Series) -> float:
    """Typical deviation of ratios from 1: exp of the root mean square of their logarithms.

    Ratios of 0, where nothing fits, are ignored. 0 without any other ratio.
    """
    logs = np.log(ratios[ratios > 0])
    return float(np.exp(np.sqrt((logs**2).mean()))) if len(logs) else 0.0
