"""Core assignment of operators with known start times.

The first min(num_tc, num_vc) tensor cores are paired with the same number of vector cores (Section 4). A
fused operator needs both cores of a pair, so core counts are not sufficient: a free tensor core and a free
vector core may belong to two pairs.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import copy_row, njit
from phaze.schedule.graphs import FUSED, TENSOR, VECTOR

UNASSIGNED = -2
PATIENCE = 20000
"""Number of cores tried before the search gives up; real layers need no second try."""


@njit
def occupies(kind: int, resource: int) -> bool:
    """True if an operator occupies a tensor core (0), a vector core (1) or a core pair (2)."""
    if resource == 0:
        return kind in (TENSOR, FUSED)
    if resource == 1:
        return kind in (VECTOR, FUSED)
    return kind == FUSED


@njit
def sort_stably(keys: Floats) -> Ints:
    """Positions that sort a few keys in ascending order; the sort is stable."""
    positions = np.arange(len(keys))
    for i in range(1, len(keys)):
        k = i
        while k > 0 and keys[positions[k - 1]] > keys[i]:
            positions[k] = positions[k - 1]
            k -= 1
        positions[k] = i
    return positions


@njit
def assign_cores(kinds: Ints, start: Floats, end: Floats, num_tc: int, num_vc: int) -> tuple[bool, Ints]:
    """Assign cores to operators on single cores; True if all found one, and core numbers from 0, shape (n,).

    Operators take cores in the order of their start, those without duration first. If one finds no core, the
    previous one tries another.
    """
    n, cores = len(kinds), max(num_tc, num_vc)
    core = np.full(n, UNASSIGNED, dtype=np.int64)
    at_once_first = sort_stably((end > start).astype(np.float64))
    sequence = at_once_first[sort_stably(start[at_once_first])]
    counts = np.array([num_tc, num_vc])
    until = np.zeros((n + 1, 2, cores))
    tried = np.zeros((n + 1, cores), dtype=np.bool_)
    position = 0
    for _ in range(PATIENCE + n):
        if position == n:
            return True, core
        i = sequence[position]
        core[i] = _choose(kinds[i], start[i], counts, until[position], tried[position])
        if core[i] == UNASSIGNED:
            tried[position] = False
            position -= 1
            if position < 0:
                break
            continue
        position += 1
        for r in range(2):
            copy_row(until[position - 1, r], until[position, r])
        if kinds[i] != VECTOR:
            until[position, 0, core[i]] = end[i]
        if kinds[i] != TENSOR:
            until[position, 1, core[i]] = end[i]
    core[:] = UNASSIGNED
    return False, core


@njit
def _choose(kind: int, now: float, counts: Ints, until: Floats, tried: Ints) -> int:
    """Free core whose use restricts other operators least; marks all equivalent cores as tried.

    A core without a partner is preferred, then the one whose partner is busy longest: it cannot serve a fused
    operator anyway.
    """
    pairs = min(counts[0], counts[1])
    best, most = UNASSIGNED, -1.0
    for c in range(pairs if kind == FUSED else counts[0] if kind == TENSOR else counts[1]):
        free = (kind == VECTOR or until[0, c] <= now) and (kind == TENSOR or until[1, c] <= now)
        if free and not tried[c] and _spared(kind, c, now, pairs, until) > most:
            best, most = c, _spared(kind, c, now, pairs, until)
    if best != UNASSIGNED:
        for c in range(len(tried)):
            tried[c] = tried[c] or _spared(kind, c, now, pairs, until) == most
    return best


@njit
def _spared(kind: int, c: int, now: float, pairs: int, until: Floats) -> float:
    """Time at which the paired core becomes free; inf without a partner."""
    if kind == FUSED:
        return now
    if c >= pairs:
        return np.inf
    return max(now, float(until[1 if kind == TENSOR else 0, c]))
