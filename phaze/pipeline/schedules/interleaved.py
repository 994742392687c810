"""Schedules with v chunks per rank: interleaved, and interleaved with zero bubble.

g microbatches pass a chunk, then the next chunk; the last group may be smaller. Megatron-LM accepts any g
from p to m that leaves no group of fewer than p; its default is p. PyTorch divides the m microbatches into
max(1, m // p) rounds of equal size. These are the smallest groups that Megatron-LM accepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from phaze.base.arrays import Ints
from phaze.pipeline.durations import JobKind
from phaze.pipeline.schedules.base import MANY, Passes, Schedule, split_turns, turns

if TYPE_CHECKING:
    from phaze.pipeline.stages import PipelineStages


class Interleaved(Schedule):
    """Megatron-LM's interleaved order, in groups of g microbatches per chunk (`get_schedule_table`).

    2 (p - rank - 1) + (v - 1) g forward passes precede the first pair (Narayanan et al., SC 2021, Section
    2.2; `get_pp_rank_microbatches`).
    """

    name = "interleaved"
    chunks = (2, MANY)
    equal_replicas = True
    in_runs = True
    lead: ClassVar[int] = 2
    """Number of warm-up passes by which a rank is ahead of the next one."""

    def problems(self, pipeline: PipelineStages) -> Iterator[str]:
        """Yield the reason that a group of several has fewer than p microbatches."""
        yield from super().problems(pipeline)
        size = group_of(pipeline)
        if not is_group(pipeline.lane_microbatches, pipeline.depth, size):
            yield (
                f"microbatch_group must leave no group of fewer than pp = {pipeline.depth} of the "
                f"{pipeline.lane_microbatches} microbatches of a replica under {self.name}, got {size}"
            )

    def warm_up(self, pipeline: PipelineStages, rank: int) -> int:
        """Number of forward passes before the first pair of a forward and a backward pass."""
        return self.lead * (pipeline.depth - rank - 1) + (pipeline.chunks - 1) * group_of(pipeline)

    def places(self, pipeline: PipelineStages) -> Sequence[int]:
        """In-flight microbatches of each rank, over all its chunks: the warm-up passes plus one."""
        return [self.warm_up(pipeline, rank) + 1 for rank in range(pipeline.depth)]

    def order(self, pipeline: PipelineStages, group: int, microbatches: Ints) -> Passes:
        """Passes of a rank, where each group of microbatches passes one chunk, then the next."""
        kind, number = turns(pipeline.in_flight[group], len(microbatches) * pipeline.chunks)
        return _in_rounds(pipeline, group, kind, number)


class InterleavedZeroBubble(Interleaved):
    """Interleaved with p - rank - 1 fewer warm-up passes; weight gradients fill the remaining bubbles.

    Rank i postpones weight gradients by i passes, as under zb-h1 (Qi et al., ICLR 2024, Section 2.2, in the
    form of PyTorch's `ScheduleInterleavedZeroBubble`). Every rank stores v p chunks.
    """

    name = "interleaved-zb"
    splits = True
    lead = 1

    def problems(self, pipeline: PipelineStages) -> Iterator[str]:
        """Yield the reason that the m microbatches do not form m // p groups of equal size, or one group."""
        yield from super().problems(pipeline)
        count = pipeline.lane_microbatches
        rounds = max(1, count // pipeline.depth)
        if count % rounds:
            yield (
                f"microbatches of a replica must be a multiple of pp = {pipeline.depth} under {self.name}, "
                f"or of the {rounds} rounds of pp or more, got {count}"
            )
        if group_of(pipeline) * rounds != count:
            yield (
                f"microbatch_group must be {count // rounds} under {self.name}, the same in each of {rounds} "
                f"rounds, got {pipeline.microbatch_group}"
            )

    def places(self, pipeline: PipelineStages) -> Sequence[int]:
        """In-flight microbatches, equal on all ranks, including those with deferred weight gradients."""
        return (self.warm_up(pipeline, 0) + 1,) * pipeline.depth

    def order(self, pipeline: PipelineStages, group: int, microbatches: Ints) -> Passes:
        """Passes of a rank, where each group of microbatches passes one chunk, then the next."""
        passes = len(microbatches) * pipeline.chunks
        window = min(self.warm_up(pipeline, group) + 1, passes)
        return _in_rounds(pipeline, group, *split_turns(window, passes, group))


def is_group(count: int, depth: int, size: int) -> bool:
    """True if Megatron-LM accepts groups of `size` microbatches, out of `count`.

    All groups, including the last, need p or more (`forward_backward_pipelining_with_interleaving`). Here a
    single group of fewer than p is valid as well.
    """
    least = min(depth, count)
    return least <= size <= count and not 0 < count % size < least


@lru_cache(maxsize=4096)
def least_group(count: int, depth: int) -> int:
    """Smallest group size that Megatron-LM accepts; p if p divides the number of microbatches."""
    return next(size for size in range(min(depth, count), count + 1) if is_group(count, depth, size))


def group_of(pipeline: PipelineStages) -> int:
    """Group size g: number of microbatches that pass one chunk before they pass the next."""
    return pipeline.microbatch_group or least_group(pipeline.lane_microbatches, pipeline.depth)


def _in_rounds(pipeline: PipelineStages, rank: int, kind: Ints, number: Ints) -> Passes:
    """Convert pass indices in each direction to passes; backward passes start with the last chunk."""
    p, v, g = pipeline.depth, pipeline.chunks, group_of(pipeline)
    group, place = np.divmod(number, g * v)
    size = np.minimum(g, pipeline.lane_microbatches - group * g)
    chunk = place // size
    chunk = np.where(kind == JobKind.FORWARD, chunk, v - 1 - chunk)
    return Passes(kind, chunk * p + rank, group * g + place % size)
