"""The layout that comes closest where none fits, and batches of too many microbatches to be simulated."""

from __future__ import annotations

import numpy as np

from phaze.layout import Layout
from phaze.pipeline.graph import refuse_endless
from phaze.plan.layouts.bounds import LayoutBounds
from phaze.plan.layouts.question import PlanQuestion
from phaze.runtimes.grid import LayoutGrid


def refuse_endless_steps(question: PlanQuestion, grid: LayoutGrid) -> None:
    """Raise PhazeError at once for a batch of which some layout has more events than memory holds."""
    if len(grid):
        microbatches = grid.microbatches(question.task.global_batch)
        place = int(np.argmax(microbatches * grid.stages))
        refuse_endless(int(microbatches[place]), int(grid.stages[place]))


def closest_layout(grid: LayoutGrid, bounds: LayoutBounds) -> tuple[Layout, str, float] | None:
    """Layout that lacks the least memory by its bound, its schedule, and the bytes; none in an empty grid."""
    if not len(grid):
        return None
    # What may fit by its bound was looked at, and does not. Interleaved stages hold no less than others, and
    # their bounds are looser.
    may = bounds.lacking_bytes <= 0
    looser = (may, may | (grid.vp > 1))
    out = next((one for one in reversed(looser) if not one.all()), np.zeros(len(grid), np.bool_))
    lacking = np.where(out, np.inf, bounds.lacking_bytes)
    place = int(np.argmin(lacking))
    return grid.layout(place), grid.schedule_of(place), float(bounds.lacking_bytes[place])
