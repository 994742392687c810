"""Handcrafted zero-bubble schedules: weight gradients fill the bubbles of 1f1b (Qi et al., ICLR 2024).

ZB-V has two stages on every rank, placed in a V (Section 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from phaze.base.arrays import Ints
from phaze.pipeline.schedules.base import Line, Passes, Schedule, Written, folded_passes, split_turns

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


class ZeroBubble(Schedule):
    """ZB-H1: 1f1b with weight gradients in the bubbles after the last forward passes.

    Rank i postpones them by i microbatches, so that every rank has p microbatches in flight, as the first one
    under 1f1b (Section 2.2).
    """

    name = "zb-h1"
    splits = True
    equal_replicas = True
    in_runs = True

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """In-flight microbatches: p on every rank, including those with postponed weight gradients."""
        return (pipeline.depth,) * pipeline.depth

    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """Passes with each weight gradient after the input gradient i microbatches later, or at the end."""
        window = min(pipeline.depth - group, len(own))
        kind, number = split_turns(window, len(own), group)
        return Passes(kind, np.full(len(kind), group), own[number])


class ZeroBubbleTwice(ZeroBubble):
    """ZB-H2: zb-h1 with additional forward passes while 1f1b waits for the first gradient.

    Rank i begins with 2 (p - i) - 1 forward passes and postpones weight gradients by 2 i microbatches, so
    that every rank has 2 p - 1 microbatches in flight (Section 2.2, Figure 3). Without the paper's validation
    of the optimizer's step afterwards, which no runtime here has, all ranks end together.
    """

    name = "zb-h2"

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """In-flight microbatches: 2 p - 1 on every rank."""
        return (2 * pipeline.depth - 1,) * pipeline.depth

    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """Passes with each weight gradient after the input gradient 2 i microbatches later, or at the end."""
        window = min(2 * (pipeline.depth - group) - 1, len(own))
        kind, number = split_turns(window, len(own), 2 * group)
        return Passes(kind, np.full(len(kind), group), own[number])
