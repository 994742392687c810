"""Collectives and messages by kind: in closed form, by level, and message by message."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.arrays import Floats
from phaze.cost.mapper.loads import additions
from phaze.cost.mapper.works import works_of
from phaze.cost.network.collectives import collective
from phaze.cost.network.delivery import deliver
from phaze.cost.network.device_networks import DeviceNetwork, flat_network
from phaze.cost.network.fabric import Fabric, network_of
from phaze.cost.network.mesh import TileGrid, Wires, mesh, torus
from phaze.cost.network.network import (
    BOTH_DIRECTIONS,
    Collective,
    Flat,
    Kind,
    Levels,
    Members,
    Network,
    Tier,
    rounds,
    sent_bytes,
)
from phaze.cost.network.topology import Topology
from phaze.layout import Group, Layout
from phaze.spec.system import Cluster, Scenario
from phaze.spec.systems import load_cluster
from phaze.tiles.placement import ring
from tests.oracles.full_mesh import full_mesh

SIZES = np.array([0.0, 1e9])
NODES = Levels((Tier(8, 300e9), Tier(512, 25e9)))
"""Nodes of eight devices, and links between them."""
UNEVEN = DeviceNetwork(*np.random.default_rng(1).uniform(1e9, 9e9, (1, 12, 12)), np.full((12, 12), 2e-6))
TORUS = Fabric(torus((3, 4), 4e9, 1e-6))
MESH = Fabric(mesh(TileGrid(3, 4), Wires(4e9, 1e-6)))
FLAT = Flat(5e9, latency_s=1e-6)
NETWORKS: list[Network] = [FLAT, Flat(5e9, BOTH_DIRECTIONS), NODES, UNEVEN, TORUS, MESH]
KINDS: tuple[Kind, ...] = (*get_args(Collective), "send")
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)


def group_of(ranks: int, network: Network) -> Members:
    """Return neighbouring ranks, by number if all pairs of devices differ."""
    return range(ranks) if isinstance(network, DeviceNetwork | Fabric) else Group(ranks, 1)


def test_the_paper_s_factor_is_a_setting() -> None:
    """Tensor size / devices · (devices − 1) · 4 over the bandwidth (paper, C.2); 2 in one direction."""
    papers, ours = Flat(2e9, BOTH_DIRECTIONS), Flat(2e9)
    assert papers.seconds("all_reduce", SIZES, Group(4, 1)) == pytest.approx([0.0, 1e9 / 4 * 3 * 4 / 2e9])
    assert papers.endless_s("all_reduce", 1e9) == 4 * 1e9 / 2e9
    for kind in COLLECTIVES:
        assert papers.seconds(kind, 1e9, Group(4, 1)) == 2 * ours.seconds(kind, 1e9, Group(4, 1))
        assert ours.seconds(kind, 1e9, Group(4, 1)) == rounds(kind, 4) / 4 * 1e9 / 2e9
    assert papers.seconds("send", 1e9, Group(2, 1)) == ours.seconds("send", 1e9, Group(2, 1)) == 0.5


def test_a_device_sends_reduce_scatter_and_all_gather() -> None:
    """Each device sends (t − 1)/t of the tensor twice."""
    assert sent_bytes("all_reduce", SIZES, 8)[1] == pytest.approx(2 * 7 / 8 * 1e9)
    halves = [sent_bytes(kind, 1e9, 8) for kind in ("reduce_scatter", "all_gather")]
    assert halves == [sent_bytes("all_reduce", 1e9, 8) / 2] * 2


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_messages_send_the_bytes_of_the_closed_form(kind: Collective) -> None:
    plan = collective(kind, range(6), 1e9, pieces=3)
    assert sent_bytes(kind, 1e9, 6) == pytest.approx(sum(message.size_bytes for message in plan) / 6)


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
def test_a_device_adds_up_a_tensor_once_where_a_collective_adds(kind: str) -> None:
    row = {
        "core": "network",
        "work": 0,
        "part": 0,
        "kind": kind,
        "role": "forward",
        "elements": 1e9,
        "axis": "tp",
    }
    rest = dict.fromkeys(("batch", "m", "k", "n", "streamed_bytes", "network_bytes", "unrolled"), 0)
    works = works_of(pd.DataFrame([row | rest]), "network", {})
    adds = kind in ("all_reduce", "reduce_scatter")
    assert additions(works, Layout(tp=8)) == pytest.approx([7 / 8 * 1e9 * adds])
    assert additions(works, Layout()) == [0]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_needs_no_network(kind: Kind, network: Network) -> None:
    assert network.seconds(kind, 1e9, group_of(1, network)) == 0
    assert not network.seconds(kind, SIZES, group_of(1, network)).any()


@given(
    st.sampled_from(NETWORKS), st.sampled_from(KINDS), st.integers(2, 12), st.floats(0, 1e12), st.floats(1, 9)
)
def test_more_bytes_never_take_less(
    network: Network, kind: Kind, ranks: int, size: float, times: float
) -> None:
    group = group_of(ranks, network)
    assert network.seconds(kind, size, group) <= network.seconds(kind, size * times, group)


@given(st.sampled_from(NETWORKS), st.integers(2, 12), st.floats(0, 1e12))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(
    network: Network, ranks: int, size: float
) -> None:
    group = group_of(ranks, network)
    whole, scatter, gather = (network.seconds(kind, size, group) for kind in COLLECTIVES[:3])
    assert scatter + gather == pytest.approx(whole, rel=1e-12)


@given(st.sampled_from(NETWORKS), st.sampled_from(KINDS), st.integers(1, 12))
def test_many_sizes_take_what_each_takes(network: Network, kind: Kind, ranks: int) -> None:
    sizes: Floats = np.array([0.0, 7.0, 3e6, 1e9])
    group = group_of(ranks, network)
    each = [network.seconds(kind, size, group) for size in sizes.tolist()]
    assert network.seconds(kind, sizes, group).tolist() == each


@given(st.sampled_from(KINDS), st.integers(2, 12), st.floats(1, 1e12))
def test_equal_pairs_are_a_flat_network(kind: Kind, ranks: int, size: float) -> None:
    flat = FLAT.seconds(kind, size, Group(ranks, 1))
    one_level = Levels((Tier(12, 5e9, 1e-6),))
    assert flat_network(12, 5e9, 1e-6).seconds(kind, size, range(ranks)) == pytest.approx(flat, rel=1e-12)
    assert one_level.seconds(kind, size, Group(ranks, 1)) == pytest.approx(flat, rel=1e-12)


def simulated_s(
    topology: Topology, kind: Collective, size: float, members: list[int], contention: str
) -> float:
    """Return the time of a collective's messages on an otherwise idle network."""
    plan = collective(kind, members, size, pieces=len(members))
    return deliver(topology, plan, contention).time_s  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_messages_on_a_flat_network_take_the_closed_form(kind: Collective) -> None:
    topology = full_mesh(np.full((6, 6), 5e9), 1e-6)
    expected = simulated_s(topology, kind, 1e8, list(range(6)), "arrival")
    assert FLAT.seconds(kind, 1e8, Group(6, 1)) == pytest.approx(expected, rel=1e-12)
    assert Fabric(topology).seconds(kind, 1e8, range(6)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", [kind for kind in COLLECTIVES if kind != "all_to_all"])
@pytest.mark.parametrize("topology", [torus((4, 6), 4e9, 1e-6), mesh(TileGrid(4, 6), Wires(4e9, 1e-6))])
def test_messages_around_a_ring_take_the_closed_form(topology: Topology, kind: Collective) -> None:
    members = list(ring(TileGrid(4, 6), range(24)).order)
    expected = simulated_s(topology, kind, 1e8, members, "arrival")
    assert Fabric(topology).seconds(kind, 1e8, members) == pytest.approx(expected, rel=1e-12)


@given(st.sampled_from(COLLECTIVES), st.permutations(range(12)), st.integers(2, 12))
def test_messages_alone_take_the_closed_form(kind: Collective, order: list[int], ranks: int) -> None:
    """Also for distant members and unequal pairs; with contention, links delay some messages."""
    members = order[:ranks]
    uneven = full_mesh(UNEVEN.bandwidth_bytes_per_s, UNEVEN.latency_s)
    for network, topology in ((TORUS, TORUS.topology), (MESH, MESH.topology), (UNEVEN, uneven)):
        alone_s = network.seconds(kind, 1e8, members)
        assert alone_s == pytest.approx(simulated_s(topology, kind, 1e8, members, "none"), rel=1e-12)
        assert alone_s <= simulated_s(topology, kind, 1e8, members, "arrival") * (1 + 1e-12)


def test_a_message_goes_to_the_next_rank() -> None:
    assert NODES.seconds("send", 1e9, Group(4, 1)) == 1e9 / 300e9
    assert NODES.seconds("send", 1e9, Group(4, 8)) == NODES.seconds("send", 1e9, (7, 8)) == 1e9 / 25e9
    assert TORUS.seconds("send", 4e9, (0, 5)) == pytest.approx(1 + 2e-6)
    expected = 2e-6 + 1e9 / UNEVEN.bandwidth_bytes_per_s[3, 4]
    assert UNEVEN.seconds("send", 1e9, (3, 4)) == pytest.approx(expected)


def test_the_halves_of_an_all_reduce_take_half_of_its_time_on_levels() -> None:
    group = Group(16, 1)
    whole, *halves = (
        NODES.seconds(kind, 1e9, group) for kind in ("all_reduce", "reduce_scatter", "all_gather")
    )
    assert halves == [whole / 2] * 2


def test_an_all_to_all_sends_every_part_over_the_level_on_which_two_ranks_meet() -> None:
    """Of 16 ranks, 8 per node, each sends 7 of 16 parts over NVLink and 8 parts between nodes."""
    part = 1e9 / 16
    expected = 7 * part / 300e9 + 8 * part / 25e9
    assert NODES.seconds("all_to_all", 1e9, Group(16, 1)) == pytest.approx(expected)
    assert expected > 3 * NODES.seconds("reduce_scatter", 1e9, Group(16, 1))


def test_an_all_to_all_on_one_level_sends_its_factor() -> None:
    expected = sent_bytes("all_to_all", 1e9, 8) / 300e9
    assert NODES.seconds("all_to_all", 1e9, Group(8, 1)) == pytest.approx(expected)


def test_a_group_inside_a_node_meets_there_only() -> None:
    assert NODES.meeting(Group(8, 1)) == (8, 1)
    assert NODES.meeting(Group(2, 4)) == (2, 1)


def test_ranks_a_node_apart_meet_between_nodes_only() -> None:
    assert NODES.meeting(Group(6, 8)) == (1, 6)


def test_a_group_wider_than_a_node_meets_on_both_levels() -> None:
    assert NODES.meeting(Group(16, 1)) == (8, 2)
    assert NODES.meeting(Group(32, 2)) == (4, 8)


@given(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 24))
def test_devices_by_number_meet_as_ranks_at_a_stride_do(stride: int, ranks: int) -> None:
    assert NODES.meeting(range(0, ranks * stride, stride)) == NODES.meeting(Group(ranks, stride))


