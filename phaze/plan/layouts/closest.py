"""Batches of too many microbatches to be simulated."""

from __future__ import annotations

import numpy as np

from phaze.pipeline.graph import refuse_endless
from phaze.plan.layouts.question import PlanQuestion
from phaze.runtimes.grid import LayoutGrid


def refuse_endless_steps(question: PlanQuestion, grid: LayoutGrid) -> None:
    """Raise PhazeError at once for a batch of which some layout has more events than memory holds."""
    if len(grid):
        microbatches = grid.microbatches(question.task.global_batch)
        place = int(np.argmax(microbatches * grid.stages))
        refuse_endless(int(microbatches[place]), int(grid.stages[place]))
