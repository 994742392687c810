"""Collectives: data of each member at the end, bytes, and closed forms."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.collectives import collective
from phaze.cost.network.delivery import deliver
from phaze.cost.network.fabric import Switches, tree
from phaze.cost.network.mesh import TileGrid, Wires, mesh
from phaze.cost.network.messages import Plan, together
from phaze.cost.network.network import Collective, Flat, sent_bytes
from phaze.tiles.placement import ring
from tests.oracles import layered
from tests.oracles.full_mesh import full_mesh
from tests.oracles.layered import ring_s

KINDS = get_args(Collective)
TORUS = mesh(TileGrid(4, 6, wrap=True), Wires(8.0, 0.25))


def known(plan: Plan, members: list[int]) -> dict[int, set[int]]:
    """Return the members whose data can have reached each member."""
    carried: list[set[int]] = []
    at = {member: {member} for member in members}
    for message in plan:
        carried.append(
            {message.source}.union(*(carried[k] for k in message.after if plan[k].target == message.source))
        )
        at[message.target] |= carried[-1]
    return at


@pytest.mark.parametrize("width", [2, 3, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_data_come_to_whom_they_concern(kind: Collective, width: int) -> None:
    members = list(range(10, 10 + width))
    at = known(collective(kind, members, 64.0, pieces=1), members)
    if kind == "broadcast":
        assert all(10 in at[member] for member in members)
    elif kind == "reduce":
        assert at[10] == set(members)
    else:
        assert all(at[member] == set(members) for member in members)


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_members_send_the_bytes_of_the_theory(width: int) -> None:
    """2 (p − 1)/p of the tensor, one way; the planners' factor of 4 counts sent and received bytes."""
    plan = collective("all_reduce", range(width), 96.0)
    own = sum(message.size_bytes for message in plan if message.source == 0)
    theory = sent_bytes("all_reduce", 96.0, width)
    assert own == pytest.approx(theory)
    assert 2 * own / 10.0 == pytest.approx(Flat(10.0, 4.0).seconds("all_reduce", 96.0, range(width)))
    half = sum(
        message.size_bytes
        for message in collective("reduce_scatter", range(width), 96.0)
        if message.source == 0
    )
    assert own == pytest.approx(2 * half)


@pytest.mark.parametrize("contention", ["arrival", "order", "none"])
@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "all_to_all"])
def test_on_a_ring_of_neighbours_the_time_is_the_closed_form(
    kind: Collective, pieces: int, contention: str
) -> None:
    found = ring(TileGrid(4, 6), range(24))
    assert found.closed
    plan = collective(kind, found.order, 96.0, pieces)
    delivery = deliver(mesh(TileGrid(4, 6), Wires(8.0, 0.25)), plan, contention)  # type: ignore[arg-type]
    assert delivery.time_s == pytest.approx(ring_s(kind, 24, 96.0, 8.0, 0.25, pieces), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_where_every_pair_has_a_link_the_time_is_the_closed_form(kind: Collective) -> None:
    topology = full_mesh(np.full((6, 6), 8.0), 0.25)
    assert deliver(topology, collective(kind, range(6), 96.0)).time_s == pytest.approx(
        ring_s(kind, 6, 96.0, 8.0, 0.25), rel=1e-12
    )


def test_an_all_reduce_both_ways_takes_half_of_the_bytes_time() -> None:
    order = ring(TileGrid(4, 4), range(16)).order
    topology = mesh(TileGrid(4, 4), Wires(8.0))
    one = deliver(topology, collective("all_reduce", order, 96.0)).time_s
    halves = (collective("all_reduce", way, 48.0) for way in (order, order[::-1]))
    both = deliver(topology, together(*halves)).time_s
    assert both == pytest.approx(one / 2)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    order = ring(TileGrid(4, 6), range(24)).order
    halves: tuple[Collective, ...] = ("reduce_scatter", "all_gather")
    both = sum(deliver(TORUS, collective(kind, order, 96.0)).time_s for kind in halves)
    assert deliver(TORUS, collective("all_reduce", order, 96.0)).time_s == pytest.approx(both)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "all_to_all"])
