"""Errors, bias and rank correlation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from phaze.validate.table import Accuracy, rank_correlation


def test_errors_are_shares_of_the_measured_times() -> None:
    found = Accuracy(np.array([1.1, 1.6, 3.0]), np.array([1.0, 2.0, 3.0]))
    assert found.mean_error == pytest.approx(0.1)
    assert str(found) == (
        "3 measured rows: mean absolute error 10.0 %, worst 20.0 %, bias -3.3 %, within 15 % 67 %, "
        "rank correlation 1.000"
    )


def test_rank_correlation_is_spearmans_also_with_equal_values() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, other = rng.integers(0, 5, 12).astype(float), rng.integers(0, 5, 12).astype(float)
        assert rank_correlation(one, other) == pytest.approx(spearmanr(one, other).statistic)


def test_one_row_has_no_rank_correlation() -> None:
    assert np.isnan(rank_correlation(np.ones(1), np.ones(1)))
    assert "rank" not in str(Accuracy(np.ones(1), np.ones(1)))
