"""Microbatches that the ranks of a pipeline hold at the moments at which they hold most."""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.pipeline.durations import JobKind
from phaze.plan.layouts.planes import Paths


def held_microbatches(paths: Paths, rank: int) -> Ints:
    """Microbatches that a rank holds of each of its chunks at its fullest moments, (moments, chunks).

    A moment is left out where another one holds no less of any chunk.
    """
    jobs, depth = paths.graph.jobs, paths.divided.layout.pp
    own = slice(*jobs.first[rank : rank + 2])
    kind, chunk = jobs.kind[own], jobs.stage[own] // depth
    one_hot = np.arange(paths.divided.layout.vp) == chunk[:, None]
    last = paths.divided.frame.rules.releases(kind)
    taken = np.cumsum(one_hot & (kind == JobKind.FORWARD)[:, None], axis=0)
    freed = np.cumsum(one_hot & last[:, None], axis=0)
    moments = np.unique(taken - freed + (one_hot & last[:, None]), axis=0)
    return moments[_undominated(moments)]


def _undominated(moments: Ints) -> Bools:
    covered = np.all(moments[:, None] <= moments[None], axis=2) & ~np.eye(len(moments), dtype=bool)
    found: Bools = ~np.any(covered, axis=1)
    return found
