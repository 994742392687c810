"""Dropped architectures cannot be among the answers of the report."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from phaze.base.ranking import order, smallest, tied, within
from phaze.search.stage import could_matter

Shard = tuple[NDArray, NDArray, NDArray, NDArray, NDArray]
TIMES = st.sampled_from([1.0, 1.004, 1.008, 1.01, 1.0101010101010102, 1.02, 2.0, np.inf])


@st.composite
def shards(draw: st.DrawFn) -> Shard:
    """Return lower, feasible, area, name and an exact time in between, with many ties."""
    n = draw(st.integers(1, 8))
    lower, feasible = np.sort(np.array([[draw(TIMES), draw(TIMES)] for _ in range(n)]), axis=1).T
    fits = np.isfinite(feasible)
    lower, feasible = np.where(fits, lower, np.inf), np.where(fits, feasible, np.inf)
    where = np.array([draw(st.sampled_from([0.0, 0.3, 1.0])) for _ in range(n)])
    exact = np.full(n, np.inf)
    exact[fits] = lower[fits] + where[fits] * (feasible[fits] - lower[fits])
    area = np.array([draw(st.sampled_from([10.0, 20.0, 30.0])) for _ in range(n)])
    return lower, feasible, area, np.array(draw(st.permutations(range(n)))), exact


@given(shard=shards(), best=st.integers(1, 3), tolerance=st.sampled_from([0.0, 0.01, 0.02]))
def test_the_answers_of_a_shard_are_kept_whatever_the_exact_times_are(
    shard: Shard, best: int, tolerance: float
) -> None:
    """The best few and the smallest within the tolerance, by exact times, are among the kept."""
    lower, feasible, area, name, exact = shard
    kept = could_matter(lower, feasible, area, name, best=best, tolerance=tolerance)
    first = [a for a in order(exact, area, name)[:best] if np.isfinite(exact[a])]
    small = smallest(exact, area, name, tolerance)
    assert kept[first].all()
    assert small is None or kept[small]
    assert not kept[np.isinf(lower)].any()


def test_the_answers_of_a_study_are_kept_at_their_point_and_in_their_shard() -> None:
    """Shards and points are screened separately; the answers over all of them are kept, and stay the
    answers.
    """
    rng = np.random.default_rng(5)
    for _ in range(600):
        n, points, best, tolerance = 24, 2, int(rng.integers(1, 4)), 0.01
        exact = 1.0 + rng.choice([0.02, 0.1]) * rng.random(n) + 0.004 * rng.random((points, n))
        exact *= 1.0 + 0.01 * rng.random((points, 1))
        slack = rng.choice([1e-4, 1e-2])
        lower = exact * (1 - slack * rng.random(exact.shape))
        feasible = exact * (1 + slack * rng.random(exact.shape))
        area, name, shard = rng.integers(1, 12, n).astype(float), rng.permutation(n), rng.integers(0, 2, n)
        kept = np.zeros(exact.shape, dtype=bool)
        for p in range(points):
            for s in range(2):
                at = np.flatnonzero(shard == s)
                kept[p, at] = could_matter(
                    lower[p, at], feasible[p, at], area[at], name[at], best=best, tolerance=tolerance
                )
        known = np.where(kept, exact, np.inf).min(axis=0)
        truth = exact.min(axis=0)
        assert list(order(known, area, name)[:best]) == list(order(truth, area, name)[:best])
        assert smallest(known, area, name, tolerance) == smallest(truth, area, name, tolerance)


def test_who_is_within_the_tolerance_of_its_shard_only_excludes_no_one() -> None:
    """Another shard's best of 1.0 makes 1.0101 the limit: the third is above it, the second the smallest."""
    times, area = np.array([1.005, 1.0095, 1.012]), np.array([30.0, 20.0, 10.0])
    assert within(times, 0.01).all()
    assert not within(np.append(times, 1.0), 0.01)[2]
    assert could_matter(times, times, area, np.arange(3), best=1, tolerance=0.01).all()


def test_rounding_errors_drop_nothing() -> None:
    """Two architectures that differ only by the order of summation tie, and area decides."""
    a, b = 0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1
    assert a != b
    for times in (np.array([a, b]), np.array([b, a])):
        assert tied(times)[0] == tied(times)[1]
        kept = could_matter(times, times, np.array([2.0, 1.0]), np.array([0, 1]), best=1, tolerance=0.0)
        assert list(kept) == [False, True]


@pytest.mark.parametrize("best", [1, 2])
def test_equal_times_are_decided_by_area_so_that_ties_do_not_pile_up(best: int) -> None:
    """Of a thousand architectures with the same known time only the requested number is kept."""
    n = 1000
    time = np.full(n, 3.0)
    kept = could_matter(time, time, np.arange(n, dtype=float), np.arange(n), best=best, tolerance=0.01)
    assert list(np.flatnonzero(kept)) == list(range(best))


def test_all_are_kept_where_nothing_is_known() -> None:
    """Bounds from zero to almost infinity exclude no architecture."""
    n = 20
    area, name = np.arange(n, dtype=float), np.arange(n)
    assert could_matter(np.zeros(n), np.full(n, 1e9), area, name, best=1, tolerance=0.01).all()


def test_the_grid_of_ties_is_monotone_and_fine() -> None:
    """Rounding never reverses an order, and changes a time by less than a relative 1e-9."""
    times = np.sort(np.exp(np.random.default_rng(1).uniform(-20, 20, 10_000)))
    assert (np.diff(tied(times)) >= 0).all()
    assert np.max(np.abs(tied(times) / times - 1)) < 1e-9
    assert np.isinf(tied(np.array([np.inf])))


def test_within_the_tolerance_is_measured_on_throughput() -> None:
    """At 1 % a time of best / 0.99 still counts."""
    assert list(within(np.array([1.0, 1 / 0.99, 1.0103, np.inf]), 0.01)) == [True, True, False, False]
    assert not within(np.array([np.inf]), 0.01).any()
