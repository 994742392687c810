"""The passes of a stage with branches over one or more groups of devices (Phaze, Appendix B.1).

Appendix B.1 gives the load of a stage only where the layers form a chain, and says of others that they may
use more devices where there is branching. What it gives is followed: layers are scheduled one by one, each
starts when its predecessors are done and its tensors from other devices are there, transfers take bytes /
bandwidth whatever else is on the network, and those from other stages start at time 0. What it leaves open is
read in the plainest way that agrees with it:

- The devices of a stage form groups. A group runs layers as one device would: it has t devices, or one where
  none of its layers is tensor parallel. Other devices of the stage are as far away as those of other stages.
- A branch is a longest run of layers in which each is the only one of the stage that comes directly after
  the one before, which is the only one directly before it; it is not torn apart. A chain is one branch, so it
  runs on one group.
- No group waits while a layer of it could start. Of the layers that could, over all groups, the one that can
  start first is next; of those the first in the topological order of the graph (backwards, the last).

On one group that is as fast as any order: whenever it waits, all that is left has to wait too.

The backward pass is a forward pass of the mirrored graph, in which layer v is n - 1 - v, the gradients of
outgoing edges are the incoming tensors, and the same groups hold the same layers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit, njit_inlined
from phaze.pipeline.flushing import Chain

ANY_GROUP = -1
"""Group of a branch that goes where it can start first."""


class PassSteps(NamedTuple):
    """One pass over a graph of n layers in topological order, with its edges by target."""

    seconds: Floats
    """(n,) time of every layer."""
    first: Ints
    """(n + 1,) where the edges into every layer begin."""
    source: Ints
    """(edges,)."""
    transfer_s: Floats
    """(edges,)."""


class Branches(NamedTuple):
    """The branches of a stage of m layers, c of them: branch b holds order[first[b]:first[b + 1]]."""

    order: Ints
    """(m,) layers, rising within a branch."""
    first: Ints
    """(c + 1,)."""


class Desk(NamedTuple):
    """Room that passes over n layers work in; what a pass leaves there means nothing to the next."""

    following: Ints
    """(n,) the next layer of every branch."""
    done_s: Floats
    """(n,) the end of every layer."""
    place: Ints
    """(n,) group of every layer that ran."""


@njit
def desk_for(nodes: int) -> Desk:
    """Room for passes over so many layers."""
    return Desk(np.empty(nodes, np.int64), np.empty(nodes), np.empty(nodes, np.int64))


def forward_pass(graph: Chain, bandwidth_bytes_per_s: float) -> PassSteps:
    """Forward pass of a graph whose layers are in a topological order."""
    return _pass(graph.forward_s, graph.sources, graph.targets, graph.edge_bytes / bandwidth_bytes_per_s)


def backward_pass(graph: Chain, bandwidth_bytes_per_s: float) -> PassSteps:
    """Backward pass as a forward pass of the mirrored graph."""
    last, transfers = len(graph) - 1, graph.edge_bytes / bandwidth_bytes_per_s
    return _pass(graph.backward_s[::-1], last - graph.targets, last - graph.sources, transfers)


def _pass(seconds: Floats, sources: Ints, targets: Ints, transfers: Floats) -> PassSteps:
    by_target = np.lexsort((sources, targets))
    first = np.searchsorted(targets[by_target], np.arange(len(seconds) + 1)).astype(np.int64)
    return PassSteps(np.array(seconds, float), first, sources[by_target], transfers[by_target])


def covers(graph: Chain) -> tuple[Ints, Ints]:
    """Layers directly before each, as (n + 1,) where they begin and the layers.

    An edge beside a longer path is none of these; nor is it inside any stage that holds both its ends, as a
    stage holds what lies between.
    """
    n = len(graph)
    after = np.zeros((n, n), np.bool_)
    direct = np.zeros((n, n), np.bool_)
    for source, target in sorted(graph.pairs, key=lambda ends: (-ends[0], ends[1])):
        if not after[source, target]:
            direct[source, target] = True
            after[source] |= after[target]
            after[source, target] = True
    ends: tuple[Ints, ...] = np.nonzero(direct.T)
    return np.searchsorted(ends[0], np.arange(n + 1)).astype(np.int64), ends[1].astype(np.int64)


@njit
def find_branches(inside: Bools, first: Ints, source: Ints) -> Branches:
    """Branches of a stage, in the order of their first layers; `first`, `source` are `covers`."""
    branch, count = _branch_of(inside, first, source)
    begins = np.zeros(count + 1, np.int64)
    for v in range(len(inside)):
        if inside[v]:
            begins[branch[v] + 1] += 1
    for b in range(count):
        begins[b + 1] += begins[b]
    order, filled = np.empty(begins[count], np.int64), begins.copy()
    for v in range(len(inside)):
        if inside[v]:
            order[filled[branch[v]]] = v
            filled[branch[v]] += 1
    return Branches(order, begins)


@njit
def _branch_of(inside: Bools, first: Ints, source: Ints) -> tuple[Ints, int]:
    """Branch of every layer of a stage, and how many there are."""
    n, count = len(inside), 0
    followers, branch = np.zeros(n, np.int64), np.empty(n, np.int64)
    for v in range(n):
        for e in range(first[v], first[v + 1]):
            followers[source[e]] += inside[v]
    for v in range(n):
        before, last = 0, -1
        for e in range(first[v], first[v + 1]):
            if inside[source[e]]:
                before, last = before + 1, source[e]
        if inside[v] and before == 1 and followers[last] == 1:
            branch[v] = branch[last]
        elif inside[v]:
            branch[v] = count
            count += 1
    return branch, count


@njit
def mirrored(branches: Branches, nodes: int) -> Branches:
    """Same branches in the mirrored graph; branch b becomes c - 1 - b."""
    order, first = np.empty_like(branches.order), np.empty_like(branches.first)
    for i in range(len(order)):
        order[i] = nodes - 1 - branches.order[len(order) - 1 - i]
    for b in range(len(first)):
        first[b] = len(order) - branches.first[len(first) - 1 - b]
    return Branches(order, first)


@njit_inlined
def ready_s(
    layer: int, group: int, steps: PassSteps, inside: Bools, done: Floats, place: Ints, arrivals: bool
) -> float:
    """When all that a layer needs is on a group; infinite while a predecessor is not done.

    Without `arrivals` the tensors from other stages are there already.
    """
    ready = 0.0
    for e in range(steps.first[layer], steps.first[layer + 1]):
        source, at = steps.source[e], 0.0
        if not inside[source]:
            at = steps.transfer_s[e] if arrivals else 0.0
        elif place[source] < 0:
            at = np.inf
        else:
            at = done[source] if place[source] == group else done[source] + steps.transfer_s[e]
        ready = max(ready, at)
    return ready


@njit
def run_pass(
    steps: PassSteps, branches: Branches, inside: Bools, group: Ints, ends: Floats, arrivals: bool, desk: Desk
) -> None:
    """Run a pass; `ends` (groups,) holds when each group may begin it, and afterwards when it ends it.

    `group` (c,) says where every branch runs; where it is ANY_GROUP, the group where the branch can start
    first is chosen, of those the first, and written there.
    """
    order, first = branches.order, branches.first
    following, done, place = desk.following, desk.done_s, desk.place
    for b in range(len(group)):
        following[b] = first[b]
    for v in order:
        place[v] = -1
    for _ in range(len(order)):
        at, chosen, where, layer = np.inf, -1, -1, -1
        for b in range(len(group)):
            if following[b] == first[b + 1]:
                continue
            candidate = order[following[b]]
            lowest = 0 if group[b] == ANY_GROUP else group[b]
            highest = len(ends) if group[b] == ANY_GROUP else group[b] + 1
            for g in range(lowest, highest):
                start = max(ends[g], ready_s(candidate, g, steps, inside, done, place, arrivals))
                if chosen < 0 or start < at or (start == at and candidate < layer):
                    at, chosen, where, layer = start, b, g, candidate
        ends[where] = done[layer] = at + steps.seconds[layer]
        place[layer] = group[chosen] = where
        following[chosen] += 1
