"""Refinement moves single operators over borders, by the best of three gains."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.partition.intervals import cut_in_order
from phaze.partition.refinement import MOVES, distances, refine
from phaze.partition.weights import Weights, fits, stage_times, sums
from tests.unit.partition.graphs import random_weights, series_parallel, weights_of


def sums_of(weights: Weights, stage_of: np.ndarray, distance: np.ndarray) -> tuple[float, float, float]:
    """Return the sums whose decreases are the three gains."""
    over = stage_of[weights.edges[:, 0]] != stage_of[weights.edges[:, 1]]
    senders = np.unique(weights.edges[over, 0])
    longest = sums(stage_of, weights.compute_s, int(stage_of.max()) + 1).max()
    return float(distance[senders].sum()), float(weights.edge_bytes[over].sum()), float(longest)


def all_moves(weights: Weights, stage_of: np.ndarray) -> list[np.ndarray]:
    """Return every partition one move away."""
    found = []
    for v in range(len(weights)):
        ends = stage_of[weights.edges]
        near = (weights.edges == v).any(axis=1) & (ends[:, 0] != ends[:, 1])
        for t in (stage_of[v] - 1, stage_of[v] + 1):
            moved = stage_of.copy()
            moved[v] = t
            pairs = moved[weights.edges]
            if (
                near.any()
                and 0 <= t <= stage_of.max()
                and (pairs[:, 0] <= pairs[:, 1]).all()
                and len(np.unique(moved)) == len(np.unique(stage_of))
                and fits(weights, moved)
            ):
                found.append(moved)
    return found


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), stages=st.integers(2, 4), limit=st.sampled_from([np.inf, 30.0]))
def test_each_move_has_the_highest_gain_of_all(seed: int, stages: int, limit: float) -> None:
    """All moves are tried, and their gains are computed from the whole partition."""
    weights = random_weights(seed, 10, 0.25, limit)
    stage_of, far = cut_in_order(weights, stages), distances(weights)
    for _ in range(4 if stage_of is not None else 0):
        assert stage_of is not None
        now = np.array(sums_of(weights, stage_of, far))
        gains = [tuple(now - sums_of(weights, one, far)) for one in all_moves(weights, stage_of)]
        best = max(gains, default=(0.0, 0.0, 0.0))
        stage_of, moves = refine(weights, stage_of, far, 1)
        assert moves == (best > (0.0, 0.0, 0.0))
        assert tuple(now - sums_of(weights, stage_of, far)) == (best if moves else (0.0, 0.0, 0.0))


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), stages=st.integers(2, 4), by_time=st.booleans())
def test_stages_stay_convex_and_none_gets_empty(seed: int, stages: int, by_time: bool) -> None:
    weights = random_weights(seed, 14, 0.2)
    start = cut_in_order(weights, stages)
    assert start is not None
    refined, moves = refine(weights, start, distances(weights), by_time=by_time)
    ends = refined[weights.edges]
    assert (ends[:, 0] <= ends[:, 1]).all()
    assert len(np.unique(refined)) == stages
    assert moves <= MOVES
    assert (refined == start).all() or moves


def test_the_order_as_printed_may_lengthen_the_slowest_stage() -> None:
    """Messages count before time: a cheaper border wins regardless of the work it moves."""
    weights = weights_of([4.0, 4.0, 1.0], [(0, 1), (1, 2)], [2.0, 1.0], seconds_per_byte=0.01)
    refined, moves = refine(weights, np.array([0, 1, 1]), distances(weights))
    assert (refined.tolist(), moves) == ([0, 0, 1], 1)
    assert stage_times(weights, refined).max() > stage_times(weights, np.array([0, 1, 1])).max()


def test_by_time_the_slowest_stage_never_gets_slower_by_much() -> None:
    for seed in range(5):
        weights = series_parallel(200, seed)
        start = cut_in_order(weights, 6)
        assert start is not None
        refined, _ = refine(weights, start, distances(weights), by_time=True)
        before, after = stage_times(weights, start), stage_times(weights, refined)
        assert (after**16).sum() <= (before**16).sum() * (1 + 1e-9)


def test_distances_count_edges_to_the_nearest_cut_vertex_with_several_edges() -> None:
    diamond = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (5, 6)]
    weights = weights_of([1.0] * 7, diamond, [1.0] * 7)
    assert distances(weights).tolist() == [1, 0, 1, 1, 0, 1, 2]


def test_without_a_reconverging_operator_distances_say_nothing() -> None:
    assert distances(weights_of([1.0] * 3, [(0, 1), (1, 2)], [1.0] * 2)).tolist() == [0, 0, 0]