def test_devices_anywhere_meet_where_most_of_them_do() -> None:
    assert NODES.meeting((0, 3, 9, 10, 11, 500)) == (3, 3)


def test_an_all_reduce_on_one_level_takes_twice_its_share_per_direction() -> None:
    """2 (n − 1)/n of the tensor over the bandwidth of one direction."""
    assert NODES.seconds("all_reduce", 1e9, Group(8, 1)) == pytest.approx(2 * 7 / 8 * 1e9 / 300e9)


def test_between_nodes_an_all_reduce_sends_what_the_node_leaves() -> None:
    """First the share inside NVLink, then 1/g of the bytes per device."""
    inside, between = 2 * 7 / 8 * 1e9 / 300e9, 2 * 1 / 2 * 1e9 / 8 / 25e9
    assert NODES.seconds("all_reduce", 1e9, Group(16, 1)) == pytest.approx(inside + between)


def test_equal_levels_send_what_one_ring_sends() -> None:
    """With equal bandwidths all levels together carry (n − 1)/n of the tensor."""
    levels = Levels((Tier(4, 1e9), Tier(16, 1e9), Tier(64, 1e9)))
    assert levels.seconds("reduce_scatter", 1.0, Group(64, 1)) == pytest.approx(63 / 64 / 1e9)


