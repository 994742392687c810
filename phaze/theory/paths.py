"""Shortest schedules of a component as shortest paths through its barriers (see `barriers`).

With val(D − D') the latency of the block or the operator between two downsets D' ⊂ D at which nothing runs,

    best(∅) = 0,   best(D) = min over D' of best(D') + val(D − D').

The search starts from bounds on the blocks that cost next to nothing, runs by branch and bound only the
blocks on the shortest path, and looks for the path again until it consists of blocks that are known.
"""

from __future__ import annotations

import numpy as np

from phaze.theory.barriers import Blocks
from phaze.theory.branching import CLOSE, Block, make_block, run_block
from phaze.theory.clock import bound_by_weights
from phaze.theory.compiled import njit
from phaze.theory.graphs import ALL_CORES, Bools, Floats, Ints, Part
from phaze.theory.pairing import assign_cores, occupies, sort_stably
from phaze.theory.sequences import follow_sequence


@njit
def bound_all(
    blocks: Blocks,
    kinds: Ints,
    order: Bools,
    offsets: Ints,
    followers: Ints,
    one: Floats,
    every: Floats,
    num_tc: Ints,
    num_vc: Ints,
    rounds: int,
    nodes: int,
) -> tuple[Floats, Floats]:
    """Return lower bounds and feasible latencies, shape (A,), for latencies of shape (A, n)."""
    lower, feasible = np.zeros(len(one)), np.zeros(len(one))
    for a in range(len(one)):
        part = Part(kinds, order, offsets, followers, one[a], every[a], num_tc[a], num_vc[a])
        lower[a], feasible[a], _ = find_path(blocks, part, rounds, nodes)
    return lower, feasible


@njit
def find_path(blocks: Blocks, part: Part, rounds: int, nodes: int) -> tuple[float, float, Ints]:
    """Return a lower bound, the best feasible latency and its blocks as bits, from the last to the first.

    As long as blocks are valued by lower bounds, the shortest path is a lower bound as well; when those
    on it cannot be improved, they are valued by what was found, for the sake of the feasible latency.
    """
    value = bound_blocks(blocks, part)
    upper = np.full(len(value), np.nan)
    n = len(part.kinds)
    feasible, best = 0.0, np.zeros(n, dtype=np.int64)
    for i in range(n):
        feasible += min(part.one[i], part.every[i])
        best[n - 1 - i] = 1 << i
    lower, hopeful = 0.0, True
    for _ in range(rounds):
        total, path = _shortest(blocks, value)
        lower = total if hopeful else lower
        slack = feasible - total if hopeful else np.inf
        settled, length = _run_path(blocks, path, part, nodes, value, upper, slack)
        if length < feasible:
            feasible, best = length, path
            for k in range(len(path)):
                best[k] = blocks.masks[path[k]]
        if feasible <= lower * (1 + CLOSE) or (settled and not hopeful):
            break
        if settled:
            hopeful = False
            for b in range(len(value)):
                value[b] = value[b] if np.isnan(upper[b]) else upper[b]
    if feasible > lower * (1 + CLOSE):
        lower = max(lower, bound_by_weights(part))
    return min(lower, feasible), feasible, best


@njit
def _run_path(
    blocks: Blocks, path: Ints, part: Part, nodes: int, value: Floats, upper: Floats, slack: float
) -> tuple[bool, float]:
    """Run the blocks of a path that were not run, and return whether no value changed, and the latency.

    Only runs are of interest that lengthen the path by less than `slack`. The value of a block becomes
    its lower bound while the slack is finite, and its feasible latency afterwards.
    """
    settled, length = True, 0.0
    for b in path:
        if blocks.size[b] == 1:
            length += value[b]
            continue
        if np.isnan(upper[b]):
            lower, upper[b] = _run_one(blocks, b, part, nodes, value[b], value[b] + slack)
            new = max(lower, value[b]) if slack < np.inf else upper[b]
            settled = settled and new <= value[b] * (1 + CLOSE)
            value[b] = new
        length += upper[b]
    return settled, length


@njit
def _run_one(
    blocks: Blocks, b: int, part: Part, nodes: int, value: float, cutoff: float
) -> tuple[float, float]:
    """Return a lower bound and a feasible latency of a block; its bound if every operator finds a core."""
    apart = blocks.widths[b, 1] + blocks.widths[b, 3] <= part.num_tc
    apart = apart and blocks.widths[b, 2] + blocks.widths[b, 3] <= part.num_vc
    if apart or blocks.widths[b, 0] <= min(part.num_tc, part.num_vc):
        return value, value
    lower, upper, _ = run_members(members_of(blocks.masks[b]), part, cutoff, nodes)
    return lower, upper


@njit
def members_of(mask: int) -> Ints:
    """Return the operators of a set given as bits."""
    members, size = np.empty(64, dtype=np.int64), 0
    for i in range(63):
        if mask >> i & 1:
            members[size] = i
            size += 1
    return members[:size]


