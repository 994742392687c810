"""NCCL collectives inside an NVLink domain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.fabric import fabric, network_of
from phaze.cost.network.nccl import Nccl
from phaze.cost.network.network import Collective, Kind
from phaze.layout import Group
from phaze.spec.speeds.collectives import NcclSpeeds
from phaze.spec.system import Cluster, Level
from phaze.spec.systems import cluster_files, load_cluster

SPEEDS = NcclSpeeds(
    start_s=5e-6, step_s=1e-6, ll=0.25, ll128_start_s=10e-6, ll128=0.5, simple_start_s=20e-6,
    simple_step_s=3e-6, simple=0.8, own_bytes_per_s=1e12, nvls_start_s=60e-6, nvls=0.7, peer_s=0.5e-6,
    peer=0.02, direct_start_s=7e-6, direct=0.6, direct_own_bytes_per_s=2e12,
)  # fmt: skip
LINK = 400e9
KINDS: tuple[Kind, ...] = (
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "send",
)  # fmt: skip
SIZES = np.geomspace(1.0, 1e11, 300)


def test_small_rings_take_a_step_of_ll_for_each_other_rank() -> None:
    nccl = Nccl(SPEEDS, LINK)
    assert nccl.seconds("all_gather", 0.0, 8) == pytest.approx(7e-6)
    assert nccl.seconds("all_reduce", 0.0, 8) == pytest.approx(14e-6)
    assert nccl.seconds("all_gather", 8e3, 8) == pytest.approx(7 * (1e-6 + 1e3 / (0.25 * LINK)))


def test_large_rings_reach_the_bandwidth_of_simple_and_copy_their_own_part() -> None:
    found = Nccl(SPEEDS, LINK).seconds("reduce_scatter", 4e9, 4)
    assert found == pytest.approx(20e-6 + 3 * (3e-6 + 1e9 / (0.8 * LINK)) + 1e9 / 1e12)


def test_switches_add_up_an_all_reduce_of_more_than_two_ranks() -> None:
    nccl, rings = Nccl(SPEEDS, LINK), Nccl(SPEEDS.model_copy(update={"nvls": 0.0}), LINK)
    assert nccl.seconds("all_reduce", 8e9, 8) == pytest.approx(60e-6 + 9e9 / (0.7 * LINK))
    assert rings.seconds("all_reduce", 8e9, 8) > nccl.seconds("all_reduce", 8e9, 8)
    assert rings.seconds("all_reduce", 8e9, 2) == nccl.seconds("all_reduce", 8e9, 2)


def test_small_parts_go_to_all_peers_at_once_and_large_ones_after_each_other() -> None:
    nccl = Nccl(SPEEDS, LINK)
    assert nccl.seconds("all_to_all", 8e3, 8) == pytest.approx(7 * 0.5e-6 + 1e3 / (0.02 * LINK))
    large_s = 7e-6 + 7 * 0.5e-6 + 7e9 / (0.6 * LINK) + 1e9 / 2e12
    assert nccl.seconds("all_to_all", 8e9, 8) == pytest.approx(large_s)


def test_a_message_is_an_all_to_all_of_two_without_the_copy() -> None:
    nccl = Nccl(SPEEDS, LINK)
    copied_s = 1e9 / SPEEDS.direct_own_bytes_per_s
    assert nccl.seconds("send", 1e9, 2) == pytest.approx(nccl.seconds("all_to_all", 2e9, 2) - copied_s)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 72])
def test_times_rise_with_size_and_are_concave_in_it(kind: Kind, ranks: int) -> None:
    """Bounds of layouts need both: a share of a size takes at least that share of the time."""
    found = Nccl(SPEEDS, LINK).seconds(kind, SIZES, ranks)
    assert (np.diff(found) >= 0).all()
    assert (np.diff(found / SIZES) <= 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_scalars_are_the_same_as_arrays(kind: Kind) -> None:
    nccl = Nccl(SPEEDS, LINK)
    each = [nccl.seconds(kind, float(size), 8) for size in SIZES]
    assert nccl.seconds(kind, SIZES, 8).tolist() == each


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", [name for name in NcclSpeeds.model_fields if not name.endswith("_s")])
def test_more_bandwidth_never_makes_a_collective_slower(kind: Kind, field: str) -> None:
    faster = SPEEDS.model_copy(update={field: 1.1 * getattr(SPEEDS, field)})
    before = Nccl(SPEEDS, LINK).seconds(kind, SIZES, 8)
    assert (Nccl(faster, LINK).seconds(kind, SIZES, 8) <= before).all()
    assert (Nccl(SPEEDS, 1.1 * LINK).seconds(kind, SIZES, 8) <= before).all()


def cluster(**inner: object) -> Cluster:
    """Nodes of eight devices."""
    return Cluster.parse(
        {
            "device": "h100-80gb",
            "levels": [
                {"devices": 8, "bandwidth_bytes_per_s": LINK, "nccl": SPEEDS, **inner},
                {"devices": 64, "bandwidth_bytes_per_s": 50e9, "latency_s": 1e-5},
            ],
        },
        "test",
    )


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
def test_a_level_starts_a_collective_once(kind: Collective) -> None:
    network, nccl = network_of(cluster(start_s=2e-6)), Nccl(SPEEDS, LINK)
    inside = network.seconds(kind, 1e6, Group(8, 1))
    assert inside == pytest.approx(7e-6 + nccl.seconds(kind, 1e6, 8))
    assert network.by_level(kind, 1e6, Group(8, 1)) == (pytest.approx(nccl.seconds(kind, 1e6, 8)), 0.0)


def test_an_all_to_all_over_nodes_exchanges_a_part_of_the_tensor_inside() -> None:
    inside_s, _ = network_of(cluster()).by_level("all_to_all", 64e6, Group(64, 1))
    assert inside_s == pytest.approx(Nccl(SPEEDS, LINK).seconds("all_to_all", 8e6, 8))


def test_a_message_inside_a_node_starts_as_well() -> None:
    network = network_of(cluster())
    assert network.seconds("send", 1e9, Group(2, 1)) == pytest.approx(
        5e-6 + Nccl(SPEEDS, LINK).seconds("send", 1e9, 2)
    )
    assert network.seconds("send", 1e9, Group(2, 8)) == pytest.approx(1e9 / 50e9 + 1e-5)


def test_a_sustained_share_is_of_the_measured_bandwidths() -> None:
    found = network_of(cluster(sustained=0.5)).seconds("all_gather", 1e10, Group(8, 1))
    assert found == pytest.approx(5e-6 + Nccl(SPEEDS, LINK / 2).seconds("all_gather", 1e10, 8))


def test_links_of_a_simulated_domain_are_as_fast_as_large_rings() -> None:
    first = fabric(cluster(), 8).topology.links[0]
    assert first.bandwidth_bytes_per_s == pytest.approx(0.8 * LINK)
    assert first.latency_s == pytest.approx(3e-6 / 2)


def test_keys_of_other_formulas_are_refused() -> None:
    with pytest.raises(PhazeError, match=r"latency_s: must not be given together with nccl"):
        cluster(latency_s=1e-6)


def test_only_the_innermost_level_has_measured_collectives() -> None:
    level = Level(devices=8, bandwidth_bytes_per_s=LINK, nccl=SPEEDS)
    outer = level.model_copy(update={"devices": 16})
    with pytest.raises(PhazeError, match="nccl is allowed in the innermost level"):
        Cluster.parse({"device": "h100-80gb", "levels": [level, outer]}, "test")


def test_a_system_names_its_measured_collectives(tmp_path: Path) -> None:
    assert load_cluster("h100")[0].levels[0].nccl == load_cluster("h200")[0].levels[0].nccl
    assert [path.name for path in cluster_files("h100")][-1] == "nvlink-4.yaml"
    path = tmp_path / "mine.yaml"
    level = "{devices: 8, bandwidth_bytes_per_s: 1.0e+9, nccl: nvlink-9}"
    path.write_text(f"device: h100-80gb\nlevels: [{level}]\n")
    with pytest.raises(PhazeError, match=r"there is no network 'nvlink-9'; did you mean nvlink-"):
        load_cluster(str(path))
