"""The network of a system: groups in levels, a torus, or a matrix of bandwidths, as a topology."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.base.errors import PhazeError
from phaze.cost.network.clusters import Level, from_matrix, tree
from phaze.cost.network.topology import Topology
from phaze.cost.network.torus import torus
from phaze.spec.network import Matrix
from phaze.spec.system import Cluster


@dataclass(frozen=True)
class Fabric:
    """A topology, and how many devices that follow each other share what is innermost."""

    topology: Topology
    node: int = 1
    """Collectives go around inside a node first; 1: there are none."""


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
