"""Devices of a cluster as tiles: collectives take as long as the cost model of the network says."""

from __future__ import annotations

import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.delivery import deliver
from phaze.cost.network.fabric import network_of
from phaze.cost.network.network import Collective
from phaze.layout import Group
from phaze.spec.models import load_transformer
from phaze.spec.system import Cluster
from phaze.spec.systems import load_cluster
from phaze.spec.tiled_study import TiledPoint
from phaze.tiles.chip import Chip, cluster_chip, load_chip
from phaze.tiles.on_tiles import outcomes
from phaze.tiles.steps import GroupCollective
from phaze.tiles.tile import Access
from phaze.tiles.traffic import LinkTraffic

DEVICE = load_cluster("a100-selene")[1]
LEVELS = {
    "device": "a100-80gb",
    "levels": [
        {"devices": 4, "bandwidth_bytes_per_s": 300e9},
        {"devices": 64, "bandwidth_bytes_per_s": 25e9, "sustained": 0.8, "latency_s": 5e-6},
    ],
}
TORUS = {
    "device": "a100-80gb",
    "levels": [{"devices": 16, "bandwidth_bytes_per_s": 300e9}],
    "torus": {"shape": [4, 4], "bandwidth_bytes_per_s": 100e9, "latency_s": 1e-6},
}


def made(fields: dict[str, object], devices: int) -> tuple[Cluster, Chip]:
    cluster = Cluster.parse(fields, "toy")
    return cluster, cluster_chip("toy", cluster, DEVICE, devices)


def seconds(chip: Chip, kind: Collective, members: tuple[int, ...], size_bytes: float) -> float:
    traffic = LinkTraffic(chip)
    plan = traffic.exchanged(members, [GroupCollective(kind, (members,), size_bytes)])
    return deliver(traffic.topology, plan, "none").time_s


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("group", [Group(4, 1), Group(16, 1), Group(8, 1), Group(4, 4)])
def test_rings_inside_and_between_nodes_take_the_time_of_the_cost_model(
    kind: Collective, group: Group
) -> None:
    cluster, chip = made(LEVELS, 16)
    members = tuple(rank * group.stride for rank in range(group.ranks))
    expected_s = network_of(cluster).seconds(kind, 64e6, group)
    assert seconds(chip, kind, members, 64e6) == pytest.approx(expected_s, rel=1e-9)


def test_a_ring_on_a_torus_takes_the_time_of_the_cost_model() -> None:
    _, chip = made(TORUS, 16)
    assert chip.network is not None
    members = (0, 1, 2, 3)
    expected_s = chip.network.seconds("all_reduce", 64e6, members)
    assert seconds(chip, "all_reduce", members, 64e6) == pytest.approx(expected_s, rel=1e-9)
    # Four rounds of a quarter and four more, less one each: 2 (n − 1) / n of the tensor and 6 latencies.
    assert expected_s == pytest.approx(6 * (16e6 / 100e9 + 1e-6))


def test_every_device_has_its_own_memory() -> None:
    _, chip = made(LEVELS, 16)
    traffic = LinkTraffic(chip)
    plan = traffic.accessed(tuple(range(16)), Access(1e9, 0.0))
    assert len(plan) == 16
    bandwidth = DEVICE.hbm_bandwidth_bytes_per_s * DEVICE.sustained_hbm
    assert deliver(traffic.topology, plan).time_s == pytest.approx(1e9 / bandwidth)


def test_a_pipeline_runs_on_a_cluster_and_devices_are_for_clusters() -> None:
    point = TiledPoint(
        show="table", system="a100-selene", model="t-18b", sequence=512, stages=4, tensor=(8,), batch=8,
        microbatches=(4,), devices=64,
    )  # fmt: skip
    chip = load_chip("a100-selene", 64)
    ((_, outcome),) = outcomes("x", point, load_transformer("t-18b", "x"), chip)
    assert [*map(len, outcome.run.groups)] == [16] * 4
    assert outcome.time_s >= outcome.uncontended_s >= outcome.alone_s
    assert outcome.row["most_link_share"] > 0  # type: ignore[operator]
    with pytest.raises(PhazeError, match="devices: applies to clusters"):
        load_chip("wafer", 64)
