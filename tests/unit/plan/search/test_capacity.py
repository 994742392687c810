"""Least time and memory of the ranks of a pipeline, against all whole numbers of layers."""

from __future__ import annotations

from itertools import product

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.plan.bounds.capacity import CLOSE, least_times

RANKS, CHUNKS = 2, 2
HELD = np.array([[3.0, 0.0, 4.0, 0.0], [2.0, 0.0, 3.0, 0.0]])
"""Microbatches in flight of both ranks: a layer of a rank stores those of column a."""


def least(by_kind: Floats, totals: Ints, limit: float, count: float = 8.0) -> float:
    """Return the bound of one layout without embedding and head; infinite if it does not fit."""
    figures = np.zeros((1, 8))
    figures[0, 0] = count
    order = np.repeat(np.arange(len(totals)), totals)
    layers = np.cumsum(np.eye(len(totals), dtype=int)[order], 0)
    before = np.concatenate([np.zeros((1, len(totals)), int), layers])
    shapes = np.array([[RANKS, CHUNKS, 0, RANKS - 1]])
    found, _ = least_times(figures, by_kind[None], shapes, HELD, before, np.array([limit]), False)
    return float(found[0])


def least_of_all(by_kind: Floats, totals: Ints, limit: float, count: float = 8.0) -> float:
    """Return the time of the longest rank in the best of all numbers of layers per rank that have room.

    A layer takes its passes and its update, and stores its static bytes and those of column a. A rank with
    layers needs their working memory, the same for all kinds.
    """
    each_s, each_bytes = count * by_kind[:, 0] + by_kind[:, 3], by_kind[:, 4:5] + by_kind[:, 5:6] * HELD[:, 0]
    best = np.inf
    for first in product(*(range(total + 1) for total in totals.tolist())):
        ranks = np.array([first, totals - first])
        work = by_kind[0, 7] * (ranks.sum(axis=1) > 0)
        if all(own @ each_bytes[:, rank] + work[rank] <= limit for rank, own in enumerate(ranks)):
            best = min(best, float((ranks @ each_s).max()))
    return best


def test_ranks_have_whole_layers_of_the_usual_kind() -> None:
    """One of two ranks has three of five layers of a second; halves would take 2.625 s a microbatch."""
    by_kind = np.array([[1.0, 0.4, 0, 0, 0, 0, 0, 0], [0.25, 0.1, 0, 0, 0, 0, 0, 0]])
    assert least(by_kind, np.array([5, 1]), 1.0) >= 8 * 3.0 * (1 - CLOSE)


def test_no_numbers_of_layers_are_faster_than_the_bound() -> None:
    rng, tight = np.random.default_rng(3), 0
    for _ in range(200):
        totals = rng.integers(1, 7, size=int(rng.integers(1, 4)))
        by_kind = np.zeros((len(totals), 8))
        by_kind[:, 0] = rng.uniform(0.2, 1.0, len(totals))
        by_kind[:, 3:6] = rng.uniform(0, 1, (len(totals), 3))
        by_kind[:, 1], by_kind[:, 7] = by_kind[:, 0] / 3, rng.uniform(0, 1)
        limit = float(rng.uniform(0.4, 1.5) * (totals @ (by_kind[:, 4] + 3 * by_kind[:, 5])))
        bound_s, best_s = least(by_kind, totals, limit), least_of_all(by_kind, totals, limit)
        assert bound_s <= best_s * (1 + CLOSE)
        tight += best_s < np.inf and bound_s > 0.99 * best_s
    assert tight > 20
