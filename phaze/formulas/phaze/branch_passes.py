"""Forward and backward passes of a stage with branches on groups of devices (Phaze, Appendix B.1).

Appendix B.1 gives the load of a stage only for chains of layers, and says that others may use more devices
where there is branching. Its rules are followed: layers are scheduled one by one, each starts when its
predecessors are done and its tensors from other devices have arrived, transfers take bytes / bandwidth
independent of other traffic, and those from other stages start at time 0. Where it leaves a choice, the
simplest consistent one is taken:

- The devices of a stage form groups. A group runs layers as one device would: it has t devices, or one if
  none of its layers is tensor parallel. Other devices of the stage are as distant as those of other stages.
- A branch is a maximal run of layers in which each is the only direct successor, within the stage, of the one
  before, and has it as its only direct predecessor. A branch is not split. A chain is one branch, so it runs
  on one group.
- No group waits while one of its layers could start. Among all groups, the layer that can start first is
  next; ties go to the first in the topological order of the graph (backwards, the last).

On one group this is as fast as any order: whenever it waits, all remaining layers have to wait too.

The backward pass is a forward pass of the mirrored graph, in which layer v is n - 1 - v, the gradients of
outgoing edges are the incoming tensors, and the same groups hold the same layers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit, njit_inlined
from phaze.formulas.flushing import Chain

ANY_GROUP = -1
"""Group number of a branch that may run on any group: it goes to the one where it can start first."""


class PassSteps(NamedTuple):
    """One pass over n layers in topological order: the time and the incoming edges of each layer."""

    seconds: Floats
    """(n,) time of every layer."""
    first: Ints
    """(n + 1,) index of the first edge into every layer."""
    source: Ints
    """(edges,) source layer."""
    transfer_s: Floats
    """(edges,) transfer time."""


class Branches(NamedTuple):
    """The c branches of a stage of m layers: branch b consists of order[first[b]:first[b + 1]]."""

    order: Ints
    """(m,) layers, ascending within a branch."""
    first: Ints
    """(c + 1,) index of the first layer of every branch."""


class PassBuffers(NamedTuple):
    """Scratch buffers of passes over n layers; their contents are not kept between passes."""

    following: Ints
    """(n,) index into `Branches.order` of each branch's next layer to run."""
    done_s: Floats
    """(n,) end time of every layer."""
    place: Ints
    """(n,) group on which each layer ran, -1 if it has not run yet."""


@njit
def pass_buffers(nodes: int) -> PassBuffers:
    """Scratch buffers of passes over `nodes` layers."""
    return PassBuffers(np.empty(nodes, np.int64), np.empty(nodes), np.empty(nodes, np.int64))


def forward_pass(graph: Chain, bandwidth_bytes_per_s: float) -> PassSteps:
    """Forward pass over a graph whose layers are in a topological order."""
    return _pass(graph.forward_s, graph.sources, graph.targets, graph.edge_bytes / bandwidth_bytes_per_s)


def backward_pass(graph: Chain, bandwidth_bytes_per_s: float) -> PassSteps:
    """Backward pass, expressed as a forward pass over the mirrored graph."""
    last, transfers = len(graph) - 1, graph.edge_bytes / bandwidth_bytes_per_s
    return _pass(graph.backward_s[::-1], last - graph.targets, last - graph.sources, transfers)


def _pass(seconds: Floats, sources: Ints, targets: Ints, transfers: Floats) -> PassSteps:
    by_target = np.lexsort((sources, targets))
    first = np.searchsorted(targets[by_target], np.arange(len(seconds) + 1)).astype(np.int64)
    return PassSteps(np.array(seconds, float), first, sources[by_target], transfers[by_target])


