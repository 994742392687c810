"""Iterative refinement: single operators move across stage boundaries (Parmesan, Section IV-C).

A move shifts an operator with an edge to another stage by one stage. Afterwards all edges must still lead
forward (the stages stay convex), its old stage must keep an operator, and both stages must fit in memory.
The paper ranks moves by three gains, each breaking the ties of the previous one:

1. the decrease in the shortest path distance to the nearest reconverging operator: a cut vertex of the graph
   with several edges in or out. The paper does not say whose distance. Here it is the sum over all operators
   that send to another stage: 0 if only reconverging operators send messages across boundaries;
2. the decrease in the bytes between stages;
3. the decrease in the longest computation of a stage.

The move with the highest gain is made while it is above zero, at most 100 times. Every move lowers the three
sums lexicographically, so none is ever undone. A move may lengthen the slowest stage, whose time ranks last
and excludes messages: callers must compare before and after.

`by_time` ranks by a different measure: the sum of the 16th powers of the times (3) of all stages. It is close
to the slowest time alone, but can also pass computation from stage to stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.partition.weights import ROUNDING, Weights, border_bytes, sums

MOVES = 100
"""I, the maximum number of moves."""
POWER = 16


def refine(
    weights: Weights, stage_of: Ints, distance: Ints, most_moves: int = MOVES, *, by_time: bool = False
) -> tuple[Ints, int]:
    """Stages (n,) after refinement and the number of moves; `distance` (n,) is the result of `distances`."""
    refined = stage_of.astype(np.int64)
    for count in range(most_moves):
        moves = _moves(weights, refined)
        if not len(moves.node):
            return refined, count
        gains = _time_gains(weights, refined, moves) if by_time else _gains(weights, refined, moves, distance)
        best = np.lexsort(gains[::-1])[-1]
        if tuple(gain[best] for gain in gains) <= (0.0,) * len(gains):
            return refined, count
        refined[moves.node[best]] = moves.target[best]
    return refined, most_moves


def distances(weights: Weights) -> Ints:
    """Hops, in any direction, from each node to the nearest node where branches fork or join, (n,).

    All zeros if there is no such node.
    """
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(len(weights)))
    graph.add_edges_from(weights.edges.tolist())
    several = np.zeros(len(weights), dtype=np.bool_)
    for side in (0, 1):
        several |= np.bincount(weights.edges[:, side], minlength=len(weights)) > 1
    joints = {v for v in nx.articulation_points(graph) if several[v]}
    far = np.zeros(len(weights), dtype=np.int64)
    if joints:
        for v, steps in nx.multi_source_dijkstra_path_length(graph, joints, weight=None).items():
            far[v] = steps
    return far


@dataclass(frozen=True, eq=False)
class _Moves:
    """Moves that keep stages convex and within memory; all arrays have shape (m,)."""

    node: Ints
    source: Ints
    target: Ints
    source_bytes: Floats
    """Increase in the bytes that cross the boundaries of the source stage."""
    target_bytes: Floats
    """Increase in the bytes that cross the boundaries of the target stage."""

    def take(self, chosen: Bools) -> _Moves:
        """Moves selected by a mask."""
        stages = (self.source[chosen], self.target[chosen])
        return _Moves(self.node[chosen], *stages, self.source_bytes[chosen], self.target_bytes[chosen])


def _moves(weights: Weights, stage_of: Ints) -> _Moves:
    """Valid moves of single nodes to a neighbouring stage."""
    first, last = _range(weights, stage_of)
    on_border = _on_border(weights, stage_of)
    shared = np.bincount(stage_of)[stage_of] > 1
    both = [
        np.flatnonzero(on_border & shared & (last > stage_of)),
        np.flatnonzero(on_border & shared & (first < stage_of)),
    ]
    node = np.concatenate(both)
    target = stage_of[node] + np.repeat([1, -1], [len(side) for side in both])
    inside, over = _bytes_to(weights, stage_of, stage_of), np.zeros(len(node))
    for step, side in ((1, slice(0, len(both[0]))), (-1, slice(len(both[0]), None))):
        over[side] = _bytes_to(weights, stage_of, stage_of + step)[node[side]]
    others = weights.border_bytes[node] - inside[node] - over
    moves = _Moves(node, stage_of[node], target, inside[node] - over - others, inside[node] - over + others)
    return _that_fit(weights, stage_of, moves)


def _range(weights: Weights, stage_of: Ints) -> tuple[Ints, Ints]:
    """First and last stage that each node may be in while all others stay, (n,) each."""
    first, last = np.zeros(len(weights), dtype=np.int64), np.full(len(weights), stage_of.max())
    np.maximum.at(first, weights.targets, stage_of[weights.sources])
    np.minimum.at(last, weights.sources, stage_of[weights.targets])
    return first, last


def _on_border(weights: Weights, stage_of: Ints) -> Bools:
    """Mask of the nodes with an edge to another stage, (n,)."""
    pairs = stage_of[weights.edges]
    border = np.zeros(len(weights), dtype=np.bool_)
    border[weights.edges[pairs[:, 0] != pairs[:, 1]]] = True
    return border


def _bytes_to(weights: Weights, stage_of: Ints, target: Ints) -> Floats:
    """Bytes that each node exchanges with nodes of the stage that `wanted` (n,) gives for it, (n,)."""
    sent = np.zeros(len(weights))
    for near, far in ((0, 1), (1, 0)):
        hit = stage_of[weights.edges[:, far]] == target[weights.edges[:, near]]
        sent += sums(weights.edges[hit, near], weights.edge_bytes[hit], len(weights))
    return sent


def _that_fit(weights: Weights, stage_of: Ints, moves: _Moves) -> _Moves:
    """Keep the moves after which both stages still fit in memory."""
    limit = weights.limit_bytes * (1 + ROUNDING)
    stored = sums(stage_of, weights.memory_bytes, int(stage_of.max()) + 1) + border_bytes(weights, stage_of)
    carried = weights.memory_bytes[moves.node]
    fit = stored[moves.target] + carried + moves.target_bytes <= limit
    fit &= stored[moves.source] - carried + moves.source_bytes <= limit
    return moves.take(fit)


def _gains(weights: Weights, stage_of: Ints, moves: _Moves, distance: Ints) -> tuple[Floats, Floats, Floats]:
    """Gain of each move: in distance, in message bytes, and in the slowest compute time, (m,) each."""
    fewer = -(moves.source_bytes + moves.target_bytes) / 2.0
    compute = sums(stage_of, weights.compute_s, int(stage_of.max()) + 1)
    shorter = compute.max() - _longest_after(compute, moves, weights.compute_s[moves.node])
    return (
        _nearer(weights, stage_of, moves, distance),
        _not_noise(fewer, weights.border_bytes.sum()),
        _not_noise(shorter, compute.max()),
    )


def _time_gains(weights: Weights, stage_of: Ints, moves: _Moves) -> tuple[Floats]:
    """Decrease in the sum of powers of all stage times, (m,)."""
    border = border_bytes(weights, stage_of)
    times = sums(stage_of, weights.compute_s, len(border)) + weights.seconds_per_byte * border
    slowest, moved = times.max(), weights.compute_s[moves.node]
    source, target = times[moves.source], times[moves.target]
    after_source = source - moved + weights.seconds_per_byte * moves.source_bytes
    after_target = target + moved + weights.seconds_per_byte * moves.target_bytes
    before, after = (
        (before_s / slowest) ** POWER + (after_s / slowest) ** POWER
        for before_s, after_s in ((source, target), (after_source, after_target))
    )
    return (_not_noise(before - after, 1.0),)


def _longest_after(compute: Floats, moves: _Moves, moved: Floats) -> Floats:
    """Compute time of the slowest stage after each move, (m,)."""
    low = np.minimum(moves.source, moves.target)
    # Maxima over the stages before the two neighbours, and over the stages after them.
    before = np.concatenate([[0.0], np.maximum.accumulate(compute)])[low]
    after = np.concatenate([np.maximum.accumulate(compute[::-1])[::-1], [0.0, 0.0]])[low + 2]
    changed = np.maximum(compute[moves.source] - moved, compute[moves.target] + moved)
    return np.asarray(np.maximum(changed, np.maximum(before, after)))


def _nearer(weights: Weights, stage_of: Ints, moves: _Moves, distance: Ints) -> Floats:
    """Decrease in the summed `distance` of all nodes that send to another stage, for each move (m,)."""
    source, target = weights.sources, weights.targets
    over = stage_of[source] != stage_of[target]
    sends = np.bincount(source[over], minlength=len(weights))
    degree = np.bincount(source, minlength=len(weights))
    gains = np.zeros(len(moves.node))
    for step in (1, -1):
        forward = moves.target - moves.source == step
        aim = stage_of + step
        stay = np.bincount(source[stage_of[target] == aim[source]], minlength=len(weights))
        own_gain = (sends > 0).astype(np.float64) - (degree > stay)
        staying = sends[source] - over + (stage_of[source] != aim[target])
        changed = ((sends[source] > 0).astype(np.float64) - (staying > 0)) * distance[source]
        total = own_gain * distance + sums(target, changed, len(weights))
        gains[forward] = total[moves.node[forward]]
    return gains


def _not_noise(gains: Floats, scale: float) -> Floats:
    """Set gains that are mere rounding errors to zero."""
    return np.where(np.abs(gains) > ROUNDING * scale, gains, 0.0)
