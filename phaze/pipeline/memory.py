"""Memory of the devices of a pipeline: it follows from the order of the work alone.

A microbatch is in flight on a stage from the beginning of its forward pass to the end of its backward pass,
as the stashes in the caption of Piper's Figure 5. Under 1f1b and 2bw a worker has ceil(s/d) of them at most,
min(S, B) on the first of S equal stages, under gpipe all (PALM, IV.B). `cost.memory` counts s - 1 instead
because it adds the microbatch at work to what is there all the time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Floats
from phaze.pipeline.durations import Kind
from phaze.pipeline.orders import Kinds, jobs_of
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.windows import in_flight


def held_bytes(
    pipeline: Pipeline, group: int, kind: Kinds, stage: NDArray[np.int32]
) -> tuple[Floats, Floats]:
    """Return the bytes that a device of a group holds during and after each of a worker's jobs."""
    stash, work = pipeline.column("stash_bytes")[stage], pipeline.column("work_bytes")[stage]
    freed = np.where(kind == releasing(pipeline), stash, 0.0)
    taken = np.where(kind == Kind.FORWARD, stash, 0.0)
    after = fixed_bytes(pipeline, group) + np.cumsum(taken) - np.cumsum(freed)
    busy = (kind >= Kind.FORWARD) & (kind <= Kind.BACKWARD)
    return after + freed + np.where(busy, work, 0.0), after


def fixed_bytes(pipeline: Pipeline, group: int) -> float:
    """Return what a device of a group holds all the time, for all its chunks."""
    return float(pipeline.column("fixed_bytes")[group :: pipeline.depth].sum())


def releasing(pipeline: Pipeline) -> Kind:
    """Return the kind of job after which a microbatch's activations are not needed any more."""
    return Kind.BACKWARD if pipeline.trains else Kind.FORWARD


def most_in_flight(pipeline: Pipeline, kind: Kinds) -> int:
    """Return the most microbatches that a worker with these jobs holds at once, counted for each chunk."""
    released = kind == releasing(pipeline)
    return int((np.cumsum(kind == Kind.FORWARD) - np.cumsum(released) + released).max())


def peak_bytes(pipeline: Pipeline, group: int) -> float:
    """Return the most that a device of a group ever holds: its first replica, which has most microbatches."""
    jobs = jobs_of(pipeline, group, 0, in_flight(pipeline)[group])
    return float(held_bytes(pipeline, group, jobs.kind, jobs.stage)[0].max())
