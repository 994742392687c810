"""Orders of passes, compared with written schedules and with programs that generate them."""

from __future__ import annotations

import pytest

from phaze.pipeline.durations import JobKind
from phaze.pipeline.graph import all_jobs
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.schedules.interleaved import is_group, least_group
from phaze.pipeline.stages import StageCost
from tests.unit.pipeline.examples import ideal

Pass = tuple[str, int, int]
LETTERS = {JobKind.FETCH: "D", JobKind.FORWARD: "F", JobKind.RECOMPUTE: "R", JobKind.BACKWARD: "B"}


def work(pipeline: Pipeline, worker: int) -> list[str]:
    """Return the jobs of a worker: a letter, and the microbatch from 1; U and G with the batch from 1."""
    jobs = all_jobs(pipeline)
    span = slice(*jobs.first[worker : worker + 2])
    letters = LETTERS | {JobKind.UPDATE: "U", JobKind.GATHER: "G"}
    pairs = zip(jobs.kind[span], jobs.microbatch[span], strict=True)
    return [f"{letters[JobKind(kind)]}{number + 1}" for kind, number in pairs]


def line(text: str) -> list[str]:
    """Return the jobs that a line names."""
    return text.split()


def table(group: int, chunks: int, microbatches: int) -> list[tuple[int, int]]:
    """Return microbatch and chunk of every pass: a group passes all chunks, then the next group."""
    firsts = range(0, microbatches, group)
    return [
        (microbatch, chunk)
        for first in firsts
        for chunk in range(chunks)
        for microbatch in range(first, min(first + group, microbatches))
    ]


def megatron(depth: int, rank: int, chunks: int, microbatches: int, group: int) -> list[Pass]:
    """Return the passes of one rank as Megatron-LM's loop does them: warm-up, pairs, cool-down."""
    total, order = microbatches * chunks, table(group, chunks, microbatches)
    warm = min(2 * (depth - rank - 1) + (chunks - 1) * group, total)

    def of(k: int, letter: str) -> Pass:
        microbatch, chunk = order[k]
        return letter, chunk if letter == "F" else chunks - 1 - chunk, microbatch

    passes = [of(k, "F") for k in range(warm)]
    for k in range(total - warm):
        passes += [of(k + warm, "F"), of(k, "B")]
    return passes + [of(k, "B") for k in range(total - warm, total)]


def test_gpipe_does_all_forward_passes_first() -> None:
    assert work(ideal(2, 3, "gpipe"), 0) == ["F1", "F2", "F3", "B1", "B2", "B3", "U1"]


def test_1f1b_on_four_stages_is_that_of_the_paper() -> None:
    """Narayanan et al., SC 2021, Figure 4, first and last device, as far as printed."""
    assert work(ideal(4, 8, "1f1b"), 0)[:9] == ["F1", "F2", "F3", "F4", "B1", "F5", "B2", "F6", "B3"]
    assert work(ideal(4, 8, "1f1b"), 3)[:6] == ["F1", "B1", "F2", "B2", "F3", "B3"]


def test_few_microbatches_shorten_the_warm_up() -> None:
    assert work(ideal(4, 2, "1f1b"), 0) == ["F1", "F2", "B1", "B2", "U1"]


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("count", range(2, 14))
def test_the_interleaved_order_is_megatrons(depth: int, chunks: int, count: int) -> None:
    """Groups of pp microbatches if no smaller group remains, otherwise the smallest groups without one."""
    group = next(size for size in range(min(depth, count), count + 1) if count % size not in range(1, depth))
    pipeline = ideal(depth, count, "interleaved", chunks)
    assert simulate(pipeline).time_s > 0  # no pass waits for itself
    jobs = all_jobs(pipeline)
    for rank in range(depth):
        span = range(*jobs.first[rank : rank + 2].tolist())
        passes = [
            (LETTERS[JobKind(jobs.kind[i])], int(jobs.stage[i]) // depth, int(jobs.microbatch[i]))
            for i in span
            if jobs.kind[i] != JobKind.UPDATE
        ]
        assert passes == megatron(depth, rank, chunks, count, group)
        assert {int(jobs.stage[i]) % depth for i in span} == {rank}


def test_the_last_group_of_microbatches_may_be_smaller() -> None:
    """Megatron-LM's example (`forward_backward_pipelining_with_interleaving`): pp 2, groups of 3 of 5."""
    expected = zip([0, 1, 2, 0, 1, 2, 3, 4, 3, 4], [0, 0, 0, 1, 1, 1, 0, 0, 1, 1], strict=True)
    assert table(3, 2, 5) == [*expected]
    assert [least_group(5, 2), least_group(6, 2), least_group(13, 4), least_group(3, 4)] == [3, 2, 7, 3]
    for group, legal in ((1, False), (2, False), (3, True), (4, False), (5, True), (6, False)):
        assert is_group(5, 2, group) == legal


def test_interleaved_updates_begin_with_the_chunk_whose_gradients_come_first() -> None:
    jobs = all_jobs(ideal(2, 2, "interleaved", 3))
    assert jobs.stage[jobs.kind == JobKind.UPDATE].tolist() == [4, 2, 0, 5, 3, 1]


def test_microbatches_go_round_the_replicas() -> None:
    pipeline = Pipeline((StageCost(1.0, 1.0),) * 2, 5, "1f1b", data=(2, 1))
    assert work(pipeline, 0) == ["F1", "F3", "B1", "F5", "B3", "B5", "U1"]
    assert work(pipeline, 1) == ["F2", "F4", "B2", "B4", "U1"]


def test_replicas_of_all_stages_are_simulated_once() -> None:
    pipeline = Pipeline((StageCost(1.0, 1.0),) * 2, 25, data=(6, 3), tensor=(2, 4))
    assert (pipeline.lanes, pipeline.replicas, pipeline.lane_microbatches) == (3, (2, 1), 9)


def test_recomputation_stands_before_its_backward_pass() -> None:
    pipeline = Pipeline((StageCost(1.0, 1.0, recompute_s=1.0, gather_s=1.0),), 2, "layer-wise")
    assert work(pipeline, 0) == ["F1", "R1", "B1", "F2", "R2", "B2", "U1", "G1"]


def test_a_fetch_that_occupies_the_first_stage_stands_before_its_forward_pass() -> None:
    pipeline = Pipeline((StageCost(1.0),) * 2, 2, "inference", fetch_s=1.0, transfers="occupying")
    assert (work(pipeline, 0), work(pipeline, 1)) == (["D1", "F1", "D2", "F2"], ["F1", "F2"])


def test_updates_without_flush_stand_behind_their_batch_or_before_their_weights_are_needed() -> None:
    stage = StageCost(1.0, 1.0)
    blocking = Pipeline((stage,) * 2, 2, "2bw", batches=3)
    assert work(blocking, 0) == line("F1 F2 B1 F3 B2 U1 F4 B3 F5 B4 U2 F6 B5 B6 U3")
    overlapped = Pipeline((stage,) * 2, 2, "2bw", batches=3, overlap_sync=True)
    assert work(overlapped, 0) == line("F1 F2 B1 F3 B2 F4 B3 U1 F5 B4 F6 B5 B6 U2 U3")
