"""Discrete events with contention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simpy

from phaze.pipeline.durations import JobKind
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from tests.oracles.links import Idle, Process, SharedLinks, Task, Transfer
from tests.oracles.pipeline_events import simulate_events
from tests.unit.pipeline.examples import ideal, random_pipeline


def one_link(workers: int) -> SharedLinks:
    """Return a network in which all workers share one link."""
    pairs = [(a, b) for a in range(workers) for b in range(workers)]
    return SharedLinks(dict.fromkeys(pairs, (0,)))


class Recorder(Idle):
    """Network without transfer time that records its transfers."""

    def __init__(self) -> None:
        self.seen: list[Transfer] = []

    def carry(self, env: simpy.Environment, transfer: Transfer) -> Process:
        self.seen.append(transfer)
        yield env.timeout(0)


class SlowForward(Idle):
    """Machine whose forward passes take twice as long."""

    def perform(self, env: simpy.Environment, task: Task) -> Process:
        yield env.timeout(task.seconds * (2 if task.kind == JobKind.FORWARD else 1))


class OneMemory(Idle):
    """Machine whose devices share one memory for the update."""

    def __init__(self) -> None:
        self.memory: simpy.Resource | None = None

    def perform(self, env: simpy.Environment, task: Task) -> Process:
        self.memory = self.memory or simpy.Resource(env)
        if task.kind == JobKind.UPDATE:
            with self.memory.request() as request:
                yield request
                yield env.timeout(task.seconds)
        else:
            yield env.timeout(task.seconds)


def test_a_machine_says_how_long_jobs_take() -> None:
    slow = simulate_events(ideal(3, 5, "1f1b"), machine=SlowForward())
    assert slow.time_s == simulate(Pipeline((StageCost(2.0, 2.0),) * 3, 5)).time_s
    assert slow.share_of["forward"] == slow.share_of["backward"]


def test_jobs_can_contend_too() -> None:
    """Three stages finish their passes after 6, 7 and 8 s; updates of 4 s follow one at a time."""
    stages = (StageCost(1.0, 1.0, update_s=4.0),) * 3
    assert simulate(Pipeline(stages, 2)).time_s == 8 + 4
    assert simulate_events(Pipeline(stages, 2), machine=OneMemory()).time_s == 6 + 3 * 4


def test_two_transfers_over_one_link_follow_each_other() -> None:
    """Inference over three stages, 1 s each, transfers of 2 s: one link carries 2 transfers per
    microbatch.
    """
    pipeline = Pipeline((StageCost(1.0, send_activation_s=2.0),) * 3, 10, "inference")
    links = one_link(3)
    shared = simulate_events(pipeline, machine=links)
    assert simulate(pipeline).time_s == 1 + 2 + 1 + 2 + 9 + 1
    # The link is busy from the first activation to the last, but for the second at the second stage.
    assert shared.time_s == pytest.approx(1 + 40 + 1, abs=1)
    assert links.busy_s == {0: 40.0}


def test_contention_never_speeds_up_a_fixed_order() -> None:
    for seed in range(7):
        pipeline = replace(random_pipeline(np.random.default_rng(seed), "1f1b"), transfers="overlapped")
        shared = simulate_events(pipeline, machine=one_link(len(pipeline.workers)))
        assert (shared.start_s >= simulate(pipeline).start_s - 1e-9).all()
        assert sum(step.seconds for step in shared.critical_path) == pytest.approx(shared.time_s)


def test_every_tensor_that_is_sent_arrives_once() -> None:
    for seed in range(3):
        drawn = random_pipeline(np.random.default_rng(seed), "interleaved")
        pipeline = replace(drawn, transfers="overlapped")
        links = Recorder()
        simulate_events(pipeline, machine=links)
        stages, total = len(pipeline.stages), pipeline.lane_microbatches
        sent = sorted((t.source, t.target, t.microbatch) for t in links.seen)
        borders = [(q, q + 1) for q in range(stages - 1)] + [(q + 1, q) for q in range(stages - 1)]
        assert sent == sorted((a, b, m) for a, b in borders for m in range(total))
        assert all(t.source_worker == t.source % pipeline.depth for t in links.seen)


def test_routes_with_common_links_cannot_block_each_other() -> None:
    pipeline = Pipeline((StageCost(1.0, 1.0, send_activation_s=1.0, send_gradient_s=1.0),) * 3, 6)
    routes = {(0, 1): (0, 1), (1, 2): (1, 0), (1, 0): (2, 0), (2, 1): (0, 2)}
    links = SharedLinks(routes)
    assert simulate_events(pipeline, machine=links).time_s > simulate(pipeline).time_s
    assert links.busy_s == {0: 24.0, 1: 12.0, 2: 12.0}
