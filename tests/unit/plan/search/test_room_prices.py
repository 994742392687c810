"""Prices of layers and bytes bound the cost of assigning layers to stages."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from phaze.base.arrays import Floats
from phaze.plan.bounds.room_prices import least_costs

DEPTH, CHUNKS = 3, 2
STAGES = DEPTH * CHUNKS
RANK_OF = np.arange(STAGES) % DEPTH


def least_by_program(
    costs: Floats, bytes_of: Floats, room: Floats, totals: Floats, held: Floats
) -> tuple[float, Floats]:
    """Return the minimum cost by a linear program, and the prices of layers."""
    kinds = len(totals)
    each = STAGES * kinds
    of_kind = np.hstack([np.tile(np.eye(kinds), STAGES), np.zeros((kinds, each))])
    rows, most = [], []
    for rank in range(DEPTH):
        own = (rank == RANK_OF).astype(float)
        n = own[:, None] * (bytes_of[:, 0] + held[:, None] * bytes_of[:, 1])
        k = own[:, None] * held[:, None] * -bytes_of[:, 2]
        rows.append(np.concatenate([n.ravel(), k.ravel()]))
        most.append(room[rank])
    for q in range(1, STAGES - 1):
        own = np.zeros((2, STAGES, kinds))
        own[0, q] = -1
        rows.append(own.ravel())
        most.append(-1.0)
    rows.extend(np.hstack([-np.eye(each), np.eye(each)]))
    most.extend(np.zeros(each))
    found = linprog(np.moveaxis(costs, 2, 0).ravel(), np.array(rows), np.array(most), of_kind, totals)
    if found.status == 2:
        return np.inf, np.ones(kinds)
    return found.fun, found.eqlin.marginals


@pytest.mark.parametrize("kinds", [1, 2])
@pytest.mark.parametrize("seed", range(12))
def test_prices_bound_the_program_and_meet_it_at_its_own_prices(kinds: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs = rng.uniform(1, 1.3, (STAGES, kinds, 2)) * [1.0, 0.3]
    bytes_of = rng.uniform(0.5, 1, (kinds, 3)) * [0.3, 1.0, 0.45]
    held, totals = rng.integers(1, 6, STAGES).astype(float), np.array([7.0, 9.0])[:kinds]
    needed = (bytes_of[:, 0] + held.mean() * bytes_of[:, 1]) @ totals / DEPTH
    room = np.full(DEPTH, rng.uniform(0.75, 1.2) * needed)
    least, prices = least_by_program(costs, bytes_of, room, totals, held)
    for own in (prices / costs[:, :, 0].mean(axis=0), np.ones(kinds)):
        found = least_costs(costs[None], bytes_of[None], room[None], totals, held, own)[0]
        assert found <= least * (1 + 1e-9)
        if own is not prices and kinds == 1 and least < np.inf:
            assert found == pytest.approx(least, rel=1e-3)


def test_layers_without_room_cost_more_than_any_plan() -> None:
    costs, bytes_of = np.full((1, STAGES, 1, 2), [1.0, 0.0]), np.array([[[1.0, 0.0, 0.0]]])
    rest = np.array([10.0]), np.ones(STAGES), np.ones(1)
    assert least_costs(costs, bytes_of, np.full((1, DEPTH), 3.0), *rest)[0] > 1e3
    assert least_costs(costs, bytes_of, np.full((1, DEPTH), 4.0), *rest)[0] == pytest.approx(10.0)