def test_on_a_torus_rows_then_columns_take_the_closed_form(kind: Collective) -> None:
    table = np.arange(24).reshape(4, 6).tolist()
    expected = layered.layered_s(kind, 4, 6, 96.0, (8.0, 0.25), (8.0, 0.25))
    assert deliver(TORUS, layered.collective(kind, table, 96.0)).time_s == pytest.approx(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_cluster_with_an_adapter_each_the_hierarchical_time_is_the_closed_form(kind: Collective) -> None:
    """Nodes of 4 behind a switch; along a column, every member has its own adapter."""
    cluster = tree([Switches(4, 32.0, 0.5), Switches(3, 8.0, 2.0, uplinks=4)])
    table = np.arange(12).reshape(3, 4).tolist()
    expected = layered.layered_s(kind, 3, 4, 96.0, (32.0, 0.5), (8.0, 2.5))
    assert deliver(cluster, layered.collective(kind, table, 96.0)).time_s == pytest.approx(expected)


def test_between_nodes_a_hierarchical_all_reduce_sends_one_gth_of_the_bytes() -> None:
    """With one adapter for 4 devices, a ring in node order sends 2 (p − 1)/p of the tensor once per node."""
    cluster = tree([Switches(4, 1e3), Switches(3, 1.0)])
    table = np.arange(12).reshape(3, 4).tolist()
    deliveries = [
        deliver(cluster, plan)
        for plan in (collective("all_reduce", range(12), 96.0), layered.all_reduce(table, 96.0))
    ]
    slow = [k for k, link in enumerate(cluster.links) if link.bandwidth_bytes_per_s == 1.0]
    flat, tall = (delivery.link_bytes[slow].max() for delivery in deliveries)
    assert flat == pytest.approx(2 * 11 / 12 * 96)
    assert tall == pytest.approx(4 * (2 * 2 / 3 * 96 / 4))


@pytest.mark.parametrize("kind", KINDS)
def test_layered_collectives_deliver_what_flat_ones_do(kind: Collective) -> None:
    """With one row, or with rows of one member, the messages equal those of the flat collective."""
    flat = collective(kind, range(6), 96.0)
    for table in ([[0, 1, 2, 3, 4, 5]], [[0], [1], [2], [3], [4], [5]]):
        plan = [message for message in layered.collective(kind, table, 96.0) if message.size_bytes > 0]
        assert [message[:3] for message in plan] == [message[:3] for message in flat]


def test_an_all_to_all_contends_on_a_mesh() -> None:
    topology = mesh(TileGrid(4, 4), Wires(8.0))
    plan = collective("all_to_all", range(16), 96.0)
    assert deliver(topology, plan).time_s > 1.2 * deliver(topology, plan, "none").time_s


@pytest.mark.parametrize("side", [4, 6])
@pytest.mark.parametrize("contention", ["arrival", "order"])
def test_an_all_to_all_takes_no_less_than_its_bytes_over_the_cut(side: int, contention: str) -> None:
    """Half of the members send half of their bytes across the cut, over as many links as there are rows."""
    topology, members = mesh(TileGrid(side, side), Wires(8.0)), range(side * side)
    table = np.arange(side * side).reshape(side, side).tolist()
    bound = side * side / 2 * 96.0 / 2 / (side * 8.0)
    for plan in (collective("all_to_all", members, 96.0), layered.all_to_all(table, 96.0)):
        assert deliver(topology, plan, contention).time_s >= bound  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: collective("all_reduce", [0, 1, 0], 1.0), "members must be different"),
        (lambda: collective("gossip", [0, 1], 1.0), "must be one of all_reduce"),  # type: ignore[arg-type]
        (lambda: collective("broadcast", [0, 1], 1.0, 0), "pieces must be ≥ 1"),
        (lambda: layered.all_reduce([[0, 1], [2]], 1.0), "same number of members"),
        (lambda: layered.collective("gossip", [[0]], 1.0), "must be one of"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_a_collective_is_refused(make: object, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        make()  # type: ignore[operator]
