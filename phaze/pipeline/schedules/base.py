"""Interface of a schedule: order of a worker's passes and its maximum number of in-flight microbatches.

All differences between schedules are in this package; other code asks the schedule of a pipeline. A worker is
one replica of a device group. With equal replicas a device group is a pipeline rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Bools, Floats, Ints
from phaze.pipeline.durations import JobKind

if TYPE_CHECKING:
    from phaze.pipeline.stages import PipelineStages

MANY = 2**31
"""Maximum number of chunks for schedules without a limit."""


class Passes(NamedTuple):
    """Passes of one worker in order; backward passes may be split into input and weight gradients."""

    kind: Ints
    stage: Ints
    microbatch: Ints


class Schedule(ABC):
    """Pipeline schedule: the order of passes for each worker."""

    name: ClassVar[str]
    trains: ClassVar[bool] = True
    """True if there are backward passes."""
    flushes: ClassVar[bool] = True
    """True if a batch begins only after the previous one ends."""
    chunks: ClassVar[tuple[int, int]] = (1, 1)
    """Minimum and maximum number of stages per device group."""
    folded: ClassVar[bool] = False
    """True if stages go to the last device group and back (V); the first group also has the last stage."""
    streams: ClassVar[int] = 1
    """Number of pipelines through the same device groups, in both directions, each with its own weights."""
    splits: ClassVar[bool] = False
    """True if weight gradients are separate jobs after the input gradients."""
    equal_replicas: ClassVar[bool] = False
    """True if all device groups must have equally many replicas."""
    by_times: ClassVar[bool] = False
    """True if the order of passes depends on their times."""
    in_runs: ClassVar[bool] = False
    """True if a table of measured runs may use this schedule."""

    @property
    def chunked(self) -> bool:
        """True if device groups have several stages each."""
        return self.chunks[1] > 1

    @property
    def allowed_chunks(self) -> str:
        """Allowed number of stages per device group, as text."""
        least, most = self.chunks
        return f"{least}" if most == least else f">= {least}"

    def releases(self, kind: NDArray[np.integer]) -> Bools:
        """Mask of the jobs that free a microbatch's activations and complete its gradients."""
        mask: Bools = self.releasing[kind]
        return mask

    @cached_property
    def releasing(self) -> Bools:
        """Mask of the kinds of such jobs, (kinds,)."""
        kinds = np.arange(len(JobKind))
        return ends_backward(kinds) if self.trains else np.asarray(kinds == JobKind.FORWARD)

    def most_in_flight(self, kind: NDArray[np.integer]) -> int:
        """Maximum number of in-flight microbatches of a worker, from the kinds of its jobs in order."""
        released = self.releases(kind)
        # A microbatch is in flight until its backward pass ends, so that job itself still counts it.
        return int((np.cumsum(kind == JobKind.FORWARD) - np.cumsum(released) + released).max())

    def groups(self, depth: int, chunks: int) -> Ints:
        """Device group of each stage, (depth · chunks,)."""
        ranks = np.arange(depth)
        by_chunk = [ranks[::-1] if self.folded and chunk % 2 else ranks for chunk in range(chunks)]
        return np.concatenate(by_chunk)

    def problems(self, pipeline: PipelineStages) -> Iterator[str]:
        """Yield reasons why the schedule cannot run a pipeline.

        They name the invalid setting, its value and the allowed values. Each may assume that there is none of
        the reasons before it.
        """
        if not self.chunks[0] <= pipeline.chunks <= self.chunks[1]:
            yield f"chunks must be {self.allowed_chunks} under {self.name}, got {pipeline.chunks}"
        if pipeline.batches > 1 and (self.flushes or not self.trains):
            yield f"batches must be 1 except under 2bw, got {pipeline.batches}"
        if self.equal_replicas and max(pipeline.replicas) > 1:
            yield f"data must be equal under {self.name}, got {pipeline.data}"
        if self.chunked and pipeline.depth < 2:
            yield f"{self.name} needs pp >= 2, two device groups or more, got {pipeline.depth}"

    @abstractmethod
    def places(self, pipeline: PipelineStages) -> Sequence[int]:
        """Maximum number of in-flight microbatches on a worker of each device group, over all its chunks."""

    @abstractmethod
    def order(self, pipeline: PipelineStages, group: int, microbatches: Ints) -> Passes:
        """Passes, in order, of a worker that processes `microbatches`."""

    def lower_bound_s(self, loads_s: Floats, data: Sequence[int], microbatches: int) -> float:
        """Lower bound on the batch time; `loads_s` (p,) are the times of a microbatch on each group."""
        return float((-(-microbatches // np.asarray(data)) * loads_s).max()) / self.streams


class ExplicitSchedule(Schedule):
    """Schedule that lists the passes of each rank, from which in-flight microbatches are counted."""

    equal_replicas = True
    in_runs = True

    @abstractmethod
    def ranks(self, pipeline: PipelineStages) -> Sequence[Passes]:
        """Passes of each rank, in order of execution."""

    def order(self, pipeline: PipelineStages, group: int, _: Ints) -> Passes:
        """Passes of a worker, by default the passes of its rank."""
        return self.ranks(pipeline)[group]

    def places(self, pipeline: PipelineStages) -> Sequence[int]:
        """Maximum number of in-flight microbatches of each rank."""
        return [self.most_in_flight(passes.kind) for passes in self.ranks(pipeline)]


class FoldedSchedule(ExplicitSchedule):
    """Schedule with two stages on every rank, placed in a V, and separate weight gradients."""

    chunks = (2, 2)
    folded = True
    splits = True


@dataclass
class Line:
    """Builder of a rank's passes, where each chunk processes the microbatches in order."""

    passes: list[tuple[int, int, int]] = field(default_factory=list)
    """Kind, chunk and microbatch of each pass."""
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """Chunk and microbatch of deferred weight gradients, the oldest first."""
    _next: dict[tuple[bool, int], int] = field(default_factory=dict)

    def forward(self, chunk: int, times: int = 1) -> None:
        """Append forward passes of the next microbatches."""
        for _ in range(times):
            self._take(JobKind.FORWARD, chunk)

    def backward(self, chunk: int) -> None:
        """Append the backward pass of the next microbatch."""
        self._take(JobKind.BACKWARD, chunk)

    def input_gradient(self, chunk: int) -> None:
        """Append the input gradient of the next microbatch and defer its weight gradient."""
        self.waiting.append((chunk, self._take(JobKind.INPUT_GRADIENT, chunk)))

    def pair(self, forward: int, backward: int) -> None:
        """Append a forward pass through one chunk and a backward pass through another, as one job."""
        self._take(JobKind.FORWARD, forward)
        self._take(JobKind.PAIRED_BACKWARD, backward)

    def weights(self, chunk: int | None = None) -> None:
        """Append the oldest deferred weight gradient of a chunk, or of any chunk."""
        oldest = next(gradient for gradient in self.waiting if chunk in (None, gradient[0]))
        self.waiting.remove(oldest)
        self.passes.append((JobKind.WEIGHT_GRADIENT, *oldest))

    def count(self, chunk: int, *, forward: bool) -> int:
        """Number of microbatches that have passed a chunk in one direction."""
        return self._next.get((forward, chunk), 0)

    def _take(self, kind: JobKind, chunk: int) -> int:
        key = kind == JobKind.FORWARD, chunk
        number = self._next.get(key, 0)
        self._next[key] = number + 1
        self.passes.append((kind, chunk, number))
        return number


def folded_passes(lines: Iterable[list[tuple[int, int, int]]]) -> tuple[Passes, ...]:
    """Passes of ranks in a V, where each rank has stage `rank` and its mirror image.

    Lines hold kind, chunk and microbatch.
    """
    columns = [np.array(line, np.int64).reshape(-1, 3).T for line in lines]
    stages = 2 * len(columns)
    return tuple(
        Passes(kind, np.where(chunk, stages - 1 - rank, rank), number)
        for rank, (kind, chunk, number) in enumerate(columns)
    )


def ends_backward(kind: NDArray[np.integer]) -> Bools:
    """Mask of the passes that complete a microbatch's work on a stage."""
    unsplit = (kind == JobKind.BACKWARD) | (kind == JobKind.PAIRED_BACKWARD)
    return np.asarray(unsplit | (kind == JobKind.WEIGHT_GRADIENT))


def turns(window: int, count: int) -> tuple[Ints, Ints]:
    """Kind of each pass, and its index in its direction, for alternating backward and forward passes.

    The first `window` passes are forward.
    """
    k = np.arange(count)
    backward, number = np.zeros(2 * count, bool), np.empty(2 * count, np.int64)
    # Backward pass k follows `window` forward passes and k pairs, or all forward passes at the end.
    backward_at = np.minimum(window + 2 * k, count + k)
    backward[backward_at] = True
    # Forward pass k of the window is at place k; later ones follow backward pass k - window.
    number[backward_at] = number[np.where(k < window, k, 2 * k - window + 1)] = k
    return np.where(backward, JobKind.BACKWARD, JobKind.FORWARD), number


def split_turns(window: int, count: int, put_off: int) -> tuple[Ints, Ints]:
    """Kind of each pass, and its index among passes of that kind, if weight gradients are deferred.

    Each weight gradient follows the input gradient of the microbatch `put_off` later, or is at the end.
    """
    kind, number = turns(window, count)
    put_off = min(put_off, count)
    after = np.flatnonzero(kind == JobKind.BACKWARD) + 1
    behind = np.concatenate([after[put_off:], np.repeat(len(kind), put_off)])
    kind = np.where(kind == JobKind.BACKWARD, JobKind.INPUT_GRADIENT, kind)
    kind = np.insert(kind, behind, JobKind.WEIGHT_GRADIENT)
    return kind, np.insert(number, behind, np.arange(count))
