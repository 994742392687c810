"""Fronted subgraphs, node sets closed under ancestors, enumerated per stage boundary (Parmesan, IV-A).

They are the complements of the downsets of `phaze.formulas.downsets`. Here they are enumerated for one stage
boundary at a time, so that the boundary's window limits their number. Nodes are decided in a topological
order, as there.

A window restricts the operators on either side of a boundary, given an upper limit on the stage time. Let F_s
be the fronted subgraph of the first s of S stages, C its computation, T the limit of a stage's time, and C(G)
all computation. Then C(F_s) ≤ s T and C(G) − C(F_s) ≤ (S − s) T. An operator is in F_s only with its
ancestors, and outside only with its descendants. If the ancestors and the operator take more than s T, it is
outside. If the descendants and the operator take more than (S − s) T, it is inside. Operators that are not
open at any boundary belong to a fixed stage and can be merged into one node per stage without loss: a path
between two of them contains no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.bitsets import BITS, Words, contains, pack
from phaze.base.compiled import njit
from phaze.base.errors import PhazeError
from phaze.partition.weights import ROUNDING, Predecessors, Weights, sums

LIMIT = 20_000
"""Default limit on the number of fronted subgraphs at a stage boundary."""


class TooManyError(PhazeError):
    """Raised if a stage boundary has more fronted subgraphs than the limit."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Bounds on the first s stages' compute time, s = 1 to S − 1, and the range of stages of each node."""

    least_s: Floats
    """Lower bound on the compute time of the first s stages, shape (S - 1,)."""
    most_s: Floats
    """Upper bound on the compute time of the first s stages, shape (S - 1,)."""
    earliest: Ints
    """First stage that a node may be in, shape (n,)."""
    latest: Ints
    """Last stage that a node may be in, shape (n,)."""

    @property
    def contradictory(self) -> bool:
        """True if no partition satisfies the limit."""
        return bool((self.earliest > self.latest).any())

    @property
    def groups(self) -> Ints:
        """Label of each node, shape (n,); nodes fixed to the same stage share a label."""
        count = len(self.earliest)
        return np.where(self.earliest == self.latest, count + self.earliest, np.arange(count))


def windows_within(weights: Weights, stages: int, limit_s: float) -> Windows:
    """Range of stages allowed for every node by a limit on stage time; the full range if that is infinite."""
    total, borders = weights.total_s, np.arange(1, stages)
    if not np.isfinite(limit_s):
        return around(weights, np.full(stages - 1, -np.inf), np.full(stages - 1, np.inf))
    slack = ROUNDING * total
    least = total - (stages - borders) * limit_s - slack
    return around(weights, least.astype(np.float64), (borders * limit_s + slack).astype(np.float64))


def around(weights: Weights, least_s: Floats, most_s: Floats) -> Windows:
    """Range of stages allowed for every node by bounds on the compute time before each boundary."""
    before, after = weights.closures
    outside = np.searchsorted(most_s, before, side="left")
    inside = len(least_s) - np.searchsorted(least_s, weights.total_s - after, side="right")
    return Windows(least_s, most_s, outside.astype(np.int64), (len(least_s) - inside).astype(np.int64))


class SetFamily(NamedTuple):
    """Fronted subgraphs at one stage boundary, with the compute time, memory and message bytes of each."""

    words: Words
    """Sets as bits, shape (count, words): node v is bit v % 64 of word v // 64."""
    compute_s: Floats
    """Compute time of each set, shape (count,)."""
    memory_bytes: Floats
    """Memory of each set without messages, shape (count,)."""
    sent_bytes: Floats
    """Bytes that leave each set, shape (count,)."""
    first: Ints
    """Index in `crossing` of each set's first edge, shape (count + 1,)."""
    crossing: Ints
    """Edges that leave each set, set by set."""


class _Bounds(NamedTuple):
    """Bounds on the compute time of a node set, and on that time plus or minus the time of its messages."""

    least: float
    most: float
    least_less: float
    """Lower bound on compute time minus message time."""
    most_plus: float
    """Upper bound on compute time plus message time."""
    seconds_per_byte: float


class _Start(NamedTuple):
    """Initial compute time and bytes of an enumeration, common to all sets at a boundary."""

    beyond: Floats
    """Bytes from each node to nodes that are outside for certain, (n,)."""
    compute_s: float
    sent_bytes: float


def family(
    weights: Weights, windows: Windows, border: int, limit: int = LIMIT, limit_s: float = np.inf
) -> SetFamily:
    """Fronted subgraphs that the first `border` stages may form; TooManyError for more than `limit`.

    Sets are omitted that no partition with all stages within `limit_s` contains. Messages across the boundary
    count on both sides: the s stages before it take at most s times the limit, and the stages after it
    likewise.
    """
    if border == 0 or border > len(windows.least_s):
        every = np.full((1, len(weights)), border > 0)
        return describe(weights, pack(every))
    inside, outside = windows.latest < border, windows.earliest >= border
    words, complete = _grow(
        pack(inside[None]),
        np.flatnonzero(~inside & ~outside),
        weights.predecessors,
        weights.compute_s,
        _bounds(weights, windows, border, limit_s),
        _start_of(weights, inside, outside),
        limit,
    )
    if not complete:
        raise TooManyError(
            f"border {border}: there are more than {limit} fronted subgraphs that the first stages may be"
        )
    return describe(weights, words)


