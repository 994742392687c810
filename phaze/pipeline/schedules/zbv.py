"""ZB-V: two stages on every rank, placed in a V (Qi et al., Zero Bubble Pipeline Parallelism, Section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from phaze.pipeline.schedules.base import Line, Passes, Written, folded_passes

if TYPE_CHECKING:
    from phaze.pipeline.pipeline import Pipeline


class ZeroBubbleV(Written):
    """Handcrafted order for F = B = W, as in PyTorch's `ScheduleZBVZeroBubble`.

    Every rank stores 2 p half stages, as much as the first one under 1f1b.
    """

    name = "zbv"
    chunks = (2, 2)
    folded = True
    splits = True

    def ranks(self, pipeline: Pipeline) -> Sequence[Passes]:
        """Passes of each rank."""
        return _ranks(pipeline.depth, pipeline.lane_microbatches)


@lru_cache(maxsize=16)
def _ranks(depth: int, count: int) -> tuple[Passes, ...]:
    """Passes of a pipeline with at least 2 p - 1 microbatches, reduced to `count` of them."""
    lines = [_line(depth, rank, max(count, 2 * depth - 1)) for rank in range(depth)]
    return folded_passes([one for one in line.passes if one[2] < count] for line in lines)


def _line(depth: int, rank: int, count: int) -> Line:
    line = Line()
    line.forward(0, 2 * (depth - rank) - 1)
    for _ in range(rank):
        line.forward(1)
        line.forward(0)
    for _ in range(depth - rank):
        line.forward(1)
        _at_once(line, 1)
    while line.count(1, forward=True) < count:
        if line.count(0, forward=True) < count:
            line.forward(0)
        _at_once(line, 0)
        line.forward(1)
        _at_once(line, 1)
    for _ in range(rank):
        line.input_gradient(0)
        line.input_gradient(1)
    for _ in range(depth - rank):
        line.input_gradient(0)
        line.weights(0)
    for chunk, _ in sorted(line.waiting, key=lambda one: -one[0]):
        line.weights(chunk)
    return line


def _at_once(line: Line, chunk: int) -> None:
    """Append the input- and weight-gradient passes of the next microbatch, back to back."""
    line.input_gradient(chunk)
    line.weights(chunk)
