"""Microbatches in flight on the ranks of a pipeline at their memory peaks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.ranking import distinct_rows
from phaze.pipeline.durations import JobKind
from phaze.pipeline.pipeline import Pipeline
from phaze.plan.splits.split import StagedLayout


def in_flight_at_peaks(staged: StagedLayout, rank: int) -> Ints:
    """Microbatches in flight on each chunk of a rank at its memory peaks, (peaks, chunks).

    A point in time is left out if another one has at least as many on every chunk.
    """
    moments, _ = distinct_rows(in_flight_with_stage(staged, rank)[0])
    return moments[undominated(moments)]


def in_flight_with_stage(staged: StagedLayout, rank: int) -> tuple[Ints, Ints]:
    """Microbatches in flight per chunk of a rank, (times, chunks), and the active stage or -1, (times,)."""
    jobs = staged.events.jobs
    jobs_of_rank = slice(*jobs.first[rank : rank + 2])
    kind, stage = jobs.kind[jobs_of_rank], jobs.stage[jobs_of_rank]
    # Working memory exists during passes only, not while gradients are sent or weights updated.
    busy = (kind >= JobKind.FORWARD) & (kind < JobKind.SYNC)
    in_flight = in_flight_by_stage(staged.frame, rank, kind, stage)
    rows, _ = distinct_rows(np.column_stack([in_flight, np.where(busy, stage, -1)]))
    return rows[:, :-1], rows[:, -1]


def peaks_with_work(in_flight: Ints, busy: Ints, work: Floats) -> tuple[Ints, Floats]:
    """Microbatches in flight at a rank's memory peaks, and working memory of the stage active then.

    `in_flight` and `busy` come from `in_flight_with_stage`; `work` are parts of the working memory of every
    stage, (stages, C). A point in time is left out if another one is at least as large in every value.
    """
    rows, _ = distinct_rows(np.column_stack([in_flight, np.where(busy[:, None] >= 0, work[busy], 0.0)]))
    rows = rows[undominated(rows)]
    chunks = in_flight.shape[1]
    return rows[:, :chunks].astype(np.int64), rows[:, chunks:]


def in_flight_by_stage(
    pipeline: Pipeline, rank: int, kind: NDArray[np.integer], stage: NDArray[np.integer]
) -> Ints:
    """Microbatches in flight on each stage of a rank during each of its jobs, (jobs, chunks)."""
    of_stage = stage[:, None] == pipeline.stages_of(rank)
    released = of_stage & pipeline.rules.releases(kind)[:, None]
    # Activations are stored from the start of the forward job to the end of the job that releases them.
    taken = np.cumsum(of_stage & (kind == JobKind.FORWARD)[:, None], axis=0)
    return np.asarray(taken - np.cumsum(released, axis=0) + released)


def undominated(moments: Ints | Floats) -> Bools:
    """Mask of the rows that no other row matches or exceeds in every column, (rows,)."""
    covered = np.all(moments[:, None] <= moments[None], axis=2) & ~np.eye(len(moments), dtype=bool)
    return np.asarray(~np.any(covered, axis=1))
