"""How predictions compare with measurements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from phaze.base.arrays import Floats


@dataclass(frozen=True)
class Accuracy:
    """Errors of predicted times as shares of the measured ones."""

    rows: int
    mean_error: float
    """Mean of the absolute errors."""
    worst_error: float
    """Largest absolute error."""
    bias: float
    """Mean of the errors with their signs; positive: predicted too long."""
    within_15: float
    """Share of rows with an error of at most 15 %."""
    rank_correlation: float
    """Spearman's, of predicted and measured times; nan for fewer than two rows, or where all are equal."""

    def __str__(self) -> str:
        """Return all of it in one line."""
        ranks = "" if np.isnan(self.rank_correlation) else f", rank correlation {self.rank_correlation:.3f}"
        return (
            f"{self.rows} measured rows: mean absolute error {100 * self.mean_error:.1f} %, worst "
            f"{100 * self.worst_error:.1f} %, bias {100 * self.bias:+.1f} %, within 15 % "
            f"{100 * self.within_15:.0f} %{ranks}"
        )


def accuracy_of(predicted_s: Floats, measured_s: Floats) -> Accuracy:
    """Return how predicted times (R,) compare with measured ones; there must be at least one row."""
    errors = predicted_s / measured_s - 1.0
    return Accuracy(
        rows=len(errors),
        mean_error=float(np.abs(errors).mean()),
        worst_error=float(np.abs(errors).max()),
        bias=float(errors.mean()),
        within_15=float((np.abs(errors) <= 0.15).mean()),
        rank_correlation=rank_correlation(predicted_s, measured_s),
    )


def rank_correlation(one: Floats, other: Floats) -> float:
    """Return Spearman's rank correlation, equal values with their mean rank."""
    a, b = rankdata(one) - (len(one) + 1) / 2, rankdata(other) - (len(other) + 1) / 2
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread else float("nan")
