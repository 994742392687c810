"""Steady-state rate, compared with the cost of the slowest stage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.schedules.plain import slowest_s, stashes, windows_at
from phaze.pipeline.stages import StageCost
from phaze.pipeline.steady import time_per_microbatch_s
from tests.unit.pipeline.examples import dividing_data, random_stage


def piper_s(pipeline: Pipeline) -> float:
    """Return Piper's time per sample: the largest (compute + all transfers over the borders)/d."""
    times = []
    for stage, cost in enumerate(pipeline.stages):
        load = cost.forward_s + cost.recompute_s + cost.backward_s
        if stage > 0:
            load += pipeline.stages[stage - 1].send_activation_s + cost.send_gradient_s
        if stage + 1 < len(pipeline.stages):
            load += cost.send_activation_s + pipeline.stages[stage + 1].send_gradient_s
        times.append(load / pipeline.data[stage])
    return max(times)


def unflushed(rng: np.random.Generator, data: tuple[int, ...]) -> Pipeline:
    """Return a pipeline without anything that is done once per batch."""
    once = {"sync_s": 0.0, "update_s": 0.0, "gather_s": 0.0}
    stages = tuple(replace(random_stage(rng), **once) for _ in data)  # type: ignore[arg-type]
    return Pipeline(stages, 12 * sum(data), "2bw", data=data, transfers="occupying")


def test_the_rate_is_pipers_cost_where_replicas_divide_their_suffix_sums() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        pipeline = unflushed(rng, dividing_data(rng, int(rng.integers(1, 6))))
        assert time_per_microbatch_s(pipeline) == pytest.approx(piper_s(pipeline), rel=1e-9)
        assert pipeline.in_flight == stashes(pipeline)


def test_the_rate_is_pipers_cost_where_the_stashes_suffice_for_it() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        pipeline = unflushed(rng, tuple(int(d) for d in rng.integers(1, 5, int(rng.integers(1, 6)))))
        needed = windows_at(pipeline, slowest_s(pipeline))
        measured, cost = time_per_microbatch_s(pipeline), piper_s(pipeline)
        assert slowest_s(pipeline) / pipeline.lanes == pytest.approx(cost, rel=1e-9)
        if all(window <= place for window, place in zip(needed, stashes(pipeline), strict=True)):
            assert measured == pytest.approx(cost, rel=1e-9)
        assert measured >= cost * (1 - 1e-9)
        assert all(w <= place for w, place in zip(pipeline.in_flight, stashes(pipeline), strict=True))


def test_stashes_of_balanced_stages_do_not_always_suffice() -> None:
    """Three replicas, three, two and one, all with load d: 9/3, 6/3, 3/2 and 1 in-flight microbatches are too
    few.
    """
    forward = (0.7, 1.9, 0.5, 0.4)
    data = (3, 3, 2, 1)
    stages = tuple(StageCost(f, d - f) for f, d in zip(forward, data, strict=True))
    pipeline = Pipeline(stages, 90, "2bw", data=data)
    assert stashes(pipeline) == (3, 2, 2, 1)
    assert windows_at(pipeline, 1.0) == (4, 3, 2, 1)
    assert time_per_microbatch_s(pipeline) > 1.05


def test_a_synchronisation_once_per_batch_costs_its_share_or_more() -> None:
    """It costs at least its share in the load of the slowest stage, and at most its full time."""
    stage = StageCost(1.0, 2.0, sync_s=6.0)
    pipeline = Pipeline((stage,) * 3, 12, "2bw", data=(1, 1, 1))
    measured = time_per_microbatch_s(pipeline)
    assert 3 + 6 / 12 - 1e-9 <= measured <= 3 + 3 * 6 / 12
    assert time_per_microbatch_s(replace(pipeline, overlap_sync=True)) == pytest.approx(3.0)


def test_inference_goes_at_the_rate_of_its_slowest_stage() -> None:
    """Without set-up and drain, for any transfers that do not occupy stages."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        data = tuple(int(d) for d in rng.integers(1, 4, 4))
        stages = tuple(random_stage(rng) for _ in data)
        pipeline = Pipeline(stages, 8, "inference", data=data)
        slowest = max(stage.forward_s / d for stage, d in zip(stages, data, strict=True))
        assert time_per_microbatch_s(pipeline) == pytest.approx(slowest, rel=1e-9)


def test_with_a_flush_the_rate_is_that_of_a_batch() -> None:
    assert time_per_microbatch_s(Pipeline((StageCost(1.0, 2.0),) * 3, 4)) == pytest.approx(3 * 6 / 4)
