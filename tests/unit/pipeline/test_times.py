"""Times of pipelines: formulas, published schedules, and two simulations that share no code for times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.formulas.flushing import batch_time_s
from phaze.layout import Layout
from phaze.pipeline.durations import JobKind
from phaze.pipeline.graph import has_jobs_of, kept_event_graph, shape_of
from phaze.pipeline.longest_path import longest_path, simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.timeline import Timeline
from tests.oracles.ideal_pipeline import ideal_time_s
from tests.oracles.pipeline_events import simulate_events
from tests.oracles.pipelines import interleaved_bubble, merged, picture
from tests.unit.pipeline.examples import NAMES, ideal, random_pipeline, random_stage

FIGURE_5 = """
1 1 1 . . . 4 4 4 1 1 1 7 7 7 4 4 4 10 10 10 7 7 7
. . 2 2 2 . . . 5 5 5 2 2 2 8 8 8 5 5 5 11 11 11 8
. . . . 3 3 3 . . . 6 6 6 3 3 3 9 9 9 6 6 6 12 12
. . . 1 . 2 . 3 1 4 2 5 3 6 4 7 5 8 6 9 7 10 8 11
. . . . 1 . 2 1 3 2 4 3 5 4 6 5 7 6 8 7 9 8 10 9
. . . . . 1 1 2 2 3 3 4 4 5 5 6 6 7 7 8 8 9 9 10
"""
"""Tarnawski et al., NeurIPS 2021, Figure 5: the microbatch on each of six devices in each time unit."""


def figure_5(microbatches: int) -> Pipeline:
    """Return the pipeline of Figure 5; microbatches enter at the rate of the balanced schedule, one in 2."""
    stages = (StageCost(3.0, 3.0, stash_bytes=1.0), *(StageCost(1.0, 1.0, stash_bytes=1.0),) * 3)
    return Pipeline(stages, microbatches, "2bw", data=(3, 1, 1, 1), release_s=2.0)


def same(timeline: Timeline, other: Timeline) -> bool:
    """Return whether the same jobs happen at the same times for the same reasons."""
    return (
        np.array_equal(timeline.jobs.kind, other.jobs.kind)
        and np.array_equal(timeline.jobs.stage, other.jobs.stage)
        and np.array_equal(timeline.jobs.microbatch, other.jobs.microbatch)
        and np.allclose(timeline.start_s, other.start_s, rtol=1e-9, atol=1e-9)
        and np.allclose(timeline.end_s, other.end_s, rtol=1e-9, atol=1e-9)
        and np.allclose(timeline.arrival_s, other.arrival_s, rtol=1e-9, atol=1e-9)
    )


def test_figure_5_of_piper_cell_by_cell() -> None:
    rows = [line.split() for line in FIGURE_5.strip().splitlines()]
    simulated = [line.replace("-", "").split()[:24] for line in picture(simulate(figure_5(24)), 1.0)]
    assert simulated == rows


def test_backward_passes_of_figure_5_are_where_the_second_of_a_number_stands() -> None:
    first = picture(simulate(figure_5(24)), 1.0)[5].split()[:12]
    assert first == [".", ".", ".", ".", ".", "1", "-1", "2", "-2", "3", "-3", "4"]


def test_figure_5_holds_the_microbatches_that_its_third_column_says() -> None:
    timeline = simulate(figure_5(24))
    assert [timeline.most_in_flight(worker) for worker in range(6)] == [2, 2, 2, 3, 2, 1]


def test_device_2_of_figure_5_stashes_what_the_caption_says() -> None:
    """{2}, {2, 5}, {5}, {5, 8}, {8}, {8, 11} and {11} in turn."""
    profile = simulate(figure_5(24)).memory(1)
    assert profile.bytes_[:12].tolist() == [0, 1, 1, 2, 2, 2, 1, 2, 2, 2, 1, 2]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@given(st.integers(1, 8), st.integers(1, 12))
def test_equation_1_is_the_time_of_equal_stages(schedule: str, depth: int, microbatches: int) -> None:
    stages = (StageCost(1.25, 2.5, update_s=0.75),) * depth
    simulated = simulate(Pipeline(stages, microbatches, schedule)).time_s
    # The first stage is the last to have done its backward passes, so that no update comes after its own.
    assert simulated == pytest.approx(ideal_time_s(np.full(depth, 3.75), 0.75, microbatches), rel=1e-12)


@pytest.mark.parametrize("schedule", NAMES)
def test_unequal_stages_take_at_least_the_schedules_lower_bound(schedule: str) -> None:
    """A stage cannot begin before earlier stages, nor end after them; (1) is for equal stages only."""
    for seed in range(60):
        pipeline = random_pipeline(np.random.default_rng(seed), schedule)
        passes = pipeline.column("forward_s") + pipeline.rules.trains * pipeline.column("backward_s")
        loads = np.bincount(pipeline.groups, passes)
        bound = pipeline.rules.lower_bound_s(loads, pipeline.data, pipeline.microbatches)
        assert simulate(pipeline).time_s >= pipeline.batches * bound - 1e-9


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 40))
def test_the_flush_formula_is_the_time_of_equal_loads(depth: int, data: int, microbatches: int) -> None:
    """(ceil(B/d) + s - 1) load plus the synchronisation (Phaze, Section 5)."""
    pipeline = Pipeline(
        (StageCost(1.0, 2.0, sync_s=4.0),) * depth, max(microbatches, data), data=(data,) * depth
    )
    expected = batch_time_s(3.0, Layout(pp=depth, dp=data), pipeline.microbatches, 4.0)
    assert simulate(pipeline).time_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("depth", [2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3, 5])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_interleaving_divides_the_bubble_by_the_chunks(depth: int, chunks: int, groups: int) -> None:
    """The bubble is (p - 1)/(v m) of the ideal time (Narayanan et al., SC 2021, Section 2.2)."""
    microbatches = groups * depth
    timeline = simulate(ideal(depth, microbatches, "interleaved", chunks))
    bubble = timeline.time_s / (3.0 * microbatches) - 1
    assert bubble == pytest.approx(interleaved_bubble(depth, microbatches, chunks), rel=1e-9)


def test_layer_wise_execution_is_a_pipeline_of_depth_1() -> None:
    stages = tuple(random_stage(np.random.default_rng(seed)) for seed in range(4))
    single = merged(stages)
    per_microbatch = sum(stage.forward_s + stage.recompute_s + stage.backward_s for stage in stages)
    per_batch = sum(stage.sync_s + stage.update_s + stage.gather_s for stage in stages)
    simulated = simulate(Pipeline((single,), 5, "layer-wise")).time_s
    assert simulated == pytest.approx(5 * per_microbatch + per_batch, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", NAMES)
def test_longest_paths_and_discrete_events_agree(schedule: str) -> None:
    """On 360 random pipelines: unequal loads and replicas, chunks, recomputation, overlap, transfers."""
    for seed in range(30):
        pipeline = random_pipeline(np.random.default_rng(seed), schedule)
        assert same(simulate(pipeline), simulate_events(pipeline))


def test_replicas_that_stop_together_can_block_a_pipeline_without_flush() -> None:
    """3 does not divide 4: a replica that waits for its stage's synchronisation delays a microbatch."""
    blocked = Pipeline((StageCost(1.0, 1.0, sync_s=1.0),) * 4, 12, "2bw", data=(3, 3, 1, 1), batches=2)
    for simulation in (simulate, simulate_events):
        with pytest.raises(
            PhazeError, match=r"jobs can run, the others wait for each other; .* overlap_sync"
        ):
            simulation(blocked)
    assert simulate(replace(blocked, overlap_sync=True)).time_s > 0


