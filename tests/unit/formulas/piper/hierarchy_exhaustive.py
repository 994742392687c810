"""Appendix E's objective by brute force: every nested partition, costed from the outermost level inwards.

It shares no code with the planner: no downsets, tables, thresholds or compiled code.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, product
from math import ceil, inf
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from phaze.formulas.piper.layers import FlatCluster, Hierarchy, NetworkLevel, PlannedStage, ProfiledLayers
from tests.unit.formulas.piper.exhaustive import draw_layers

Members = frozenset[int]


class Node(NamedTuple):
    """A superstage or a stage: its layers, its degrees, and its parts (none at level 1)."""

    members: Members
    data: int
    tensor: int
    inside: tuple[Node, ...]


Nodes = tuple[Node, ...]


def least_time(layers: ProfiledLayers, hierarchy: Hierarchy) -> float:
    """Return the minimum time per sample over all nested plans; infinite if none fits."""
    judge = Judge(layers, hierarchy)
    everything = frozenset(range(len(layers)))
    return min((judge.time(nodes) for nodes in judge.splits(everything, len(hierarchy.levels))), default=inf)


class Judge:
    """Enumerates and evaluates nested plans of layers on a hierarchy."""

    def __init__(self, layers: ProfiledLayers, hierarchy: Hierarchy) -> None:
        """Cache the times of stages, which recur."""
        self.layers, self.levels, self.inner = layers, hierarchy.levels, hierarchy.inner
        self.stage_time = lru_cache(maxsize=None)(self._stage_time)
        self.splits = lru_cache(maxsize=None)(lambda members, level: tuple(self._splits(members, level)))

    def _splits(self, members: Members, level: int) -> Iterator[Nodes]:
        """Yield all ways to run layers on one device of the level above, in the order of the data flow."""
        for cut in ordered_cuts(self.layers, members):
            for nodes in product(*(self._nodes(part, level) for part in cut)):
                if sum(n.data * n.tensor for n in nodes) <= self.levels[level - 1].devices:
                    yield nodes

    def _nodes(self, members: Members, level: int) -> list[Node]:
        degrees = range(1, self.levels[level - 1].devices + 1)
        if level == 1:
            return [Node(members, d, t, ()) for d in degrees for t in self.layers.options]
        return [Node(members, d, 1, inside) for d in degrees for inside in self.splits(members, level - 1)]

    def time(self, nodes: Nodes) -> float:
        """Return the time of the slowest device of any level; infinite if the plan is not allowed."""
        degree, most = sum_of_degrees(nodes), self.inner.microbatches
        if degree > most or (self.inner.exactly and degree < most):
            return inf
        return self.slowest(nodes, len(self.levels), 1, degree)

    def slowest(self, nodes: Nodes, level: int, around: int, s: int) -> float:
        """Return the time of the slowest device; s counts from the first node to the very last stage."""
        slowest = 0.0
        for node in nodes:
            d, q = node.data, node.data * around
            if self.inner.synchronisation == "batch" and self.inner.microbatches % q:
                return inf
            if level == 1:
                time = self.stage_time(node.members, d, node.tensor, around, ceil(s / d))
                s -= d
            else:
                time = self.superstage_time(node.members, level, d, around)
                time = max(time, self.slowest(node.inside, level - 1, q, ceil(s / d)))
                s -= d * sum_of_degrees(node.inside)
            slowest = max(slowest, time)
            if slowest == inf:
                break
        return slowest

    def superstage_time(self, members: Members, level: int, data: int, around: int) -> float:
        """Return the communication of a device of a level above the first."""
        crossing = sum(
            float(size)
            for (u, v), size in zip(self.layers.pairs, self.layers.edge_bytes, strict=True)
            if (u in members) != (v in members)
        )
        weights = sum(whole_weight(self.layers, v) for v in members)
        moved = 2 * crossing / (data * around) + self.synchronised(data, around) * weights
        return moved / self.levels[level - 1].bandwidth_bytes_per_s

    def synchronised(self, data: int, around: int) -> float:
        """Return the bytes that one device sends per byte of weights and sample of the whole."""
        together = self.inner.microbatches if self.inner.synchronisation == "batch" else data * around
        return 4 * (data - 1) / data / together

    def _stage_time(self, members: Members, data: int, tensor: int, around: int, in_flight: int) -> float:
        """Return the minimum time of a stage over all configurations that fit."""
        options, layers = self.layers.options[tensor], self.layers
        bandwidth, replicas = self.inner.bandwidth_bytes_per_s, data * around
        each: list[list[tuple[float, float]]] = []
        for v in members:
            each.append([])
            for x in np.flatnonzero(options.layer == v):
                moved = self.synchronised(data, around) * options.weight_bytes[x]
                for e, (source, target) in enumerate(layers.pairs):
                    if target == v and source not in members:
                        moved += 2 * (layers.edge_bytes[e] + options.forward_sync_bytes[x, e]) / replicas
                    if source == v and target not in members:
                        moved += 2 * (layers.edge_bytes[e] + options.backward_sync_bytes[x, e]) / replicas
                time = options.time_s[x] / replicas + moved / bandwidth
                each[-1].append((time, in_flight * options.stash_bytes[x] + options.fixed_bytes[x]))
        fits = (c for c in product(*each) if sum(held for _, held in c) <= self.inner.memory_bytes)
        return min((sum(time for time, _ in c) for c in fits), default=inf)


def sum_of_degrees(nodes: Nodes) -> int:
    """Return the degrees of the stages in some superstages, replicas counted."""
    return sum(node.data * (sum_of_degrees(node.inside) if node.inside else 1) for node in nodes)


def whole_weight(layers: ProfiledLayers, v: int) -> float:
    """Return the weights of a layer on all devices of its narrowest configurations, the heaviest of these."""
    for tensor in sorted(layers.options):
        options = layers.options[tensor]
        found = options.weight_bytes[options.layer == v]
        if len(found):
            return float(tensor * found.max())
    return 0.0


def ordered_cuts(layers: ProfiledLayers, members: Members) -> Iterator[list[Members]]:
    """Yield all cuts of layers into a sequence of groups without backward edges."""
    if not members:
        yield []
    for size in range(1, len(members) + 1):
        for first in map(frozenset, combinations(sorted(members), size)):
            if any(u in members - first and v in first for u, v in layers.pairs):
                continue
            for rest in ordered_cuts(layers, members - first):
                yield [first, *rest]


def as_nodes(stages: tuple[PlannedStage, ...]) -> Nodes:
    """Return a plan as this search writes it."""
    return tuple(
        Node(frozenset(stage.layers), stage.layout.dp, stage.layout.tp, as_nodes(stage.parts))
        for stage in stages
    )


@st.composite
def hierarchies(
    draw: st.DrawFn, counts: tuple[tuple[int, ...], ...], most: int
) -> tuple[ProfiledLayers, Hierarchy]:
    """Draw up to `most` layers and levels of some sizes; memory and every bandwidth may bind."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layers = draw_layers(rng, draw(st.integers(1, most)), draw(st.booleans()))
    first, *above = draw(st.sampled_from(counts))
    inner, *bandwidths = (float(b) for b in rng.choice([0.25, 2.0, 64.0], 1 + len(above)))
    cluster = FlatCluster(
        devices=first,
        memory_bytes=float(rng.integers(6, 36)),
        bandwidth_bytes_per_s=inner,
        microbatches=draw(st.integers(1, 8)),
        exactly=draw(st.integers(0, 3)) == 0,
        synchronisation=draw(st.sampled_from(("batch", "round"))),
    )
    return layers, Hierarchy(cluster, tuple(map(NetworkLevel, above, bandwidths)))