def covers(graph: Chain) -> tuple[Ints, Ints]:
    """Direct predecessors of each layer, in CSR form: (n + 1,) offsets, and the predecessors.

    An edge parallel to a longer path is not one of these. Nor is it one inside any stage that contains both
    its ends, because the stage also contains the layers between.
    """
    n = len(graph)
    after = np.zeros((n, n), np.bool_)
    direct = np.zeros((n, n), np.bool_)
    # Sources backwards, so that all that follows a target is known; of one source the nearest target
    # first, so that a longer path is known before an edge parallel to it.
    for source, target in sorted(graph.pairs, key=lambda ends: (-ends[0], ends[1])):
        if not after[source, target]:
            direct[source, target] = True
            after[source] |= after[target]
            after[source, target] = True
    ends: tuple[Ints, ...] = np.nonzero(direct.T)
    return np.searchsorted(ends[0], np.arange(n + 1)).astype(np.int64), ends[1].astype(np.int64)


@njit
def find_branches(inside: Bools, first: Ints, source: Ints) -> Branches:
    """Branches of a stage, in the order of their first layers; `first` and `source` come from `covers`."""
    branch, count = _branch_of(inside, first, source)
    layers = np.flatnonzero(inside)
    order = layers[np.argsort(branch[layers], kind="mergesort")]
    return Branches(order, np.searchsorted(branch[order], np.arange(count + 1)))


@njit
def _branch_of(inside: Bools, first: Ints, source: Ints) -> tuple[Ints, int]:
    """Branch of every layer of a stage, and the number of branches."""
    n, count = len(inside), 0
    followers, branch = np.zeros(n, np.int64), np.empty(n, np.int64)
    for v in range(n):
        for e in range(first[v], first[v + 1]):
            # Only followers inside the stage count: the same layer may branch in another stage.
            followers[source[e]] += inside[v]
    for v in range(n):
        before, last = 0, -1
        for e in range(first[v], first[v + 1]):
            if inside[source[e]]:
                before, last = before + 1, source[e]
        # The only successor of its only predecessor continues that branch.
        if inside[v] and before == 1 and followers[last] == 1:
            branch[v] = branch[last]
        elif inside[v]:
            branch[v] = count
            count += 1
    return branch, count


@njit
def mirrored(branches: Branches, nodes: int) -> Branches:
    """The same branches in the mirrored graph; of c branches, branch b becomes c - 1 - b."""
    # Both the layers and their order are reversed, so branches stay contiguous.
    order, first = branches.order[::-1], branches.first[::-1]
    return Branches(nodes - 1 - order, len(order) - first)


@njit_inlined
def ready_s(
    layer: int, group: int, steps: PassSteps, inside: Bools, done: Floats, place: Ints, arrivals: bool
) -> float:
    """Time at which all inputs of a layer have arrived at a group; inf while a predecessor is not done.

    Without `arrivals` the tensors from other stages are already there.
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
    steps: PassSteps,
    branches: Branches,
    inside: Bools,
    group: Ints,
    ends: Floats,
    arrivals: bool,
    buffers: PassBuffers,
) -> None:
    """Simulate a pass; `ends` (groups,) holds each group's start time, and is overwritten with its end time.

    `group` (c,) assigns every branch to a group. A branch with ANY_GROUP goes to the first group where it can
    start earliest, which is written to `group`.
    """
    order, first = branches.order, branches.first
    following, done, place = buffers.following, buffers.done_s, buffers.place
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
            # A branch that has begun, or is assigned, has one group; otherwise all are tried.
            lowest = 0 if group[b] == ANY_GROUP else group[b]
            highest = len(ends) if group[b] == ANY_GROUP else group[b] + 1
            for g in range(lowest, highest):
                start = max(ends[g], ready_s(candidate, g, steps, inside, done, place, arrivals))
                if chosen < 0 or start < at or (start == at and candidate < layer):
                    at, chosen, where, layer = start, b, g, candidate
        ends[where] = done[layer] = at + steps.seconds[layer]
        place[layer] = group[chosen] = where
        following[chosen] += 1
