"""The order in which every worker does its jobs, for each schedule.

- gpipe: all forward passes, then all backward passes in the same order (Narayanan et al., SC 2021, Figure 3).
- 1f1b: ceil(s/d) forward passes, then backward and forward in turn: backward before forward. s is the sum
  of the replicas from this stage to the last; with equal d this is the stage's number from the end.
- 2bw: as 1f1b over all batches, without a flush between them (Piper, Figure 5); see `windows` for d that do
  not divide s.
- interleaved: Megatron's order over m v passes in groups of p microbatches per chunk, with
  2 (p - rank - 1) + (v - 1) p forward passes before the first pair (Narayanan et al., SC 2021, Section 2.2).
- layer-wise: 1f1b at depth 1. inference: forward passes.

Gradients are updated after a batch's last backward pass. Under 2bw with overlapped synchronisation the update
waits until the weights are needed: batch k + 2 is the first that uses the gradients of batch k, because two
versions of the weights exist (Narayanan et al., 2020, Section 3.1).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Bools, Ints
from phaze.pipeline.durations import Kind, fetches_on_worker
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.windows import in_flight

Kinds = NDArray[np.int8]

Key = tuple[Kind, int, int]
"""Kind, stage, and microbatch or batch of a job."""


@dataclass(frozen=True, eq=False)
class Jobs:
    """Jobs by resource and in the order of their execution; N jobs on R resources, the workers first."""

    kind: Kinds
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    """Of SYNC, LAST_SYNC, UPDATE and GATHER the batch."""
    first: Ints
    """(R + 1,) where the jobs of each resource begin."""

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self.kind)

    @property
    def resource(self) -> Ints:
        """Return the resource of every job."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


def joined(parts: list[Jobs]) -> Jobs:
    """Return the jobs of all parts, the resources one part after the other."""
    lengths = np.concatenate([[0], *(np.diff(part.first) for part in parts)])
    return Jobs(
        np.concatenate([part.kind for part in parts]).astype(np.int8),
        np.concatenate([part.stage for part in parts]).astype(np.int32),
        np.concatenate([part.microbatch for part in parts]).astype(np.int32),
        np.cumsum(lengths).astype(np.int64),
    )


def worker_jobs(pipeline: Pipeline) -> Jobs:
    """Return the jobs of all workers of a lane."""
    windows = in_flight(pipeline)
    return joined([jobs_of(pipeline, group, replica, windows[group]) for group, replica in pipeline.workers])


def own_microbatches(pipeline: Pipeline, replica: int, group: int) -> Ints:
    """Return the microbatches of a replica, numbered through all batches."""
    total = pipeline.lane_microbatches * pipeline.batches
    return np.arange(replica, total, pipeline.replicas[group], dtype=np.int64)


def jobs_of(pipeline: Pipeline, group: int, replica: int, window: int) -> Jobs:
    """Return the jobs of one worker that holds at most `window` microbatches, those of all chunks counted."""
    own = own_microbatches(pipeline, replica, group)
    backward, index = _passes(pipeline, window, len(own) * pipeline.chunks)
    if pipeline.schedule == "interleaved":
        stage, microbatch = _interleaved(pipeline, group, backward, index)
    else:
        stage, microbatch = np.full(len(index), group), own[index]
    kind = np.where(backward, Kind.BACKWARD, Kind.FORWARD)
    jobs = _with_preparations(pipeline, kind, stage, microbatch)
    return _with_updates(pipeline, group, *jobs) if pipeline.trains else _one_resource(*jobs)


def _passes(pipeline: Pipeline, window: int, count: int) -> tuple[Bools, Ints]:
    """Return the passes of a worker in order: whether backward, and the number in that direction."""
    if not pipeline.trains:
        return np.zeros(count, bool), np.arange(count)
    warm = min(count, window)
    k = np.arange(count)
    forward_at = np.where(k < warm, k, 2 * k - warm + 1)
    backward_at = np.minimum(warm + 2 * k, count + k)
    backward, index = np.zeros(2 * count, bool), np.empty(2 * count, np.int64)
    backward[backward_at] = True
    index[forward_at] = index[backward_at] = k
    return backward, index


def _interleaved(pipeline: Pipeline, rank: int, backward: Bools, index: Ints) -> tuple[Ints, Ints]:
    """Return stage and microbatch of every pass: p microbatches through a chunk, then through the next."""
    p, v = pipeline.depth, pipeline.chunks
    chunk = index % (p * v) // p
    chunk = np.where(backward, v - 1 - chunk, chunk)
    return chunk * p + rank, index // (p * v) * p + index % p


def _with_preparations(
    pipeline: Pipeline, kind: Ints, stage: Ints, microbatch: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return the jobs with a recomputation before the backward pass, and a fetch before the first forward."""
    again = (kind == Kind.BACKWARD) & (pipeline.column("recompute_s") > 0)[stage]
    fetch = (kind == Kind.FORWARD) & (stage == 0) & fetches_on_worker(pipeline)
    copies = 1 + again + fetch
    prepared = np.repeat(kind, copies)
    at = (np.cumsum(copies) - copies)[copies > 1]
    prepared[at] = np.where(fetch, Kind.FETCH, Kind.RECOMPUTE)[copies > 1]
    return prepared, np.repeat(stage, copies), np.repeat(microbatch, copies)


def _with_updates(pipeline: Pipeline, group: int, kind: Ints, stage: Ints, microbatch: Ints) -> Jobs:
    """Return the jobs with the updates of every batch, later chunks first as their gradients are."""
    chunks = range(group, len(pipeline.stages), pipeline.depth)
    gathers = pipeline.column("gather_s") > 0
    pairs = [(k, q) for q in reversed(chunks) for k in (Kind.UPDATE, Kind.GATHER) if k < 7 or gathers[q]]
    kinds, stages = np.array(pairs).T
    batches = np.arange(pipeline.batches)
    at = np.repeat(_update_places(pipeline, kind, microbatch), len(pairs))
    return _one_resource(
        np.insert(kind, at, np.tile(kinds, len(batches))),
        np.insert(stage, at, np.tile(stages, len(batches))),
        np.insert(microbatch, at, np.repeat(batches, len(pairs))),
    )


def _update_places(pipeline: Pipeline, kind: Ints, microbatch: Ints) -> Ints:
    """Return for every batch the index of the job before which its update is done."""
    batches = np.arange(pipeline.batches)
    batch = microbatch // pipeline.lane_microbatches
    backward = np.flatnonzero(kind == Kind.BACKWARD)
    if not (pipeline.overlap_sync and pipeline.schedule == "2bw"):
        return backward[np.searchsorted(batch[backward], batches, side="right") - 1] + 1
    forward = np.flatnonzero(kind <= Kind.FORWARD)
    next_use = np.searchsorted(batch[forward], batches + 2)
    return np.append(forward, len(kind))[next_use]


def _one_resource(kind: Ints, stage: Ints, microbatch: Ints) -> Jobs:
    return Jobs(
        kind.astype(np.int8),
        stage.astype(np.int32),
        microbatch.astype(np.int32),
        np.array([0, len(kind)], np.int64),
    )
