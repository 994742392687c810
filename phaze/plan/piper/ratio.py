"""The knapsack of a stage by the paper's rule: the most memory saved for the least time (Piper, Section 4).

Every layer starts with its fastest configuration. While the stage needs too much memory, the configuration
with the highest ratio of memory saved to time added, over all layers, takes its layer's place. A layer's
next step depends on nothing but its last one, and its ratios fall from step to step: so do all steps in the
order in which they are taken, and a stage takes the same steps whatever its memory is, only more or fewer.

The rule is not monotone in what it is asked for: with more microbatches in flight every configuration needs
more memory, but by other amounts, so that the ratios change places. What overshoots the limit by a cheap
step with few microbatches may do with a cheaper one with more. Nothing here or in the planner assumes that a
stage which meets a time with s microbatches also meets it with fewer.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit, njit_inner


@njit
def choose_by_ratio(
    first: Ints, member: Bools, time_s: Floats, memory_bytes: Floats, limit_bytes: float, chosen: Ints
) -> bool:
    """Choose a configuration for every layer of a stage, and return whether they fit the memory.

    first: (n + 1,) where a layer's configurations begin; member: (n,); time_s, memory_bytes: what each adds
    to the stage; chosen: (n,) is written for the layers of the stage.
    """
    following, ratios = np.empty(len(member), dtype=np.int64), np.empty(len(member))
    for v in range(len(member)):
        if member[v] and first[v] == first[v + 1]:
            return False
        if member[v]:
            chosen[v] = fastest(first[v], first[v + 1], time_s, memory_bytes)
            step = best_step(chosen[v], first[v], first[v + 1], time_s, memory_bytes)
            following[v], ratios[v] = step, ratio(chosen[v], step, time_s, memory_bytes)
    while True:
        total, best, highest = 0.0, -1, -1.0
        for v in range(len(member)):
            if member[v]:
                total += memory_bytes[chosen[v]]
                if ratios[v] > highest:
                    best, highest = v, ratios[v]
        if total <= limit_bytes:
            return True
        if best < 0:
            return False
        chosen[best] = following[best]
        step = best_step(chosen[best], first[best], first[best + 1], time_s, memory_bytes)
        following[best], ratios[best] = step, ratio(chosen[best], step, time_s, memory_bytes)


@njit_inner
def fastest(begin: int, end: int, time_s: Floats, memory_bytes: Floats) -> int:
    """Return the fastest configuration, of equals the smallest, of those the first."""
    best = begin
    for x in range(begin + 1, end):
        smaller = time_s[x] == time_s[best] and memory_bytes[x] < memory_bytes[best]
        if time_s[x] < time_s[best] or smaller:
            best = x
    return best


@njit_inner
def best_step(current: int, begin: int, end: int, time_s: Floats, memory_bytes: Floats) -> int:
    """Return the configuration with the highest ratio to the current, of equals the nearest; -1: none."""
    best, highest = -1, -1.0
    for x in range(begin, end):
        if memory_bytes[x] >= memory_bytes[current]:
            continue
        this = ratio(current, x, time_s, memory_bytes)
        if this > highest or (this == highest and nearer(x, best, this, time_s, memory_bytes)):
            best, highest = x, this
    return best


@njit_inner
def nearer(x: int, best: int, this: float, time_s: Floats, memory_bytes: Floats) -> bool:
    """Return whether x is the better of two of one ratio: free steps go all the way, others go short.

    Two that take the same time are of one ratio only because what they save is rounded: take the smaller.
    """
    if time_s[x] == time_s[best]:
        return bool(memory_bytes[x] < memory_bytes[best])
    return bool((memory_bytes[x] > memory_bytes[best]) != np.isinf(this))


@njit_inner
def ratio(current: int, other: int, time_s: Floats, memory_bytes: Floats) -> float:
    """Return memory saved over time added; infinite where no time is added; -1 for no other."""
    if other < 0:
        return -1.0
    added = time_s[other] - time_s[current]
    return float((memory_bytes[current] - memory_bytes[other]) / added) if added > 0 else np.inf