def _bounds(weights: Weights, windows: Windows, border: int, limit_s: float) -> _Bounds:
    stages = len(windows.least_s) + 1
    slack = ROUNDING * (weights.total_s + weights.seconds_per_byte * float(weights.edge_bytes.sum()))
    least_less = weights.total_s - (stages - border) * limit_s - slack
    least, most = float(windows.least_s[border - 1]), float(windows.most_s[border - 1])
    return _Bounds(least, most, least_less, border * limit_s + slack, weights.seconds_per_byte)


def _start_of(weights: Weights, inside: Bools, outside: Bools) -> _Start:
    source, target = weights.sources, weights.targets
    leaving = np.where(outside[target], weights.edge_bytes, 0.0)
    beyond = sums(source, leaving, len(weights))
    return _Start(beyond, float(weights.compute_s[inside].sum()), float(beyond[inside].sum()))


def describe(weights: Weights, words: Words) -> SetFamily:
    """Build a family from node sets, with the compute time, memory and outgoing edges of each set."""
    source, target = weights.sources, weights.targets
    sums = _sums(words, weights.compute_s, weights.memory_bytes)
    first, crossing, sent = _crossing(words, source, target, weights.edge_bytes)
    return SetFamily(words, sums[0], sums[1], sent, first, crossing)


@njit
def _grow(
    start: Words,
    open_nodes: Ints,
    sources: Predecessors,
    compute: Floats,
    bounds: _Bounds,
    initial: _Start,
    limit: int,
) -> tuple[Words, bool]:
    """Fronted supersets of `start` (1, words) within the bounds, and False if there are more than `limit`.

    An edge with both ends decided either crosses the boundary or not, so crossing bytes only grow.
    """
    sets, sums = np.empty((1024, start.shape[1]), np.uint64), np.empty((1024, 2))
    _copy_set(start, 0, sets, 0)
    sums[0, 0], sums[0, 1] = initial.compute_s, bounds.seconds_per_byte * initial.sent_bytes
    count, open_s = 1, 0.0
    for v in open_nodes:
        open_s += compute[v]
    for v in open_nodes:
        open_s -= compute[v]
        before, stay = count, 0
        if 2 * before > len(sets):
            sets, sums = _larger(sets, sums, before)
        grown = before
        for row in range(before):
            entering, ready = _entering(sets, row, sources, v)
            time, sent = sums[row, 0] + compute[v], sums[row, 1] + bounds.seconds_per_byte * initial.beyond[v]
            if ready and time <= bounds.most and _keeps(time, sent, open_s, bounds):
                _copy_set(sets, row, sets, grown)
                sets[grown, v // BITS] |= np.uint64(1) << np.uint64(v % BITS)
                sums[grown, 0], sums[grown, 1] = time, sent
                grown += 1
            sums[row, 1] += bounds.seconds_per_byte * entering
        for row in range(grown):
            if row >= before or _keeps(sums[row, 0], sums[row, 1], open_s, bounds):
                _copy_set(sets, row, sets, stay)
                sums[stay, 0], sums[stay, 1] = sums[row, 0], sums[row, 1]
                stay += 1
        count = stay
        if count > limit:
            return sets[:0], False
    return sets[:count].copy(), True


@njit
def _entering(sets: Words, row: int, sources: Predecessors, v: int) -> tuple[float, bool]:
    """Bytes of the edges from a set to a node, and True if all predecessors of the node are in the set."""
    entering, ready = 0.0, True
    for k in range(sources.first[v], sources.first[v + 1]):
        if contains(sets, row, sources.node[k]):
            entering += sources.size[k]
        else:
            ready = False
    return entering, ready


@njit
def _keeps(time: float, sent: float, open_s: float, bounds: _Bounds) -> bool:
    """True if a set can still satisfy the bounds, given its open nodes and the bytes it sends so far."""
    return (
        time + open_s >= bounds.least
        and time + sent <= bounds.most_plus
        and time + open_s - sent >= bounds.least_less
    )


@njit
def _larger(sets: Words, sums: Floats, count: int) -> tuple[Words, Floats]:
    """Copy of the first `count` sets with four times the capacity."""
    longer, more_sums = np.empty((4 * count, sets.shape[1]), np.uint64), np.empty((4 * count, 2))
    for row in range(count):
        _copy_set(sets, row, longer, row)
        more_sums[row, 0], more_sums[row, 1] = sums[row, 0], sums[row, 1]
    return longer, more_sums


@njit
def _copy_set(source: Words, row: int, target: Words, to: int) -> None:
    """Copy a set. A loop, because a slice assignment would compile the code of shape error messages."""
    for w in range(source.shape[1]):
        target[to, w] = source[row, w]


@njit
def _sums(words: Words, compute: Floats, memory: Floats) -> Floats:
    """Compute time and memory of each set, shape (2, count)."""
    sums = np.zeros((2, len(words)))
    for row in range(len(words)):
        for v in range(len(compute)):
            if contains(words, row, v):
                sums[0, row] += compute[v]
                sums[1, row] += memory[v]
    return sums


@njit
def _crossing(words: Words, source: Ints, target: Ints, size: Floats) -> tuple[Ints, Ints, Floats]:
    """Edges that leave each set: offset of each set's edges, the edges, and the bytes that leave each set."""
    count = len(words)
    first, sent = np.zeros(count + 1, np.int64), np.zeros(count)
    for row in range(count):
        first[row + 1] = first[row]
        for e in range(len(source)):
            if contains(words, row, source[e]) and not contains(words, row, target[e]):
                first[row + 1] += 1
                sent[row] += size[e]
    crossing, used = np.empty(first[count], np.int64), 0
    for row in range(count):
        for e in range(len(source)):
            if contains(words, row, source[e]) and not contains(words, row, target[e]):
                crossing[used] = e
                used += 1
    return first, crossing, sent
