"""Operator clustering: pairs of adjacent hyper-operators become one until K are left (Parmesan, IV-B).

Of all pairs (u, v) with an edge, the one of the least c_u(u) + c_u(v) − α c_m(u, v) (4) is merged, if there
is no other path from u to v (convexity, Definition 4), and if both together fit a device (14).

A pair that is not convex stays so until one of its ends is merged, as a path vanishes only into its ends: it
is checked again only then. The check searches only between the places of u and v in a topological order,
which every merge repairs between those two places.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit, njit_inner
from phaze.partition.weights import NONE, ROUNDING, Weights

ALPHAS = (0.01, 1.0, 100.0)
"""Values of α among which the simulator chooses (Section IV-B)."""


def cluster(weights: Weights, hyper_operators: int, alpha: float) -> Ints:
    """Return the hyper-operator of each node, shape (n,), as the number of one of its members.

    More than `hyper_operators` are left where no pair that may be merged is.
    """
    return np.asarray(
        _cluster(
            weights.compute_s.copy(),
            weights.memory_bytes.copy(),
            weights.border_bytes.copy(),
            np.ascontiguousarray(weights.edges[:, 0]),
            np.ascontiguousarray(weights.edges[:, 1]),
            weights.edge_bytes.copy(),
            alpha * weights.seconds_per_byte,
            weights.limit_bytes * (1 + ROUNDING),
            hyper_operators,
        )
    )


@njit
def _cluster(
    compute: Floats,
    memory: Floats,
    border: Floats,
    tail: Ints,
    head: Ints,
    size: Floats,
    reward: float,
    limit: float,
    most: int,
) -> Ints:
    """Return the hyper-operator of each node; all arrays but the result are used up."""
    n, live, left = len(compute), np.arange(len(tail)), len(tail)
    into, label = np.arange(n), np.arange(n)
    order, place, stack = np.arange(n), np.arange(n), np.empty(n, np.int64)
    barred, alive = np.zeros(len(tail), np.bool_), np.ones(len(tail), np.bool_)
    first_out, next_out = _lists(tail, n)
    first_in, next_in = _lists(head, n)
    seen, edge_of = np.zeros(n, np.int64), np.empty(n, np.int64)
    count, stamp = n, 0
    while count > most:
        left = _still(live, left, alive)
        best = _cheapest(live, left, barred, tail, head, size, compute, reward)
        if best == NONE:
            break
        u, v = tail[best], head[best]
        together = memory[u] + memory[v] + border[u] + border[v] - 2.0 * size[best]
        stamp += 1
        if together > limit or _other_path(u, v, first_out, next_out, head, alive, place, seen, stamp, stack):
            barred[best] = True
            continue
        stamp += 1
        _repair(u, v, first_in, next_in, tail, alive, order, place, seen, stamp, stack)
        into[v] = u
        compute[u] += compute[v]
        memory[u] += memory[v]
        border[u] += border[v] - 2.0 * size[best]
        alive[best] = False
        stamp += 1
        _join(u, v, first_out, next_out, tail, head, size, alive, barred, seen, stamp, edge_of)
        stamp += 1
        _join(u, v, first_in, next_in, head, tail, size, alive, barred, seen, stamp, edge_of)
        count -= 1
    for v in range(n):
        while into[label[v]] != label[v]:
            label[v] = into[label[v]]
    return label


@njit
def _lists(end: Ints, n: int) -> tuple[Ints, Ints]:
    """Return the edges at each node as linked lists: the first (n,), and the next of each edge (e,)."""
    first, following = np.full(n, NONE, np.int64), np.empty(len(end), np.int64)
    for e in range(len(end) - 1, -1, -1):
        following[e] = first[end[e]]
        first[end[e]] = e
    return first, following


@njit_inner
def _still(live: Ints, count: int, alive: Bools) -> int:
    """Keep of the first edges those that are left, and return how many."""
    kept = 0
    for k in range(count):
        if alive[live[k]]:
            live[kept] = live[k]
            kept += 1
    return kept


@njit_inner
def _cheapest(
    live: Ints,
    count: int,
    barred: Bools,
    tail: Ints,
    head: Ints,
    size: Floats,
    compute: Floats,
    reward: float,
) -> int:
    """Return the edge of the least cost (4) that is not barred, the first of equal ones."""
    best, least = NONE, np.inf
    for k in range(count):
        e = live[k]
        if not barred[e]:
            cost = compute[tail[e]] + compute[head[e]] - reward * size[e]
            if cost < least:
                best, least = e, cost
    return best


@njit_inner
def _other_path(
    u: int,
    v: int,
    first: Ints,
    following: Ints,
    head: Ints,
    alive: Bools,
    place: Ints,
    seen: Ints,
    stamp: int,
    stack: Ints,
) -> bool:
    """Return whether a path leads from u to v through another node."""
    stack[0], depth = u, 1
    while depth > 0:
        depth -= 1
        x = stack[depth]
        e = first[x]
        while e != NONE:
            y = head[e]
            if alive[e] and y == v and x != u:
                return True
            if alive[e] and place[y] < place[v] and seen[y] != stamp:
                seen[y] = stamp
                stack[depth] = y
                depth += 1
            e = following[e]
    return False


@njit_inner
def _repair(
    u: int,
    v: int,
    first: Ints,
    following: Ints,
    tail: Ints,
    alive: Bools,
    order: Ints,
    place: Ints,
    seen: Ints,
    stamp: int,
    stack: Ints,
) -> None:
    """Order the nodes between u and v anew: what leads to v, then u that takes v in, then the others."""
    start, end = place[u], place[v]
    stack[0], depth = v, 1
    while depth > 0:
        depth -= 1
        e = first[stack[depth]]
        while e != NONE:
            y = tail[e]
            if alive[e] and place[y] > start and seen[y] != stamp:
                seen[y] = stamp
                stack[depth] = y
                depth += 1
            e = following[e]
    others, slot = 0, start
    for k in range(start + 1, end):
        x = order[k]
        if x != NONE and seen[x] == stamp:
            order[slot], place[x] = x, slot
            slot += 1
        elif x != NONE:
            stack[others] = x
            others += 1
    order[slot], place[u] = u, slot
    for k in range(others):
        slot += 1
        order[slot], place[stack[k]] = stack[k], slot
    for k in range(slot + 1, end + 1):
        order[k] = NONE


@njit_inner
def _join(
    u: int,
    v: int,
    first: Ints,
    following: Ints,
    near: Ints,
    far: Ints,
    size: Floats,
    alive: Bools,
    barred: Bools,
    seen: Ints,
    stamp: int,
    edge_of: Ints,
) -> None:
    """Give u the edges of v on one side (`near` their end there), those with equal ends as one."""
    kept = NONE
    for x in (v, u):
        e = first[x]
        while e != NONE:
            after = following[e]
            if alive[e]:
                other = far[e]
                near[e] = u
                if seen[other] == stamp:
                    size[edge_of[other]] += size[e]
                    alive[e] = False
                else:
                    seen[other], edge_of[other] = stamp, e
                    barred[e] = False
                    following[e] = kept
                    kept = e
            e = after
    first[u], first[v] = kept, NONE
