"""Lower bound on the latency of a component, by a clock that stops while one operator runs on all cores.

Nothing else runs while an operator runs on all cores. The latency is therefore the total of these operators
plus the time U that the clock counts for the operators on single cores. For any weights a ≥ 0 that sum to at
most 1 over operators that could run concurrently, U ≥ Σ a_i ℓ_i over the operators on single cores. As every
operator is of one or the other kind,

    T ≥ Σ_i min(ℓ̂_i, a_i ℓ_i).

Such weights are: 1 on a path; 1/num_tc on the tensor and fused operators; 1/num_vc on the vector and fused
operators; 1/min(num_tc, num_vc) on the fused operators; and all convex combinations of these. Good
combinations come from a game: one side distributes the weights, and the other side chooses the operators that
run on all cores. Both respond to the average of the other side's previous moves.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit
from phaze.schedule.graphs import NETWORK, ComponentArrays
from phaze.schedule.pairing import occupies

ROUNDS = 200
"""Number of rounds of the game between weights and operator choices; it converges like 1 / rounds."""


@njit
def bound_by_weights(part: ComponentArrays) -> float:
    """Lower bound on the latency of a component, from weights on its operators.

    Network operators that may overlap with others are bounded separately: by the longest path, and by their
    total on the link.
    """
    n = len(part.kinds)
    one_core, every = part.one.copy(), part.every.copy()
    shortest, load, weights, link = np.zeros(n), np.zeros(n), np.zeros(n), 0.0
    for i in range(n):
        shortest[i] = min(one_core[i], every[i])
        if part.kinds[i] == NETWORK and one_core[i] < np.inf:
            link += shortest[i]
            one_core[i] = every[i] = 0.0
        load[i] = one_core[i] if one_core[i] < np.inf else 0.0
    best = max(link, float(_longest_path(part, shortest)[0].max()))
    for k in range(ROUNDS):
        _add_weights(part, load, weights, 1.0 / (k + 1))
        bound = 0.0
        for i in range(n):
            single = one_core[i] < np.inf and weights[i] * one_core[i] < every[i]
            bound += weights[i] * one_core[i] if single else every[i]
            load[i] += ((one_core[i] if single else 0.0) - load[i]) / (k + 2)
        best = max(best, bound)
    return best


@njit
def _add_weights(part: ComponentArrays, load: Floats, weights: Floats, share: float) -> None:
    """Move a share of the weights to the path or core type with the largest load."""
    n = len(load)
    cores = np.array([part.num_tc, part.num_vc, min(part.num_tc, part.num_vc)])
    busy = np.zeros(3)
    for i in range(n):
        for r in range(3):
            busy[r] += load[i] / cores[r] if occupies(part.kinds[i], r) else 0.0
    tail, following = _longest_path(part, load)
    i, resource = int(np.argmax(tail)), int(np.argmax(busy))
    weights *= 1.0 - share
    if tail[i] >= busy[resource]:
        while i >= 0:
            weights[i] += share
            i = following[i]
        return
    for j in range(n):
        if occupies(part.kinds[j], resource):
            weights[j] += share / cores[resource]


@njit
def _longest_path(part: ComponentArrays, load: Floats) -> tuple[Floats, Ints]:
    """Length of the longest path from each operator, and the next operator on the path, -1 at its end."""
    n = len(load)
    tail, following = np.zeros(n), np.full(n, -1)
    for i in range(n - 1, -1, -1):
        for j in part.followers[part.offsets[i] : part.offsets[i + 1]]:
            if following[i] < 0 or tail[j] > tail[following[i]]:
                following[i] = j
        tail[i] = load[i] + (tail[following[i]] if following[i] >= 0 else 0.0)
    return tail, following
