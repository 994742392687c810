"""Plans replayed on networks: the parts make up the difference, and a flat network gives the flat time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.errors import PhazeError
from phaze.simulate.network.fabric import Fabric, fabric
from phaze.simulate.networked import replay_on
from phaze.simulate.plan import Plan
from phaze.simulate.replay import replay
from phaze.spec.network import Matrix, Torus
from phaze.spec.system import Cluster, Level
from phaze.systems import load_network
from phaze.tables import PARTS
from tests.unit.simulate.test_replay import BANDWIDTH, STAGE, flushing, random_plan, random_stages


def switch(bandwidth: float = BANDWIDTH) -> Cluster:
    """Return devices around one switch."""
    return Cluster(device="a", levels=(Level(devices=64, bandwidth_bytes_per_s=bandwidth),))


def nodes(inside: float, between: float) -> Cluster:
    """Return nodes of four devices."""
    levels = Level(devices=4, bandwidth_bytes_per_s=inside), Level(devices=64, bandwidth_bytes_per_s=between)
    return Cluster(device="a", levels=levels)


def full(devices: int) -> Matrix:
    """Return a link between every two devices."""
    return Matrix(bandwidths_bytes_per_s=((BANDWIDTH,) * devices,) * devices)


def on(system: Cluster | Matrix, plan: Plan) -> Fabric:
    return fabric(system, plan.devices)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("system", [switch(), nodes(4e9, 5e8), full(20)])
def test_the_parts_make_up_the_difference(seed: int, system: Cluster | Matrix) -> None:
    plan = random_plan(seed)
    found = replay_on(plan, on(system, plan))
    assert list(found.parts) == list(PARTS)
    assert plan.planned_s + sum(found.parts.values()) == pytest.approx(found.simulated_s, rel=1e-9)
    assert found.parts["contention_s"] >= -1e-9 * found.simulated_s
    assert 0 <= found.link_share <= 1 + 1e-9
    assert found.carried.sent_bytes.sum() == pytest.approx(found.carried.received_bytes.sum())


@pytest.mark.parametrize("seed", range(1, 40, 2))
def test_with_a_link_between_every_two_devices_tensors_take_the_flat_time(seed: int) -> None:
    """One tensor at a time enters a stage; rings use links of their own, which tensors use at other times."""
    rng = np.random.default_rng(seed)
    stages = [
        replace(s, longest_arriving_bytes=s.arriving_bytes, longest_departing_bytes=s.departing_bytes)
        for s in random_stages(rng, [2] * 3)
    ]
    plan = flushing(stages, 8)
    assert replay_on(plan, on(full(6), plan)).simulated_s == pytest.approx(replay(plan).simulated_s, rel=1e-9)


def test_gradients_go_inside_nodes_first() -> None:
    """Eight replicas in two nodes: 3/4 of the weights twice inside, then 1/4 of them between, 2 · 1/2."""
    weights = 8e8
    plan = flushing([replace(STAGE, data=8, weight_bytes=weights)], 8)
    found = replay_on(plan, on(nodes(4e9, 5e8), plan))
    inside, between = 2 * 0.75 * weights / 4e9, 2 * 0.5 * weights / 4 / 5e8
    assert found.simulated_s == pytest.approx(STAGE.compute_s + inside + between, rel=1e-9)
    assert found.exposed_share == pytest.approx((inside + between) / found.simulated_s)


def test_half_the_bandwidth_between_nodes_is_slower() -> None:
    plan = random_plan(13)
    fast, slow = (replay_on(plan, on(nodes(4e9, b), plan)).simulated_s for b in (5e8, 2.5e8))
    assert slow >= fast


@pytest.mark.parametrize("name", ["a100-selene", "tpu-v4", "h100"])
def test_systems_of_the_project_are_networks(name: str) -> None:
    plan = random_plan(9)
    system = load_network(name)
    assert isinstance(system, Cluster)
    found = replay_on(plan, on(system, plan))
    assert found.simulated_s >= found.alone_s > 0


def test_memory_is_the_schedules_whatever_the_network() -> None:
    plan = random_plan(9)
    flat, far = replay(plan), replay_on(plan, on(nodes(4e9, 1e8), plan))
    assert far.timeline.peak_bytes.tolist() == flat.timeline.peak_bytes.tolist()


def test_more_devices_than_a_system_has_are_refused() -> None:
    with pytest.raises(PhazeError, match="has 64 devices, the plan needs 65"):
        fabric(switch(), 65)
    with pytest.raises(PhazeError, match="has 3 devices, the plan needs 4"):
        fabric(full(3), 4)


def test_a_torus_must_hold_the_devices_of_its_levels() -> None:
    with pytest.raises(ValueError, match="must hold the 64 devices of the levels, got 60"):
        Cluster(device="a", levels=switch().levels, torus=Torus(shape=(3, 4, 5), bandwidth_bytes_per_s=1.0))


def test_tiles_of_a_chip_are_no_devices_of_a_plan() -> None:
    with pytest.raises(PhazeError, match="is a mesh of tiles"):
        load_network("wafer")


def test_a_matrix_must_be_square() -> None:
    with pytest.raises(ValueError, match="row 1 must have 2 numbers, one a device, got 1"):
        Matrix(bandwidths_bytes_per_s=((0.0, 1.0), (1.0,)))
