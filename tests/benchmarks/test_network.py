"""Speed of the network level; `pytest tests/benchmarks --benchmark-enable` measures it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phaze.simulate.network import layered
from phaze.simulate.network.cases import wafer
from phaze.simulate.network.collectives import all_reduce, all_to_all
from phaze.simulate.network.delivery import deliver, in_compiled_events, in_events
from phaze.simulate.network.mapping import s_shaped
from phaze.simulate.network.messages import Plan, together
from phaze.simulate.network.rings import ring

Benchmark = Callable[..., Any]

GRID, WAFER, MEMORY = wafer()


def stages_all_reduce() -> Plan:
    """Return an all-reduce in each of 20 stages of 4 × 4 cores: 9,600 messages."""
    return together(*(all_reduce(ring(GRID, tiles).order, 8e6) for tiles in s_shaped(GRID, 4, 4)))


@pytest.mark.parametrize("run", [in_events, in_compiled_events])
def test_all_reduce_in_every_stage_of_the_wafer(run: Callable[..., Any], benchmark: Benchmark) -> None:
    plan = stages_all_reduce()
    run(WAFER, plan, "pipelined")
    delivery = benchmark(run, WAFER, plan, "pipelined")
    benchmark.extra_info["messages_per_s"] = len(plan) / benchmark.stats["mean"] if benchmark.stats else 0  # type: ignore[attr-defined]
    assert delivery.contention_s.max() < 1e-12


@pytest.mark.parametrize("run", [in_events, in_compiled_events])
def test_all_to_all_of_320_cores(run: Callable[..., Any], benchmark: Benchmark) -> None:
    """102,080 messages over 12 hops on average, all in each other's way."""
    plan = all_to_all(range(GRID.tiles), 8e6)
    run(WAFER, plan, "pipelined")
    delivery = benchmark.pedantic(run, (WAFER, plan, "pipelined"), rounds=3)  # type: ignore[attr-defined]
    assert delivery.time_s > deliver(WAFER, plan, "none").time_s


def test_all_reduce_over_64_by_64_cores(benchmark: Benchmark) -> None:
    """Rows then columns of 4,096 cores: 1,032,192 messages."""
    grid, topology, _ = wafer(16, 16)
    table = [list(range(row * 64, row * 64 + 64)) for row in range(64)]
    plan = layered.all_reduce(table, 8e6)
    assert grid.tiles == 4096
    delivery = benchmark.pedantic(deliver, (topology, plan), rounds=1)  # type: ignore[attr-defined]
    assert delivery.received_bytes.sum() > 0