def test_longest_paths_agree_with_a_sweep_until_nothing_changes() -> None:
    """Random graphs: start each job at 0, and delay jobs until all constraints hold."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        first = np.concatenate([[0], np.cumsum(rng.integers(1, 6, 4))])
        n = int(first[-1])
        order = rng.permutation(np.repeat(np.arange(4), np.diff(first)))
        rank = np.empty(n, np.int64)
        for resource in range(4):
            rank[first[resource] : first[resource + 1]] = np.flatnonzero(order == resource)
        edges = [(i, j) for i in range(n) for j in range(n) if rank[j] < rank[i] and rng.random() < 0.3]
        duration, delay = rng.uniform(0, 2, n), rng.uniform(-0.5, 1, len(edges))
        preceded = np.searchsorted([i for i, _ in edges], np.arange(n + 1))
        before = np.array([j for _, j in edges], np.int64)
        start = longest_path(first, duration, preceded, before, delay)[0]
        expected = np.zeros(n)
        for _ in range(n):
            for (i, j), lag in zip(edges, delay, strict=True):
                expected[i] = max(expected[i], expected[j] + duration[j] + lag)
            for i in set(range(n)) - set(first[:-1].tolist()):
                expected[i] = max(expected[i], expected[i - 1] + duration[i - 1])
        assert start == pytest.approx(expected)


def test_data_are_fetched_ahead_or_by_the_first_stage() -> None:
    stages = (StageCost(2.0, 4.0),)
    ahead = Pipeline(stages, 4, fetch_s=1.0)
    assert simulate(ahead).time_s == 1 + 4 * 6
    assert simulate(replace(ahead, transfers="occupying")).time_s == 4 * 7
    slow = simulate(replace(ahead, fetch_s=9.0))
    assert (slow.time_s, slow.bound_by.resource) == (4 * 9 + 6, "input")


def test_transfers_delay_or_occupy() -> None:
    """Two stages, forward 1, backward 1, an activation takes 1 and a gradient 2."""
    stages = (StageCost(1.0, 1.0, send_activation_s=1.0), StageCost(1.0, 1.0, send_gradient_s=2.0))
    once = Pipeline(stages, 1)
    assert simulate(once).time_s == 4 + 3
    assert simulate(replace(once, transfers="occupying")).time_s == 4 + 2 * 3


def test_recomputation_waits_for_the_gradient_unless_it_is_early() -> None:
    """The last stage keeps its activations; the first recomputes for 1 while a gradient is due at 4."""
    stages = (StageCost(1.0, 1.0, recompute_s=1.0), StageCost(1.0, 2.0))
    late = Pipeline(stages, 1)
    assert simulate(late).time_s == 1 + 1 + 2 + 1 + 1
    assert simulate(replace(late, early_recompute=True)).time_s == 1 + 1 + 2 + 1


@pytest.mark.parametrize("operators", [1, 2, 5])
@pytest.mark.parametrize("sync_s", [0.5, 4.0, 20.0])
def test_gradients_are_synchronised_piece_by_piece(operators: int, sync_s: float) -> None:
    """Bucket i is ready after i/n of the backward pass of 4 s, and takes s/n after the previous bucket."""
    pipeline = Pipeline((StageCost(1.0, 4.0, sync_s=sync_s, operators=operators),), 3, overlap_sync=True)
    through = 0.0
    for piece in range(1, operators + 1):
        through = max(through, 11 + 4 * piece / operators) + sync_s / operators
    assert simulate(pipeline).time_s == pytest.approx(through, rel=1e-12)
    assert simulate(replace(pipeline, overlap_sync=False)).time_s == 15 + sync_s


def test_two_buffered_weights_let_the_pipeline_run_on_over_a_batch() -> None:
    """Three batches without a flush have one set-up, and no batch waits."""
    stages = (StageCost(1.0, 1.0),) * 3
    flushed = simulate(Pipeline(stages, 6)).time_s
    timeline = simulate(Pipeline(stages, 6, "2bw", batches=3))
    assert (3 * flushed, timeline.time_s) == (3 * 16, 2 * (18 + 2))


def test_a_batch_uses_weights_that_lack_one_batch() -> None:
    """The update of a batch ends before the first forward pass of the batch after the next."""
    stages = (StageCost(1.0, 1.0, sync_s=5.0, update_s=1.0, operators=2),) * 3
    timeline = simulate(Pipeline(stages, 6, "2bw", batches=4, overlap_sync=True))
    jobs, end = timeline.jobs, timeline.end_s
    for batch in range(2):
        updated = end[(jobs.kind == JobKind.UPDATE) & (jobs.microbatch == batch)]
        used = timeline.start_s[(jobs.kind == JobKind.FORWARD) & (jobs.microbatch == 6 * (batch + 2))]
        assert (updated <= used + 1e-9).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"microbatches": 0}, "microbatches must be >= 1, got 0"),
        ({"chunks": 2}, "chunks must be 1 under 1f1b, got 2"),
        ({"chunks": 3}, "multiple of chunks = 3, got 4 stages"),
        (
            {"schedule": "interleaved", "chunks": 2, "microbatches": 7, "microbatch_group": 3},
            "microbatch_group must leave no group of fewer than pp = 2 of the 7 microbatches of a replica",
        ),
        (
            {"schedule": "interleaved-zb", "chunks": 2, "microbatch_group": 4},
            "microbatch_group must be 2 under interleaved-zb, the same in each of 4 rounds, got 4",
        ),
        ({"schedule": "interleaved", "chunks": 4}, "two device groups or more"),
        ({"schedule": "layer-wise"}, "layer-wise has one stage, got 4"),
        ({"schedule": "zigzag"}, "schedule must be one of .*all are in config/formats.md"),
        ({"batches": 2}, "batches must be 1 except under 2bw, got 2"),
        ({"data": (1, 2)}, "data must be 4 numbers >= 1"),
        ({"tensor": (1, 1, 1, 0)}, "tensor must be 4 numbers >= 1"),
        ({"data": (16,) * 4}, "at least the 16 lanes"),
        ({"schedule": "2bw", "batches": 2, "data": (3, 3, 2, 2)}, "at least 10 with data"),
        ({"fetch_s": -1.0}, "fetch_s must be a number >= 0"),
    ],
)
def test_impossible_pipelines_are_refused(changes: dict[str, object], message: str) -> None:
    possible = Pipeline((StageCost(1.0, 1.0),) * 4, 8)
    with pytest.raises(PhazeError, match=message):
        replace(possible, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_impossible_costs_are_refused(value: float) -> None:
    with pytest.raises(PhazeError, match="sync_s must be a number >= 0"):
        StageCost(1.0, sync_s=value)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [name for name in NAMES if name not in ("2bw", "zbb")])
def test_times_on_a_kept_graph_are_those_of_the_pipeline(schedule: str) -> None:
    """Also on a graph that recomputes more than the pipeline; except for 2bw and zbb, whose order depends on
    times.
    """
    for seed in range(20):
        pipeline = random_pipeline(np.random.default_rng(seed), schedule)
        for recomputes in (False, schedule != "inference"):
            shape = shape_of(pipeline, recomputes=recomputes)
            assert has_jobs_of(pipeline, shape)
            timeline = simulate(pipeline, kept_event_graph(shape).of(pipeline))
            assert timeline.time_s == simulate(pipeline).time_s
            assert (timeline.peak_bytes == simulate(pipeline).peak_bytes).all()


def test_a_shape_says_which_jobs_it_lacks() -> None:
    pipeline = Pipeline((StageCost(1.0, 1.0, recompute_s=1.0), StageCost(1.0, 1.0)), 4)
    other = replace(pipeline, stages=pipeline.stages[::-1])
    assert not has_jobs_of(other, shape_of(pipeline))
    assert has_jobs_of(other, shape_of(pipeline, recomputes=True))
