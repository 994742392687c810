"""A pipeline and its communication as one plan: the same times as other methods, and every byte arrives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.collectives import all_reduce, by_node, collective, ring
from phaze.cost.network.delivery import deliver
from phaze.cost.network.mesh import TileGrid, Wires, mesh, torus
from phaze.cost.network.messages import Message, together
from phaze.cost.network.network import Collective
from phaze.cost.network.topology import Switching, Topology
from phaze.pipeline.durations import JobKind
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.traffic import Sends, Turn, script, silent, simulate_script
from tests.oracles.layered import ring_s
from tests.oracles.network_machine import NetworkMachine
from tests.oracles.pipeline_events import simulate_events

GRID = TileGrid(1, 4)
BYTES = {(a, b): 4.0 for a in range(4) for b in range(4) if abs(a - b) == 1}
STAGE = StageCost(1.0, 2.0, recompute_s=1.0, send_activation_s=0.5, send_gradient_s=0.5)
LINE = [[0], [1], [2], [3]]


def random_case(seed: int) -> tuple[Pipeline, list[list[int]]]:
    """Return four unequal stages, whose events never meet in one instant, on tiles in any order."""
    rng = np.random.default_rng(seed)
    stages = tuple(
        replace(STAGE, forward_s=rng.uniform(0.5, 1.5), backward_s=rng.uniform(1, 3)) for _ in range(4)
    )
    return Pipeline(stages, 8), [[int(tile)] for tile in rng.permutation(4)]


def slower(topology: Topology, link: int) -> Topology:
    """Return the same with half the bandwidth of one link."""
    links = list(topology.links)
    links[link] = replace(links[link], bandwidth_bytes_per_s=links[link].bandwidth_bytes_per_s / 2)
    return replace(topology, links=tuple(links), _legs={})


def test_where_nothing_meets_it_takes_the_longest_path() -> None:
    """4 bytes at 8 bytes/s are the 0.5 s of the pipeline."""
    pipeline, network = Pipeline((STAGE,) * 4, 8), mesh(GRID, Wires(8.0))
    plan = script(pipeline, Sends(LINE, BYTES))
    alone = simulate(replace(pipeline, stages=(StageCost(1.0, 2.0, 1.0),) * 4)).time_s
    for contention in ("arrival", "none"):
        carried = simulate_script(plan, network, contention)  # type: ignore[arg-type]
        assert carried.time_s == pytest.approx(simulate(pipeline).time_s)
        assert carried.timeline.share_of["transfer"] == pytest.approx(simulate(pipeline).share_of["transfer"])
    assert simulate_script(silent(plan), network).time_s == pytest.approx(alone)


@pytest.mark.parametrize("switching", ["pipelined", "hop-by-hop"])
def test_it_agrees_with_the_machine_of_discrete_events(switching: Switching) -> None:
    """Two programs: SimPy with a process per worker, and compiled messages."""
    for seed in range(12):
        pipeline, tiles = random_case(seed)
        network = mesh(GRID, Wires(1.0))
        machine = NetworkMachine(network, tiles, BYTES, switching=switching)
        expected = simulate_events(pipeline, machine=machine)
        carried = simulate_script(script(pipeline, Sends(tiles, BYTES)), network, switching=switching)
        assert carried.time_s == pytest.approx(expected.time_s, rel=1e-12)
        assert carried.timeline.start_s == pytest.approx(expected.start_s, rel=1e-9, abs=1e-9)
        assert machine.network
        assert carried.link_bytes == pytest.approx(machine.network.link_bytes)


def test_one_draft_serves_all_devices() -> None:
    """Equal pipelines on other tiles have the same messages between other nodes."""
    pipeline, tiles = random_case(1)
    first, second = (script(pipeline, Sends(LINE, BYTES)), script(replace(pipeline), Sends(tiles, BYTES)))
    assert first.graph is second.graph
    moved = np.array(tiles)[:, 0]
    sent = first.plan.size_bytes > 0
    for before, after in ((first.plan.source, second.plan.source), (first.plan.target, second.plan.target)):
        assert (moved[before[sent]] == after[sent]).all()
    assert (first.plan.before == second.plan.before).all()
    assert (script(pipeline, Sends(LINE, {})).plan.size_bytes == 0).all()


def test_every_byte_sent_is_received() -> None:
    for seed in range(12):
        pipeline, tiles = random_case(seed)
        carried = simulate_script(script(pipeline, Sends(tiles, BYTES)), mesh(GRID, Wires(1.0)))
        assert carried.sent_bytes.sum() == carried.received_bytes.sum() == 8 * 4.0 * 6
        place = [tile for (tile,) in tiles]
        assert carried.received_bytes[place].tolist() == [32.0, 64.0, 64.0, 32.0]


def test_half_the_bandwidth_of_any_link_is_never_faster() -> None:
    """Always true without contention; with it true in these cases, although first come first served does not
    guarantee it: a later message may let another pass first.
    """
    for seed in range(12):
        pipeline, tiles = random_case(seed)
        network, plan = mesh(GRID, Wires(1.0)), script(pipeline, Sends(tiles, BYTES))
        for contention in ("none", "arrival"):
            time_s = simulate_script(plan, network, contention).time_s  # type: ignore[arg-type]
            for link in range(len(network.links)):
                assert simulate_script(plan, slower(network, link), contention).time_s >= time_s  # type: ignore[arg-type]


def test_the_other_way_round_on_the_same_line_takes_as_long() -> None:
    """The devices of a line are equivalent from either end."""
    pipeline, tiles = random_case(5)
    mirrored = [[3 - tile] for (tile,) in tiles]
    times = [
        simulate_script(script(pipeline, Sends(order, BYTES)), mesh(GRID, Wires(1.0))).time_s
        for order in (tiles, mirrored)
    ]
    assert times[0] == times[1]


def test_work_and_messages_of_a_job_take_turns() -> None:
    """Two layers of 1 s, each followed by an all-reduce of two tiles that takes 4 s; then 3 s of backward
    pass.
    """
    pipeline = Pipeline((StageCost(2.0, 3.0),), 2, tensor=(2,))
    turns = {(JobKind.FORWARD, 0, 0): [Turn(1.0, collective("all_reduce", [0, 1], 4.0))] * 2}
    plan = script(pipeline, Sends([[0, 1]], {}, turns))
    carried = simulate_script(plan, mesh(GRID, Wires(1.0)))
    assert carried.time_s == 2 * (2 * (1 + 4) + 3)
    assert carried.work_s.tolist() == [10.0]
    assert simulate_script(silent(plan), mesh(GRID, Wires(1.0))).time_s == 10


def test_synchronisation_is_a_collective_on_the_same_links() -> None:
    pipeline = Pipeline((StageCost(1.0, 2.0, sync_s=1.0),), 4, data=(2,))
    plan = script(
        pipeline,
        Sends([[0, 1]], {}, {(JobKind.LAST_SYNC, 1, 0): [Turn(0.0, collective("all_reduce", [0, 1], 8.0))]}),
    )
    assert simulate_script(plan, mesh(GRID, Wires(1.0))).time_s == 2 * 3 + 8


@pytest.mark.parametrize(
    ("kind", "members", "rounds"),
    [("all_reduce", 2, 2), ("all_reduce", 8, 14), ("reduce_scatter", 8, 7), ("all_reduce", 5, 8)],
)
def test_a_coarse_ring_takes_as_long_as_a_fine_one(kind: Collective, members: int, rounds: int) -> None:
    network = torus((members,), 2.0, 0.25)
    plan = ring(network, kind, range(members), 24.0)
    assert len(plan) <= 4 * members
    assert deliver(network, plan).time_s == pytest.approx(rounds * (0.25 + 24 / members / 2))
    assert deliver(network, plan).link_bytes.sum() == pytest.approx(rounds * 24)


def test_a_coarse_all_reduce_goes_inside_nodes_first() -> None:
    """Two nodes of two: half of the tensor inside each, halves of it between them."""
    network = torus((2, 2), 1.0)
    rows = by_node([0, 1, 2, 3], 2)
    assert rows == [[0, 1], [2, 3]]
    inside, between = ring_s("reduce_scatter", 2, 8.0, 1.0), ring_s("all_reduce", 2, 4.0, 1.0)
    assert deliver(network, all_reduce(network, rows, 8.0)).time_s == 2 * inside + between
    assert deliver(network, all_reduce(network, [[0, 1], [3]], 6.0)).received_bytes.sum() == 2 * 2 * 6


def test_a_torus_has_links_to_all_neighbours_and_the_shorter_way_round() -> None:
    box = torus((4, 4, 4), 1.0)
    assert len(box.links) == 64 * 6
    assert max(box.hops(0, device) for device in range(64)) == 6
    assert box.router(0, 7) == [0, 3, 7]
    assert len(torus((4, 4, 4), 1.0, wrap=False).links) == 6 * 48
    assert torus((4, 4, 4), 1.0, wrap=False).hops(0, 63) == 9
    assert len(torus((2,), 1.0).links) == 2


def test_two_dimensions_are_the_grid() -> None:
    grid = TileGrid(3, 5, wrap=True)
    assert all(torus((3, 5), 1.0).router(a, b) == grid.route(a, b) for a in range(15) for b in range(15))


def test_what_has_no_place_is_refused() -> None:
    pipeline = Pipeline((STAGE,) * 2, 4)
    with pytest.raises(PhazeError, match="tiles must have the nodes of 2 workers, got 1"):
        script(pipeline, Sends([[0]], {}))
    overlapped = Pipeline((replace(STAGE, sync_s=1.0, operators=3),), 4, data=(2,), overlap_sync=True)
    with pytest.raises(PhazeError, match="operators must be 1"):
        script(overlapped, Sends([[0, 1]], {}))
    with pytest.raises(PhazeError, match="must be one of arrival, none, got order"):
        simulate_script(script(pipeline, Sends([[0], [1]], {})), mesh(GRID, Wires(1.0)), "order")
    with pytest.raises(PhazeError, match="every dimension must have"):
        torus((4, 0), 1.0)


def test_plans_that_run_together_may_be_a_jobs_messages() -> None:
    pipeline = Pipeline((StageCost(1.0, 1.0),), 1)
    both = together((Message(0, 1, 2.0),), (Message(2, 3, 3.0),))
    plan = script(pipeline, Sends([[0]], {}, {(JobKind.FORWARD, 0, 0): [Turn(1.0, both)]}))
    assert simulate_script(plan, mesh(GRID, Wires(1.0))).time_s == 1 + 3 + 1
