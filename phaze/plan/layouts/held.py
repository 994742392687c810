"""Microbatches in flight on the ranks of a pipeline at their memory peaks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.ranking import distinct_rows
from phaze.pipeline.durations import JobKind
from phaze.pipeline.pipeline import Pipeline
from phaze.plan.layouts.divisions import DividedLayout


def held_microbatches(divided: DividedLayout, rank: int) -> Ints:
    """Microbatches in flight on each chunk of a rank at its memory peaks, (peaks, chunks).

    A point in time is left out if another one has at least as many on every chunk.
    """
    jobs = divided.events.jobs
    own = slice(*jobs.first[rank : rank + 2])
    moments, _ = distinct_rows(held_of_stages(divided.frame, rank, jobs.kind[own], jobs.stage[own]))
    return moments[undominated(moments)]


def held_while_busy(divided: DividedLayout, rank: int) -> tuple[Ints, Ints]:
    """Microbatches in flight per chunk of a rank, (times, chunks), and the active stage or -1, (times,)."""
    jobs = divided.events.jobs
    own = slice(*jobs.first[rank : rank + 2])
    kind, stage = jobs.kind[own], jobs.stage[own]
    busy = (kind >= JobKind.FORWARD) & (kind < JobKind.SYNC)
    held = held_of_stages(divided.frame, rank, kind, stage)
    rows, _ = distinct_rows(np.column_stack([held, np.where(busy, stage, -1)]))
    return rows[:, :-1], rows[:, -1]


def held_at_work(held: Ints, busy: Ints, work: Floats) -> tuple[Ints, Floats]:
    """Microbatches in flight at a rank's memory peaks, and working memory of the stage active then.

    `held` and `busy` come from `held_while_busy`; `work` are parts of the working memory of every stage,
    (stages, C). A point in time is left out if another one is at least as large in every value.
    """
    rows, _ = distinct_rows(np.column_stack([held, np.where(busy[:, None] >= 0, work[busy], 0.0)]))
    rows = rows[undominated(rows)]
    chunks = held.shape[1]
    return rows[:, :chunks].astype(np.int64), rows[:, chunks:]


def held_of_stages(
    pipeline: Pipeline, rank: int, kind: NDArray[np.integer], stage: NDArray[np.integer]
) -> Ints:
    """Microbatches in flight on each stage of a rank during each of its jobs, (jobs, chunks)."""
    own = stage[:, None] == pipeline.stages_of(rank)
    released = own & pipeline.rules.releases(kind)[:, None]
    taken = np.cumsum(own & (kind == JobKind.FORWARD)[:, None], axis=0)
    found: Ints = taken - np.cumsum(released, axis=0) + released
    return found


def undominated(moments: Ints | Floats) -> Bools:
    """Mask of the rows that no other row matches or exceeds in every column, (rows,)."""
    covered = np.all(moments[:, None] <= moments[None], axis=2) & ~np.eye(len(moments), dtype=bool)
    found: Bools = ~np.any(covered, axis=1)
    return found
