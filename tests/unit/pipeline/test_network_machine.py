"""Pipeline on a simulated network."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.collectives import collective
from phaze.cost.network.mesh import TileGrid, Wires, mesh
from phaze.pipeline.durations import JobKind
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.traffic import passing
from phaze.tiles.placement import ring, s_shaped
from tests.oracles.network_machine import Detail, NetworkMachine
from tests.oracles.pipeline_events import simulate_events

GRID = TileGrid(1, 4)
BYTES = {(a, b): 4.0 for a in range(4) for b in range(4) if abs(a - b) == 1}
STAGE = StageCost(1.0, 2.0, send_activation_s=0.5, send_gradient_s=0.5)


def machine(tiles: list[list[int]], bandwidth: float = 8.0, detail: Detail = "messages") -> NetworkMachine:
    return NetworkMachine(mesh(GRID, Wires(bandwidth)), tiles, BYTES, detail=detail)


def wafer_machine(detail: Detail) -> NetworkMachine:
    """Return four stages of 4 × 4 cores with an all-reduce in every pass."""
    grid = TileGrid(4, 16)
    stages = s_shaped(grid, 4, 4)
    plan = {
        (kind, stage): collective("all_reduce", ring(grid, tiles).order, 64.0)
        for stage, tiles in enumerate(stages)
        for kind in (JobKind.FORWARD, JobKind.BACKWARD)
    }
    return NetworkMachine(mesh(grid, Wires(8.0)), stages, dict.fromkeys(BYTES, 64.0), plan, detail=detail)


@pytest.mark.parametrize("detail", get_args(Detail))
def test_where_nothing_meets_the_pipeline_takes_the_time_of_the_longest_path(detail: Detail) -> None:
    """4 bytes at 8 bytes/s are the 0.5 s of the pipeline; neighbours have their own directed links."""
    pipeline = Pipeline((STAGE,) * 4, 8)
    network = machine([[0], [1], [2], [3]], detail=detail)
    assert simulate_events(pipeline, machine=network).time_s == simulate(pipeline).time_s


def test_stages_far_apart_meet_on_links() -> None:
    pipeline = Pipeline((STAGE,) * 4, 8)
    near = simulate_events(pipeline, machine=machine([[0], [1], [2], [3]], 1.0)).time_s
    far = simulate_events(pipeline, machine=machine([[0], [2], [1], [3]], 1.0)).time_s
    assert far > near


def test_every_tensor_arrives_at_the_tiles_of_the_next_stage() -> None:
    pipeline, carrier = Pipeline((STAGE,) * 2, 6), machine([[0, 1], [2, 3]])
    simulate_events(pipeline, machine=carrier)
    assert carrier.network
    assert carrier.network.received_bytes == [6 * 2.0] * 4


@pytest.mark.parametrize("detail", get_args(Detail))
def test_synchronisation_is_a_collective_on_the_same_links(detail: Detail) -> None:
    """An all-reduce of 8 bytes over two tiles at 1 byte/s: 2 rounds of 4 s after the last pass."""
    pipeline = Pipeline((StageCost(1.0, 2.0, sync_s=1.0),), 4, data=(2,))
    network = machine([[0], [1]], 1.0, detail)
    network.plans = {(JobKind.LAST_SYNC, 0): collective("all_reduce", [0, 1], 8.0)}
    alone = simulate(replace(pipeline, stages=(StageCost(1.0, 2.0),))).time_s
    assert simulate_events(pipeline, machine=network).time_s == alone + 8.0


def test_plans_held_as_a_whole_wait_longer_where_they_meet_and_bring_the_same_bytes() -> None:
    pipeline = Pipeline((STAGE,) * 4, 8)
    machines = [wafer_machine(detail) for detail in get_args(Detail)]
    times = [simulate_events(pipeline, machine=machine).time_s for machine in machines]
    assert times[0] < times[1] < 2 * times[0]
    networks = [machine.network for machine in machines]
    assert networks[0]
    assert networks[1]
    for name in ("received_bytes", "sent_bytes", "link_bytes"):
        assert getattr(networks[0], name) == pytest.approx(getattr(networks[1], name))
    assert sum(networks[0].sent_bytes) == pytest.approx(sum(networks[0].received_bytes))


def test_tiles_pass_equal_shares_in_order() -> None:
    passed = [message[:3] for message in passing([0, 1, 2, 3], [8, 9], 4.0)]
    assert passed == [(0, 8, 1.0), (1, 8, 1.0), (2, 9, 1.0), (3, 9, 1.0)]


def test_a_tensor_without_a_size_is_refused() -> None:
    network = machine([[0], [1]])
    network.sent_bytes = {}
    with pytest.raises(PhazeError, match="sent_bytes must have stages 0 to 1"):
        simulate_events(Pipeline((STAGE,) * 2, 2), machine=network)
