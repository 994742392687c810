"""ZB-H1: its published order, its bubble in closed form, and its stored microbatches."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.pipeline.durations import JobKind
from phaze.pipeline.graph import all_jobs
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.plan.machines import load_machine
from phaze.plan.pricing.price import price
from phaze.plan.pricing.runs import Run, plan_of_run

LETTERS = {JobKind.FORWARD: "F", JobKind.INPUT_GRADIENT: "B", JobKind.WEIGHT_GRADIENT: "W"}
TIMES = ((1.0, 1.0, 1.0), (1.0, 1.2, 0.8), (1.0, 2.0, 1.0), (1.0, 0.9, 1.1), (1.0, 1.0, 3.0))
"""Seconds of forward pass, input gradient, and weight gradient."""


def equal(depth: int, microbatches: int, times: tuple[float, float, float]) -> Pipeline:
    """Return a pipeline of equal stages under ZB-H1, each of which stores one byte per microbatch."""
    forward, of_input, of_weights = times
    stage = StageCost(forward, of_input + of_weights, weight_s=of_weights, stash_bytes=1.0)
    return Pipeline((stage,) * depth, microbatches, "zb-h1")


def test_each_rank_puts_gradients_of_weights_off_by_its_number() -> None:
    """Four ranks with eight microbatches: 1f1b with W after the B of the microbatch i later."""
    jobs = all_jobs(equal(4, 8, TIMES[0]))
    lines = []
    for rank in range(4):
        rank_jobs = slice(*jobs.first[rank : rank + 2])
        passes = [
            (LETTERS.get(JobKind(k)), m + 1)
            for k, m in zip(jobs.kind[rank_jobs], jobs.microbatch[rank_jobs], strict=True)
        ]
        lines.append(" ".join(f"{letter}{number}" for letter, number in passes if letter))
    assert lines == [
        "F1 F2 F3 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 F8 B5 W5 B6 W6 B7 W7 B8 W8",
        "F1 F2 F3 B1 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 F8 B6 W5 B7 W6 B8 W7 W8",
        "F1 F2 B1 F3 B2 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 F8 B7 W5 B8 W6 W7 W8",
        "F1 B1 F2 B2 F3 B3 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 F8 B8 W5 W6 W7 W8",
    ]


def test_the_bubble_is_that_of_the_paper() -> None:
    """(p - 1)(F + B - W); if W > B the order leaves (p - 1) F. 1f1b: (p - 1)(F + B + W)."""
    for times, depth, rounds in product(TIMES, (2, 3, 4, 8), (1, 2, 8)):
        forward, of_input, of_weights = times
        pipeline = equal(depth, rounds * depth, times)
        busy = pipeline.microbatches * sum(times)
        expected = (depth - 1) * (forward + max(of_input - of_weights, 0.0))
        assert simulate(pipeline).time_s - busy == pytest.approx(expected)
        assert simulate(replace(pipeline, schedule="1f1b")).time_s - busy == pytest.approx(
            (depth - 1) * sum(times)
        )


def test_every_rank_holds_as_many_microbatches_as_there_are_stages() -> None:
    """Microbatches that wait for their weight gradients count."""
    for depth, microbatches in ((4, 8), (4, 3), (8, 32)):
        timeline = simulate(equal(depth, microbatches, TIMES[1]))
        in_flight = [min(depth, microbatches)] * depth
        assert [timeline.most_in_flight(rank) for rank in range(depth)] == in_flight
        assert timeline.peak_bytes.tolist() == in_flight
        assert timeline.memory(depth - 1).bytes_[-1] == 0


def test_a_run_under_it_is_faster_than_under_1f1b_and_holds_more_on_its_last_stage() -> None:
    machine = load_machine("a100-selene")
    run = Run(2304, 24, 24, 2048, 51200, 64, 64, Layout(tp=8, pp=4, dp=2))
    plain, zero = (
        price(plan_of_run(replace(run, schedule=name), machine), machine) for name in ("1f1b", "zb-h1")
    )
    assert zero.time_s < plain.time_s
    assert zero.peak_bytes[-1] > plain.peak_bytes[-1]
    assert zero.timeline.share_of["backward"] * zero.time_s == pytest.approx(
        plain.timeline.share_of["backward"] * plain.time_s
    )


def test_dualpipe_holds_weights_and_states_twice() -> None:
    """Every rank has a stage of both copies of the model."""
    machine = load_machine("a100-selene")
    run = Run(2304, 24, 24, 2048, 51200, 64, 64, Layout(tp=8, pp=4, dp=2))
    both_ways = replace(run, schedule="dualpipe", layout=replace(run.layout, vp=2))
    once, twice = (price(plan_of_run(recipe, machine), machine) for recipe in (run, both_ways))
    single, both = (
        np.array(
            [
                priced.memory_of(rank).weight_bytes + priced.memory_of(rank).optimizer_bytes
                for rank in range(4)
            ]
        )
        for priced in (once, twice)
    )
    assert both == pytest.approx(single + single[::-1])


def test_unequal_replicas_are_refused() -> None:
    with pytest.raises(PhazeError, match=r"data must be equal under zb-h1, got \(2, 1\)"):
        replace(equal(2, 4, TIMES[0]), data=(2, 1))
