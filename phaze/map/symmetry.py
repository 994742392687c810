"""Symmetries of devices and replicas, used to omit mappings that are equivalent to others.

A permutation of devices that preserves all bandwidths, latencies and speeds turns a mapping into one with
equal times. So does a permutation of replicas that preserves the objective: any for c_m; for c_AR the
rotations of each ring and, if links are symmetric, its reflections; for both terms those of all rings
together. All of them form a group. Of each set of equivalent mappings, a search may keep the one whose
devices, read in the order of assignment, are lexicographically smallest. Each rule below only omits mappings
that one of the permutations makes smaller, so all rules together are sound:

- of interchangeable devices, the lowest free one is taken;
- of interchangeable groups that are still free, the lowest is entered;
- the first device is the lowest of its orbit under the permutations found;
- replicas, or rings, begin with their lowest device, and rings run towards the lower second one.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

from phaze.base.arrays import Floats, Ints
from phaze.base.deadline import Deadline
from phaze.map.objective import MappingProblem

LEVELS = 8
"""Maximum number of distinct bandwidths in a search for device groups; other networks rarely have any."""


class DeviceSymmetry(NamedTuple):
    """Interchangeable devices and device groups of a network of D devices."""

    before: Ints
    """Next lower device with which each device is interchangeable, or -1, shape (D,)."""
    group: Ints
    """Group of each device on each level, shape (levels, D)."""
    group_before: Ints
    """Next lower group with which each group is interchangeable, or -1, shape (levels, D)."""
    first: Ints
    """1 if a device is the lowest of its orbit, shape (D,)."""


def device_symmetry(problem: MappingProblem, deadline: Deadline) -> DeviceSymmetry:
    """Interchangeable devices and groups of a network; every permutation is checked.

    At the deadline the symmetries found so far are returned. The rules then omit less and remain sound.
    """
    network = problem.network
    seconds, waits = network.seconds_per_byte, network.waits_s
    matrices = (seconds, waits) if waits.any() else (seconds,)
    if network.has_speeds:
        speeds = np.repeat(network.slowness[:, None], network.devices, axis=1)
        np.fill_diagonal(speeds, 0.0)
        matrices = (*matrices, speeds)
    before = _exchangeable(matrices, deadline)
    groups, groups_before, swaps = _groups(matrices, deadline)
    moves = [*swaps, *_transpositions(before), *_rotations(matrices, deadline)]
    return DeviceSymmetry(before, groups, groups_before, _lowest_of_orbits(moves, network.devices))


Matrices = tuple[Floats, ...]
"""Matrices of seconds per byte, and of latencies if there are any."""


def _keeps(matrices: Matrices, permutation: Ints) -> bool:
    """True if a permutation of devices preserves all bandwidths and latencies."""
    moved = np.flatnonzero(permutation != np.arange(len(permutation)))
    # Most permutations change the links of the first device that they move, so it is checked first.
    return all(_keeps_links(m, permutation, devices) for devices in (moved[:1], moved) for m in matrices)


def _keeps_links(matrix: Floats, permutation: Ints, devices: Ints) -> bool:
    """True if a permutation preserves the links of some devices, to and from all others."""
    permuted, here = matrix[np.ix_(permutation[devices], permutation)], matrix[devices]
    if not np.array_equal(permuted, here):
        return False
    return len(devices) == len(matrix) or np.array_equal(
        matrix[np.ix_(permutation, permutation[devices])], matrix[:, devices]
    )


def _exchangeable(matrices: Matrices, deadline: Deadline) -> Ints:
    """Next lower device with which each device can be swapped, or -1."""
    devices = len(matrices[0])
    before = np.full(devices, -1, np.int64)
    weights = np.random.default_rng(0).uniform(1.0, 2.0, devices)
    sums = [matrix @ weights for matrix in matrices]
    for d in range(1, devices):
        if deadline.passed:
            break
        alike = np.ones(d, bool)
        for matrix, total in zip(matrices, sums, strict=True):
            # Without the links to each other, interchangeable devices have equal sums.
            apart = total[:d] - matrix[:d, d] * weights[d] - (total[d] - matrix[d, :d] * weights[:d])
            alike &= np.abs(apart) <= 1e-9 * total[d]
        for e in np.flatnonzero(alike)[::-1].tolist():
            if _can_swap(matrices, e, d):
                before[d] = e
                break
    return before


def _can_swap(matrices: Matrices, e: int, d: int) -> bool:
    """True if two devices have the same links to all others and to each other."""
    for matrix in matrices:
        if matrix[d, e] != matrix[e, d]:
            return False
        for this, other in ((matrix[d], matrix[e]), (matrix[:, d], matrix[:, e])):
            differ = this != other
            differ[[d, e]] = False
            if differ.any():
                return False
    return True


def _transpositions(before: Ints) -> list[Ints]:
    swaps = []
    for d in np.flatnonzero(before >= 0):
        swap = np.arange(len(before))
        swap[[d, before[d]]] = before[d], d
        swaps.append(swap)
    return swaps


def _groups(matrices: Matrices, deadline: Deadline) -> tuple[Ints, Ints, list[Ints]]:
    """Device groups by level, the next lower interchangeable group of each, and the group swaps.

    A group is a set of devices connected by links of at least some bandwidth, such as a node or a rack. A
    swap exchanges the devices of two groups in order.
    """
    devices = len(matrices[0])
    groups, earlier, swaps = [], [], []
    for labels in _levels(matrices[0], deadline):
        members = [np.flatnonzero(labels == g) for g in range(labels.max() + 1)]
        before, exchanges = _groups_before(matrices, members, deadline)
        if exchanges:
            groups.append(labels)
            earlier.append(np.pad(before, (0, devices - len(before)), constant_values=-1))
            swaps += exchanges
    shape = (len(groups), devices)
    return (np.array(groups, np.int64).reshape(shape), np.array(earlier, np.int64).reshape(shape), swaps)


def _levels(seconds: Floats, deadline: Deadline) -> list[Ints]:
    """Connected components of devices over links of at least some bandwidth, one array per bandwidth."""
    values = np.empty(0)
    for d, row in enumerate(seconds):
        values = np.union1d(values, np.delete(row, d))
        if len(values) > LEVELS or deadline.passed:
            return []
    components = [
        connected_components(seconds <= value, directed=False) for value in values[:-1] if not deadline.passed
    ]
    return [labels.astype(np.int64) for count, labels in components if 1 < count < len(seconds)]


def _groups_before(matrices: Matrices, members: list[Ints], deadline: Deadline) -> tuple[Ints, list[Ints]]:
    """Next lower group with which each group can be swapped, or -1, and the permutations for these swaps."""
    before, exchanges = np.full(len(members), -1, np.int64), []
    for g, group in enumerate(members):
        for h in range(g - 1, -1, -1):
            other = members[h]
            if deadline.passed or len(other) != len(group) or not (other < group).all():
                continue
            swap = np.arange(len(matrices[0]))
            swap[group], swap[other] = other, group
            if _keeps(matrices, swap):
                before[g] = h
                exchanges.append(swap)
                break
    return before, exchanges


def _rotations(matrices: Matrices, deadline: Deadline) -> list[Ints]:
    """Shifts and reflections along the axes of a grid that preserve all links.

    Devices of a grid are numbered row by row; any factors of their number may be its sides.
    """
    devices = len(matrices[0])
    rotations = []
    for inner in (k for k in range(1, devices) if devices % k == 0):
        for side in (k for k in range(2, devices // inner + 1) if devices // inner % k == 0):
            index = np.arange(devices).reshape(-1, side, inner)
            for moved in (np.roll(index, 1, axis=1), index[:, ::-1]):
                permutation = np.ascontiguousarray(moved).reshape(-1)
                if not deadline.passed and _keeps(matrices, permutation):
                    rotations.append(permutation)
    return rotations


def _lowest_of_orbits(moves: list[Ints], devices: int) -> Ints:
    """1 if a device is the lowest of its orbit under the permutations, shape (D,)."""
    if not moves:
        return np.ones(devices, np.int64)
    joined = np.zeros((devices, devices), bool)
    for move in moves:
        joined[np.arange(devices), move] = True
    count, labels = connected_components(joined, directed=False)
    lowest = np.array([np.flatnonzero(labels == k)[0] for k in range(count)])
    first = np.zeros(devices, np.int64)
    first[lowest] = 1
    return first


def replica_rules(problem: MappingProblem, order: Ints) -> Ints:
    """For each slot, the earlier slot that must have a lower device, -1 for none, shape (n,).

    `order` holds stage and replica of every slot in the order of assignment, shape (n, 2).
    """
    place = {(s, r): k for k, (s, r) in enumerate(order.tolist())}
    below = np.full(len(order), -1, np.int64)
    stages, replicas = problem.shape
    first = int(order[0, 0])
    if not problem.counts_rings:
        for r in range(1, replicas):
            below[place[first, r]] = place[first, r - 1]
        return below
    for s in range(stages) if not problem.counts_messages else (first,):
        for r in range(1, replicas):
            below[place[s, r]] = place[s, 0]
        if replicas > 2 and problem.network.symmetric:
            below[place[s, replicas - 1]] = place[s, 1]
    return below
