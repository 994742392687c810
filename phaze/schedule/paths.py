"""Shortest schedules of a component as shortest paths through its barriers (see `barriers`).

With val(D − D') the latency of the block or operator between two downsets D' ⊂ D at which nothing runs,

    best(∅) = 0,   best(D) = min over D' of best(D') + val(D − D').

The search starts from cheap bounds on the blocks and runs only the blocks on the shortest path by branch and
bound. It then recomputes the path, until the path consists of exact blocks. A change affects few of the half
a million steps between downsets, so a path takes microseconds after the first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit, njit_inlined
from phaze.schedule.barriers import Blocks, Indices
from phaze.schedule.branching import CLOSE, BarrierBlock, finds_pairs, make_block, run_block
from phaze.schedule.clock import bound_by_weights
from phaze.schedule.graphs import ALL_CORES, ComponentArrays, ComponentDesigns, OrderArrays
from phaze.schedule.pairing import assign_cores, occupies, sort_stably
from phaze.schedule.sequences import follow_sequence

FIRST_NODES, GROWTH = 250, 8
"""Node limit of a block's first branch-and-bound search, and its growth factor for later searches."""


class BarrierSteps(NamedTuple):
    """Steps between downsets, with the shortest paths along them."""

    offsets: Ints
    """Steps into downset d are offsets[d] to offsets[d + 1], shape (d + 1,)."""
    sources: Indices
    """Downset from which a step starts, shape (steps,)."""
    blocks: Indices
    """Block that the step runs, shape (steps,)."""
    length: Floats
    """Length of the shortest path from the empty set to each downset, shape (d,)."""
    last: Ints
    """Last step on the shortest path to each downset, shape (d,)."""
    spent: Floats
    """Length of that last step when the path was found, shape (d,)."""


class Values(NamedTuple):
    """Bounds on the latency of each block on single cores, shape (b,)."""

    lower: Floats
    upper: Floats
    """Upper bound, infinite until a feasible schedule is found."""
    nodes: Ints
    """Node limit of the search of the block, 0 before any search, -1 if more nodes do not help."""


@njit
def bound_all(
    blocks: Blocks, arrays: OrderArrays, designs: ComponentDesigns, rounds: int, nodes: int
) -> tuple[Floats, Floats]:
    """Lower bounds and feasible latencies of a component on all architectures, shape (A,)."""
    kinds, order, offsets, followers = arrays
    one_core_s, every, num_tc, num_vc = designs
    lower, feasible = np.zeros(len(one_core_s)), np.zeros(len(one_core_s))
    for a in range(len(one_core_s)):
        part = ComponentArrays(
            kinds, order, offsets, followers, one_core_s[a], every[a], num_tc[a], num_vc[a]
        )
        lower[a], feasible[a], _, _ = find_path(blocks, part, rounds, nodes)
    return lower, feasible


@njit_inlined
def find_path(
    blocks: Blocks, part: ComponentArrays, rounds: int, nodes: int
) -> tuple[float, float, Ints, Floats]:
    """Lower bound, and the best feasible path: latency, blocks as bits and their latencies, last block first.

    While blocks are valued by lower bounds, the shortest path is a lower bound as well. Its blocks are run
    with a few nodes. If this changes nothing, they are run with more and more, `nodes` in total. When these
    are used up, blocks are valued by their feasible latencies, to improve the feasible latency.
    """
    values = _first_values(blocks, part)
    steps = _useful_steps(blocks, values.lower)
    feasible, best, latencies = _one_by_one(part)
    value, lower, limit, nodes_left = values.lower.copy(), 0.0, FIRST_NODES, np.full(1, nodes)
    for _ in range(rounds):
        path = _shortest(steps, value)
        total = steps.length[-1]
        lower = total if limit else lower
        if total >= feasible * (1 - CLOSE):
            break
        settled, length = _run_path(blocks, path, part, values, value, limit, nodes_left, feasible - total)
        if length < feasible:
            feasible, best, latencies = length, blocks.masks[path], values.upper[path]
        if settled and limit == 0:
            break
        if settled:
            limit = GROWTH * limit if nodes_left[0] > 0 else 0
        if limit == 0:
            for b in range(len(value)):
                value[b] = values.upper[b] if values.nodes[b] != 0 else value[b]
    if feasible > lower * (1 + CLOSE):
        lower = max(lower, bound_by_weights(part))
    return min(lower, feasible), feasible, best, latencies


