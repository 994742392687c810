"""Speed of network simulation; measured with `pytest tests/benchmarks --benchmark-enable`.

Without --benchmark-enable everything runs once and on smaller cases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from phaze.cost.network.collectives import collective
from phaze.cost.network.delivery import deliver
from phaze.cost.network.messages import Plan, then, together
from phaze.layout import Layout
from phaze.pipeline.durations import JobKind
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.traffic import simulate_script
from phaze.tiles.chains import PalmLayers
from phaze.tiles.chip import load_tiled_machine
from phaze.tiles.on_tiles import programs_of, script_of
from phaze.tiles.placement import axis_groups, ring, s_shaped
from phaze.tiles.runs import TiledRun
from tests.oracles import layered
from tests.oracles.chips import wafer
from tests.oracles.contention import deliver_events
from tests.oracles.network_machine import Detail, NetworkMachine
from tests.oracles.pipeline_events import simulate_events

Benchmark = Callable[..., Any]

GRID, WAFER, MEMORY = wafer()


def stages_all_reduce() -> Plan:
    """Return an all-reduce in each of 20 stages of 4 × 4 cores: 9,600 messages."""
    return together(
        *(collective("all_reduce", ring(GRID, tiles).order, 8e6) for tiles in s_shaped(GRID, 4, 4))
    )


@pytest.mark.parametrize("run", [deliver_events, deliver])
def test_all_reduce_in_every_stage_of_the_wafer(run: Callable[..., Any], benchmark: Benchmark) -> None:
    plan = stages_all_reduce()
    run(WAFER, plan)
    delivery = benchmark(run, WAFER, plan)
    benchmark.extra_info["messages_per_s"] = len(plan) / benchmark.stats["mean"] if benchmark.stats else 0  # type: ignore[attr-defined]
    alone_s = [WAFER.seconds(m.source, m.target, m.size_bytes) for m in plan]
    assert (delivery.arrived_s - delivery.times_s[0] - alone_s).max() < 1e-12


@pytest.mark.parametrize("run", [deliver_events, deliver])
def test_all_to_all_of_320_cores(run: Callable[..., Any], benchmark: Benchmark) -> None:
    """102,080 messages over 12 hops on average, all contending (from 48 cores without measuring)."""
    plan = collective("all_to_all", range(GRID.tiles if benchmark.enabled else 48), 8e6)  # type: ignore[attr-defined]
    run(WAFER, plan)
    delivery = benchmark.pedantic(run, (WAFER, plan), rounds=3)  # type: ignore[attr-defined]
    assert delivery.time_s > deliver(WAFER, plan, "none").time_s


def test_all_reduce_over_64_by_64_cores(benchmark: Benchmark) -> None:
    """Rows, then columns of 4,096 cores: 1,032,192 messages (from 256 cores without measuring)."""
    side = 64 if benchmark.enabled else 16  # type: ignore[attr-defined]
    grid, topology, _ = wafer(side // 4, side // 4)
    table = [list(range(row * side, row * side + side)) for row in range(side)]
    plan = layered.all_reduce(table, 8e6)
    assert grid.tiles == side**2
    delivery = benchmark.pedantic(deliver, (topology, plan), rounds=1)  # type: ignore[attr-defined]
    assert delivery.received_bytes.sum() > 0


@pytest.mark.parametrize("detail", get_args(Detail))
def test_a_pipeline_of_20_stages_on_the_wafer(detail: Detail, benchmark: Benchmark) -> None:
    """60 microbatches (5 without measuring) with two all-reduces in every group of 8 cores per pass, as in
    every layer of T-18B.
    """
    microbatches = 60 if benchmark.enabled else 5  # type: ignore[attr-defined]
    plans = {}
    stages = s_shaped(GRID, 4, 4)
    for stage, tiles in enumerate(stages):
        near = axis_groups(GRID, tiles, {"d": 2, "t": 8})["t"]
        one = together(*(collective("all_reduce", group, 25e6) for group in near))
        plans[JobKind.FORWARD, stage] = plans[JobKind.BACKWARD, stage] = then(one, one)
    sent = {(stage, stage + step): 50e6 for stage in range(20) for step in (-1, 1)}
    pipeline = Pipeline((StageCost(4e-3, 8e-3, 4e-3),) * 20, microbatches)

    def run() -> float:
        machine = NetworkMachine(WAFER, stages, sent, plans, detail=detail)
        return simulate_events(pipeline, machine=machine).time_s

    assert benchmark.pedantic(run, rounds=3 if detail == "plans" else 1) > microbatches * 16e-3  # type: ignore[attr-defined]


def test_t_18b_on_the_wafer(benchmark: Benchmark) -> None:
    """TP 8, DP 2, 20 stages along an S, 20 microbatches: DRAM, all-reduces and tensors on one mesh."""
    chip = load_tiled_machine("wafer").chip
    layers = PalmLayers(40, 6144, 48, 2048)
    run = TiledRun(layers, 1024, 20, Layout(tp=8, dp=2), s_shaped(chip.grid, 4, 4))

    def with_contention() -> float:
        return simulate_script(script_of(run, programs_of(chip, run)), chip.topology).time_s

    with_contention()
    assert benchmark.pedantic(with_contention, rounds=3) > 0  # type: ignore[attr-defined]
