"""Schedules whose microbatches go round the ranks v times: interleaved, and with zero bubble.

Microbatches pass a chunk g at a time, then the next chunk. Megatron-LM takes g = p; PyTorch deals the m
microbatches to max(1, m // p) rounds of equal size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from phaze.base.arrays import Ints
from phaze.pipeline.durations import JobKind
from phaze.pipeline.schedules.base import MANY, Passes, Schedule, split_turns, turns

if TYPE_CHECKING:
    from phaze.pipeline.pipeline import Pipeline


class Interleaved(Schedule):
    """Megatron's order over m v passes, in groups of p microbatches per chunk.

    2 (p - rank - 1) + (v - 1) p forward passes come before the first pair (Narayanan et al., SC 2021, Section
    2.2); with other numbers of microbatches as `ScheduleInterleaved1F1B` of PyTorch.
    """

    name = "interleaved"
    chunks = (2, MANY)
    equal_replicas = True
    in_runs = True

    def problem(self, pipeline: Pipeline) -> str:
        """Needs rounds of equally many microbatches, p or more of them where there are so many."""
        count, found = pipeline.lane_microbatches, super().problem(pipeline)
        rounds = max(1, count // pipeline.depth)
        if not found and count % rounds:
            found = (
                f"microbatches of a replica must be a multiple of pp = {pipeline.depth} under {self.name}, "
                f"or of the {rounds} rounds of pp or more, got {count}"
            )
        return found

    def warm_up(self, pipeline: Pipeline, rank: int) -> int:
        """Forward passes before the first pair."""
        return 2 * (pipeline.depth - rank - 1) + (pipeline.chunks - 1) * _round(pipeline)

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """Room for the passes before the first pair, and one more."""
        return [self.warm_up(pipeline, rank) + 1 for rank in range(pipeline.depth)]

    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """Microbatches pass a chunk a round at a time, then the next chunk."""
        kind, number = turns(pipeline.in_flight[group], len(own) * pipeline.chunks)
        return _in_rounds(pipeline, group, kind, number)


class InterleavedZeroBubble(Interleaved):
    """Interleaved with p - rank - 1 forward passes fewer, where gradients of weights fill what is left.

    Rank i puts them off by i passes, as under zb-h1 (Qi et al., ICLR 2024, Section 2.2, in the form of
    PyTorch's `ScheduleInterleavedZeroBubble`): every rank holds v p chunks.
    """

    name = "interleaved-zb"
    splits = True

    def warm_up(self, pipeline: Pipeline, rank: int) -> int:
        """Forward passes before the first pair."""
        return pipeline.depth - rank - 1 + (pipeline.chunks - 1) * _round(pipeline)

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """Room for as many on every rank, those that wait for gradients of their weights included."""
        return (self.warm_up(pipeline, 0) + 1,) * pipeline.depth

    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """Microbatches pass a chunk a round at a time, then the next chunk."""
        passes = len(own) * pipeline.chunks
        window = min(self.warm_up(pipeline, group) + 1, passes)
        return _in_rounds(pipeline, group, *split_turns(window, passes, group))


def _round(pipeline: Pipeline) -> int:
    """Microbatches that pass a chunk before the next chunk, g."""
    return pipeline.lane_microbatches // max(1, pipeline.lane_microbatches // pipeline.depth)


def _in_rounds(pipeline: Pipeline, rank: int, kind: Ints, number: Ints) -> Passes:
    """Passes by their numbers in their direction; backward the last chunk comes first."""
    p, v, g = pipeline.depth, pipeline.chunks, _round(pipeline)
    chunk = number % (g * v) // g
    chunk = np.where(kind == JobKind.FORWARD, chunk, v - 1 - chunk)
    return Passes(kind, chunk * p + rank, number // (g * v) * g + number % g)
