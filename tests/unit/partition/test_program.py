"""The dynamic program finds the brute-force optimum."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.base.bitsets import pack, unpack
from phaze.formulas.downsets import enumerate_downsets
from phaze.partition.fronted import TooManyError, family, windows_within
from phaze.partition.intervals import cut_in_order
from phaze.partition.program import cut_within
from phaze.partition.weights import Weights, border_bytes, fits, stage_memory, stage_times
from tests.unit.partition.graphs import all_partitions, bert_like, random_weights, series_parallel, weights_of

LIMITS = (np.inf, 25.0, 18.0)
CASES = [(seed, 2 + seed % 6, LIMITS[seed % 3], stages) for seed in range(30) for stages in (1, 2, 3, 4)]


def cases() -> list[tuple[Weights, int, list[np.ndarray]]]:
    """Return small graphs with all their partitions that fit."""
    found = []
    for seed, nodes, limit, stages in CASES:
        weights = random_weights(seed, nodes, (0.2, 0.4, 0.7)[seed % 3], limit)
        if stages <= nodes:
            every = [one for one in all_partitions(weights, stages) if fits(weights, one)]
            found.append((weights, stages, every))
    return found


SMALL = cases()


def test_the_least_time_is_that_of_all_partitions() -> None:
    for weights, stages, every in SMALL:
        found = cut_within(weights, stages)
        assert (found is None) == (not every)
        if found is not None:
            assert any((found.stage_of == one).all() for one in every)
            assert found.time_s == pytest.approx(min(stage_times(weights, one).max() for one in every))


def test_a_limit_loses_nothing_and_below_the_least_time_there_is_nothing() -> None:
    for weights, stages, every in SMALL:
        if every:
            least = float(min(stage_times(weights, one).max() for one in every))
            found = cut_within(weights, stages, least)
            assert found is not None
            assert found.time_s == pytest.approx(least)
            assert least == 0 or cut_within(weights, stages, 0.999 * least) is None


@pytest.mark.parametrize("more", [1.0, 1.2])
def test_the_thrifty_partition_has_the_least_messages_within_the_limit(more: float) -> None:
    for weights, stages, every in SMALL:
        if every:
            limit = more * float(min(stage_times(weights, one).max() for one in every))
            found = cut_within(weights, stages, limit, thrifty=True)
            assert found is not None
            kept = [one for one in every if stage_times(weights, one).max() <= limit * (1 + 1e-9)]
            least = min(border_bytes(weights, one).sum() for one in kept)
            assert border_bytes(weights, found.stage_of).sum() == pytest.approx(least)


def test_along_one_order_the_least_time_is_that_of_all_intervals() -> None:
    for weights, stages, every in SMALL:
        found = cut_in_order(weights, stages)
        intervals = [one for one in every if (np.diff(one) >= 0).all()]
        assert (found is None) == (not intervals)
        if found is not None:
            least = min(stage_times(weights, one).max() for one in intervals)
            assert stage_times(weights, found).max() == pytest.approx(least)


def test_a_message_that_takes_forever_does_not_hide_those_after_it() -> None:
    weights = weights_of([10, 1, 1, 1, 1], [(0, 1), (1, 2), (2, 3), (3, 4)], [1e20, 4.0, 1.0, 8.0])
    found = cut_in_order(weights, 2)
    assert found is not None
    assert found.tolist() == [0, 0, 0, 1, 1]


def test_overlapped_messages_make_the_larger_of_both_a_stages_time() -> None:
    for weights, stages, every in SMALL:
        intervals = [one for one in every if (np.diff(one) >= 0).all()]
        found = cut_in_order(weights, stages, overlapped=True)
        if found is not None and np.isinf(weights.limit_bytes):
            least = min(_overlapped_s(weights, one, stages) for one in intervals)
            assert _overlapped_s(weights, found, stages) == pytest.approx(least)


def _overlapped_s(weights: Weights, stage_of: np.ndarray, stages: int) -> float:
    compute = np.bincount(stage_of, weights.compute_s, stages).max()
    pairs = stage_of[weights.edges]
    sent = [weights.edge_bytes[(pairs[:, 0] < s) & (pairs[:, 1] >= s)].sum() for s in range(1, stages)]
    return max(compute, weights.seconds_per_byte * max(sent, default=0.0))


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(8, 14),
    stages=st.integers(2, 5),
    limit=st.sampled_from([np.inf, 12.0, 20.0]),
)
def test_stages_are_convex_none_is_empty_and_all_fit(
    seed: int, nodes: int, stages: int, limit: float
) -> None:
    weights = random_weights(seed, nodes, 0.3, limit)
    found = cut_within(weights, stages)
    if found is not None:
        assert np.unique(found.stage_of).tolist() == list(range(stages))
        ends = found.stage_of[weights.edges]
        assert (ends[:, 0] <= ends[:, 1]).all()
        assert (stage_memory(weights, found.stage_of) <= limit).all()
        ordered = cut_in_order(weights, stages)
        assert ordered is None or found.time_s <= stage_times(weights, ordered).max() * (1 + 1e-9)


def test_fronted_subgraphs_are_the_complements_of_downsets() -> None:
    for seed in range(20):
        weights = random_weights(seed, 9, 0.25)
        found = family(weights, windows_within(weights, 2, np.inf), 1)
        downsets = enumerate_downsets(9, [(int(i), int(j)) for i, j in weights.edges])
        mine = {tuple(row) for row in unpack(found.words, 9).tolist()}
        assert mine == {tuple(row) for row in (~downsets.membership).tolist()}


def test_bits_hold_sets_across_words() -> None:
    member = np.random.default_rng(0).random((5, 130)) < 0.5
    assert (unpack(pack(member), 130) == member).all()


def test_too_many_subgraphs_are_refused() -> None:
    with pytest.raises(TooManyError, match="more than 100 fronted subgraphs"):
        cut_within(random_weights(0, 20, 0.0), 2, most_sets=100)


@pytest.mark.parametrize("weights", [bert_like(3), series_parallel(120, 1)])
@pytest.mark.parametrize("stages", [2, 5])
def test_windows_and_all_subgraphs_give_the_same_time(weights: Weights, stages: int) -> None:
    """Two methods: with all fronted subgraphs at every border, and with the windows of a good limit."""
    whole = cut_within(weights, stages)
    ordered = cut_in_order(weights, stages)
    assert whole is not None
    assert ordered is not None
    narrow = cut_within(weights, stages, float(stage_times(weights, ordered).max()))
    assert narrow is not None
    assert narrow.time_s == pytest.approx(whole.time_s, rel=1e-12)