@njit
def run_members(members: Ints, part: Part, cutoff: float, nodes: int) -> tuple[float, float, Floats]:
    """Return a lower bound, a feasible latency and start times of operators that run on single cores."""
    block = make_block(members, part)
    lower, upper, start = run_block(block, cutoff, nodes)
    if block.uses[:, 2].any() and upper < np.inf:
        # Of several shortest runs always the same one, whatever cutoff it was looked for with.
        start = run_block(block, upper * (1 + 1000 * CLOSE), nodes)[2]
        paired = assign_cores(block.kinds, start, start + block.latency, part.num_tc, part.num_vc)[0]
        if not paired:
            upper = _pair_block(block, start)
    return lower, upper, start


@njit
def _pair_block(block: Block, start: Floats) -> float:
    """Return the latency of the schedule with the same sequence of starts, but in pairs; fill its starts."""
    n = len(start)
    offsets, followers = np.zeros(n + 1, dtype=np.int64), np.zeros(n * n, dtype=np.int64)
    for i in range(n):
        offsets[i + 1] = offsets[i]
        for j in range(i + 1, n):
            if block.before[i, j]:
                followers[offsets[i + 1]] = j
                offsets[i + 1] += 1
    part = Part(
        block.kinds,
        block.before,
        offsets,
        followers[: offsets[n]],
        block.latency,
        block.latency,
        block.cores[0],
        block.cores[1],
    )
    wide, core = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.int64)
    return follow_sequence(part, sort_stably(start), wide, start, core)


@njit
def bound_blocks(blocks: Blocks, part: Part) -> Floats:
    """Return lower bounds of all blocks from paths and work; infinite where all cores are no slower."""
    n = len(part.kinds)
    value = np.full(len(blocks.masks), np.inf)
    head, path, serial = np.zeros(n), np.zeros(n + 1), np.zeros(n + 1)
    work, first = np.zeros((n + 1, 3)), np.full((n + 1, 3), np.inf)
    cores = np.array([part.num_tc, part.num_vc, min(part.num_tc, part.num_vc)])
    for b in range(len(value)):
        i, d = blocks.last[b], blocks.size[b]
        head[i] = _head(part, blocks.masks[b], i, head)
        path[d] = max(path[d - 1], head[i] + part.one[i])
        serial[d] = serial[d - 1] + min(part.one[i], part.every[i])
        bound = path[d]
        for r in range(3):
            used = occupies(part.kinds[i], r)
            work[d, r] = work[d - 1, r] + (part.one[i] if used else 0.0)
            first[d, r] = min(first[d - 1, r], head[i]) if used else first[d - 1, r]
            bound = max(bound, first[d, r] + work[d, r] / cores[r] if work[d, r] > 0 else 0.0)
        if d == 1:
            value[b] = serial[1]
        elif blocks.usable[b] and bound < serial[d]:
            value[b] = bound
    return value


@njit
def _head(part: Part, mask: int, i: int, head: Floats) -> float:
    """Return when operator i of a block can start at the earliest, given the operators before it."""
    begin = 0.0
    for j in range(i):
        if part.order[j, i] and mask >> j & 1:
            begin = max(begin, head[j] + part.one[j])
    return begin


@njit
def _shortest(blocks: Blocks, value: Floats) -> tuple[float, Ints]:
    """Return the length of the shortest path through the downsets, and its blocks, last to first."""
    sets = len(blocks.offsets) - 1
    best, taken = np.full(sets, np.inf), np.full(sets, -1)
    best[0] = 0.0
    for d in range(1, sets):
        for s in range(blocks.offsets[d], blocks.offsets[d + 1]):
            length = best[blocks.sources[s]] + value[blocks.steps[s]]
            if length < best[d]:
                best[d], taken[d] = length, s
    path, size, d = np.empty(sets, dtype=np.int64), 0, sets - 1
    while d > 0:
        path[size] = blocks.steps[taken[d]]
        size += 1
        d = blocks.sources[taken[d]]
    return best[sets - 1], path[:size]


@njit
def follow_path(path: Ints, part: Part, nodes: int) -> tuple[Floats, Ints]:
    """Return start times and cores along a path of blocks given as bits, from the last to the first."""
    n = len(part.kinds)
    start, core = np.zeros(n), np.zeros(n, dtype=np.int64)
    now = 0.0
    for mask in path[::-1]:
        members = members_of(mask)
        i = members[0]
        if len(members) > 1:
            _, length, starts = run_members(members, part, np.inf, nodes)
            ends, kinds = starts + part.one[members], part.kinds[members]
            cores = assign_cores(kinds, starts, ends, part.num_tc, part.num_vc)[1]
            for k in range(len(members)):
                start[members[k]], core[members[k]] = now + starts[k], cores[k]
        else:
            wide = part.every[i] < part.one[i]
            length = part.every[i] if wide else part.one[i]
            start[i], core[i] = now, ALL_CORES if wide else 0
        now += length
    return start, core
