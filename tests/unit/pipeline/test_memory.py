"""Memory of devices over time, compared with the counts of papers and planners."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.cost.memory import microbatches_in_flight
from phaze.pipeline.durations import JobKind
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from tests.oracles.pipelines import recomputing
from tests.unit.pipeline.examples import NAMES, ideal, random_pipeline


@given(st.integers(1, 8), st.integers(1, 12))
def test_a_stage_holds_its_number_from_the_end_under_1f1b_and_all_under_gpipe(depth: int, count: int) -> None:
    """PALM, IV.B: S times the activation in 1F1B, and B times in GPipe, on the first stage."""
    plain, gpipe = simulate(ideal(depth, count, "1f1b")), simulate(ideal(depth, count, "gpipe"))
    assert [plain.most_in_flight(w) for w in range(depth)] == [min(depth - w, count) for w in range(depth)]
    assert [gpipe.most_in_flight(w) for w in range(depth)] == [count] * depth
    assert plain.peak_bytes.tolist() == [min(depth - w, count) for w in range(depth)]


@pytest.mark.parametrize("recompute", [False, True])
def test_the_peak_is_the_memory_that_the_planner_counts(recompute: bool) -> None:
    """Static + activations + in flight * stashed (Phaze, Appendix B.1)."""
    static, activations, inputs = 100.0, 10.0, 3.0
    stage = StageCost(1.0, 2.0, stash_bytes=activations, fixed_bytes=static)
    stage = recomputing(stage, inputs) if recompute else stage
    pipeline = Pipeline((stage,) * 4, 9)
    for group in range(4):
        flying = microbatches_in_flight("1f1b", 4 - group, 9)
        stashed = np.array([inputs if recompute else activations])
        expected = np.array([static + activations]) + flying * stashed
        assert simulate(pipeline).peak_bytes[group] == expected[0]


def test_interleaving_holds_more() -> None:
    """By the factor 1 + (p - 1)/(p v) of the activations of the model (Korthikanti et al., Section 4.2.3)."""
    depth, chunks = 4, 3
    timeline = simulate(ideal(depth, 24, "interleaved", chunks))
    assert timeline.peak_bytes[0] == pytest.approx(depth * (1 + (depth - 1) / (depth * chunks)))


@pytest.mark.parametrize("schedule", NAMES)
def test_the_peak_is_the_largest_of_a_count_of_what_is_alive(schedule: str) -> None:
    """Sum, at the start of every job, over all microbatches between their first and last job on the
    device.
    """
    for seed in range(6):
        pipeline = random_pipeline(np.random.default_rng(seed), schedule)
        timeline = simulate(pipeline)
        jobs = timeline.jobs
        leaving = pipeline.rules.releases(jobs.kind)
        for worker, (group, _) in enumerate(pipeline.workers):
            worker_jobs = range(*jobs.first[worker : worker + 2].tolist())
            fixed = sum(pipeline.stages[q].fixed_bytes for q in pipeline.stages_of(group).tolist())
            most = fixed
            for at in worker_jobs:
                alive = {}
                for job in worker_jobs:
                    key = int(jobs.stage[job]), int(jobs.microbatch[job])
                    if jobs.kind[job] == 1 and job <= at:
                        alive[key] = pipeline.stages[key[0]].stash_bytes
                    if leaving[job] and job < at:
                        alive.pop(key)
                busy = JobKind.FORWARD <= jobs.kind[at] < JobKind.SYNC
                works = pipeline.stages[jobs.stage[at]].work_bytes * busy
                most = max(most, fixed + sum(alive.values()) + works)
            assert timeline.memory(worker).peak_bytes == pytest.approx(most)


def test_everything_is_given_back_in_the_end() -> None:
    profile = simulate(random_pipeline(np.random.default_rng(3), "interleaved")).memory(0)
    assert profile.bytes_[-1] == pytest.approx(profile.bytes_[0])
    assert (np.diff(profile.time_s) >= 0).all()


def test_recomputation_takes_time_and_saves_memory() -> None:
    stage = StageCost(1.0, 2.0, stash_bytes=10.0)
    plain = Pipeline((stage,) * 4, 9)
    recompute = replace(plain, stages=(recomputing(stage, 1.0),) * 4)
    assert simulate(recompute).time_s == 12 * 4
    assert simulate(plain).time_s == 12 * 3
    assert (simulate(recompute).peak_bytes < simulate(plain).peak_bytes).tolist() == [True, True, True, False]
