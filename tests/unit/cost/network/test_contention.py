"""Transfers that share links: order, conservation of bytes, and effects of bandwidth."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.cost.network import compiled
from phaze.cost.network.delivery import Delivery, deliver
from phaze.cost.network.mesh import PortMemory, TileGrid, Wires, mesh
from phaze.cost.network.messages import Message, Plan, then, together
from phaze.cost.network.topology import Switching, Topology
from tests.oracles.contention import Carrier, deliver_events
from tests.oracles.full_mesh import full_mesh
from tests.oracles.network_machine import sent_by

GRID = TileGrid(3, 3)
MEMORY = PortMemory((0, 8), 2.0, 0.25)
MESH = mesh(GRID, Wires(4.0, 0.125), MEMORY)
SWITCHING: tuple[Switching, ...] = ("pipelined", "hop-by-hop")

seeds = st.integers(0, 2**32 - 1)


def random_plan(seed: int, messages: int = 40, nodes: int = MESH.nodes) -> Plan:
    """Return messages between random nodes, most of them dependent on others."""
    rng = np.random.default_rng(seed)
    plan = []
    for k in range(messages):
        after = tuple(sorted(set(rng.integers(0, k, rng.integers(0, 3)).tolist()))) if k else ()
        source, target = rng.integers(0, nodes, 2).tolist()
        plan.append(Message(source, target, float(rng.integers(0, 9)), after, float(rng.choice([0, 0, 1]))))
    return tuple(plan)


def slowed(topology: Topology, which: list[int], factor: float = 0.5) -> Topology:
    """Return a network in which some links have half of their bandwidth."""
    links = [
        replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * (factor if k in which else 1))
        for k, link in enumerate(topology.links)
    ]
    return Topology(topology.name, topology.devices, topology.nodes, tuple(links), topology.router)


def held(delivery: Delivery) -> dict[int, list[tuple[float, float]]]:
    """Return when every resource was held; of routes with one leg."""
    spans: dict[int, list[tuple[float, float]]] = {}
    for k, message in enumerate(delivery.plan):
        for leg in delivery.topology.legs(message.source, message.target):
            for resource in leg.resources:
                _, started_s, arrived_s = delivery.times_s[:, k].tolist()
                spans.setdefault(resource, []).append((started_s, arrived_s))
    return spans


def contention_s(delivery: Delivery) -> list[float]:
    """Return how much longer every message took than on an idle network (PALM, Equation 2)."""
    alone = [delivery.topology.seconds(m.source, m.target, m.size_bytes) for m in delivery.plan]
    return (delivery.arrived_s - delivery.times_s[0] - np.array(alone)).tolist()


def test_two_transfers_over_one_link_follow_each_other() -> None:
    line = mesh(TileGrid(1, 3), Wires(1.0))
    delivery = deliver(line, [Message(0, 2, 4.0), Message(1, 2, 4.0), Message(0, 1, 4.0)])
    assert delivery.arrived_s.tolist() == [4, 8, 8]
    assert contention_s(delivery) == [0, 4, 4]
    assert line.resource_of.index(int(np.argmax(delivery.busy_s))) == line.link_between[0, 1]


def test_nobody_overtakes_on_a_link_that_an_older_transfer_waits_for() -> None:
    """The long transfer waits for link 1 to 2; the later one waits behind it on link 0 to 1."""
    line = mesh(TileGrid(1, 3), Wires(1.0))
    delivery = deliver(line, [Message(1, 2, 4.0), Message(0, 2, 2.0), Message(0, 1, 1.0)])
    assert delivery.times_s[1].tolist() == [0, 4, 6]


@given(seeds)
@settings(max_examples=20)
def test_one_transfer_at_a_time_holds_a_link(seed: int) -> None:
    nodes = GRID.tiles
    delivery = deliver(MESH, random_plan(seed, nodes=nodes))
    for spans in held(delivery).values():
        ordered = sorted(spans)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(ordered))


@pytest.mark.parametrize("switching", SWITCHING)
@pytest.mark.parametrize("contention", ["arrival", "order", "none"])
@given(seeds)
@settings(max_examples=8)
def test_every_byte_that_is_sent_is_received(switching: Switching, contention: str, seed: int) -> None:
    """At every node, incoming bytes plus sent bytes equal outgoing bytes plus received bytes."""
    plan = random_plan(seed)
    delivery = deliver(MESH, plan, contention, switching)  # type: ignore[arg-type]
    sent = np.array(sent_by(plan, MESH.nodes))
    assert delivery.received_bytes.sum() == sent.sum()
    through = np.zeros(MESH.nodes)
    for link, carried in zip(MESH.links, delivery.link_bytes, strict=True):
        through[link.target] += carried
        through[link.source] -= carried
    assert np.array_equal(sent + through, delivery.received_bytes)


@pytest.mark.parametrize("switching", SWITCHING)
@given(seeds)
@settings(max_examples=15)
def test_contention_only_delays(switching: Switching, seed: int) -> None:
    plan = random_plan(seed)
    alone = deliver(MESH, plan, "none", switching)
    for contention in ("arrival", "order"):
        shared = deliver(MESH, plan, contention, switching)  # type: ignore[arg-type]
        assert (shared.arrived_s >= alone.arrived_s - 1e-9).all()
        width = np.array([link.bandwidth_bytes_per_s for link in MESH.links])
        assert (shared.busy_s <= shared.time_s * (1 + 1e-9)).all()
        assert (shared.link_bytes <= width * shared.time_s * (1 + 1e-9)).all()
        assert np.allclose(shared.busy_s, alone.busy_s)
        assert (shared.times_s[0] <= shared.times_s[1]).all()


@given(seeds)
@settings(max_examples=20)
def test_links_that_serve_in_the_order_of_requests_give_the_same_times(seed: int) -> None:
    """Two methods: discrete events, and one sweep over messages in the order of their requests."""
    plan = random_plan(seed, nodes=GRID.tiles)
    events = deliver(MESH, plan)
    order = np.lexsort((np.arange(len(plan)), events.times_s[0])).tolist()
    place = {old: new for new, old in enumerate(order)}
    if len(set(events.times_s[0].tolist())) < len(plan):
        # Requests of one instant follow the order of events, which the sweep does not know.
        plan = tuple(m._replace(delay_s=m.delay_s + 1e-3 * (k + 1) ** 0.5) for k, m in enumerate(plan))
        events = deliver(MESH, plan)
        order = np.argsort(events.times_s[0], kind="stable").tolist()
        place = {old: new for new, old in enumerate(order)}
    sorted_plan = [
        plan[old]._replace(after=tuple(place[before] for before in plan[old].after)) for old in order
    ]
    sweep = deliver(MESH, sorted_plan, "order")
    assert np.allclose(sweep.arrived_s, events.arrived_s[order], rtol=1e-12)


@pytest.mark.parametrize("switching", SWITCHING)
@pytest.mark.parametrize("contention", ["order", "none"])
@given(seeds)
@settings(max_examples=15)
def test_with_a_fixed_order_halving_any_bandwidth_never_speeds_up(
    switching: Switching, contention: str, seed: int
) -> None:
    plan = random_plan(seed)
    which = np.random.default_rng(seed).integers(0, len(MESH.links), 3).tolist()
    fast = deliver(MESH, plan, contention, switching)  # type: ignore[arg-type]
    slow = deliver(slowed(MESH, which), plan, contention, switching)  # type: ignore[arg-type]
    assert (slow.arrived_s >= fast.arrived_s - 1e-9).all()


@given(seeds)
@settings(max_examples=15)
def test_first_come_first_served_halving_all_bandwidths_doubles_the_time_without_latency(seed: int) -> None:
    topology = mesh(GRID, Wires(4.0), PortMemory((0, 8), 2.0))
    plan = tuple(message._replace(delay_s=0.0) for message in random_plan(seed))
    slow = slowed(topology, list(range(len(topology.links))))
    assert deliver(slow, plan).time_s == 2 * deliver(topology, plan).time_s


def test_first_come_first_served_a_slower_link_can_speed_up() -> None:
    """A scheduling anomaly (Graham, 1969): with half the bandwidth, two requests swap their order.

    Found by search; with links that serve in plan order, the same plan only gets slower.
    """
    plan = [
        Message(2, 0, 3.0),
        Message(0, 2, 3.0),
        Message(4, 5, 2.0, (1,)),
        Message(1, 4, 3.0, (2,)),
        Message(4, 2, 2.0, (0,)),
    ]
    fast = mesh(TileGrid(2, 3), Wires(1.0))
    slow = slowed(fast, [fast.link_between[1, 0]])
    assert (deliver(fast, plan).time_s, deliver(slow, plan).time_s) == (10, 8)
    assert deliver(slow, plan, "order").time_s >= deliver(fast, plan, "order").time_s


@given(seeds)
@settings(max_examples=15)
def test_permuting_identical_devices_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    name = rng.permutation(6)
    matrix = rng.integers(1, 4, (6, 6)).astype(np.float64)
    renamed = np.zeros_like(matrix)
    renamed[np.ix_(name, name)] = matrix
    plan = random_plan(seed, nodes=6)
    other = [
        message._replace(source=int(name[message.source]), target=int(name[message.target]))
        for message in plan
    ]
    first, second = deliver(full_mesh(matrix, 0.5), plan), deliver(full_mesh(renamed, 0.5), other)
    assert np.array_equal(first.arrived_s, second.arrived_s)
    assert np.array_equal(first.received_bytes, second.received_bytes[name])


@pytest.mark.parametrize("messages", [1, 9, 80])
@pytest.mark.parametrize("switching", SWITCHING)
@given(seeds)
@settings(max_examples=20)
def test_compiled_events_are_bit_identical_to_simpy(switching: Switching, messages: int, seed: int) -> None:
    """With whole bytes, where many requests coincide, and with arbitrary bytes and delays."""
    whole, rng = random_plan(seed, messages), np.random.default_rng(seed)
    odd = tuple(m._replace(size_bytes=rng.random(), delay_s=m.delay_s * rng.random()) for m in whole)
    for plan in (whole, odd):
        simple, fast = deliver_events(MESH, plan, switching), deliver(MESH, plan, switching=switching)
        assert np.array_equal(simple.times_s, fast.times_s)
        assert np.array_equal(simple.busy_s, fast.busy_s)
        assert np.allclose(simple.link_bytes, fast.link_bytes, rtol=1e-12)  # summed in another order


def test_plans_run_together_or_one_after_the_other() -> None:
    line = mesh(TileGrid(1, 3), Wires(1.0))
    first, second = (
        [Message(0, 1, 3.0), Message(1, 2, 2.0, (0,))],
        [Message(2, 1, 4.0), Message(1, 0, 1.0, (0,))],
    )
    assert deliver(line, together(first, second)).time_s == 5
    assert deliver(line, then(first, second, first)).time_s == 15
    assert deliver(line, then((), first)).time_s == 5
    assert deliver(line, then()).time_s == deliver(line, together()).time_s == 0


def test_a_network_serves_processes_of_a_simulation() -> None:
    env = simpy.Environment()
    network = Carrier(env, mesh(TileGrid(1, 2), Wires(1.0)))
    seen = []

    def sender(size_bytes: float) -> object:
        yield network.transfer(0, 1, size_bytes)
        seen.append(env.now)

    for size_bytes in (2.0, 3.0):
        env.process(sender(size_bytes))  # type: ignore[arg-type]
    done = network.play([])
    env.run()
    assert seen == [2, 5]
    assert done.processed
    assert network.received_bytes == [0, 5]


@pytest.mark.parametrize(
    ("plan", "contention", "message"),
    [
        ([Message(0, 1, -1.0)], "arrival", "size_bytes"),
        ([Message(0, 1, 1.0, (0,))], "order", "must wait for earlier ones"),
        ([Message(0, 1, 1.0)], "luck", "contention must be one of arrival, order, none"),
        ([Message(0, 99, 1.0)], "none", "a node must be from 0"),
    ],
)
def test_what_cannot_be_sent_is_refused(plan: list[Message], contention: str, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        deliver(MESH, plan, contention)  # type: ignore[arg-type]


def test_pairs_of_nodes_too_many_to_list_are_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = random_plan(7)
    listed = deliver(MESH, plan)
    monkeypatch.setattr(compiled, "MOST_LISTED", 0)
    looked_for = deliver(MESH, plan)
    assert (listed.arrived_s == looked_for.arrived_s).all()
    assert (listed.busy_s == looked_for.busy_s).all()
