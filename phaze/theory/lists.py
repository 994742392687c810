"""List schedules: operators started in the order of a priority whenever a core is free.

Every schedule made here can be executed under the paper's model (Section 4): an operator on all cores runs alone, a
fused operator occupies the tensor core and the vector core of one pair, a network operator holds the link. The cores
of a type are numbered from 0; pair c is tensor core c with vector core c.
"""

from __future__ import annotations

import numba
import numpy as np

from phaze.theory.graphs import FUSED, NETWORK, TENSOR, VECTOR, Bools, Floats, Ints

ALL_CORES = -1
"""Core of an operator that runs on all cores of its type."""
WAITING = -2
"""Core of an operator that has not started."""


@numba.njit(cache=True)
def run_list(
    kinds: Ints,
    offsets: Ints,
    followers: Ints,
    one: Floats,
    every: Floats,
    wide: Bools,
    rank: Ints,
    num_tc: int,
    num_vc: int,
    drain: bool,
    start: Floats,
    core: Ints,
) -> float:
    """Return the latency of the list schedule of a component, and fill `start` and `core`, shape (n,).

    `one` and `every` are ℓ and ℓ̂; `wide` says which operators run on all cores; `rank` lists the operators by priority.
    Operators that directly follow i are followers[offsets[i]:offsets[i + 1]]. With `drain`, nothing overtakes an operator
    that waits for all cores.
    """
    n = len(kinds)
    waiting = np.zeros(n, dtype=np.int64)
    for j in followers:
        waiting[j] += 1
    end = np.empty(n)
    busy = np.zeros((2, max(num_tc, num_vc)), dtype=np.int64)
    load = np.zeros(4, dtype=np.int64)
    core[:] = WAITING
    now, done = 0.0, 0
    while done < n:
        for i in rank:
            if core[i] != WAITING or waiting[i] > 0:
                continue
            core[i] = _try_start(kinds[i], wide[i], load, busy, num_tc, num_vc)
            if core[i] != WAITING:
                start[i] = now
                end[i] = now + (every[i] if wide[i] else one[i])
                waiting[i] = -1
            elif wide[i] and drain:
                break
        now = np.inf
        for i in range(n):
            if waiting[i] == -1:
                now = min(now, end[i])
        for i in range(n):
            if waiting[i] == -1 and end[i] <= now:
                waiting[i] = -2
                done += 1
                _release(kinds[i], wide[i], core[i], load, busy)
                for f in range(offsets[i], offsets[i + 1]):
                    waiting[followers[f]] -= 1
    return now


@numba.njit(cache=True)
def _try_start(kind: int, wide: bool, load: Ints, busy: Ints, num_tc: int, num_vc: int) -> int:
    """Occupy and return a core, ALL_CORES, or WAITING; load counts computing and network operators, narrow and wide."""
    network = kind == NETWORK
    if wide:
        free = load[1] + load[3] + load[0] + (load[2] if network else 0) == 0
        core = ALL_CORES if free else WAITING
    elif network:
        core = 0 if load[2] + load[3] == 0 else WAITING
    else:
        core = _take_core(kind, busy, num_tc, num_vc) if load[1] + load[3] == 0 else WAITING
    if core != WAITING:
        load[2 * network + wide] += 1
    return core


@numba.njit(cache=True)
def _take_core(kind: int, busy: Ints, num_tc: int, num_vc: int) -> int:
    """Occupy and return a free core, or WAITING; an operator on one core leaves free pairs alone where it can."""
    pairs = min(num_tc, num_vc)
    tensor, vector = kind != VECTOR, kind != TENSOR
    best = WAITING
    for c in range(pairs if kind == FUSED else num_tc if tensor else num_vc):
        if (tensor and busy[0, c]) or (vector and busy[1, c]):
            continue
        best = c
        if kind == FUSED or c >= pairs or busy[0, c] or busy[1, c]:
            break
    if best != WAITING:
        busy[0, best] += tensor
        busy[1, best] += vector
    return best


@numba.njit(cache=True)
def _release(kind: int, wide: bool, core: int, load: Ints, busy: Ints) -> None:
    """Free what an operator held."""
    network = kind == NETWORK
    load[2 * network + wide] -= 1
    if not wide and not network:
        busy[0, core] -= kind != VECTOR
        busy[1, core] -= kind != TENSOR


@numba.njit(cache=True)
def rank_by_tail(offsets: Ints, followers: Ints, duration: Floats) -> Ints:
    """Return the operators by falling length of the longest path from their start, ties in topological order."""
    n = len(duration)
    tail = np.zeros(n)
    for i in range(n - 1, -1, -1):
        longest = 0.0
        for f in range(offsets[i], offsets[i + 1]):
            longest = max(longest, tail[followers[f]])
        tail[i] = duration[i] + longest
    return np.argsort(-tail, kind="mergesort")
