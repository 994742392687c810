"""Options of a stage of a graph with branches: load and memory by number of devices (Phaze, Appendix B.1).

For every number of devices a the lowest load of a stage is found first, and then its memory: "in general we
do not solve this more complex problem. Instead, we attempt to identify the overall lowest-latency schedule,
and calculate its memory usage". A schedule is an assignment of branches to groups of devices
(`branch_passes`). Up to MOST_BRANCHES branches, all assignments are tried. Beyond, for each number of groups,
the branches go one by one to the group where they can start first.

The load of a stage is its "maximum latency over the a accelerators". Groups that exchange tensors, directly
or through others, run their passes together. Their latency is the last end of the forward pass plus the last
end of the backward pass, because passes of other microbatches may have to wait for that time. Other groups do
not wait for each other. If a stage recomputes, a group recomputes from stashed inputs before its backward
pass.

The memory of a group is that of a stage with its layers; recomputation stashes the tensors that arrive from
other stages. Schedules with the same load are all kept, unless another needs no more memory for any number of
microbatches in flight.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.formulas.flushing import Chain
from phaze.formulas.phaze.branch_passes import (
    ANY_GROUP,
    Branches,
    PassBuffers,
    PassSteps,
    backward_pass,
    covers,
    find_branches,
    forward_pass,
    mirrored,
    run_pass,
)
from phaze.layout import Layout

MOST_BRANCHES = 6
"""Largest number of branches for which all assignments are tried; six branches have 203 assignments."""


class TimedLayers(NamedTuple):
    """Arrays of a graph of n layers in topological order for one TMP width, as input of compiled code."""

    forward: PassSteps
    backward: PassSteps
    cover_first: Ints
    cover: Ints
    """Direct predecessors of each layer."""
    edge_bytes: Floats
    """(edges,) bytes of every edge, in the order of the forward pass."""
    constant_bytes: Floats
    """(n,) weights, gradients, optimizer state and activations of one microbatch."""
    activation_bytes: Floats
    split: Bools
    """(n,) true if the layer is tensor parallel."""
    wide: int
    """Number of devices of a group with a tensor-parallel layer."""


class GroupSchedules(NamedTuple):
    """The v schedules of a stage of c branches on at most g device groups, and the undominated ones."""

    group: Ints
    """(v, c) group of every branch."""
    groups: Ints
    """(v,) number of groups."""
    devices: Ints
    """(v,) number of devices."""
    load_s: Floats
    """(v,) load in seconds per microbatch."""
    constant_bytes: Floats
    """(v, g) bytes stored, independent of the microbatches in flight."""
    stashed_bytes: Floats
    """(v, g) bytes per microbatch in flight."""
    undominated: Ints
    """Indices of the useful schedules, fewest devices first."""


def work_of(graph: Chain, layout: Layout, bandwidth_bytes_per_s: float) -> TimedLayers:
    """Convert a graph to arrays for the compiled code."""
    cover_first, cover = covers(graph)
    size = {(u, v): size for u, v, size in graph.tensors}
    forward = forward_pass(graph, bandwidth_bytes_per_s)
    target = np.repeat(np.arange(len(graph)), np.diff(forward.first))
    return TimedLayers(
        forward=forward,
        backward=backward_pass(graph, bandwidth_bytes_per_s),
        cover_first=cover_first,
        cover=cover,
        edge_bytes=np.array([size[int(u), int(v)] for u, v in zip(forward.source, target, strict=True)]),
        constant_bytes=np.asarray(graph.static_bytes + graph.activation_bytes, float),
        activation_bytes=np.asarray(graph.activation_bytes, float),
        split=np.asarray(graph.tensor_parallel, np.bool_),
        wide=layout.tp,
    )


def all_assignments(most_branches: int) -> tuple[Ints, Ints]:
    """All assignments of up to `most_branches` branches to groups, and the first row for each branch count.

    Groups are numbered by their first branches. The result is (ways, most_branches), of which c columns count
    for c branches, and (most_branches + 1,) with the start of the assignments of c branches as entry c - 1.
    """
    assignments: list[tuple[int, ...]] = [()]
    rows: list[tuple[int, ...]] = []
    begins = [0]
    for _ in range(most_branches):
        # A branch joins one of the groups so far or opens the next: no two rows differ only in names.
        assignments = [(*row, g) for row in assignments for g in range(max(row, default=-1) + 2)]
        rows += [row + (0,) * (most_branches - len(row)) for row in assignments]
        begins.append(len(rows))
    return np.array(rows, np.int64).reshape(len(rows), most_branches), np.array(begins, np.int64)


@njit
def stage_schedules(
    work: TimedLayers, inside: Bools, recompute: bool, assignments: Ints, begins: Ints, buffers: PassBuffers
) -> GroupSchedules:
    """Schedules of a stage; `inside` (n,) marks its layers, `assignments` has all assignments to groups.

    The last stage of a pipeline does not recompute.
    """
    branches = find_branches(inside, work.cover_first, work.cover)
    back, outside, count = mirrored(branches, len(inside)), inside[::-1].copy(), len(branches.first) - 1
    if count < len(begins):
        group = assignments[begins[count - 1] : begins[count], :count].copy()
    else:
        group = list_assignments(work, branches, inside, buffers)
    groups, devices = np.ones(len(group), np.int64), np.zeros(len(group), np.int64)
    load = np.empty(len(group))
    constant, stashed, split = _branch_bytes(work, branches, inside, recompute)
    linked = _links(work, branches, inside, buffers.place)
    constants, stashes = np.zeros((len(group), count)), np.zeros((len(group), count))
    for v in range(len(group)):
        for b in range(count):
            g = group[v, b]
            groups[v] = max(groups[v], g + 1)
            constants[v, g] += constant[b]
            stashes[v, g] += stashed[b]
        devices[v] = _devices(group[v], groups[v], split, work.wide)
        load[v] = _load_s(
            work, (branches, back), (inside, outside), group[v], groups[v], linked, recompute, buffers
        )
    best = np.empty(len(group), np.int64)
    best = best[: _select_undominated(GroupSchedules(group, groups, devices, load, constants, stashes, best))]
    return GroupSchedules(group, groups, devices, load, constants, stashes, best)


@njit
def list_assignments(work: TimedLayers, branches: Branches, inside: Bools, buffers: PassBuffers) -> Ints:
    """One list schedule per number of groups, (groups, branches): each branch joins the first free group."""
    count = len(branches.first) - 1
    assignments = np.zeros((count, count), np.int64)
    for g in range(1, count):
        assignments[g] = ANY_GROUP
        run_pass(work.forward, branches, inside, assignments[g], np.zeros(g + 1), True, buffers)
    return assignments


@njit
def _branch_bytes(
    work: TimedLayers, branches: Branches, inside: Bools, recompute: bool
) -> tuple[Floats, Floats, Bools]:
    """Bytes of each branch, fixed and per microbatch in flight, and whether it is tensor parallel."""
    count, forward = len(branches.first) - 1, work.forward
    constant, stashed, split = np.zeros(count), np.zeros(count), np.zeros(count, np.bool_)
    for b in range(count):
        for i in range(branches.first[b], branches.first[b + 1]):
            v = branches.order[i]
            split[b] |= work.split[v]
            constant[b] += work.constant_bytes[v]
            if not recompute:
                stashed[b] += work.activation_bytes[v]
                continue
            for e in range(forward.first[v], forward.first[v + 1]):
                # A recomputing stage stashes only what arrives from other stages.
                if not inside[forward.source[e]]:
                    stashed[b] += work.edge_bytes[e]
    return constant, stashed, split


@njit
def _devices(group: Ints, groups: int, split: Bools, wide: int) -> int:
    """Number of devices of an assignment: t per group with a tensor-parallel branch, one per other group."""
    devices = 0
    for g in range(groups):
        any_split = False
        for b in range(len(group)):
            any_split = any_split or (group[b] == g and split[b])
        devices += wide if any_split else 1
    return devices


@njit
def _load_s(
    work: TimedLayers,
    branches: tuple[Branches, Branches],
    inside: tuple[Bools, Bools],
    group: Ints,
    groups: int,
    linked: Bools,
    recompute: bool,
    buffers: PassBuffers,
) -> float:
    """Load of a stage under one assignment; `branches` and `inside` are for the forward and mirrored pass."""
    first, second, turned = np.zeros(groups), np.zeros(groups), group[::-1].copy()
    run_pass(work.forward, branches[0], inside[0], group, first, True, buffers)
    if recompute and groups > 1:
        run_pass(work.forward, branches[0], inside[0], group, second, False, buffers)
    run_pass(work.backward, branches[1], inside[1], turned, second, True, buffers)
    if recompute and groups == 1:
        # With one group, recomputing overlaps with the arrival of gradients: max(F + B, out + B).
        second[0] = max(_total_s(work, inside[0]), second[0])
    if groups == 1:
        return float(first[0] + second[0])
    return _together_s(first, second, _crew(linked, group, groups))


@njit
def _links(work: TimedLayers, branches: Branches, inside: Bools, branch: Ints) -> Bools:
    """Mask (c, c) of branch pairs with an edge from one to the other; `branch` (n,) is a scratch buffer."""
    count, forward = len(branches.first) - 1, work.forward
    linked = np.zeros((count, count), np.bool_)
    for b in range(count):
        for i in range(branches.first[b], branches.first[b + 1]):
            branch[branches.order[i]] = b
    for v in branches.order:
        for e in range(forward.first[v], forward.first[v + 1]):
            if inside[forward.source[e]]:
                linked[branch[forward.source[e]], branch[v]] = True
    return linked


@njit
def _crew(linked: Bools, group: Ints, groups: int) -> Ints:
    """Connected-component index of every group; groups that exchange tensors share a component."""
    crew = np.arange(groups)
    for source in range(len(group)):
        for target in range(len(group)):
            if linked[source, target]:
                # Linked groups, and all that are linked to them, become one component.
                crew[crew == crew[group[source]]] = crew[group[target]]
    return crew


@njit
def _together_s(first: Floats, second: Floats, crew: Ints) -> float:
    """Longest forward plus backward time over pairs of groups in the same component."""
    longest = 0.0
    for g in range(len(crew)):
        for h in range(len(crew)):
            if crew[g] == crew[h]:
                longest = max(longest, first[g] + second[h])
    return longest


@njit
def _total_s(work: TimedLayers, inside: Bools) -> float:
    """Time of both passes over the stage's layers, without waiting."""
    forward = backward = 0.0
    n = len(inside)
    for v in range(n):
        if inside[v]:
            forward += work.forward.seconds[v]
        if inside[n - 1 - v]:
            backward += work.backward.seconds[v]
    return forward + backward


