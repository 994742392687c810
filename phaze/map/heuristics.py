"""Mappings without a search: consecutive devices for the replicas of a stage, or for the stages of a replica.

Mappings on nearby devices, from which the local search starts, are here as well.
"""

from collections.abc import Iterator

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.deadline import Deadline
from phaze.map.objective import MappingProblem


def consecutive_map(stages: int, replicas: int) -> Ints:
    """CS map: replicas of the first stage on the first devices, replicas of the second stage on the next.

    Shape (S, R). Consecutive stages are on consecutive devices, all-reduce first (Parmesan, Section VIII-A).
    """
    return np.arange(stages * replicas).reshape(stages, replicas)


def p2p_map(stages: int, replicas: int) -> Ints:
    """P2p map: stages of the first replica on the first devices, stages of the second replica on the next.

    Shape (S, R) (Parmesan, Section VIII-C).
    """
    return np.ascontiguousarray(np.arange(stages * replicas).reshape(replicas, stages).T)


def random_map(stages: int, replicas: int, devices: int, seed: int) -> Ints:
    """Mapping to random devices, shape (S, R)."""
    drawn = np.random.default_rng(seed).permutation(devices)[: stages * replicas]
    return drawn.reshape(stages, replicas)


def compact_maps(problem: MappingProblem, deadline: Deadline | None = None) -> list[Ints]:
    """Mappings on nearby devices, each of shape (S, R).

    Devices are ordered greedily. Each next device is the nearest to its group, or on a grid to its
    predecessors in each dimension. Group widths divide S or R, and grid blocks divide the number of devices
    in use: the stages of a replica, or the replicas of a ring, fill blocks of every shape. Each order is used
    replica by replica and ring by ring. A folded variant visits every second replica on the way out and the
    others on the way back, so that no long link closes a ring. At the deadline the list contains the mappings
    found so far.
    """
    stages, replicas = problem.shape
    mappings: dict[bytes, Ints] = {}
    for order in _orders(_link_s(problem), stages, replicas):
        if deadline is not None and deadline.passed:
            break
        passes, rings, folded = _on(order, problem)
        for mapping in (passes, rings, passes[:, folded], rings[:, folded]):
            mappings.setdefault(mapping.tobytes(), np.ascontiguousarray(mapping))
    return list(mappings.values())


def near_maps(problem: MappingProblem) -> list[Ints]:
    """Subset of the compact mappings, each of shape (S, R), that is affordable for 1,024 devices."""
    mappings, time = [], _link_s(problem)
    for width in sorted({1, *problem.shape}):
        for order in (device_order(time, width), grid_order(time, (width,))):
            passes, rings, folded = _on(order, problem)
            mappings += [np.ascontiguousarray(passes), rings, rings[:, folded]]
    return mappings


def _link_s(problem: MappingProblem) -> Floats:
    """Round-trip time of an average message on each link, shape (D, D)."""
    message, wait = problem.network.both_ways
    size = float(problem.edge_bytes.mean()) if len(problem.edge_bytes) else 0.0
    return message * max(size, 1.0) + wait


def _on(order: Ints, problem: MappingProblem) -> tuple[Ints, Ints, Ints]:
    """Two mappings (S, R) that fill `order` by replica and by stage, and the folded order of replicas."""
    stages, replicas = problem.shape
    used = order[: problem.slots]
    folded = np.concatenate([np.arange(0, replicas, 2), np.arange(1, replicas, 2)[::-1]])
    return used.reshape(replicas, stages).T, used.reshape(stages, replicas), folded


def _orders(time: Floats, stages: int, replicas: int) -> Iterator[Ints]:
    """Yield device orders that keep nearby devices together, each of shape (D,)."""
    slots = stages * replicas
    for width in range(1, max(stages, replicas) + 1):
        if stages % width == 0 or replicas % width == 0:
            yield device_order(time, width)
            yield grid_order(time, (width,))
            for block in range(2 * width, slots, width):
                if slots % block == 0 and width > 1:
                    yield grid_order(time, (width, block))


def device_order(time: Floats, width: int) -> Ints:
    """Greedy order of all devices in groups of `width`; ties go to the lowest device.

    Each device is the nearest to those already in its group; a new group starts nearest to the last device.
    `time` is the round-trip time of a link, shape (D, D).
    """
    order, free = _begun(len(time))
    total = time[0].copy()
    for k in range(1, len(time)):
        begins = k % width == 0
        order[k] = _nearest(free, time[order[k - 1]] if begins else total)
        total = time[order[k]].copy() if begins or width == 1 else total + time[order[k]]
    return order


def grid_order(time: Floats, widths: tuple[int, ...]) -> Ints:
    """Greedy order of all devices as a grid; each device is nearest to its predecessors in all dimensions.

    The first width is the length of a row, the second the size of a plane of rows, and so on. The
    predecessors of a device are the previous device of its row, the same place in the previous row, in the
    previous plane, and so on. `time` is the round-trip time of a link, shape (D, D).
    """
    order, free = _begun(len(time))
    wholes = (*widths[1:], len(time))
    for k in range(1, len(time)):
        near = [k - 1] if k % widths[0] else []
        near += [
            k - width for width, next_width in zip(widths, wholes, strict=True) if k % next_width >= width
        ]
        order[k] = _nearest(free, time[order[near]].sum(axis=0))
    return order


def _begun(devices: int) -> tuple[Ints, Bools]:
    """Initial order, which contains only device 0, and a mask of the unassigned devices."""
    free = np.ones(devices, bool)
    free[0] = False
    return np.zeros(devices, np.int64), free


def _nearest(free: Bools, time: Floats) -> int:
    """Return the nearest free device and mark it as used; ties go to the lowest number."""
    device = int(np.argmin(np.where(free, time, np.inf)))
    free[device] = False
    return device