@njit_inlined
def _first_values(blocks: Blocks, part: ComponentArrays) -> Values:
    """Initial bounds on all blocks; exact for single operators, and for blocks that never wait for cores."""
    lower = bound_blocks(blocks, part)
    upper, nodes = np.full(len(lower), np.inf), np.zeros(len(lower), dtype=np.int64)
    for b in range(len(lower)):
        apart = blocks.widths[b, 1] + blocks.widths[b, 3] <= part.num_tc
        apart = apart and blocks.widths[b, 2] + blocks.widths[b, 3] <= part.num_vc
        if blocks.size[b] == 1 or apart or blocks.widths[b, 0] <= min(part.num_tc, part.num_vc):
            upper[b], nodes[b] = lower[b], -1
    return Values(lower, upper, nodes)


@njit
def _useful_steps(blocks: Blocks, lower: Floats) -> BarrierSteps:
    """Steps whose blocks can be on a shortest path, from the first to the last downset."""
    sets, useful, size = len(blocks.offsets) - 1, lower < np.inf, 0
    for b in blocks.steps:
        size += useful[b]
    offsets = np.zeros(sets + 1, dtype=np.int64)
    sources, blocks_kept, size = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32), 0
    for d in range(sets):
        for s in range(blocks.offsets[d], blocks.offsets[d + 1]):
            if useful[blocks.steps[s]]:
                sources[size], blocks_kept[size] = blocks.sources[s], blocks.steps[s]
                size += 1
        offsets[d + 1] = size
    return BarrierSteps(offsets, sources, blocks_kept, np.zeros(sets), np.full(sets, -1), np.zeros(sets))


@njit_inlined
def _one_by_one(part: ComponentArrays) -> tuple[float, Ints, Floats]:
    """Path on which the operators run one at a time: its latency, blocks as bits, and their latencies."""
    n = len(part.kinds)
    best, latencies = np.zeros(n, dtype=np.int64), np.zeros(n)
    for i in range(n):
        best[n - 1 - i], latencies[n - 1 - i] = 1 << i, min(part.one[i], part.every[i])
    return latencies.sum(), best, latencies


@njit_inlined
def _run_path(
    blocks: Blocks,
    path: Ints,
    part: ComponentArrays,
    values: Values,
    value: Floats,
    limit: int,
    nodes_left: Ints,
    slack: float,
) -> tuple[bool, float]:
    """Search each block of a path, up to `limit` nodes; return whether no value rose, and the path's latency.

    Only runs that lengthen the path by less than `slack` matter. The value of a block becomes its lower
    bound, or without a limit its feasible latency.
    """
    settled, length = True, 0.0
    for b in path:
        if 0 <= values.nodes[b] < max(limit, 1):
            _run_block(blocks, b, part, values, limit, nodes_left, slack if limit else np.inf)
            new = values.lower[b] if limit else values.upper[b]
            settled = settled and new <= value[b] * (1 + CLOSE)
            value[b] = new
        length += values.upper[b]
    return settled, length


@njit_inlined
def _run_block(
    blocks: Blocks, b: int, part: ComponentArrays, values: Values, limit: int, nodes_left: Ints, slack: float
) -> None:
    """Search a block by branch and bound, up to `limit` nodes, or FIRST_NODES if `limit` is 0."""
    nodes = min(limit, nodes_left[0]) if limit else FIRST_NODES
    members = members_of(blocks.masks[b])
    lower, upper, _, used = run_members(members, part, values.lower[b] + slack, nodes)
    nodes_left[0] -= used
    values.lower[b], values.upper[b] = max(lower, values.lower[b]), min(upper, values.upper[b])
    values.nodes[b] = limit if used >= nodes else -1


@njit
def members_of(mask: int) -> Ints:
    """Indices of the operators in a set encoded as bits."""
    members, size = np.empty(64, dtype=np.int64), 0
    for i in range(63):
        if mask >> i & 1:
            members[size] = i
            size += 1
    return members[:size]


