"""Orders from generators, and closed forms of bubbles and stored microbatches, for schedules that split
backward passes or place stages in a V.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.pipeline.durations import JobKind
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.schedules import SCHEDULES, Passes
from phaze.pipeline.stages import StageCost
from phaze.pipeline.timeline import Timeline

LETTERS = {
    JobKind.FORWARD: "F", JobKind.BACKWARD: "B", JobKind.PAIRED_BACKWARD: "B", JobKind.INPUT_GRADIENT: "I",
    JobKind.WEIGHT_GRADIENT: "W",
}  # fmt: skip
TIMES = ((1.0, 1.0, 1.0), (1.0, 1.2, 0.8), (1.0, 2.0, 1.0), (1.0, 0.9, 1.1))
"""Seconds of a stage's forward pass, input gradient and weight gradient."""

ORDERS = {
    ("interleaved-zb", 4): (
        "0F0 0F1 2F0 2F1 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 0I2 0W2 0I3 0W3",
        "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1I2 3W3 1I3 1W2 1W3",
    ),
    ("zbv", 5): (
        (
            "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0F4 0I1 0W1 3F3 3I3 3W3 0I2 0W2 3F4 "
            "3I4 3W4 0I3 0W3 0I4 0W4"
        ),
        (
            "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1F4 1I2 1W2 2F4 2I3 2W3 "
            "1I3 2I4 1I4 1W3 2W4 1W4"
        ),
    ),
    ("dualpipev", 5): (
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 0F4 3B2 3F3 0B1 3B3 3F4 0B2 3B4 0I3 0W3 0I4 0W4",
        "1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 1F4 2B2 2F4 1B2 2B3 1B3 2I4 1I4 2W4 1W4",
    ),
    ("dualpipe", 4): ("0F0 3F2 0F1 3B2 3F3 0B0 3B3 0I1 0W1", "2F2 1F0 2F3 1B0 1F1 2B2 1B1 2I3 2W3"),
    ("v-half", 3): (
        "0F0 0F1 0F2 5F0 5I0 5W0 5F1 5I1 5W1 0I0 0W0 5F2 5I2 0I1 5W2 0W1 0I2 0W2",
        "1F0 1F1 4F0 4F1 4I0 4W0 1F2 4I1 1I0 4W1 1W0 4F2 1I1 4I2 4W2 1W1 1I2 1W2",
        "2F0 3F0 2F1 3F1 3I0 3W0 2I0 2W0 2F2 3F2 3I1 2I1 3W1 2W1 3I2 2I2 3W2 2W2",
    ),
    ("v-min", 3): (
        "0F0 0F1 0F2 5F0 5I0 5W0 5F1 5I1 5W1 0I0 0W0 5F2 0I1 5I2 5W2 0W1 0I2 0W2",
        "1F0 1F1 4F0 4F1 4I0 4W0 1I0 1W0 4I1 1F2 4W1 4F2 1I1 1W1 4I2 4W2 1I2 1W2",
        "2F0 3F0 2F1 3F1 3I0 2I0 3W0 2W0 3I1 2F2 3F2 2I1 3W1 2W1 3I2 2I2 3W2 2W2",
    ),
}
"""Passes of every rank, two stages each, of so many microbatches: as the generators of PyTorch 2.15
(`torch.distributed.pipelining.schedules`) make them; dualpipe as that of deepseek-ai/DualPipe does, with
stages 2 and 3 for the copy of the other direction; v-half and v-min as that of sail-sg
(`zero-bubble-pipeline-parallelism`, scheduler/zbv_greedy.py).
"""


def equal(name: str, depth: int, count: int, times: tuple[float, float, float], chunks: int = 2) -> Pipeline:
    """Return a pipeline of equal stages; those of a rank together store one byte per microbatch."""
    of_copy = 2 if name == "dualpipe" else 1
    forward, of_input, of_weights = (of_copy * seconds / chunks for seconds in times)
    stage = StageCost(forward, of_input + of_weights, weight_s=of_weights, stash_bytes=1.0)
    return Pipeline((stage,) * (depth * chunks), count, name, chunks=chunks)


def lines(pipeline: Pipeline) -> Iterator[str]:
    """Yield the passes of every rank: stage, letter, microbatch."""
    microbatches = np.arange(pipeline.lane_microbatches)
    for rank in range(pipeline.depth):
        columns = (column.tolist() for column in pipeline.rules.order(pipeline, rank, microbatches))
        passes = zip(*columns, strict=True)
        yield " ".join(f"{stage}{LETTERS[JobKind(kind)]}{number}" for kind, stage, number in passes)


def bubble(timeline: Timeline) -> float:
    """Return the idle time of a step whose ranks all end together."""
    pipeline = timeline.pipeline
    stage = pipeline.stages[0]
    busy = (stage.forward_s + stage.backward_s) * pipeline.chunks / pipeline.rules.streams
    return timeline.time_s - pipeline.microbatches * busy


