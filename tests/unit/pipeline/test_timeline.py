"""Breakdown of device time, bottlenecks, invariants and monotonicity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.pipeline.durations import JobKind, goes_back
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from tests.unit.pipeline.examples import NAMES, ideal, random_pipeline, random_stage

TRANSFERS = ("send_activation_s", "send_gradient_s", "sync_s", "gather_s")


@pytest.mark.parametrize("schedule", NAMES)
def test_shares_and_the_critical_path_account_for_all_time(schedule: str) -> None:
    for seed in range(7):
        timeline = simulate(random_pipeline(np.random.default_rng(seed), schedule))
        assert sum(timeline.share_of.values()) == pytest.approx(1)
        assert min(timeline.share_of.values()) >= -1e-12
        assert sum(step.seconds for step in timeline.critical_path) == pytest.approx(timeline.time_s)
        assert min(step.seconds for step in timeline.critical_path) >= -1e-9
        assert 0 < timeline.bound_by.share <= 1 + 1e-9


@given(st.integers(1, 8), st.integers(1, 12))
def test_the_bubble_of_an_ideal_pipeline(depth: int, microbatches: int) -> None:
    """(p - 1)/(m + p - 1) of the device time (Narayanan et al., SC 2021, Section 2.2.1)."""
    timeline = simulate(ideal(depth, microbatches, "1f1b"))
    assert timeline.share_of["bubble"] == pytest.approx((depth - 1) / (microbatches + depth - 1), abs=1e-12)
    assert timeline.share_of["forward"] + timeline.share_of["backward"] == pytest.approx(
        microbatches / (microbatches + depth - 1)
    )


def test_a_transfer_that_nothing_hides_is_exposed() -> None:
    """One microbatch: 1 + 2 forward, 3 in flight; 1 + 2 backward, 4 in flight; 13 on two devices."""
    first = StageCost(1.0, 1.0, send_activation_s=3.0)
    second = StageCost(2.0, 2.0, send_gradient_s=4.0)
    timeline = simulate(Pipeline((first, second), 1))
    assert timeline.time_s == 13
    assert timeline.share_of["transfer"] == pytest.approx((3 + 4) / 26)
    assert timeline.share_of["synchronisation"] == 0
    assert timeline.share_of["bubble"] == pytest.approx((7 + 1 + 5) / 26)


def test_synchronisation_is_exposed_without_overlap_and_hidden_with() -> None:
    pipeline = Pipeline((StageCost(1.0, 4.0, sync_s=4.0, operators=4),), 2)
    exposed = simulate(pipeline).share_of["synchronisation"]
    hidden = simulate(replace(pipeline, overlap_sync=True)).share_of["synchronisation"]
    assert (exposed, hidden) == (pytest.approx(4 / 14), pytest.approx(1 / 11))


@pytest.mark.parametrize(
    ("changes", "resource", "group"),
    [
        ({"forward_s": 9.0}, "compute", 1),
        ({"send_activation_s": 99.0}, "transfer", 1),
        ({"sync_s": 99.0}, "synchronisation", 1),
        ({"update_s": 99.0}, "memory traffic of the update", 1),
    ],
)
def test_what_binds_is_what_takes_most_of_the_critical_path(
    changes: dict[str, float], resource: str, group: int
) -> None:
    stages = [StageCost(1.0, 1.0)] * 3
    stages[1] = replace(stages[1], **changes)  # type: ignore[arg-type]
    bound = simulate(Pipeline(tuple(stages), 4)).bound_by
    assert (bound.resource, bound.group) == (resource, group)
    assert str(bound).startswith(f"{resource} (")


def test_a_wider_stage_counts_with_all_its_devices() -> None:
    """The first stage of three devices is idle for half of the time, the second of one device never."""
    pipeline = Pipeline((StageCost(1.0), StageCost(2.0)), 100, "inference", tensor=(3, 1))
    assert simulate(pipeline).share_of["bubble"] == pytest.approx((3 * 101 + 1) / (4 * 201))


@pytest.mark.parametrize("schedule", NAMES)
def test_halving_a_bandwidth_never_speeds_up(schedule: str) -> None:
    for seed in range(7):
        rng = np.random.default_rng(seed)
        pipeline = random_pipeline(rng, schedule)
        if schedule == "2bw":
            pipeline = replace(pipeline, data=(), overlap_sync=False)
        before = simulate(pipeline).time_s
        for name in TRANSFERS:
            slower = tuple(replace(s, **{name: 2 * getattr(s, name)}) for s in pipeline.stages)  # type: ignore[arg-type]
            assert simulate(replace(pipeline, stages=slower)).time_s >= before - 1e-9
        assert simulate(replace(pipeline, fetch_s=2 * pipeline.fetch_s)).time_s >= before - 1e-9


def test_more_microbatches_never_lower_the_utilisation_under_1f1b() -> None:
    for seed in range(15):
        rng = np.random.default_rng(seed)
        local = {"send_activation_s": 0.0, "send_gradient_s": 0.0}
        stages = tuple(replace(random_stage(rng), **local) for _ in range(int(rng.integers(1, 6))))  # type: ignore[arg-type]
        shares = (simulate(Pipeline(stages, count)).share_of for count in range(1, 25))
        used = [share["forward"] + share["backward"] for share in shares]
        assert (np.diff(used) >= -1e-12).all()


def test_a_batch_takes_no_longer_than_its_two_parts_one_after_the_other() -> None:
    """So more microbatches never lower the steady-state utilisation, for any transfer times."""
    for seed in range(15):
        rng = np.random.default_rng(seed)
        stages = tuple(random_stage(rng) for _ in range(int(rng.integers(1, 6))))
        times = [0.0, *(simulate(Pipeline(stages, count)).time_s for count in range(1, 17))]
        assert all(times[a + b] <= times[a] + times[b] + 1e-9 for a in range(9) for b in range(9))


def test_with_transfers_one_more_microbatch_can_lower_the_utilisation() -> None:
    """With transfers the steady state repeats after several microbatches instead of one."""
    stage = StageCost(1.0, 1.0, send_activation_s=1.0, send_gradient_s=1.0)
    times = [simulate(Pipeline((stage,) * 2, count)).time_s for count in range(1, 9)]
    assert np.diff(times).tolist() == [2, 4, 2, 4, 2, 4, 2]


@pytest.mark.parametrize("schedule", NAMES)
def test_replicas_that_do_the_same_change_nothing(schedule: str) -> None:
    """Identical concurrent lanes take the time of one lane with the same microbatches."""
    pipeline = replace(random_pipeline(np.random.default_rng(7), schedule), data=(), release_s=0.0)
    if schedule == "interleaved":
        pipeline = replace(pipeline, microbatches=2 * pipeline.depth)
    many = replace(pipeline, data=(5,) * pipeline.depth, microbatches=5 * pipeline.microbatches)
    single, five = simulate(pipeline), simulate(many)
    assert (single.time_s, single.share_of) == (five.time_s, five.share_of)


@pytest.mark.parametrize("schedule", NAMES)
def test_every_microbatch_passes_every_stage_once(schedule: str) -> None:
    """Every sent tensor is received: each pass but the first has the sending pass as predecessor."""
    for seed in range(5):
        timeline = simulate(random_pipeline(np.random.default_rng(seed), schedule))
        pipeline, jobs = timeline.pipeline, timeline.jobs
        total = pipeline.lane_microbatches * pipeline.batches // pipeline.rules.streams
        back, paired = goes_back(jobs.kind), pipeline.schedule.startswith("dualpipe")
        for which, step in ((jobs.kind == JobKind.FORWARD, -1), (back, 1))[: 1 + pipeline.rules.trains]:
            for stage in range(len(pipeline.stages)):
                passed = np.flatnonzero(which & (jobs.stage == stage))
                begin = stage // pipeline.stream * total
                assert sorted(jobs.microbatch[passed].tolist()) == list(range(begin, begin + total))
                sender = timeline.binding[passed]
                if paired:  # a forward pass of a pair may wait for the other one's gradient
                    continue
                across = (sender >= 0) & which[sender]
                assert (jobs.microbatch[sender[across]] == jobs.microbatch[passed[across]]).all()
                ends = stage == (0 if step < 0 else len(pipeline.stages) - 1)
                assert across.all() or ends
                assert (jobs.stage[sender[across]] == stage + step).all()
