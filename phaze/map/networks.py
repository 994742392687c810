"""The network of a system as mappings and the simulator take it: the part that a plan needs.

A message over h hops of a torus occupies h links, so that mappings count an h-th of a link's bandwidth for
it; the simulator has the links themselves, each with one message at a time. In a tree two devices have the
bandwidth of the narrowest level between them, and the latencies of all.
"""

from __future__ import annotations

from math import prod

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.cost.network.fabric import network_of
from phaze.cost.network.topologies import hops_of_grid
from phaze.spec.network import Matrix
from phaze.spec.system import Cluster


def part_of(system: Cluster, devices: int) -> Cluster:
    """Return the smallest part of a system that has so many devices.

    Of a torus the longest side, the last of several, is halved for as long as that leaves enough: slices of a
    TPU v4 pod are such boxes. Otherwise it is whole groups. Raises `PhazeError` if there are not so many.
    """
    if devices > system.devices:
        raise PhazeError(f"system: has {system.devices} devices, {devices} are needed")
    if system.torus is None:
        inside = system.levels[-2].devices if len(system.levels) > 1 else 1
        return _of_size(system, -(-devices // inside) * inside)
    shape = list(system.torus.shape)
    while max(shape) % 2 == 0 and prod(shape) // 2 >= devices:
        longest = len(shape) - 1 - shape[::-1].index(max(shape))
        shape[longest] //= 2
    torus = system.torus.model_copy(update={"shape": tuple(shape)})
    return _of_size(system, prod(shape)).model_copy(update={"torus": torus})


def _of_size(system: Cluster, devices: int) -> Cluster:
    inner = tuple(level for level in system.levels if level.devices < devices)
    last = system.levels[len(inner)].model_copy(update={"devices": devices})
    return system.model_copy(update={"levels": (*inner, last)})


def device_network(system: Cluster | Matrix) -> DeviceNetwork:
    """Return bandwidths and latencies between all devices of a system."""
    if isinstance(system, Matrix):
        return network_of(system)
    return _of_levels(system) if system.torus is None else _of_torus(system)


def _of_torus(system: Cluster) -> DeviceNetwork:
    assert system.torus is not None
    hops = hops_of_grid(system.torus.shape, torus=system.torus.wrap).astype(np.float64)
    bandwidth = system.torus.bandwidth_bytes_per_s / np.maximum(hops, 1.0)
    return DeviceNetwork(bandwidth, hops * system.torus.latency_s)


def _of_levels(system: Cluster) -> DeviceNetwork:
    devices = np.arange(system.devices)
    bandwidth = np.full((len(devices), len(devices)), np.inf)
    latency = np.zeros_like(bandwidth)
    apart = ~np.eye(len(devices), dtype=bool)
    for level in system.levels:
        bandwidth[apart] = np.minimum(bandwidth[apart], level.bandwidth_bytes_per_s * level.sustained)
        latency[apart] += level.latency_s
        group = devices // level.devices
        apart = group[:, None] != group[None, :]
    return DeviceNetwork(bandwidth, latency)


def units_of(network: DeviceNetwork, width: int) -> DeviceNetwork:
    """Return the network between units of so many devices with neighbouring numbers.

    The k-th devices of two units send to each other; the slowest such pair counts. Devices that do not fill
    a unit are left out.
    """
    if width == 1:
        return network
    seconds = _slowest(network.seconds_per_byte, width)
    bandwidth = 1.0 / np.where(seconds > 0, seconds, np.inf)
    np.fill_diagonal(bandwidth, np.inf)
    return DeviceNetwork(bandwidth, _slowest(network.waits_s, width))


def _slowest(matrix: Floats, width: int) -> Floats:
    """Return the largest over pairs of devices in the same place of two units, shape (U, U)."""
    units = len(matrix) // width
    places = [np.arange(units) * width + k for k in range(width)]
    return np.asarray(np.max([matrix[np.ix_(at, at)] for at in places], axis=0))
