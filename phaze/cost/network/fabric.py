"""The network of a system, as a cost model of collectives and as a topology with shared links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import torus
from phaze.cost.network.nccl import Nccl
from phaze.cost.network.network import Flat, Levels, Network, Tier, Wired
from phaze.cost.network.topology import Link, Topology, both_ways
from phaze.spec.speeds.collectives import NcclSpeeds
from phaze.spec.system import Cluster, Level, Scenario
from phaze.spec.systems import sized


@dataclass(frozen=True)
class Fabric(Wired):
    """Topology of a system, with the number of consecutive devices per node."""

    topology: Topology
    node: int = 1
    """Devices per node; collectives run inside nodes first. 1 means no nodes."""

    def wires(self, sources: Ints, targets: Ints) -> tuple[Floats, Floats]:
        """Latency and seconds per byte from every source to its target."""
        pairs = zip(sources.ravel().tolist(), targets.ravel().tolist(), strict=True)
        legs = [self.topology.legs(*pair) for pair in pairs]
        waits_s = [sum(leg.latency_s for leg in route) for route in legs]
        per_byte_s = [sum(1.0 / leg.bandwidth_bytes_per_s for leg in route) for route in legs]
        shape = sources.shape
        return np.array(waits_s, float).reshape(shape), np.array(per_byte_s, float).reshape(shape)


@overload
def network_of(system: Scenario) -> Flat: ...
@overload
def network_of(system: Cluster) -> Levels: ...
def network_of(system: Scenario | Cluster) -> Network:
    """Network model of a cluster, which has levels, or of a scenario, which is flat."""
    if isinstance(system, Scenario):
        return Flat(system.network_bandwidth_bytes_per_s, system.all_reduce_factor)
    return Levels(tuple(map(_tier, system.levels)))


def _tier(level: Level) -> Tier:
    if level.nccl is not None:
        return _measured_tier(level, level.nccl)
    bandwidth = level.bandwidth_bytes_per_s
    return Tier(
        level.devices,
        bandwidth * level.sustained,
        level.latency_s,
        level.start_s,
        bandwidth * (level.sustained_messages or 0.0),
        level.ring_port_devices,
        bandwidth * (level.sustained_exchange or 0.0),
        level.tree_latency_s,
        hop_latency_s=level.hop_latency_s,
    )


def _measured_tier(level: Level, speeds: NcclSpeeds) -> Tier:
    """Tier of an NVLink domain; token dispatch uses the bandwidth and latency of direct messages."""
    bandwidth = level.bandwidth_bytes_per_s * level.sustained
    return Tier(
        level.devices,
        level.collective_bytes_per_s,
        speeds.peer_s,
        level.start_s + speeds.start_s,
        bandwidth * speeds.direct,
        level.ring_port_devices,
        bandwidth * speeds.direct,
        nccl=Nccl(speeds, bandwidth),
    )


def fabric(system: Cluster, devices: int) -> Fabric:
    """Part of a system's network that connects its first `devices` devices; a smaller system is enlarged.

    Raises `PhazeError` if it cannot be.
    """
    if devices > system.devices:
        system = sized(system, devices, "system")
    if system.torus is not None:
        box = system.torus
        return Fabric(torus(box.shape, box.bandwidth_bytes_per_s, box.latency_s, wrap=box.wrap))
    return Fabric(tree(_levels(system, devices)), system.levels[0].devices if len(system.levels) > 1 else 1)


def _levels(system: Cluster, devices: int) -> list[Switches]:
    """Switch levels of a cluster; every device has its own link out of each group."""
    switches, inside = [], 1
    for number, level in enumerate(system.levels):
        last = number == len(system.levels) - 1
        # The outermost level only has as many groups as the devices in use need.
        width = -(-devices // inside) if last else level.devices // inside
        switches.append(Switches(width, level.collective_bytes_per_s, level.ring_step_s, inside))
        inside = level.devices
    return switches


@dataclass(frozen=True)
class Switches:
    """Switches of one level with `width` children each."""

    width: int
    """Devices or switches below each switch."""
    bandwidth_bytes_per_s: float
    """Bandwidth of every uplink, in each direction."""
    latency_s: float = 0.0
    """Latency across the level: half of it up, half of it down."""
    uplinks: int = 1
    """Links from each child switch (or device) to this level; devices are spread over them."""


def tree(levels: Sequence[Switches]) -> Topology:
    """Tree of switches above the devices; a fat tree if uplinks grow with the width.

    Device k is in switch k
    width of the first level, and so on. A transfer goes up by uplink source mod uplinks and down by uplink
    target mod uplinks: every device has its adapter, and every pair has one path.
    """
    counts = _counts(levels)
    devices = counts[0]
    first = np.cumsum([0, *counts]).tolist()
    links: list[Link] = []
    trunks = first[len(levels) + 1]
    parents: list[dict[tuple[int, int], tuple[int, ...]]] = []
    for number, level in enumerate(levels):
        uplinks: dict[tuple[int, int], tuple[int, ...]] = {}
        for child in range(counts[number]):
            below, above = first[number] + child, first[number + 1] + child // level.width
            for uplink in range(level.uplinks):
                added, uplinks[child, uplink], trunks = _uplink(below, above, level, trunks)
                links += added
        parents.append(uplinks)

    def route(source: int, target: int) -> list[int]:
        up, down = [source], [target]
        a, b = source, target
        for number, level in enumerate(levels):
            if a == b:
                break
            up += parents[number][a, source % level.uplinks]
            down += parents[number][b, target % level.uplinks]
            # Both ends climb until they are below the same switch; the way down is the second climb reversed.
            a, b = a // level.width, b // level.width
        return up + down[-2::-1]

    name = "tree of " + " × ".join(str(level.width) for level in reversed(levels))
    return Topology(name, devices, trunks, tuple(links), route)


def _counts(levels: Sequence[Switches]) -> list[int]:
    if not levels or any(level.width < 1 or level.uplinks < 1 for level in levels):
        raise PhazeError("network: every level must have a width ≥ 1 and uplinks ≥ 1, and there must be one")
    counts = [1]
    for level in reversed(levels):
        counts.insert(0, counts[0] * level.width)
    return counts


def _uplink(below: int, above: int, level: Switches, free: int) -> tuple[list[Link], tuple[int, ...], int]:
    """Links from a node to its switch, the nodes on that path, and the number of the next free node.

    With several uplinks, each passes through its own node, which models an adapter.
    """
    # A transfer crosses a level twice, up and down.
    half = level.latency_s / 2
    if level.uplinks == 1:
        return list(both_ways(below, above, level.bandwidth_bytes_per_s, half)), (above,), free
    links = [
        # The adapter itself is not a bottleneck; only its uplink has a bandwidth.
        *both_ways(below, free, float("inf")),
        *both_ways(free, above, level.bandwidth_bytes_per_s, half),
    ]
    return links, (free, above), free + 1