def test_a_step_has_its_latency() -> None:
    levels = Levels((Tier(8, 1e30, 1e-6), Tier(64, 1e30, 5e-6)))
    assert levels.seconds("all_reduce", 1.0, Group(32, 1)) == pytest.approx(2 * (7 * 1e-6 + 3 * 5e-6))


def test_rings_of_devices_at_different_ports_share_one_port_of_the_node() -> None:
    """With four ports for eight devices, groups at a stride of four or two use one, neighbours all."""
    levels = Levels((Tier(8, 1e30), Tier(64, 1e9, ring_port_devices=2)))
    groups = (Group(8, 8), Group(64, 1), Group(16, 4), Group(32, 2))
    alone, neighbours, two, four = (levels.seconds("all_reduce", 8.0, group) for group in groups)
    assert (alone, neighbours) == pytest.approx((2 * 7 / 1e9, 2 * 7 / 8 / 1e9))
    assert (two, four) == pytest.approx((4 * 2 * 7 / 2 / 1e9, 4 * 2 * 7 / 4 / 1e9))
    to_all = levels.seconds("all_to_all", 8.0, Group(16, 4))
    assert to_all == pytest.approx(7 * 2 * 8 / 16 / 1e9), "every device sends by the port beside it"


MEASURED = {
    # bytes: seconds of all-reduces on two and on eight A100 of a node (VIA-Research/vTrain, trace/a100)
    1 << 20: (44.21e-6, 92.79e-6),
    8 << 20: (86.9e-6, 134.3e-6),
    64 << 20: (404.7e-6, 579.9e-6),
    1 << 30: (5442.8e-6, 8193.0e-6),
}