@pytest.mark.parametrize(("name", "count"), ORDERS)
def test_the_order_is_that_of_the_generator(name: str, count: int) -> None:
    order = tuple(lines(equal(name, len(ORDERS[name, count]), count, TIMES[0])))
    assert order == ORDERS[name, count]


BUBBLES = {
    ("zb-h2", 1): lambda f, b, w: max(f, f + b - 2 * w),
    ("zbb", 1): lambda f, b, w: f + b - w,
    ("interleaved-zb", 2): lambda f, b, w: (f + max(b - w, 0)) / 2,
    ("interleaved-zb", 3): lambda f, b, w: (f + max(b - w, 0)) / 3,
    ("zbv", 2): lambda f, b, _: max(f, b) / 2,
}
"""Bubbles over p - 1, of steps whose ranks all end together; of zbb and zbv with B >= W."""
FIGURES = {
    ("zbv", 2): (3.5, 4.2, 7.0, 3.8),
    ("dualpipev", 2): (7.0, 8.6, 13.5, 7.0),
    ("dualpipe", 2): (6.0, 7.2, 11.0, 6.0),
}
"""Bubbles of eight ranks with `TIMES`, from simulations of PyTorch's orders; dualpipe is derived from
dualpipev.
"""
HELD = {
    ("zb-h1", 1): lambda p: p,
    ("zb-h2", 1): lambda p: 2 * p - 1,
    ("zbb", 1): lambda p: p,
    ("interleaved-zb", 2): lambda p: 2 * p,
    ("interleaved-zb", 3): lambda p: 3 * p,
    ("zbv", 2): lambda p: 2 * p,
    ("v-half", 2): lambda p: 2 * (p // 2) + 2,
    ("v-min", 2): lambda p: 2 * ((p + 4) // 3),
    ("dualpipev", 2): lambda p: 2 * p + 1,
    ("dualpipe", 2): lambda p: p + 1,
}
"""Stored stages times microbatches on the rank with peak memory."""


@pytest.mark.parametrize(("name", "chunks"), BUBBLES)
def test_the_bubble_has_its_closed_form(name: str, chunks: int) -> None:
    for times, depth, rounds in product(TIMES, (4, 8), (2, 3, 8)):
        forward, of_input, of_weights = times
        if name in ("zbb", "zbv") and of_input < of_weights:
            continue
        idle = bubble(simulate(equal(name, depth, rounds * depth, times, chunks)))
        assert idle == pytest.approx((depth - 1) * BUBBLES[name, chunks](forward, of_input, of_weights))


@pytest.mark.parametrize(("name", "chunks"), FIGURES)
def test_eight_ranks_idle_as_long_as_in_simulations_of_published_orders(name: str, chunks: int) -> None:
    for count in (16, 32, 64):
        idle = [bubble(simulate(equal(name, 8, count, times, chunks))) for times in TIMES]
        assert idle == pytest.approx(FIGURES[name, chunks])


def test_dualpipe_idles_at_most_as_long_as_its_authors_say() -> None:
    """(PP/2 - 1)(F&B + B' - 3 W) with PP stages, F&B = F + B' and B' = B + W; equal if B = W."""
    for name, depth, (forward, of_input, of_weights) in product(("dualpipe", "dualpipev"), (4, 8), TIMES[:3]):
        stages, part = (depth, 1) if name == "dualpipe" else (2 * depth, 2)
        claimed = (stages / 2 - 1) * (forward + 2 * of_input - of_weights) / part
        idle = bubble(simulate(equal(name, depth, 4 * depth, (forward, of_input, of_weights))))
        assert idle <= claimed + 1e-9
        assert of_input != of_weights or idle == pytest.approx(claimed)


@pytest.mark.parametrize(("name", "chunks"), HELD)
def test_the_fullest_rank_holds_as_much_as_published(name: str, chunks: int) -> None:
    for depth, rounds in product((2, 4, 6, 8), (2, 3)):
        pipeline = equal(name, depth, rounds * depth, TIMES[0], chunks)
        timeline = simulate(pipeline)
        in_flight = [timeline.most_in_flight(rank) for rank in range(depth)]
        assert max(in_flight) == min(HELD[name, chunks](depth), pipeline.microbatches * chunks)
        assert in_flight == list(pipeline.in_flight) == timeline.peak_bytes.tolist()


def test_orders_by_time_make_up_for_a_stage_that_takes_longer() -> None:
    """zb-h1 assumes equal stages; orders by measured times have shorter waits."""
    slow = StageCost(1.5, 3.0, weight_s=1.5)
    pipeline = equal("zbb", 4, 16, TIMES[0], 1)
    stages = (*pipeline.stages[:3], slow)
    by_times, by_hand = (
        simulate(Pipeline(stages, 16, name)).time_s for name in ("zbb", "zb-h1")
    )  # fmt: skip
    assert by_times <= by_hand


def test_nothing_is_sent_between_two_stages_of_a_rank() -> None:
    """In a V the last rank has stages p - 1 and p, and the first one both ends of the model."""
    stage = StageCost(1.0, 2.0, send_activation_s=1e6, send_gradient_s=1e6, weight_s=1.0)
    near = StageCost(1.0, 2.0, weight_s=1.0)
    pipeline = Pipeline((near, stage, stage, near), 4, "zbv", chunks=2)
    assert pipeline.groups.tolist() == [0, 1, 1, 0]
    timeline = simulate(pipeline)
    waited = timeline.arrival_s - timeline.end_s[timeline.binding]
    turned = (timeline.jobs.kind == JobKind.FORWARD) & (timeline.jobs.stage == 2)
    assert (waited[turned & (timeline.binding >= 0)] == 0).all()


@pytest.mark.parametrize(
    ("name", "depth", "chunks", "count", "message"),
    [
        ("zbv", 4, 3, 8, "chunks must be 2 under zbv, got 3"),
        ("dualpipev", 4, 2, 6, "microbatches of a replica must be at least 8 under dualpipev, got 6"),
        (
            "dualpipe",
            3,
            2,
            8,
            "pp and the microbatches of a replica must be even under dualpipe, got 3 and 8",
        ),
        ("interleaved-zb", 4, 2, 9, "or of the 2 rounds of pp or more, got 9"),
    ],
)
def test_what_a_schedule_cannot_run_is_refused(
    name: str, depth: int, chunks: int, count: int, message: str
) -> None:
    with pytest.raises(PhazeError, match=message):
        equal(name, depth, count, TIMES[0], chunks)


@given(st.integers(2, 6), st.integers(2, 4), st.integers(1, 30))
def test_interleaving_takes_as_many_microbatches_as_pytorch_does(depth: int, chunks: int, count: int) -> None:
    """Rounds with the same number of microbatches: p, or all if fewer than p, or more than p."""
    rounds = max(1, count // depth)
    if count % rounds:
        return
    timeline = simulate(equal("interleaved", depth, count, TIMES[0], chunks))
    assert timeline.time_s >= 3.0 * count - 1e-9
    assert timeline.most_in_flight(0) <= 2 * (depth - 1) + (chunks - 1) * (count // rounds) + 1


SLOW_AND_QUICK = (
    (1.9536, 0.269, 0.0305, 0.7371, 0.7326),
    (0.4128, 3.7094, 2.075, 0.2693, 0.0),
    (0.2381, 0.8769, 0.3444, 0.7884, 0.4927),
    (2.5617, 0.8235, 0.2279, 0.0, 0.8681),
    (0.4969, 0.9276, 0.129, 0.0, 0.6166),
    (1.6109, 0.8595, 0.1733, 0.4226, 0.0),
)
"""Stages so unequal that a rank of zbb once skipped two forward passes for good: seconds of forward pass,
input gradient, weight gradient, and transfers each way.
"""


def test_orders_by_time_are_complete_for_stages_of_any_times() -> None:
    """Every rank passes every microbatch forward and back; `simulate` refuses any other order."""
    costs = [StageCost(f, b + w, sent, back, weight_s=w) for f, b, w, sent, back in SLOW_AND_QUICK]
    pipeline = Pipeline(tuple(costs), 5, "zbb")
    for passes in lines(pipeline):
        kinds = [text.strip("0123456789") for text in passes.split()]
        assert [kinds.count(letter) for letter in "FIW"] == [5, 5, 5]
    busy_s = [5 * (f + b + w) for f, b, w, _, _ in SLOW_AND_QUICK]
    assert simulate(pipeline).time_s >= max(busy_s)
    random = np.random.default_rng(0)
    for depth in (2, 3, 4, 6):
        for count in (depth, depth + 1, 2 * depth):
            drawn = random.exponential(size=(depth, 5))
            stages = [StageCost(f, b + w, sent, back, weight_s=w) for f, b, w, sent, back in drawn]
            simulate(Pipeline(tuple(stages), count, "zbb"))


def test_an_order_that_loses_a_pass_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every schedule: a step without the pass would look fast."""

    class Losing(type(SCHEDULES["zb-h1"])):  # type: ignore[misc]
        def order(self, pipeline: Pipeline, group: int, microbatches: np.ndarray) -> Passes:
            return Passes(*(column[1:] for column in super().order(pipeline, group, microbatches)))

    pipeline = equal("zb-h1", 2, 4, TIMES[0], 1)
    monkeypatch.setitem(SCHEDULES, "zb-h1", Losing())
    with pytest.raises(RuntimeError, match="zb-h1 is not complete: 4 passes each way"):
        simulate(pipeline)