@njit
def _select_undominated(schedules: GroupSchedules) -> int:
    """Store the indices of the undominated schedules in `undominated`, and return their number.

    These are the fastest for each number of devices, except ones that another schedule dominates.
    """
    count, devices = 0, 0
    while True:
        following, least = -1, np.inf
        for v in range(len(schedules.devices)):
            used, load_s = schedules.devices[v], schedules.load_s[v]
            if used > devices and (following < 0 or used <= following):
                least = load_s if used != following else min(least, load_s)
                following = used
        if following < 0:
            return count
        devices = following
        for v in range(len(schedules.devices)):
            # Slower schedules with as many devices are never chosen, whatever their memory.
            fastest = schedules.devices[v] == devices and schedules.load_s[v] == least
            if fastest and not _is_dominated(schedules, v, count):
                schedules.undominated[count] = v
                count += 1


@njit
def _is_dominated(schedules: GroupSchedules, v: int, count: int) -> bool:
    """True if a kept schedule is as fast as schedule v and needs no more memory."""
    for i in range(count):
        w = schedules.undominated[i]
        if schedules.load_s[w] <= schedules.load_s[v] and _leaner(schedules, w, v):
            return True
    return False


@njit
def _leaner(schedules: GroupSchedules, v: int, w: int) -> bool:
    """True if each group of v needs no more memory, fixed and per microbatch, than some group of w."""
    for g in range(schedules.groups[v]):
        covered = False
        for h in range(schedules.groups[w]):
            covered = covered or (
                schedules.constant_bytes[v, g] <= schedules.constant_bytes[w, h]
                and schedules.stashed_bytes[v, g] <= schedules.stashed_bytes[w, h]
            )
        if not covered:
            return False
    return True
