"""Speed of pipeline simulation; measured with `pytest tests/benchmarks --benchmark-enable`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phaze.layout import Layout
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.plan.machines import load_machine
from phaze.plan.pricing.runs import Run
from phaze.validate.table import predict
from tests.oracles.pipeline_events import simulate_events

Benchmark = Callable[..., Any]

STAGE = StageCost(
    1.0,
    2.0,
    recompute_s=1.0,
    send_activation_s=0.1,
    send_gradient_s=0.1,
    sync_s=5.0,
    update_s=0.5,
    operators=15,
)


def placement(depth: int, microbatches: int, data: int, tensor: int, chunks: int = 1) -> Pipeline:
    """Return a placement with recomputation and overlapped synchronisation."""
    return Pipeline(
        (STAGE,) * (depth * chunks),
        microbatches * data,
        "interleaved" if chunks > 1 else "1f1b",
        chunks=chunks,
        data=(data,) * depth,
        tensor=(tensor,) * depth,
        overlap_sync=True,
    )


def devices(pipeline: Pipeline) -> int:
    """Return the devices of all lanes."""
    return pipeline.lanes * int(pipeline.worker_devices.sum())


@pytest.mark.parametrize("chunks", [1, 5])
def test_simulate_t_76b_on_1024_gpus(chunks: int, benchmark: Benchmark) -> None:
    """Narayanan et al., SC 2021, Table 1: t = 8, p = 4, d = 32, 1,792 sequences, microbatches of one."""
    pipeline = placement(4, 56, 32, 8, chunks)
    timeline = benchmark(simulate, pipeline)
    assert (devices(pipeline), timeline.time_s) == (1024, simulate(pipeline).time_s)


def test_t_76b_as_discrete_events(benchmark: Benchmark) -> None:
    """The same pipeline simulated with SimPy, as if links were contended."""
    pipeline = placement(4, 56, 32, 8)
    timeline = benchmark(simulate_events, pipeline)
    assert timeline.time_s == pytest.approx(simulate(pipeline).time_s)


@pytest.mark.parametrize(("depth", "data"), [(5, 2500), (50, 250), (500, 25)])
def test_simulate_100000_devices(depth: int, data: int, benchmark: Benchmark) -> None:
    """2,000 microbatches in each of d pipelines; the number of jobs grows with the depth, not with d.

    100 microbatches without measuring.
    """
    pipeline = placement(depth, 2000 if benchmark.enabled else 100, data, 8)  # type: ignore[attr-defined]

    def account() -> tuple[float, str]:
        timeline = simulate(pipeline)
        return timeline.share_of["bubble"], str(timeline.bound_by)

    simulate(pipeline)
    assert devices(pipeline) == 100_000
    assert 0 < benchmark.pedantic(account, rounds=3)[0] < 1  # type: ignore[attr-defined]


def test_predict_t_76b_on_1024_gpus(benchmark: Benchmark) -> None:
    """The same run predicted from its operators: kernels, collectives, 56 microbatches in five chunks,
    memory.
    """
    run = Run(
        hidden=10240,
        heads=80,
        layers=60,
        seq=2048,
        vocab=51200,
        gpus=1024,
        global_batch=1792,
        layout=Layout(tp=8, pp=4, vp=5, dp=32, recompute="full"),
        schedule="interleaved",
    )
    machine = load_machine("a100-selene")
    found = benchmark(predict, run, machine)
    assert found.time_s == predict(run, machine).time_s
