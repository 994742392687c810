"""Operator clustering: adjacent hyper-operators are merged pairwise until K are left (Parmesan, IV-B).

Of all pairs (u, v) with an edge, the pair with the least c_u(u) + c_u(v) − α c_m(u, v) (4) is merged. Merging
requires that no other path leads from u to v (convexity, Definition 4) and that both together fit a device
(14).

A pair that is not convex stays so until one of its ends is merged, because a path vanishes only into its
ends. It is checked again only then. The check searches only between the places of u and v in a topological
order. Every merge repairs the order between these two places.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.partition.weights import NONE, ROUNDING, Weights

ALPHAS = (0.01, 1.0, 100.0)
"""Values of α to try; simulation chooses the best (Section IV-B)."""


class _Side(NamedTuple):
    """Edges grouped by the node at one end, as one linked list per node."""

    near: Ints
    """Node at this end, (e,)."""
    far: Ints
    """Node at the other end, (e,)."""
    first: Ints
    """First edge of each node, NONE if it has none, (n,)."""
    following: Ints
    """Next edge of the same node, (e,)."""


class _Graph(NamedTuple):
    """Hyper-operators and their edges, updated in place by merges."""

    compute: Floats
    memory: Floats
    border: Floats
    out: _Side
    into: _Side
    size: Floats
    alive: Bools
    """True if an edge still exists, (e,)."""
    barred: Bools
    """True if the ends of an edge cannot be merged, (e,)."""
    order: Ints
    """Nodes in a topological order, NONE in unused places."""
    place: Ints
    """Place of each node in `order`, (n,)."""
    seen: Ints
    """Number of the last search that visited each node, (n,)."""
    stack: Ints
    edge_of: Ints


def cluster(weights: Weights, hyper_operators: int, alpha: float) -> Ints:
    """Hyper-operator of each node, shape (n,), identified by the index of one of its members.

    More than `hyper_operators` remain if no further pair may be merged.
    """
    n, e = len(weights), len(weights.edges)
    tail, head = weights.sources.copy(), weights.targets.copy()  # renumbered as clusters merge
    graph = _Graph(
        compute=weights.compute_s.copy(),
        memory=weights.memory_bytes.copy(),
        border=weights.border_bytes.copy(),
        out=_Side(tail, head, *_lists(tail, n)),
        into=_Side(head, tail, *_lists(head, n)),
        size=weights.edge_bytes.copy(),
        alive=np.ones(e, np.bool_),
        barred=np.zeros(e, np.bool_),
        order=np.arange(n),
        place=np.arange(n),
        seen=np.zeros(n, np.int64),
        stack=np.empty(n, np.int64),
        edge_of=np.empty(n, np.int64),
    )
    limit = weights.limit_bytes * (1 + ROUNDING)
    return np.asarray(_cluster(graph, alpha * weights.seconds_per_byte, limit, hyper_operators))


@njit
def _cluster(graph: _Graph, reward: float, limit: float, most: int) -> Ints:
    """Hyper-operator of each node."""
    n, count_left = len(graph.compute), len(graph.size)
    live, into, label = np.arange(count_left), np.arange(n), np.arange(n)
    compute, memory, border, size = graph.compute, graph.memory, graph.border, graph.size
    count, stamp = n, 0
    while count > most:
        count_left = _still(live, count_left, graph.alive)
        best = _cheapest(graph, live, count_left, reward)
        if best == NONE:
            break
        u, v = graph.out.near[best], graph.out.far[best]
        together = memory[u] + memory[v] + border[u] + border[v] - 2.0 * size[best]
        stamp += 1
        if together > limit or _other_path(graph, u, v, stamp):
            graph.barred[best] = True
            continue
        stamp += 1
        _repair(graph, u, v, stamp)
        into[v] = u
        compute[u] += compute[v]
        memory[u] += memory[v]
        border[u] += border[v] - 2.0 * size[best]
        graph.alive[best] = False
        stamp += 1
        _join(graph, graph.out, u, v, stamp)
        stamp += 1
        _join(graph, graph.into, u, v, stamp)
        count -= 1
    for v in range(n):
        while into[label[v]] != label[v]:
            label[v] = into[label[v]]
    return label


@njit
def _lists(end: Ints, n: int) -> tuple[Ints, Ints]:
    """Edges at each node as linked lists: first edge of each node (n,), and next of each edge (e,)."""
    first, following = np.full(n, NONE, np.int64), np.empty(len(end), np.int64)
    for e in range(len(end) - 1, -1, -1):
        following[e] = first[end[e]]
        first[end[e]] = e
    return first, following


@njit
def _still(live: Ints, count: int, alive: Bools) -> int:
    """Compact the first `count` entries of `live` to the edges that still exist; return their number."""
    alive_count = 0
    for k in range(count):
        if alive[live[k]]:
            live[alive_count] = live[k]
            alive_count += 1
    return alive_count


@njit
def _cheapest(graph: _Graph, live: Ints, count: int, reward: float) -> int:
    """Edge with the minimum cost, Equation (4), that is not excluded; the first one on ties."""
    best, least = NONE, np.inf
    compute, ends = graph.compute, graph.out
    for k in range(count):
        e = live[k]
        if not graph.barred[e]:
            cost = compute[ends.near[e]] + compute[ends.far[e]] - reward * graph.size[e]
            if cost < least:
                best, least = e, cost
    return best


@njit
def _other_path(graph: _Graph, u: int, v: int, stamp: int) -> bool:
    """True if a path leads from u to v through another node."""
    stack, seen, place = graph.stack, graph.seen, graph.place
    stack[0], depth = u, 1
    while depth > 0:
        depth -= 1
        x = stack[depth]
        e = graph.out.first[x]
        while e != NONE:
            y = graph.out.far[e]
            if graph.alive[e] and y == v and x != u:
                return True
            if graph.alive[e] and place[y] < place[v] and seen[y] != stamp:
                seen[y] = stamp
                stack[depth] = y
                depth += 1
            e = graph.out.following[e]
    return False


@njit
def _repair(graph: _Graph, u: int, v: int, stamp: int) -> None:
    """Reorder nodes from u to v: the ancestors of v, then u, which absorbs v, then the remaining nodes."""
    order, place, stack, seen = graph.order, graph.place, graph.stack, graph.seen
    start, end = place[u], place[v]
    stack[0], depth = v, 1
    while depth > 0:
        depth -= 1
        e = graph.into.first[stack[depth]]
        while e != NONE:
            y = graph.into.far[e]
            if graph.alive[e] and place[y] > start and seen[y] != stamp:
                seen[y] = stamp
                stack[depth] = y
                depth += 1
            e = graph.into.following[e]
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


@njit
def _join(graph: _Graph, side: _Side, u: int, v: int, stamp: int) -> None:
    """Move the edges of v on one side to u, and merge parallel edges."""
    size, alive, seen, edge_of = graph.size, graph.alive, graph.seen, graph.edge_of
    chain = NONE
    for x in (v, u):
        e = side.first[x]
        while e != NONE:
            after = side.following[e]
            if alive[e]:
                other = side.far[e]
                side.near[e] = u
                if seen[other] == stamp:
                    size[edge_of[other]] += size[e]
                    alive[e] = False
                else:
                    seen[other], edge_of[other] = stamp, e
                    graph.barred[e] = False
                    side.following[e] = chain
                    chain = e
            e = after
    side.first[u], side.first[v] = chain, NONE
