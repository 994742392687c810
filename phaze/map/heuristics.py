"""Mappings by hand: consecutive devices for the replicas of a stage, or for the stages of a replica.

And mappings on devices that lie close to each other, from which the local search starts.
"""

from collections.abc import Iterator

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.deadline import Deadline
from phaze.map.objective import MappingProblem


def consecutive_map(stages: int, replicas: int) -> Ints:
    """CS map: replicas of the first stage on the first devices, then those of the second.

    Shape (S, R); consecutive stages on consecutive devices, all-reduce first (Parmesan, Section VIII-A).
    """
    return np.arange(stages * replicas).reshape(stages, replicas)


def p2p_map(stages: int, replicas: int) -> Ints:
    """P2p map: stages of the first replica on the first devices, then of the second.

    Shape (S, R) (Parmesan, Section VIII-C).
    """
    return np.ascontiguousarray(np.arange(stages * replicas).reshape(replicas, stages).T)


def block_map(stages: int, replicas: int, high: int, wide: int) -> Ints:
    """Mapping with blocks of so many stages and lanes on consecutive devices, shape (S, R).

    Inside a block the replicas of a stage are neighbours, and blocks follow each other as in a CS map; the
    last blocks may be smaller.
    """
    stage, replica = np.divmod(np.arange(stages * replicas), replicas)
    order = np.lexsort((replica % wide, stage % high, replica // wide, stage // high))
    return np.argsort(order).reshape(stages, replicas)


def random_map(stages: int, replicas: int, devices: int, seed: int) -> Ints:
    """Mapping on devices drawn at random, shape (S, R)."""
    drawn = np.random.default_rng(seed).permutation(devices)[: stages * replicas]
    return drawn.reshape(stages, replicas)


def compact_maps(problem: MappingProblem, deadline: Deadline | None = None) -> list[Ints]:
    """Mappings on devices that lie close to each other, each of shape (S, R).

    Devices are put in order: each as near as possible to its group, or near those in its place of the groups
    before, as in a grid. Groups are of every size that divides S or R, and those of a grid in blocks of every
    size that divides the devices in use: the stages of a replica, or the replicas of a ring, fill blocks of
    every shape. The order is taken for replica by replica and for ring by ring, and for rings that go there
    on every second replica and back on the others, so that no link closes a ring from afar. At the deadline
    it is those found so far.
    """
    stages, replicas = problem.shape
    found: dict[bytes, Ints] = {}
    for order in _orders(_link_s(problem), stages, replicas):
        if deadline is not None and deadline.passed:
            break
        passes, rings, folded = _on(order, problem)
        for mapping in (passes, rings, passes[:, folded], rings[:, folded]):
            found.setdefault(mapping.tobytes(), np.ascontiguousarray(mapping))
    return list(found.values())


def near_maps(problem: MappingProblem) -> list[Ints]:
    """Few of these mappings, each of shape (S, R): on 1,024 devices all of them take long."""
    found, time = [], _link_s(problem)
    for width in sorted({1, *problem.shape}):
        for order in (device_order(time, width), grid_order(time, (width,))):
            passes, rings, folded = _on(order, problem)
            found += [np.ascontiguousarray(passes), rings, rings[:, folded]]
    return found


def _link_s(problem: MappingProblem) -> Floats:
    """Time of a mean message on every link there and back, shape (D, D)."""
    message, wait = problem.network.both_ways
    size = float(problem.edge_bytes.mean()) if len(problem.edge_bytes) else 0.0
    return message * max(size, 1.0) + wait


def _on(order: Ints, problem: MappingProblem) -> tuple[Ints, Ints, Ints]:
    """First devices of an order replica by replica and ring by ring, and how rings fold."""
    stages, replicas = problem.shape
    used = order[: problem.slots]
    folded = np.concatenate([np.arange(0, replicas, 2), np.arange(1, replicas, 2)[::-1]])
    return used.reshape(replicas, stages).T, used.reshape(stages, replicas), folded


def _orders(time: Floats, stages: int, replicas: int) -> Iterator[Ints]:
    """Yield devices in order, each shape (D,)."""
    slots = stages * replicas
    for width in range(1, max(stages, replicas) + 1):
        if stages % width == 0 or replicas % width == 0:
            yield device_order(time, width)
            yield grid_order(time, (width,))
            for block in range(2 * width, slots, width):
                if slots % block == 0 and width > 1:
                    yield grid_order(time, (width, block))


def device_order(time: Floats, width: int) -> Ints:
    """All devices, each near those before it in its group of so many; ties go to the lowest device.

    `time` is that of a link there and back, shape (D, D). A group begins next to the end of the last one.
    """
    order, free = _begun(len(time))
    total = time[0].copy()
    for k in range(1, len(time)):
        begins = k % width == 0
        order[k] = _nearest(free, time[order[k - 1]] if begins else total)
        total = time[order[k]].copy() if begins or width == 1 else total + time[order[k]]
    return order


def grid_order(time: Floats, widths: tuple[int, ...]) -> Ints:
    """All devices in groups of so many, each near the last one and that in its place before.

    Groups of the first width make rows, those of the second planes of rows, and so on; a device is near that
    one row before it in its plane, one plane before it, and so on. `time` is that of a link there and back,
    shape (D, D).
    """
    order, free = _begun(len(time))
    wholes = (*widths[1:], len(time))
    for k in range(1, len(time)):
        near = [k - 1] if k % widths[0] else []
        near += [k - width for width, whole in zip(widths, wholes, strict=True) if k % whole >= width]
        order[k] = _nearest(free, time[order[near]].sum(axis=0))
    return order


def _begun(devices: int) -> tuple[Ints, Bools]:
    """Order that begins with device 0, and which devices are free."""
    free = np.ones(devices, bool)
    free[0] = False
    return np.zeros(devices, np.int64), free


def _nearest(free: Bools, time: Floats) -> int:
    """Free device with the least time, the lowest of several, and take it."""
    device = int(np.argmin(np.where(free, time, np.inf)))
    free[device] = False
    return device
