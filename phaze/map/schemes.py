"""Precomputed inputs of Parmesan's Algorithm 2: order, checking schemes, costs (Section V-A)."""

from typing import NamedTuple, Self

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.deadline import Deadline
from phaze.map.objective import MappingProblem
from phaze.map.symmetry import replica_rules

ROWS = 256
"""Number of devices whose neighbours are sorted between two deadline checks."""


class SlotOrder(NamedTuple):
    """Mapping order and checking schemes, both fixed before the search (Section V-A)."""

    order: Ints
    """Stage and replica of each slot, shape (n, 2)."""
    first_link: Ints
    """Offset of each slot's first link, and the end, shape (n + 1,)."""
    link_slot: Ints
    """Slot at the other end of each link that counts in the message time c_m."""
    link_edge: Ints
    """Edge of the stage graph that each link belongs to."""
    previous: Ints
    """Slot of the previous replica on the ring, -1 if c_AR is not counted, shape (n,)."""
    following: Ints
    """Slot of the next replica on the ring, shape (n,)."""
    anchor: Ints
    """Earlier neighbour whose device is the centre of the slot's device search, -1 for none, shape (n,)."""
    below: Ints
    """Slot that must have a lower device by replica symmetry, -1 for none, shape (n,)."""


class LinkTimes(NamedTuple):
    """Times per byte and latencies of messages and ring links between pairs of devices."""

    message: Floats
    message_wait: Floats
    ring_bytes: Floats
    ring_waits: float
    seconds: Floats
    waits: Floats

    @classmethod
    def of(cls, problem: MappingProblem) -> Self:
        """Link times of a mapping problem."""
        network = problem.network
        rings = problem.ring_bytes, problem.ring_waits
        return cls(*network.both_ways, *rings, network.seconds_per_byte, network.waits_s)


class LinkCosts(NamedTuple):
    """Compute time of each stage, bytes of each edge, link times, and the best link of each device."""

    compute: Floats
    """Compute time of each stage on the fastest device, shape (S,)."""
    extra: Floats
    """Compute time of each stage on each device beyond `compute`, shape (S, D)."""
    sizes: Floats
    links: LinkTimes
    best_message: Floats
    best_message_wait: Floats
    best_out: Floats
    best_in: Floats


def make_costs(problem: MappingProblem) -> LinkCosts:
    """Costs of stages and links in a mapping problem."""
    links = LinkTimes.of(problem)
    seconds, no_latency = links.seconds, not links.waits.any()
    return LinkCosts(
        problem.least_compute_s,
        problem.extra_compute_s,
        problem.edge_bytes,
        links,
        _least(links.message, 1),
        _least(links.message_wait, 1),
        _least(seconds, 1) if no_latency else np.zeros(len(seconds)),
        _least(seconds, 0) if no_latency else np.zeros(len(seconds)),
    )


def _least(matrix: Floats, axis: int) -> Floats:
    """Minimum of each row or column, without the diagonal; 0 for a single device."""
    if len(matrix) == 1:
        return np.zeros(1)
    return np.asarray(np.where(np.eye(len(matrix), dtype=bool), np.inf, matrix).min(axis=axis))


def make_plan(problem: MappingProblem) -> SlotOrder:
    """Build the mapping order and checking schemes of a problem.

    Without rings the order is replica by replica, stages in the order of their data flow. With rings only, it
    is stage by stage, those with the longest rings and passes first. With both, the larger bytes decide.
    """
    order = _order(problem)
    place = {(s, r): k for k, (s, r) in enumerate(order.tolist())}
    first, slots, edges, anchors = [0], [], [], []
    previous, following = np.full(len(order), -1, np.int64), np.full(len(order), -1, np.int64)
    replicas = problem.shape[1]
    for k, (s, r) in enumerate(order.tolist()):
        links = _links(problem, s)
        slots += [place[t, r] for _, t in links]
        edges += [e for e, _ in links]
        first.append(len(slots))
        if problem.counts_rings:
            previous[k], following[k] = place[s, (r - 1) % replicas], place[s, (r + 1) % replicas]
        anchors.append(_anchor(problem, links, place, (s, r), previous[k]))
    return SlotOrder(
        order,
        np.array(first, np.int64),
        np.array(slots, np.int64),
        np.array(edges, np.int64),
        previous,
        following,
        np.array(anchors, np.int64),
        replica_rules(problem, order),
    )


def _order(problem: MappingProblem) -> Ints:
    stages, replicas = problem.shape
    slots = [(s, r) for r in range(replicas) for s in range(stages)]
    rings_prevail = float(problem.ring_bytes.max()) > 2.0 * float(problem.edge_bytes.max(initial=0.0))
    if problem.counts_rings and (not problem.counts_messages or rings_prevail):
        weight = problem.stages.compute_s + problem.ring_bytes * _middle(problem.network.seconds_per_byte)
        ranked = np.argsort(-weight, kind="stable") if not problem.counts_messages else np.arange(stages)
        slots = [(int(s), r) for s in ranked for r in range(replicas)]
    return np.array(slots, np.int64)


def _middle(seconds: Floats) -> float:
    return float(np.median(seconds[~np.eye(len(seconds), dtype=bool)])) if len(seconds) > 1 else 0.0


def _links(problem: MappingProblem, stage: int) -> list[tuple[int, int]]:
    """Edges whose messages count in a stage's message time c_m, each with the stage at its other end."""
    return [(e, t if s == stage else s) for e, (s, t) in enumerate(problem.edges.tolist()) if stage in (s, t)]


def _anchor(
    problem: MappingProblem,
    links: list[tuple[int, int]],
    place: dict[tuple[int, int], int],
    slot: tuple[int, int],
    previous: int,
) -> int:
    """Neighbour with the most bytes among the slots assigned earlier, or -1."""
    stage, replica = slot
    k = place[slot]
    neighbours = [(2.0 * problem.edge_bytes[e], place[t, replica]) for e, t in links if place[t, replica] < k]
    if 0 <= previous < k:
        neighbours.append((problem.ring_bytes[stage], previous))
    return max(neighbours)[1] if neighbours else -1


def near_devices(problem: MappingProblem, seed: int, deadline: Deadline | None = None) -> Ints:
    """Devices near each device, sorted by round-trip link time, shape (D, D); ties are random.

    Seed 0 leaves ties in the order of devices. Raises OutOfTimeError at the deadline.
    """
    until = deadline or Deadline()
    until.check()
    message, wait = problem.network.both_ways
    devices = len(message)
    size = float(np.mean(problem.edge_bytes)) if len(problem.edge_bytes) else float(problem.ring_bytes.mean())
    time = message * max(size, 1.0) + wait
    shuffled = np.random.default_rng(seed).permutation(devices) if seed else np.arange(devices)
    near = np.empty((devices, devices), np.int64)
    for begin in range(0, devices, ROWS):
        until.check()
        rows = time[begin : begin + ROWS, shuffled]
        near[begin : begin + ROWS] = shuffled[np.argsort(rows, axis=1, kind="stable")]
    return near
