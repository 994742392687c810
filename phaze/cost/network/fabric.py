"""The network of a system: as a price of collectives, and as a topology whose links messages share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.network.clusters import Level, from_matrix, tree
from phaze.cost.network.device_networks import DeviceNetwork, complete_network
from phaze.cost.network.network import Flat, Levels, Network, Tier, Wired
from phaze.cost.network.topology import Topology
from phaze.cost.network.torus import torus
from phaze.spec.network import Matrix
from phaze.spec.system import Cluster, System


@dataclass(frozen=True)
class Fabric(Wired):
    """A topology, and how many devices that follow each other share what is innermost."""

    topology: Topology
    node: int = 1
    """Collectives go around inside a node first; 1: there are none."""

    def wires(self, sources: Ints, targets: Ints) -> tuple[Floats, Floats]:
        """Return the latency and the seconds per byte from every source to its target."""
        pairs = zip(sources.ravel().tolist(), targets.ravel().tolist(), strict=True)
        legs = [self.topology.legs(*pair) for pair in pairs]
        waits_s = np.array([sum(leg.latency_s for leg in way) for way in legs], np.float64)
        each = np.array([sum(1.0 / leg.bandwidth_bytes_per_s for leg in way) for way in legs], np.float64)
        return waits_s.reshape(sources.shape), each.reshape(sources.shape)


@overload
def network_of(system: System) -> Flat: ...
@overload
def network_of(system: Cluster) -> Levels: ...
@overload
def network_of(system: Matrix) -> DeviceNetwork: ...
def network_of(system: System | Cluster | Matrix) -> Network:
    """Return the network of a system: flat, with levels, or every pair of devices for itself."""
    if isinstance(system, System):
        return Flat(system.network_bandwidth_bytes_per_s, system.all_reduce_factor)
    if isinstance(system, Cluster):
        return Levels(
            tuple(
                Tier(level.devices, level.bandwidth_bytes_per_s * level.sustained, level.latency_s)
                for level in system.levels
            )
        )
    bandwidth = np.array(system.bandwidths_bytes_per_s, np.float64)
    np.fill_diagonal(bandwidth, 0.0)
    return complete_network(bandwidth, np.full_like(bandwidth, system.latency_s), system.absent, "system")


def fabric(system: Cluster | Matrix, devices: int) -> Fabric:
    """Return the part of a system's network that so many devices need, counted from the first.

    Raises `PhazeError` where there are not so many.
    """
    there = system.devices if isinstance(system, Cluster) else len(system.bandwidths_bytes_per_s)
    if devices > there:
        raise PhazeError(f"system: has {there} devices, the plan needs {devices}")
    if isinstance(system, Matrix):
        matrix = np.array(system.bandwidths_bytes_per_s, float)
        return Fabric(from_matrix(matrix, system.latency_s, system.absent))
    if system.torus is not None:
        box = system.torus
        return Fabric(torus(box.shape, box.bandwidth_bytes_per_s, box.latency_s, wrap=box.wrap))
    return Fabric(tree(_levels(system, devices)), system.levels[0].devices if len(system.levels) > 1 else 1)


def _levels(system: Cluster, devices: int) -> list[Level]:
    """Return the levels of a tree; every device has a link of its own out of each group."""
    found, inside = [], 1
    for number, level in enumerate(system.levels):
        last = number == len(system.levels) - 1
        width = -(-devices // inside) if last else level.devices // inside
        bandwidth = level.bandwidth_bytes_per_s * level.sustained
        found.append(Level(width, bandwidth, level.latency_s, inside))
        inside = level.devices
    return found
