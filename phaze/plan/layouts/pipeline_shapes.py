"""Shapes of pipelines: the passes of a step, their order, and what each waits for.

A long step repeats itself in the middle: every rank does one backward and one forward pass in turn, and after
as many pairs as a round of microbatches has passes, the same stages come again. A shape has only the first
and the last rounds of a step in full. The rounds between are one chain of passes on every rank, which waits
for nothing elsewhere. All that is left waits as in the whole step, so that no path takes longer than there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Floats, Ints
from phaze.pipeline.durations import JobKind
from phaze.pipeline.graph import EventGraph, kept_event_graph, shape_of
from phaze.pipeline.orders import Jobs
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.schedules import SCHEDULES
from phaze.plan.layouts.held import held_of_stages, undominated

ROUNDS = 2
"""Rounds of microbatches that a shape has in full."""
REPEATING = ("1f1b", "interleaved")
"""Schedules that take turns of one backward and one forward pass."""
MOST_JOBS = 25_000
"""Passes and updates that are in one linear program at most."""
JOBS = 25
"""Passes with which a program takes as long as one without any: order of magnitude."""

T = TypeVar("T", bound=np.generic)


class PipelineShape(NamedTuple):
    """What decides which passes of a pipeline wait for which; steps with more rounds have the same shape."""

    schedule: str
    depth: int
    chunks: int
    microbatches: int
    """Of the rounds in full."""

    @classmethod
    def of(cls, schedule: str, depth: int, chunks: int, microbatches: int) -> PipelineShape:
        """Shape of a step."""
        rounds = max(1, microbatches // depth)
        kept = ROUNDS * (depth if chunks == 1 else microbatches // rounds)
        repeats = schedule in REPEATING and rounds > ROUNDS and (chunks == 1 or microbatches % rounds == 0)
        return cls(schedule, depth, chunks, kept if repeats else microbatches)

    @property
    def jobs(self) -> int:
        """Passes and updates of the rounds in full."""
        return self.depth * self.chunks * (2 * self.microbatches + 1)

    @property
    def work(self) -> int:
        """Programs that take as long as that for a flow: order of magnitude."""
        return self.jobs // JOBS

    @property
    def has_flows(self) -> bool:
        """Whether a flow is looked for: between ranks, of no more passes than a program has room for, none of
        them gradients of weights alone.
        """
        rules = SCHEDULES[self.schedule]
        plain = not rules.splits and not rules.folded and rules.streams == 1
        return plain and self.depth > 1 and self.jobs <= MOST_JOBS

    def pipeline(self, activation_s: float, gradient_s: float, exposed: float) -> Pipeline:
        """Pipeline with this shape, and no more than passes and updates; `exposed` is the share of transfers
        that occupies ranks.
        """
        stage = StageCost(1.0, 1.0, send_activation_s=activation_s, send_gradient_s=gradient_s)
        return Pipeline(
            (stage,) * (self.depth * self.chunks),
            self.microbatches,
            self.schedule,
            chunks=self.chunks,
            exposed_transfers=exposed,
        )

    def held(self) -> list[tuple[Ints, Ints]]:
        """Stages of every rank, and microbatches that it holds of them at its fullest moments, (moments,
        chunks).
        """
        return _held(self)


@lru_cache(maxsize=256)
def _held(shape: PipelineShape) -> list[tuple[Ints, Ints]]:
    pipeline = shape.pipeline(0.0, 0.0, 0.0)
    jobs, found = kept_event_graph(shape_of(pipeline)).jobs, []
    for rank in range(shape.depth):
        own = slice(*jobs.first[rank : rank + 2])
        moments = np.unique(held_of_stages(pipeline, rank, jobs.kind[own], jobs.stage[own]), axis=0)
        found.append((pipeline.stages_of(rank), moments[undominated(moments)]))
    return found


@dataclass(frozen=True, eq=False)
class ShortGraph:
    """Events of a shape, with a chain of passes on every rank for what is between."""

    graph: EventGraph
    between: Floats
    """Jobs of the chains, (N,) ones and zeros."""

    @classmethod
    def of(cls, pipeline: Pipeline) -> ShortGraph:
        """Events of a pipeline that has the rounds in full."""
        graph = kept_event_graph(shape_of(pipeline)).of(pipeline)
        jobs = graph.jobs
        cuts = _cuts(jobs, pipeline.depth)
        chain = 2 * pipeline.chunks
        resource = jobs.resource
        behind = np.arange(len(jobs)) >= cuts[resource]
        place = np.arange(len(jobs)) + chain * (resource + behind)  # chains of the ranks before, and its own
        inserted = (cuts + chain * np.arange(pipeline.depth))[:, None] + np.arange(chain)
        count = len(jobs) + chain * pipeline.depth
        stages = np.stack([np.repeat(pipeline.stages_of(rank), 2) for rank in range(pipeline.depth)])
        kinds = np.tile([JobKind.FORWARD, JobKind.BACKWARD], (pipeline.depth, pipeline.chunks))

        def spread(own: NDArray[T], chains: Ints) -> NDArray[T]:
            found = np.empty(count, own.dtype)
            found[place], found[inserted.ravel()] = own, chains.ravel()
            return found

        first = jobs.first + chain * np.arange(len(jobs.first))
        more = Jobs(
            spread(jobs.kind, kinds), spread(jobs.stage, stages), spread(jobs.microbatch, 0 * stages), first
        )
        waiting = np.repeat(np.arange(len(jobs)), np.diff(graph.preceded))
        kept = behind[waiting] == behind[graph.predecessor]
        waits = np.bincount(place[waiting[kept]], minlength=count)
        found = EventGraph(
            more,
            np.zeros(count),
            np.concatenate([[0], np.cumsum(waits)]),
            place[graph.predecessor[kept]],
            graph.delay_s[kept],
            graph.lag[kept],
        )
        return cls(found, spread(np.zeros(len(jobs), np.int64), 1 + 0 * stages).astype(float))

    def times(self, more: float) -> Floats:
        """How many times every job is done where so many microbatches are between, (N,)."""
        return 1.0 + (more - 1.0) * self.between


def _cuts(jobs: Jobs, depth: int) -> Ints:
    """Job of every rank before which the rounds between belong, (ranks,): in the middle of the turns of a
    backward and a forward pass, a turn later on every next rank, so that few passes wait across.
    """
    found, middle = [], 0
    for rank, (first, end) in enumerate(pairwise(jobs.first[: depth + 1].tolist())):
        forward = jobs.kind[first:end] == JobKind.FORWARD
        ahead = int(np.argmax(jobs.kind[first:end] == JobKind.BACKWARD))  # passes before the first turn
        turns = int(forward.sum()) - ahead
        middle = (turns - depth) // 2 if rank == 0 else middle + 1
        found.append(first + ahead + 2 * min(max(middle, 0), turns))
    return np.array(found)
