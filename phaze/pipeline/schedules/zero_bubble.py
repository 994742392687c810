"""Handcrafted zero-bubble schedules: weight gradients fill the bubbles of 1f1b (Qi et al., ICLR 2024).

ZB-V has two stages on every rank, placed in a V (Section 6).

ZB-1P is derived from the times of the passes (Section 3.1). Microbatch by microbatch, every rank adds a
forward and a backward pass. Weight gradients are inserted in three cases: in gaps that they fit; in shorter
gaps if the rank would otherwise idle longer than any rank so far; and where memory must be freed. Three
choices are open and all combinations are tried: whether a further forward pass may delay the first
gradient, whether a rank that is ahead skips a forward pass, and whether weight gradients also go into gaps
no longer than others. Of the eight orders the one that ends first is used. All ranks end together, as no
runtime here validates the optimizer's step afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import inf
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from phaze.base.arrays import Ints
from phaze.pipeline.durations import JobKind, durations, in_flight_s
from phaze.pipeline.schedules.base import (
    ExplicitSchedule,
    FoldedSchedule,
    Line,
    Passes,
    Schedule,
    folded_passes,
    split_turns,
)

if TYPE_CHECKING:
    from phaze.pipeline.stages import PipelineStages

KINDS = (JobKind.FORWARD, JobKind.INPUT_GRADIENT, JobKind.WEIGHT_GRADIENT)
F, B, W = range(3)


class ZeroBubbleV(FoldedSchedule):
    """ZB-V: handcrafted order for F = B = W, as in PyTorch's `ScheduleZBVZeroBubble`.

    Every rank stores 2 p half stages, as much as the first one under 1f1b.
    """

    name = "zbv"

    def ranks(self, pipeline: PipelineStages) -> Sequence[Passes]:
        """Passes of each rank, in order of execution."""
        return _ranks(pipeline.depth, pipeline.lane_microbatches)


@lru_cache(maxsize=16)
def _ranks(depth: int, count: int) -> tuple[Passes, ...]:
    """Passes of each rank: the order for at least 2 p - 1 microbatches, reduced to the first `count`."""
    lines = [_line(depth, rank, max(count, 2 * depth - 1)) for rank in range(depth)]
    return folded_passes([job for job in line.passes if job[2] < count] for line in lines)


def _line(depth: int, rank: int, count: int) -> Line:
    line = Line()
    line.forward(0, 2 * (depth - rank) - 1)
    for _ in range(rank):
        line.forward(1)
        line.forward(0)
    for _ in range(depth - rank):
        line.forward(1)
        _full_backward(line, 1)
    while line.count(1, forward=True) < count:
        if line.count(0, forward=True) < count:
            line.forward(0)
        _full_backward(line, 0)
        line.forward(1)
        _full_backward(line, 1)
    for _ in range(rank):
        line.input_gradient(0)
        line.input_gradient(1)
    for _ in range(depth - rank):
        line.input_gradient(0)
        line.weights(0)
    # Sorting is stable and makes a copy: microbatches stay in order while the list shrinks.
    for chunk, _ in sorted(line.waiting, key=lambda gradient: -gradient[0]):
        line.weights(chunk)
    return line


def _full_backward(line: Line, chunk: int) -> None:
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
    delay: ClassVar[int] = 1
    """Microbatches by which rank i defers weight gradients, divided by i."""

    def places(self, pipeline: PipelineStages) -> Sequence[int]:
        """In-flight microbatches of every rank, including those with deferred weight gradients."""
        return (self.delay * (pipeline.depth - 1) + 1,) * pipeline.depth

    def order(self, pipeline: PipelineStages, group: int, microbatches: Ints) -> Passes:
        """Passes of rank i; weight gradients follow input gradients after delay · i microbatches."""
        window = min(self.delay * (pipeline.depth - group - 1) + 1, len(microbatches))
        kind, number = split_turns(window, len(microbatches), self.delay * group)
        return Passes(kind, np.full(len(kind), group), microbatches[number])


class ZeroBubbleTwice(ZeroBubble):
    """ZB-H2: zb-h1 with additional forward passes while 1f1b waits for the first gradient.

    Rank i begins with 2 (p - i) - 1 forward passes and postpones weight gradients by 2 i microbatches, so
    that every rank has 2 p - 1 microbatches in flight (Section 2.2, Figure 3). Without the paper's validation
    of the optimizer's step afterwards, which no runtime here has, all ranks end together.
    """

    name = "zb-h2"
    delay = 2


class ZeroBubbleByTimes(ExplicitSchedule):
    """ZB-1P: 1f1b with weight gradients in gaps chosen by pass times; p microbatches in flight."""

    name = "zbb"
    splits = True
    by_times = True

    def ranks(self, pipeline: PipelineStages) -> Sequence[Passes]:
        """Passes of each rank, in order of execution."""
        table = durations(pipeline)
        table[JobKind.INPUT_GRADIENT] += table[JobKind.RECOMPUTE]
        sent_s = max(float(np.max(transfer_s, initial=0.0)) for transfer_s in in_flight_s(pipeline))
        seconds = tuple(tuple(table[kind].tolist()) for kind in KINDS)
        return _ranks_by_times(_Task(seconds, sent_s, pipeline.lane_microbatches))


@dataclass(frozen=True)
class _Task:
    """Inputs of ZB-1P: pass times by kind and rank, transfer time and number of microbatches."""

    seconds: tuple[tuple[float, ...], ...]
    sent_s: float
    count: int

    @property
    def depth(self) -> int:
        """Number of ranks, which is also the maximum number of in-flight microbatches on each of them."""
        return len(self.seconds[F])


@lru_cache(maxsize=16)
def _ranks_by_times(task: _Task) -> tuple[Passes, ...]:
    choices = product((True, False), repeat=3)
    candidates = [_Greedy(task, prompt, skips, eager) for prompt, skips, eager in choices]
    best = min(candidates, key=lambda greedy: greedy.run())
    return tuple(
        Passes(kind, np.full(len(kind), rank), number)
        for rank, passes in enumerate(best.passes)
        for kind, number in [np.array(passes, np.int64).T]
    )


@dataclass
class _Greedy:
    """Greedy builder of the pass order, for one combination of `prompt`, `skips` and `eager`."""

    task: _Task
    prompt: bool
    """True if no forward pass may delay the first gradient."""
    skips: bool
    """True if a rank that is ahead may skip a forward pass."""
    eager: bool
    """True if weight gradients also go into short gaps that would not make the rank the most idle one."""
    ends: dict[tuple[int, int, int], float] = field(default_factory=dict)
    """End of each pass, by kind, rank and microbatch."""

    def __post_init__(self) -> None:
        depth = self.task.depth
        self.passes: list[list[tuple[int, int]]] = [[] for _ in range(depth)]
        """Kinds and microbatches of the passes, by rank."""
        self.done = [[0, 0, 0] for _ in range(depth)]
        """Number of finished F, B and W passes, by rank."""
        self.free_s, self.idle_s = [0.0] * depth, [0.0] * depth
        """Time at which each rank becomes free, and its idle time since its first pass."""

    def run(self) -> float:
        """Build all passes and return the time when they end; inf if a skipped forward pass is never run."""
        ranks, count = range(self.task.depth), self.task.count
        self._warm_up()
        for number in range(1, count):
            ahead = self._forward_passes()
            for rank in ranks:
                if ahead[rank]:
                    self._forward(rank)
            for rank in reversed(ranks):
                self._fill(rank, B, rank + 1, number)
                # The first rank sends no gradient, so that a weight gradient before it delays no other rank.
                while rank == 0 and self.done[0][F] == count and self._waiting(0):
                    self._append(W, 0)
                self._append(B, rank)
        for rank in ranks:
            while self._waiting(rank):
                self._append(W, rank)
        return max(self.free_s) if self._complete() else inf

    def _complete(self) -> bool:
        """True if every pass exists and each gradient follows its forward pass."""
        counts = [count == self.task.count for done in self.done for count in done]
        ends = self.ends
        return all(counts) and all(ends[F, q, n] <= ends[B, q, n] for kind, q, n in ends if kind == B)

    def _waiting(self, rank: int) -> int:
        """Number of deferred weight gradients of a rank."""
        return self.done[rank][B] - self.done[rank][W]

    def _in_flight(self, rank: int) -> int:
        return self.done[rank][F] - self.done[rank][W]

    def _append(self, kind: int, rank: int) -> None:
        task, number = self.task, self.done[rank][kind]
        step = {F: -1, B: 1, W: 0}[kind]
        # Inputs of the first forward and the last backward rank are there at time 0.
        arrival_s = self.ends.get((kind, rank + step, number), -task.sent_s) + task.sent_s if step else 0.0
        start = max(self.free_s[rank], arrival_s)
        self.idle_s[rank] += (start - self.free_s[rank]) * (self.done[rank][F] > 0)
        self.free_s[rank] = self.ends[kind, rank, number] = start + task.seconds[kind][rank]
        self.done[rank][kind] += 1
        self.passes[rank].append((KINDS[kind], number))

    def _warm_up(self) -> None:
        """Add forward passes that fit until the first gradient returns, then one backward pass per rank."""
        task, ranks = self.task, range(self.task.depth)
        for rank in ranks:
            self._append(F, rank)
        # `back` is the time at which the gradient of the first microbatch leaves a rank.
        extra, back = [0] * task.depth, -task.sent_s
        for rank in reversed(ranks):
            end, forward_s = self.free_s[rank], task.seconds[F][rank]
            while rank + 1 < task.depth and 1 + extra[rank] < min(task.count, task.depth):
                if (end + forward_s > back + task.sent_s) if self.prompt else end >= back + task.sent_s:
                    break
                end, extra[rank] = end + forward_s, extra[rank] + 1
            back = max(end, back + task.sent_s) + task.seconds[B][rank]
        for rank in ranks[1:]:
            # A rank gets its inputs from the one before it, and cannot be ahead of it.
            while extra[rank] > 0 and extra[rank] >= extra[rank - 1] and 1 + extra[rank] < task.count:
                extra[rank] -= 1
            extra[rank] = min(extra[rank], extra[rank - 1])
        for rank in ranks:
            for _ in range(extra[rank]):
                self._append(F, rank)
        for rank in reversed(ranks):
            self._append(B, rank)

    def _forward_passes(self) -> list[bool]:
        """Mask of the ranks that add a forward pass; a rank adds one only if all later ranks do."""
        adds = [
            self.done[rank][F] < self.task.count and not self._skips(rank) for rank in range(self.task.depth)
        ]
        for rank in reversed(range(self.task.depth - 1)):
            adds[rank] = adds[rank] and adds[rank + 1]
        return adds

    def _skips(self, rank: int) -> bool:
        """True if a rank is two forward passes ahead of the next rank, and has enough slack to skip one."""
        task = self.task
        if not self.skips or rank + 1 == task.depth or self.done[rank][F] < self.done[rank + 1][F] + 2:
            return False
        gradient_s = (
            self.free_s[rank + 1] + task.seconds[F][rank + 1] + task.seconds[B][rank + 1] + task.sent_s
        )
        slack_s = gradient_s - self.free_s[rank]
        freed = min(max(self._in_flight(rank) + 1 - task.depth, 0), self._waiting(rank))
        if slack_s > 0 and task.seconds[F][rank] + freed * task.seconds[W][rank] <= slack_s:
            return False
        return slack_s <= max(max(self.idle_s) - self.idle_s[rank], 0.0)

    def _forward(self, rank: int) -> None:
        while self._in_flight(rank) + 1 > self.task.depth:
            self._append(W, rank)
        self._fill(rank, F, rank - 1, self.done[rank][F])
        self._append(F, rank)

    def _fill(self, rank: int, kind: int, sender: int, number: int) -> None:
        """Insert weight gradients into the gap before a tensor arrives from another rank."""
        if (kind, sender, number) not in self.ends:
            return
        arrival_s, weight_s = self.ends[kind, sender, number] + self.task.sent_s, self.task.seconds[W][rank]
        while self._waiting(rank) and self.free_s[rank] + weight_s <= arrival_s:
            self._append(W, rank)
        gap_s = arrival_s - self.free_s[rank]
        longest = max(self.idle_s) - self.idle_s[rank]
        if self._waiting(rank) and gap_s > 0 and (self.eager or gap_s > longest):
            self._append(W, rank)
