"""The least time of a stage as a function of the microbatches in flight, with configurations chosen exactly.

With more in flight, nothing gets smaller: the least time rises. The choice that is best for m microbatches
stays so until it no longer fits, hence one knapsack for each step of the staircase.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.plan.piper.knapsack import choose_exactly
from phaze.plan.piper.stages import Costs, price_stage


@njit
def staircases(costs: Costs, member: Bools, t: int, exchanged: float, most: int) -> tuple[Ints, Floats, Ints]:
    """Return where the steps of each set start, and for each d times its time and the most in flight.

    member: (P, n); t: the position of the width; exchanged: as for `price_stage`; most: in flight at all.
    """
    sets = len(member)
    start = np.zeros(sets + 1, dtype=np.int64)
    time = np.empty(2 * sets + 2)
    until = np.empty(2 * sets + 2, dtype=np.int64)
    chosen = np.empty(member.shape[1], dtype=np.int64)
    stash, fixed, limit = costs.stash_bytes, costs.fixed_bytes, costs.limit_bytes
    steps = 0
    for p in range(sets):
        own_s, memory_bytes, common_s = price_stage(costs, member[p], t, exchanged, 1)
        m = 1
        while m <= most and choose_exactly(costs.first[t], member[p], own_s, memory_bytes, limit, chosen):
            if steps == len(time):
                time = np.concatenate((time, np.empty(len(time))))
                until = np.concatenate((until, np.empty(len(until), dtype=np.int64)))
            picked = chosen[member[p]]
            m = max(m, _lasts(stash[picked].sum(), fixed[picked].sum(), limit, most))
            time[steps] = own_s[picked].sum() + common_s
            until[steps] = m
            steps += 1
            m += 1
            memory_bytes = stash * m + fixed
        start[p + 1] = steps
    return start, time[:steps].copy(), until[:steps].copy()


@njit
def _lasts(stash: float, fixed: float, limit: float, most: int) -> int:
    """Return the most microbatches in flight, of `most`, that fit."""
    if stash * most + fixed <= limit:
        return most
    m = int((limit - fixed) / stash)
    while m > 0 and stash * m + fixed > limit:
        m -= 1
    while stash * (m + 1) + fixed <= limit:
        m += 1
    return m
