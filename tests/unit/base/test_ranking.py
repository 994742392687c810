"""Distinct rows without sorting all of them."""

import numpy as np

from phaze.base.ranking import distinct_rows


def test_distinct_rows_are_those_of_numpy() -> None:
    values = np.random.default_rng(0).integers(-1, 2, (200, 3)) * np.array([0.5, 1.0, -1.0])
    distinct, place = distinct_rows(values)
    expected, where = np.unique(values, axis=0, return_inverse=True)
    assert np.array_equal(distinct, expected)
    assert np.array_equal(place, where.reshape(-1))


def test_rows_of_both_zeros_are_one() -> None:
    distinct, place = distinct_rows(np.array([[0.0, 1.0], [-0.0, 1.0]]))
    assert np.array_equal(distinct, [[0.0, 1.0]])
    assert np.array_equal(place, [0, 0])


def test_no_rows_have_no_distinct_rows() -> None:
    distinct, place = distinct_rows(np.zeros((0, 4)))
    assert distinct.shape == (0, 4)
    assert len(place) == 0
