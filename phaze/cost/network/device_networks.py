"""Networks with one bandwidth and latency for every ordered pair of devices.

In the postal model a message of M bytes takes latency + M / bandwidth (Bar-Noy and Kipnis, SPAA 1992;
Parmesan, Section VII).
"""

import heapq
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.network.network import Wired


@dataclass(frozen=True, eq=False)
class DeviceNetwork(Wired):
    """Bandwidth and latency between D devices; rows send, columns receive, the diagonal is never used."""

    bandwidth_bytes_per_s: Floats
    """Bandwidth matrix B, shape (D, D), > 0 off the diagonal."""
    latency_s: Floats
    """Latency matrix, shape (D, D), >= 0; the paper assumes zeros."""
    speeds: Floats | None = None
    """Speed of each device relative to the profiled one, shape (D,), > 0; None: all are 1."""

    def __post_init__(self) -> None:
        shape, devices = self.bandwidth_bytes_per_s.shape, self.devices
        if shape != (devices, devices) or not devices:
            raise PhazeError(f"bandwidth_bytes_per_s: must be a square matrix, got shape {shape}")
        if self.latency_s.shape != shape:
            raise PhazeError(f"latency_s: must have the shape {shape} of the bandwidth")
        _refuse("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, self.bandwidth_bytes_per_s > 0, "> 0")
        _refuse("latency_s", self.latency_s, self.latency_s >= 0, ">= 0")
        if self.speeds is not None and (self.speeds.shape != (devices,) or not (self.speeds > 0).all()):
            raise PhazeError(f"speeds: must be {devices} numbers > 0, one per device")

    @property
    def devices(self) -> int:
        """Number of devices D."""
        return len(self.bandwidth_bytes_per_s)

    @cached_property
    def slowness(self) -> Floats:
        """Time of a pass on each device relative to the profiled one, 1 / speed, shape (D,)."""
        return np.ones(self.devices) if self.speeds is None else np.ascontiguousarray(1.0 / self.speeds)

    @property
    def has_speeds(self) -> bool:
        """True if some device is faster or slower than the profiled one."""
        return bool((self.slowness != 1.0).any())

    @cached_property
    def seconds_per_byte(self) -> Floats:
        """1 / B with zeros on the diagonal, shape (D, D)."""
        inverse = 1.0 / np.where(np.eye(self.devices, dtype=bool), np.inf, self.bandwidth_bytes_per_s)
        return np.ascontiguousarray(inverse)

    @cached_property
    def waits_s(self) -> Floats:
        """Latency with zeros on the diagonal, shape (D, D)."""
        return np.ascontiguousarray(np.where(np.eye(self.devices, dtype=bool), 0.0, self.latency_s))

    def wires(self, sources: Ints, targets: Ints) -> tuple[Floats, Floats]:
        """Latency and seconds per byte from every source to its target."""
        return self.waits_s[sources, targets], self.seconds_per_byte[sources, targets]

    @cached_property
    def both_ways(self) -> tuple[Floats, Floats]:
        """Round-trip seconds per byte and latency, shapes (D, D)."""
        seconds, waits = self.seconds_per_byte, self.waits_s
        return np.ascontiguousarray(seconds + seconds.T), np.ascontiguousarray(waits + waits.T)

    @property
    def symmetric(self) -> bool:
        """True if both directions of every pair are equal."""
        seconds, waits = self.seconds_per_byte, self.waits_s
        return bool((seconds == seconds.T).all() and (waits == waits.T).all())


def flat_network(devices: int, bandwidth_bytes_per_s: float, latency_s: float = 0.0) -> DeviceNetwork:
    """Network with equal links between all devices, as the partitioner assumes (Parmesan, Section VI)."""
    shape = (devices, devices)
    return DeviceNetwork(np.full(shape, float(bandwidth_bytes_per_s)), np.full(shape, float(latency_s)))


def complete_network(bandwidth: Floats, latency: Floats, absent: str, source: str | Path) -> DeviceNetwork:
    """Network in which pairs without a link (bandwidth 0) use the widest path, or raise an error.

    Such a pair has the bandwidth and latency of its widest path. Of several widest paths, the one with the
    fewest hops is used. Raises PhazeError if there is no path, or if `absent` is refuse.
    """
    missing = (bandwidth == 0) & ~np.eye(len(bandwidth), dtype=bool)
    if missing.any() and absent == "refuse":
        a, b = np.argwhere(missing)[0]
        raise PhazeError(f"{source}: no link from {a} to {b}, and absent is refuse")
    edges, filled, waits = edges_of(bandwidth), bandwidth.copy(), latency.copy()
    for a in np.flatnonzero(missing.any(axis=1)).tolist():
        width = widest(edges, a)
        for b in np.flatnonzero(missing[a]).tolist():
            if not width[b] > 0:
                raise PhazeError(
                    f"{source}: is not connected: there is no path from {a} to {b}",
                    f"add links that lead from {a} to {b}, or remove one of the two devices",
                )
            path = fewest_hops(edges, a, b, width[b])
            filled[a, b], waits[a, b] = width[b], latency[path[:-1], path[1:]].sum()
    return DeviceNetwork(filled, waits)


def _refuse(
    name: str, values: Floats, allowed: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], rule: str
) -> None:
    """Raise PhazeError for the first pair of devices whose value is not allowed."""
    wrong = ~allowed  # also catches NaN
    np.fill_diagonal(wrong, val=False)
    if wrong.any():
        source, target = np.argwhere(wrong)[0]
        value = f"{values[source, target]:g} from {source} to {target}"
        raise PhazeError(f"{name}: must be {rule} between all devices, got {value}")


Edges = list[list[tuple[int, float]]]
"""Targets and bandwidths of the outgoing edges of every node."""


def edges_of(bandwidth: Floats) -> Edges:
    """Outgoing edges of every node, for each positive entry of a bandwidth matrix (from, to)."""
    edges: Edges = [[] for _ in bandwidth]
    for source, target in np.argwhere(bandwidth > 0).tolist():
        if source != target:
            edges[source].append((target, float(bandwidth[source, target])))
    return edges


def widest(edges: Edges, source: int) -> list[float]:
    """Bandwidth of the widest path from a node to every node; 0 if there is none."""
    width = [0.0] * len(edges)
    width[source] = float("inf")
    heap = [(-width[source], source)]
    while heap:
        negative, node = heapq.heappop(heap)
        # A wider path to this node has been found since this entry was pushed.
        if -negative < width[node]:
            continue
        for other, bandwidth in edges[node]:
            # Dijkstra's search with the minimum along a path in place of the sum; heapq pops the smallest,
            # hence negated.
            through = min(width[node], bandwidth)
            if through > width[other]:
                width[other] = through
                heapq.heappush(heap, (-through, other))
    return width


def fewest_hops(edges: Edges, source: int, target: int, width: float) -> list[int]:
    """Nodes on the shortest path over edges with a bandwidth of at least `width`; a path must exist."""
    came = {source: source}
    queue = deque([source])
    while target not in came:
        node = queue.popleft()
        for other, bandwidth in edges[node]:
            if bandwidth >= width and other not in came:
                came[other] = node
                queue.append(other)
    path = [target]
    while path[-1] != source:
        path.append(came[path[-1]])
    return path[::-1]