@pytest.mark.parametrize("size", MEASURED)
def test_an_all_reduce_inside_a_node_takes_what_was_measured(size: int) -> None:
    """Start and steps in addition to the bytes: nine tenths of the time at 1 MiB."""
    network = network_of(load_cluster("a100-vtrain")[0])
    found = [network.seconds("all_reduce", size, Group(ranks, 1)) for ranks in (2, 8)]
    assert found == pytest.approx(MEASURED[size], rel=0.2)


def test_an_all_reduce_over_four_nodes_of_jean_zay_takes_what_was_measured() -> None:
    """BigScience: 1.53 s for 4 GB. The messages between its stages are not that slow."""
    network = network_of(load_cluster("a100-jean-zay")[0])
    assert network.seconds("all_reduce", 4e9, Group(32, 1)) == pytest.approx(1.53, rel=0.05)
    assert network.seconds("send", 4e9, Group(2, 8)) == pytest.approx(4e9 / 5e9, rel=1e-4)


def test_a_system_says_what_its_network_is() -> None:
    flat = network_of(Scenario(network_bandwidth_bytes_per_s=1e9, all_reduce_factor=4))
    assert flat == Flat(1e9, BOTH_DIRECTIONS)
    inner = {"devices": 8, "bandwidth_bytes_per_s": 3e11, "sustained": 0.5}
    outer = {"devices": 64, "bandwidth_bytes_per_s": 1e9}
    cluster = Cluster.model_validate({"device": "a100", "levels": (inner, outer)})
    assert network_of(cluster) == Levels((Tier(8, 1.5e11), Tier(64, 1e9)))
    shared = {"devices": 64, "nics_per_node": 4, "nic_bytes_per_s": 5e8}
    cards = Cluster.model_validate({"device": "a100", "levels": (inner, shared)})
    assert network_of(cards) == Levels((Tier(8, 1.5e11), Tier(64, 4 * 5e8 / 8)))
    assert Cluster.model_validate(cards.model_dump()) == cards


def test_an_all_to_all_on_two_levels_by_hand() -> None:
    """16 ranks on two nodes of 8: each sends 7 of 16 parts inside its node, 8 of 16 to the other one."""
    network = Levels((Tier(8, 400e9, 1e-6), Tier(64, 50e9, 5e-6)))
    expected = 7 / 16 * 1e9 / 400e9 + 7e-6 + 8 / 16 * 1e9 / 50e9 + 8 * 5e-6
    assert network.seconds("all_to_all", 1e9, Group(16, 1)) == pytest.approx(expected)
    apart = 15 / 16 * 1e9 / 50e9 + 15 * 5e-6  # one rank on a node, as folded behind experts of 8 slices
    wide = Levels((Tier(8, 400e9, 1e-6), Tier(256, 50e9, 5e-6)))
    assert wide.seconds("all_to_all", 1e9, Group(16, 8)) == pytest.approx(apart)


