"""Order of the passes of every worker, and how many microbatches it holds at once: what a schedule says.

Everything that differs between schedules is in this package; the rest asks the schedule of a pipeline. A
worker is one replica of a device group; with equal replicas a device group is a pipeline rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Bools, Floats, Ints
from phaze.pipeline.durations import JobKind

if TYPE_CHECKING:
    from phaze.pipeline.pipeline import Pipeline

MANY = 2**31
"""Chunks where a schedule has no limit."""


class Passes(NamedTuple):
    """Passes of one worker in their order: forward, and backward or the two gradients."""

    kind: Ints
    stage: Ints
    microbatch: Ints


class Schedule(ABC):
    """An order of passes for every worker of a pipeline."""

    name: ClassVar[str]
    trains: ClassVar[bool] = True
    """There are backward passes."""
    flushes: ClassVar[bool] = True
    """A batch begins when the one before is over."""
    chunks: ClassVar[tuple[int, int]] = (1, 1)
    """Fewest and most stages of a device group."""
    folded: ClassVar[bool] = False
    """Stages go to the last device group and back (V), so that the first group has the last one too."""
    streams: ClassVar[int] = 1
    """Pipelines through the same device groups, in turns in both directions, with copies of all weights."""
    splits: ClassVar[bool] = False
    """Gradients of weights are jobs of their own, behind those of the input."""
    equal_replicas: ClassVar[bool] = False
    """Device groups have equally many replicas."""
    in_runs: ClassVar[bool] = False
    """A row of a table of runs may name it."""

    @property
    def chunked(self) -> bool:
        """Device groups have several stages each."""
        return self.chunks[1] > 1

    @property
    def allowed_chunks(self) -> str:
        """Stages of a device group, in words."""
        least, most = self.chunks
        return f"{least}" if most == least else f">= {least}"

    def releases(self, kind: NDArray[np.integer]) -> Bools:
        """Jobs after which the activations of a microbatch are not needed, and its gradients are there."""
        if not self.trains:
            return np.asarray(kind == JobKind.FORWARD)
        return ends_backward(kind)

    def groups(self, depth: int, chunks: int) -> Ints:
        """Device group of every stage, (depth · chunks,)."""
        there = np.arange(depth)
        ways = [there[::-1] if self.folded and chunk % 2 else there for chunk in range(chunks)]
        return np.concatenate(ways)

    def problem(self, pipeline: Pipeline) -> str:
        """Why a pipeline cannot run so, with the setting, its value and what is allowed; empty if it can."""
        if not self.chunks[0] <= pipeline.chunks <= self.chunks[1]:
            return f"chunks must be {self.allowed_chunks} under {self.name}, got {pipeline.chunks}"
        if pipeline.batches > 1 and (self.flushes or not self.trains):
            return f"batches must be 1 except under 2bw, got {pipeline.batches}"
        if self.equal_replicas and max(pipeline.replicas) > 1:
            return f"data must be equal under {self.name}, got {pipeline.data}"
        if self.chunked and pipeline.depth < 2:
            return f"{self.name} needs pp >= 2, two device groups or more, got {pipeline.depth}"
        return ""

    @abstractmethod
    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """Microbatches that a worker of each device group has room for, those of all its chunks."""

    @abstractmethod
    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """Passes of a worker that has these microbatches."""

    def lower_bound_s(self, loads_s: Floats, data: Sequence[int], microbatches: int) -> float:
        """Time that no batch is below, by what a microbatch takes on a replica of each device group, (p,)."""
        return float((-(-microbatches // np.asarray(data)) * loads_s).max()) / self.streams


class Written(Schedule):
    """A schedule whose passes are written down for every rank; what a rank has room for follows from them."""

    equal_replicas = True
    in_runs = True

    @abstractmethod
    def ranks(self, pipeline: Pipeline) -> Sequence[Passes]:
        """Passes of every rank."""

    def order(self, pipeline: Pipeline, group: int, _: Ints) -> Passes:
        """Passes of the rank."""
        return self.ranks(pipeline)[group]

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """Most that a rank holds at once."""
        return [most_held(passes.kind) for passes in self.ranks(pipeline)]


@dataclass
class Line:
    """Passes of a rank as they are written down: those of a chunk take the microbatches in their order."""

    passes: list[tuple[int, int, int]] = field(default_factory=list)
    """Kind, chunk and microbatch."""
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """Chunk and microbatch of gradients of weights that are put off, the oldest first."""
    _next: dict[tuple[bool, int], int] = field(default_factory=dict)

    def forward(self, chunk: int, times: int = 1) -> None:
        """The next microbatches forward."""
        for _ in range(times):
            self._take(JobKind.FORWARD, chunk)

    def backward(self, chunk: int) -> None:
        """The next microbatch backward."""
        self._take(JobKind.BACKWARD, chunk)

    def input_gradient(self, chunk: int) -> None:
        """The next microbatch backward, with the gradients of weights put off."""
        self.waiting.append((chunk, self._take(JobKind.INPUT_GRADIENT, chunk)))

    def pair(self, forward: int, backward: int) -> None:
        """The next microbatches forward through a chunk and backward through another, as one job."""
        self._take(JobKind.FORWARD, forward)
        self._take(JobKind.PAIRED_BACKWARD, backward)

    def weights(self, chunk: int | None = None) -> None:
        """The oldest gradients of weights that wait, of a chunk or of any."""
        found = next(one for one in self.waiting if chunk in (None, one[0]))
        self.waiting.remove(found)
        self.passes.append((JobKind.WEIGHT_GRADIENT, *found))

    def count(self, chunk: int, *, forward: bool) -> int:
        """Microbatches that have passed a chunk in one direction."""
        return self._next.get((forward, chunk), 0)

    def _take(self, kind: JobKind, chunk: int) -> int:
        way = kind == JobKind.FORWARD, chunk
        number = self._next.get(way, 0)
        self._next[way] = number + 1
        self.passes.append((kind, chunk, number))
        return number


def folded_passes(lines: Iterable[list[tuple[int, int, int]]]) -> tuple[Passes, ...]:
    """Passes of ranks, of which each has stage `rank` and its mirror image, from kind, chunk, microbatch."""
    columns = [np.array(line, np.int64).reshape(-1, 3).T for line in lines]
    stages = 2 * len(columns)
    return tuple(
        Passes(kind, np.where(chunk, stages - 1 - rank, rank), number)
        for rank, (kind, chunk, number) in enumerate(columns)
    )


def ends_backward(kind: NDArray[np.integer]) -> Bools:
    """Passes with which a stage is done with a microbatch."""
    whole = (kind == JobKind.BACKWARD) | (kind == JobKind.PAIRED_BACKWARD)
    return np.asarray(whole | (kind == JobKind.WEIGHT_GRADIENT))


def most_held(kind: Ints) -> int:
    """Most microbatches that a rank holds at once, from the kinds of its passes in their order."""
    released = ends_backward(kind)
    return int((np.cumsum(kind == JobKind.FORWARD) - np.cumsum(released) + released).max())


def turns(window: int, count: int) -> tuple[Ints, Ints]:
    """Kinds of passes, backward and forward in turn, and the number of each in its direction."""
    k = np.arange(count)
    backward, number = np.zeros(2 * count, bool), np.empty(2 * count, np.int64)
    backward_at = np.minimum(window + 2 * k, count + k)
    backward[backward_at] = True
    number[backward_at] = number[np.where(k < window, k, 2 * k - window + 1)] = k
    return np.where(backward, JobKind.BACKWARD, JobKind.FORWARD), number


def split_turns(window: int, count: int, put_off: int) -> tuple[Ints, Ints]:
    """Turns of which the gradients of weights stand behind those of the input so many numbers later, or at
    the end.
    """
    kind, number = turns(window, count)
    put_off = min(put_off, count)
    after = np.flatnonzero(kind == JobKind.BACKWARD) + 1
    behind = np.concatenate([after[put_off:], np.repeat(len(kind), put_off)])
    kind = np.where(kind == JobKind.BACKWARD, JobKind.INPUT_GRADIENT, kind)
    kind = np.insert(kind, behind, JobKind.WEIGHT_GRADIENT)
    return kind, np.insert(number, behind, np.arange(count))
