"""Shortest schedule of a block of operators on single cores, by branch and bound.

Operators are started in the order of their start times, each as soon as its predecessors have ended and a
core of its type is free. Only counts of cores are checked: tensor and fused operators share the tensor cores,
vector and fused operators the vector cores, fused operators the pairs. `assign_cores` checks whether fused
operators find both cores of one pair free. Until then the latency is a lower bound.

A partial schedule is pruned in two cases. Either a bound on its completion is no better than the best latency
(paths, and for each type of core the work between earliest starts and shortest rests). Or a partial schedule
that was searched earlier has started the same operators and dominates it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import copy_row, njit, njit_inlined
from phaze.schedule.graphs import ComponentArrays
from phaze.schedule.pairing import assign_cores, occupies

CLOSE = 1e-12
"""Relative difference below which two latencies are equal up to rounding."""
NOT_STARTED = -1.0
ENTRIES = 1 << 16
"""Number of partial schedules stored for dominance checks."""


class BarrierBlock(NamedTuple):
    """Operators of a block that run on single cores, in topological order."""

    kinds: Ints
    before: Bools
    """before[i, j]: i precedes j, shape (n, n)."""
    latency: Floats
    tail: Floats
    """Length of the longest path from the start of each operator, shape (n,)."""
    uses: Bools
    """True if an operator occupies a tensor core, a vector core or a core pair, shape (n, 3)."""
    cores: Ints
    """Number of tensor cores, of vector cores and of core pairs."""


class SeenSchedules(NamedTuple):
    """Hash table of partial schedules searched earlier, by the operators that they have started."""

    first: Ints
    """First entry of each list, -1 if it is empty, shape (lists,)."""
    following: Ints
    """Next entry in the list, shape (entries,)."""
    started: Ints
    """Operators started, as bits, shape (entries,)."""
    begin: Floats
    """Start of the operator started last, shape (entries,)."""
    end: Floats
    """End of each operator, shape (entries, n)."""
    size: Ints
    """Number of entries in use, shape (1,)."""


class Search(NamedTuple):
    """State of the branch and bound; `heads` and `open` have one row per number of operators started."""

    start: Floats
    end: Floats
    """End of each operator; NOT_STARTED for operators that have not started."""
    chosen: Ints
    """Operators in the order of their start."""
    heads: Floats
    """Earliest start of each operator, shape (n + 1, n)."""
    open: Bools
    """True for operators to try next, shape (n + 1, n)."""
    best_start: Floats
    best: Floats
    """Shortest latency found, shape (1,)."""
    seen: SeenSchedules
    paired: bool
    """True if fused operators must find pairs of cores."""


@njit
def make_block(members: Ints, part: ComponentArrays) -> BarrierBlock:
    """Build a block from operators of a component, given by their positions in topological order."""
    n = len(members)
    kinds, latency, tail = np.zeros(n, dtype=np.int64), np.zeros(n), np.zeros(n)
    before, uses = np.zeros((n, n), dtype=np.bool_), np.zeros((n, 3), dtype=np.bool_)
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            before[i, j] = part.order[members[i], members[j]]
            if before[i, j]:
                tail[i] = max(tail[i], tail[j])
        kinds[i], latency[i] = part.kinds[members[i]], part.one[members[i]]
        tail[i] += latency[i]
        for resource in range(3):
            uses[i, resource] = occupies(part.kinds[members[i]], resource)
    cores = np.array([part.num_tc, part.num_vc, min(part.num_tc, part.num_vc)])
    return BarrierBlock(kinds, before, latency, tail, uses, cores)


@njit
def run_block(
    block: BarrierBlock, cutoff: float, nodes: int, paired: bool
) -> tuple[float, float, Floats, int]:
    """Lower bound, shortest latency below `cutoff`, its start times, and number of nodes searched.

    The latency is infinite if none below the cutoff was found. If `nodes` were enough, the bound is the
    latency found, or else the cutoff. With `paired`, only schedules whose fused operators find pairs of cores
    are valid; the bound then holds for the sequences searched, not for all.
    """
    n = len(block.kinds)
    search = Search(
        start=np.zeros(n),
        end=np.full(n, NOT_STARTED),
        chosen=np.full(n, -1),
        heads=np.zeros((n + 1, n)),
        open=np.zeros((n + 1, n), dtype=np.bool_),
        best_start=np.zeros(n),
        best=np.full(1, cutoff),
        seen=_nothing_seen(n, 0 if paired else min(nodes, ENTRIES)),
        paired=paired,
    )
    depth, root, best_s, used, new = 0, -np.inf, np.inf, 0, True
    while depth >= 0 and search.best[0] > root * (1 + CLOSE):
        if new:
            # The only call, for the root and all other nodes: each further call would double the machine
            # code.
            bound = _enter(block, search, depth)
            root, new = bound if depth == 0 else root, False
            best_s = search.best[0] if search.best[0] < cutoff else best_s
            continue
        i = _next(search.open[depth], search.heads[depth], block.tail)
        if i < 0:
            depth -= 1
            search.end[search.chosen[depth]] = NOT_STARTED
            continue
        if used == nodes:
            return root, best_s, search.best_start, used
        used += 1
        search.open[depth, i] = False
        search.chosen[depth] = i
        search.start[i] = search.heads[depth, i]
        search.end[i] = search.start[i] + block.latency[i]
        depth, new = depth + 1, True
    return search.best[0], best_s, search.best_start, used


@njit_inlined
def _enter(block: BarrierBlock, search: Search, depth: int) -> float:
    """Bound a partial schedule; store it if complete, otherwise mark the operators that may start next."""
    previous = search.chosen[depth - 1] if depth else -1
    begin = search.start[previous] if depth else 0.0
    bound = _bound(block, search.end, begin, search.heads[depth])
    promising = bound < search.best[0] * (1 - CLOSE) and not _is_dominated(search, begin, depth)
    if promising and depth == len(search.chosen):
        if not search.paired or finds_pairs(block, search.start):
            search.best[0] = _largest(search.end)
            copy_row(search.start, search.best_start)
    elif promising:
        _fill_candidates(block, search.end, search.heads[depth], search.open[depth])
    return bound


@njit
def _largest(numbers: Floats) -> float:
    largest = numbers[0]
    for number in numbers:
        largest = max(largest, number)
    return float(largest)


@njit
def finds_pairs(block: BarrierBlock, start: Floats) -> bool:
    """True if cores can be assigned to all operators at these start times."""
    end, cores = start + block.latency, block.cores
    return bool(assign_cores(block.kinds, start, end, cores[0], cores[1])[0])


@njit_inlined
def _nothing_seen(n: int, entries: int) -> SeenSchedules:
    lists = 16
    while lists < entries:
        lists *= 2
    return SeenSchedules(
        first=np.full(lists, -1),
        following=np.empty(entries, dtype=np.int64),
        started=np.empty(entries, dtype=np.int64),
        begin=np.empty(entries),
        end=np.empty((entries, n)),
        size=np.zeros(1, dtype=np.int64),
    )


@njit_inlined
def _is_dominated(search: Search, begin: float, depth: int) -> bool:
    """True if a partial schedule searched earlier has started the same operators and ends none of them later.

    Any completion of this schedule also completes the other one. If False, this schedule is stored.
    """
    seen, started = search.seen, 0
    for k in range(depth):
        started |= 1 << search.chosen[k]
    place = (started * 0x9E3779B1 >> 15) % len(seen.first)
    entry = seen.first[place]
    while entry >= 0:
        if seen.started[entry] == started and seen.begin[entry] <= begin:
            longer = False
            for i in range(len(search.end)):
                longer = longer or seen.end[entry, i] > max(search.end[i], begin)
            if not longer:
                return True
        entry = seen.following[entry]
    entry = seen.size[0]
    if entry < len(seen.started):
        seen.size[0] += 1
        seen.following[entry], seen.first[place] = seen.first[place], entry
        seen.started[entry], seen.begin[entry] = started, begin
        copy_row(search.end, seen.end[entry])
    return False


@njit_inlined
def _bound(block: BarrierBlock, end: Floats, begin: float, heads: Floats) -> float:
    """Lower bound on the latency of all completions of a partial schedule.

    Fills `heads`, the earliest starts of operators that have not started.
    """
    bound = 0.0
    for i in range(len(end)):
        if end[i] == NOT_STARTED:
            heads[i] = _head(block, end, begin, heads, i)
            bound = max(bound, heads[i] + block.tail[i])
        else:
            bound = max(bound, end[i])
    for resource in range(3):
        bound = max(bound, _work_bound(block, end, begin, heads, resource))
    return bound


@njit
def _head(block: BarrierBlock, end: Floats, begin: float, heads: Floats, i: int) -> float:
    """Earliest start of an operator; ignores core limits until the operator is ready."""
    now, ready = begin, True
    for j in range(i):
        if block.before[j, i]:
            ready = ready and end[j] != NOT_STARTED
            now = max(now, heads[j] + block.latency[j] if end[j] == NOT_STARTED else end[j])
    if ready:
        for resource in range(3):
            if block.uses[i, resource]:
                now = _core_free(block, end, now, resource)
    return now


@njit
def _core_free(block: BarrierBlock, end: Floats, now: float, resource: int) -> float:
    """Earliest time ≥ `now` at which a core is free, if no operator is scheduled to start after `now`."""
    while True:
        busy, first = 0, np.inf
        for j in range(len(end)):
            if end[j] > now and block.uses[j, resource]:
                busy += 1
                first = min(first, end[j])
        if busy < block.cores[resource]:
            return now
        now = first


@njit
def _work_bound(block: BarrierBlock, end: Floats, begin: float, heads: Floats, resource: int) -> float:
    """Lower bound from one resource: maximum of earliest start + work / cores + shortest remaining path.

    Of the operators not over by `begin`, the sets are considered that start after some moment and have at
    least some rest after them.
    """
    n, users = len(end), 0
    head, work, after = np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        started = end[i] != NOT_STARTED
        if not block.uses[i, resource] or (started and end[i] <= begin):
            continue
        k, first = users, begin if started else heads[i]
        while k > 0 and head[k - 1] < first:
            head[k], work[k], after[k] = head[k - 1], work[k - 1], after[k - 1]
            k -= 1
        head[k], work[k] = first, end[i] - begin if started else block.latency[i]
        after[k] = block.tail[i] - block.latency[i]
        users += 1
    bound = 0.0
    for j in range(users):
        total = 0.0
        for k in range(users):
            if after[k] >= after[j]:
                total += work[k]
                bound = max(bound, head[k] + total / block.cores[resource] + after[j])
    return bound


@njit_inlined
def _fill_candidates(block: BarrierBlock, end: Floats, heads: Floats, ready: Bools) -> None:
    """Mark the operators that may start next: ready, and able to start before any ready operator ends."""
    n = len(end)
    horizon = np.inf
    for i in range(n):
        ready[i] = end[i] == NOT_STARTED
        for j in range(i):
            ready[i] = ready[i] and not (block.before[j, i] and end[j] == NOT_STARTED)
        if ready[i]:
            horizon = min(horizon, heads[i] + block.latency[i])
    for i in range(n):
        late = heads[i] >= horizon and heads[i] + block.latency[i] > horizon
        ready[i] = ready[i] and not late


@njit_inlined
def _next(open_: Bools, heads: Floats, tail: Floats) -> int:
    """Open operator with the earliest start, on ties with the longest remaining path; -1 if there is none."""
    best = -1
    for i in range(len(open_)):
        if open_[i] and (
            best < 0 or heads[i] < heads[best] or (heads[i] == heads[best] and tail[i] > tail[best])
        ):
            best = i
    return best
