"""Default stages: operators in their order, balanced by compute time (PALM, IV.B)."""

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.pipeline.cuts import least_worst
from phaze.pipeline.flushing import interval_sums


def balanced_starts(compute_s: Floats, stages: int) -> tuple[int, ...]:
    """First operator of each stage in the split that minimises the slowest stage.

    `compute_s` (n,) is the time of each operator. On ties the first stages get as many operators as possible.
    """
    n = len(compute_s)
    if not 1 <= stages <= n:
        raise PhazeError(f"pipeline: stages must be between 1 and the {n} operators, got {stages}")
    load = interval_sums(compute_s)
    worst = _least_worst(load, stages)
    starts = [0]
    for left in range(stages - 1, 0, -1):
        ends = np.arange(starts[-1] + 1, n - left + 1)
        starts.append(int(ends[load[starts[-1], ends] <= worst].max()))
    return tuple(starts)


def _least_worst(load: Floats, stages: int) -> float:
    """Load of the slowest stage of the best pipeline split."""
    n = len(load)
    anything: Ints = np.full(load.shape, stages, np.int64)
    table = least_worst(
        load[:, n], load, np.zeros_like(load), anything, np.zeros(load.shape, bool), stages, 0
    )
    return float(table[stages, 0, 0])
