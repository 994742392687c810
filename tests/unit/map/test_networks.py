"""Networks of systems: bandwidths between devices and units."""

from __future__ import annotations

import numpy as np
import pytest

from phaze.cost.network.fabric import fabric
from phaze.map.networks import device_network, units_of
from phaze.spec.network import Torus
from phaze.spec.system import Cluster, Level


def pod(*shape: int) -> Cluster:
    """Return a torus with links of 8 bytes a second and hops of a second."""
    devices = int(np.prod(shape))
    levels = (Level(devices=devices, bandwidth_bytes_per_s=1.0),)
    return Cluster(
        device="a", levels=levels, torus=Torus(shape=shape, bandwidth_bytes_per_s=8.0, latency_s=1.0)
    )


NODES = Cluster(
    device="a",
    levels=(
        Level(devices=4, bandwidth_bytes_per_s=100.0, sustained=0.5, latency_s=1.0),
        Level(devices=64, bandwidth_bytes_per_s=10.0, latency_s=2.0),
    ),
)


def test_a_message_over_hops_gets_a_share_of_a_link() -> None:
    network = device_network(pod(4, 2))
    assert network.bandwidth_bytes_per_s[0, [1, 2, 3, 4, 5]] == pytest.approx([8, 8, 4, 4, 8 / 3])
    assert network.latency_s[0, 5] == 3.0


@pytest.mark.parametrize("system", [NODES, pod(4, 4, 2)])
def test_latencies_are_those_of_the_simulator(system: Cluster) -> None:
    network, topology = device_network(system), fabric(system, system.devices).topology
    for target in range(1, system.devices):
        assert network.latency_s[0, target] == pytest.approx(topology.seconds(0, target, 0.0))


def test_devices_of_a_cluster_have_the_bandwidth_of_the_narrowest_level_between_them() -> None:
    network, topology = device_network(NODES), fabric(NODES, 64).topology
    for target in range(1, 64):
        seconds = 1e6 / network.bandwidth_bytes_per_s[0, target] + network.latency_s[0, target]
        assert topology.seconds(0, target, 1e6) == pytest.approx(seconds)


def test_units_send_between_devices_in_the_same_place_and_the_slowest_counts() -> None:
    whole = device_network(pod(4, 4))
    units = units_of(whole, 2)
    assert units.devices == 8
    for a in range(8):
        for b in {*range(8)} - {a}:
            pairs = [(2 * a + k, 2 * b + k) for k in range(2)]
            assert units.bandwidth_bytes_per_s[a, b] == min(whole.bandwidth_bytes_per_s[p] for p in pairs)
            assert units.latency_s[a, b] == max(whole.latency_s[p] for p in pairs)
    assert units_of(whole, 1) is whole
