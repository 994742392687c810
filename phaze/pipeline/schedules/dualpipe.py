"""DualPipe and DualPipeV: forward passes of one microbatch overlap with backward passes of another.

Source: DeepSeek-V3 Technical Report, 2024, Section 3.2.1; github.com/deepseek-ai/DualPipe. A forward and a
backward pass are one job. Both wait for the inputs of both, and send their results when both are over. The
job takes the sum of both times; gains from overlapping the communication of one with the other are not part
of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from phaze.pipeline.schedules.base import FoldedSchedule, Line, Passes, folded_passes

if TYPE_CHECKING:
    from phaze.pipeline.stages import PipelineStages


class DualPipeV(FoldedSchedule):
    """DualPipe cut in half: two stages on every rank, placed in a V, as in PyTorch's `ScheduleDualPipeV`."""

    name = "dualpipev"

    def problems(self, pipeline: PipelineStages) -> Iterator[str]:
        """Yield the reason that there are fewer microbatches than stages."""
        yield from super().problems(pipeline)
        least, count = 2 * pipeline.depth, pipeline.lane_microbatches
        if count < least:
            yield f"microbatches of a replica must be at least {least} under {self.name}, got {count}"

    def ranks(self, pipeline: PipelineStages) -> Sequence[Passes]:
        """Passes of each rank, in order of execution."""
        return _folded(pipeline.depth, pipeline.lane_microbatches)


class DualPipe(DualPipeV):
    """DualPipe: microbatches enter at both ends; every rank has a stage of each of two model copies.

    The first half of them passes stages 0 to p - 1. The other half passes the copies, stages p to 2 p - 1, in
    the opposite direction. Weights, gradients and optimizer states are stored twice.
    """

    name = "dualpipe"
    streams = 2

    def problems(self, pipeline: PipelineStages) -> Iterator[str]:
        """Yield reasons: an odd number of ranks or microbatches, or non-zero `fetch_s` or `release_s`."""
        yield from super().problems(pipeline)
        depth, count = pipeline.depth, pipeline.lane_microbatches
        if depth % 2 or count % 2:
            even = f"pp and the microbatches of a replica must be even under {self.name}"
            yield f"{even}, got {depth} and {count}"
        if pipeline.fetch_s or pipeline.release_s:
            yield f"fetch_s and release_s must be 0 under {self.name}"

    def ranks(self, pipeline: PipelineStages) -> Sequence[Passes]:
        """Passes of each rank, in order of execution."""
        return _both_directions(pipeline.depth, pipeline.lane_microbatches)


@lru_cache(maxsize=16)
def _folded(depth: int, count: int) -> tuple[Passes, ...]:
    return folded_passes(_line(depth, rank, count).passes for rank in range(depth))


@lru_cache(maxsize=16)
def _both_directions(depth: int, count: int) -> tuple[Passes, ...]:
    """Passes of all ranks in both directions; ranks i and p - 1 - i are mirror images.

    Rank i has the passes of rank i in a V of p / 2 ranks.
    """
    half, ranks = count // 2, []
    for rank in range(depth):
        mirrored = rank >= depth // 2
        line = _line(depth // 2, min(rank, depth - 1 - rank), half)
        kind, chunk, number = np.array(line.passes, np.int64).T
        direction = chunk ^ mirrored
        ranks.append(Passes(kind, np.where(direction, 2 * depth - 1 - rank, rank), number + half * direction))
    return tuple(ranks)


def _line(depth: int, rank: int, count: int) -> Line:
    """Passes of a rank in a V of `depth` ranks, with `count` microbatches for each of its two stages."""
    line, later_ranks = Line(), depth - rank - 1
    # The loops are steps 1 to 8 of `DualPipeV.step` in the reference; step 4 is the steady state.
    line.forward(0, 2 * later_ranks)
    for _ in range(rank + 1):
        line.forward(0)
        line.forward(1)
    for _ in range(later_ranks):
        line.input_gradient(1)
        line.weights()
        line.forward(1)
    for turn in range(count - 2 * depth + rank + 1):
        if later_ranks or turn:
            line.pair(0, 1)
        else:  # the last rank has no work to overlap, and does not wait for both
            line.forward(0)
            line.backward(1)
        line.pair(1, 0)
    for _ in range(later_ranks):
        line.backward(1)
        line.pair(1, 0)
    # Step 6: its second half defers weight gradients to steps 7 and 8.
    for number in range(2 * (rank + 1)):
        (line.input_gradient if number > rank else line.backward)(1 - number % 2)
    for _ in range(later_ranks):
        line.weights()
        line.input_gradient(0)
    for _ in range(rank + 1):
        line.weights()
    return line