def test_a_ring_across_nodes_passes_every_device_of_a_node() -> None:
    """3 steps between 4 nodes, each with the hops of 7, 3 or no further devices."""
    plain, hops = (Levels((Tier(8, 1e12), Tier(512, 50e9, 10e-6, hop_latency_s=s))) for s in (0.0, 7e-6))
    for group, others in ((Group(32, 1), 7), (Group(16, 2), 3), (Group(4, 8), 0)):
        for kind, steps in (("all_gather", 3), ("all_reduce", 6), ("all_to_all", 0)):
            more_s = hops.seconds(kind, 1e6, group) - plain.seconds(kind, 1e6, group)
            assert more_s == pytest.approx(steps * others * 7e-6)


@pytest.mark.parametrize(
    ("nodes", "kind", "measured"),
    [
        (1, "all_reduce", 436e9),
        (16, "all_gather", 126.7e9),
        (32, "all_gather", 77.0e9),
        (64, "all_gather", 44.4e9),
    ],
)
def test_collectives_over_efa_take_what_was_measured(nodes: int, kind: Kind, measured: float) -> None:
    """256 MB; the largest of several runs across nodes, some with shared networks (Hugging Face, Ultra-Scale
    Playbook, figure of bandwidths by nodes). All-reduce inside a node is not fitted.
    """
    ranks, times = 8 * nodes, 2 if kind == "all_reduce" else 1
    time_s = network_of(load_cluster("h100-efa")[0]).seconds(kind, 256e6, Group(ranks, 1))
    assert times * (ranks - 1) / ranks * 256e6 / time_s == pytest.approx(measured, rel=0.22)


def test_all_reduces_between_nodes_go_by_a_tree_where_that_is_faster() -> None:
    """64 nodes: 126 steps of a ring, or 12 of a tree that reaches 0.9 of the bandwidth."""
    rings, trees = (Levels((Tier(8, 1e12), Tier(512, 50e9, 10e-6, tree_latency_s=s))) for s in (0.0, 50e-6))
    group = Group(64, 8)
    for size, by_tree in ((1e3, True), (1e9, False)):
        ring_s = 2 * 63 / 64 * size / 50e9 + 126 * 10e-6
        tree_s = 2 * size / 45e9 + 12 * 50e-6
        assert (tree_s < ring_s) == by_tree
        assert rings.seconds("all_reduce", size, group) == pytest.approx(ring_s)
        assert trees.seconds("all_reduce", size, group) == pytest.approx(min(ring_s, tree_s))
        assert trees.seconds("all_gather", size, group) == rings.seconds("all_gather", size, group)
    both = trees.seconds("all_reduce", np.array([1e3, 1e9]), group)
    assert both == pytest.approx([trees.seconds("all_reduce", size, group) for size in (1e3, 1e9)])


@pytest.mark.parametrize(
    ("group", "start_s"),
    [
        (Group(8, 1), 1e-3),
        (Group(2, 8), 3e-3),
        (Group(16, 1), 3e-3),
        (Group(128, 1), 3e-3),
        (Group(1, 1), 0.0),
    ],
)
def test_levels_start_a_collective_at_once(group: Group, start_s: float) -> None:
    """It starts on all levels at the same time, so the slowest start counts, not their sum."""
    starts = Levels((Tier(8, 1e9, start_s=1e-3), Tier(64, 1e9, start_s=3e-3), Tier(512, 1e9, start_s=2e-3)))
    none = Levels(tuple(tier._replace(start_s=0.0) for tier in starts.tiers))
    for kind in get_args(Collective):
        added_s = starts.seconds(kind, 1e6, group) - none.seconds(kind, 1e6, group)
        assert added_s == pytest.approx(start_s, rel=1e-9)
    assert starts.seconds("send", 1e6, group) == none.seconds("send", 1e6, group)