@njit_inlined
def run_members(
    members: Ints, part: ComponentArrays, cutoff: float, nodes: int
) -> tuple[float, float, Floats, int]:
    """Lower bound, feasible latency and start times of operators on single cores, and nodes searched."""
    block = make_block(members, part)
    lower, upper, start, used = run_block(block, cutoff, nodes, False)
    if block.uses[:, 2].any() and upper < np.inf:
        # Always the same one of several shortest runs, independent of the cutoff.
        start = run_block(block, upper * (1 + 1000 * CLOSE), nodes, False)[2]
        if not finds_pairs(block, start):
            upper = _pair_block(block, start)
            _, better, other, _ = run_block(block, upper * (1 + 1000 * CLOSE), nodes, True)
            if better < np.inf:
                upper, start = better, other
    return lower, upper, start, used


@njit
def _pair_block(block: BarrierBlock, start: Floats) -> float:
    """Latency of the schedule that starts operators in the same order, on core pairs; overwrites `start`."""
    n = len(start)
    offsets, followers = np.zeros(n + 1, dtype=np.int64), np.zeros(n * n, dtype=np.int64)
    for i in range(n):
        offsets[i + 1] = offsets[i]
        for j in range(i + 1, n):
            if block.before[i, j]:
                followers[offsets[i + 1]] = j
                offsets[i + 1] += 1
    part = ComponentArrays(
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
def bound_blocks(blocks: Blocks, part: ComponentArrays) -> Floats:
    """Lower bounds on all blocks from paths and work; inf for blocks no faster than serial execution."""
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
def _head(part: ComponentArrays, mask: int, i: int, head: Floats) -> float:
    """Earliest start of operator i of a block, given the operators before it."""
    begin = 0.0
    for j in range(i):
        if part.order[j, i] and mask >> j & 1:
            begin = max(begin, head[j] + part.one[j])
    return begin


@njit
def _shortest(steps: BarrierSteps, value: Floats) -> Ints:
    """Blocks of the shortest path to the full set, from the last to the first.

    Values only rise, so only paths that became longer are recomputed.
    """
    sets = len(steps.length)
    for d in range(1, sets):
        s = steps.last[d]
        current = s >= 0 and value[steps.blocks[s]] == steps.spent[d]
        if not current or steps.length[steps.sources[s]] + steps.spent[d] != steps.length[d]:
            _step_into(steps, value, d)
    path, size, d = np.empty(sets, dtype=np.int64), 0, sets - 1
    while d > 0:
        path[size] = steps.blocks[steps.last[d]]
        size += 1
        d = steps.sources[steps.last[d]]
    return path[:size]


@njit
def _step_into(steps: BarrierSteps, value: Floats, d: int) -> None:
    """Recompute the shortest path to a downset."""
    steps.length[d], steps.last[d] = np.inf, steps.offsets[d]
    for s in range(steps.offsets[d], steps.offsets[d + 1]):
        length = steps.length[steps.sources[s]] + value[steps.blocks[s]]
        if length < steps.length[d]:
            steps.length[d], steps.last[d], steps.spent[d] = length, s, value[steps.blocks[s]]


@njit
def follow_path(path: Ints, latencies: Floats, part: ComponentArrays, nodes: int) -> tuple[Floats, Ints]:
    """Start times and cores of the operators when the blocks of a path run in order.

    Blocks are bits, from the last to the first; `latencies` were found with `nodes` nodes.
    """
    n = len(part.kinds)
    start, core = np.zeros(n), np.zeros(n, dtype=np.int64)
    now = 0.0
    for k in range(len(path) - 1, -1, -1):
        members = members_of(path[k])
        i = members[0]
        if len(members) > 1:
            cutoff = latencies[k] * (1 + 1000 * CLOSE)
            _, length, starts, _ = run_members(members, part, cutoff, nodes)
            ends, kinds = starts + part.one[members], part.kinds[members]
            cores = assign_cores(kinds, starts, ends, part.num_tc, part.num_vc)[1]
            for j in range(len(members)):
                start[members[j]], core[members[j]] = now + starts[j], cores[j]
        else:
            wide = part.every[i] < part.one[i]
            length = part.every[i] if wide else part.one[i]
            start[i], core[i] = now, ALL_CORES if wide else 0
        now += length
    return start, core
