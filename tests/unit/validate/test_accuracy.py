"""Errors, bias and rank correlation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from phaze.validate.table import accuracy_of, rank_correlation


def test_errors_are_shares_of_the_measured_times() -> None:
    found = accuracy_of(np.array([1.1, 1.6, 3.0]), np.array([1.0, 2.0, 3.0]))
    assert found.mean_error == pytest.approx(0.1)
    assert found.worst_error == pytest.approx(0.2)
    assert found.bias == pytest.approx(-1 / 30)
    assert found.within_15 == pytest.approx(2 / 3)
    assert found.rank_correlation == pytest.approx(1.0)


def test_rank_correlation_is_spearmans_also_with_equal_values() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, other = rng.integers(0, 5, 12).astype(float), rng.integers(0, 5, 12).astype(float)
        assert rank_correlation(one, other) == pytest.approx(spearmanr(one, other).statistic)


def test_one_row_has_no_rank_correlation() -> None:
    assert np.isnan(rank_correlation(np.ones(1), np.ones(1)))
    assert "rank" not in str(accuracy_of(np.ones(1), np.ones(1)))
