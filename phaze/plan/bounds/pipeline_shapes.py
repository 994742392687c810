"""Pipeline shapes: the passes of a step, their order and their dependencies.

A long step repeats in the middle: every rank alternates one backward and one forward pass, and the stages
repeat after as many pairs as a round of microbatches has passes. A shape has only the first and the last
rounds of a step in full. The rounds between are one chain of passes on every rank without other dependencies.
All remaining dependencies are those of the whole step, so no path is longer than there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Floats, Ints
from phaze.base.ranking import distinct_rows
from phaze.pipeline.durations import JobKind
from phaze.pipeline.graph import EventGraph, kept_event_graph, shape_of
from phaze.pipeline.orders import Jobs
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.schedules import SCHEDULES
from phaze.pipeline.stages import StageCost
from phaze.plan import effort
from phaze.plan.splits.in_flight import in_flight_by_stage, undominated

ROUNDS = 2
"""Number of microbatch rounds that a shape models in full.

Bounds are at most 0.03 % lower than with three rounds, and programs take half as long.
"""
REPEATING = ("1f1b", "interleaved")
"""Schedules that alternate one backward and one forward pass."""

T = TypeVar("T", bound=np.generic)


class PipelineShape(NamedTuple):
    """Key of all pipelines with the same dependencies between passes, regardless of repeated rounds."""

    schedule: str
    depth: int
    chunks: int
    microbatches: int
    """Number of microbatches in the rounds modelled in full."""

    @classmethod
    def of(cls, schedule: str, depth: int, chunks: int, microbatches: int) -> PipelineShape:
        """Pipeline shape of a step with these numbers of ranks, chunks and microbatches."""
        rounds = max(1, microbatches // depth)
        in_full = ROUNDS * (depth if chunks == 1 else microbatches // rounds)
        repeats = schedule in REPEATING and rounds > ROUNDS and (chunks == 1 or microbatches % rounds == 0)
        return cls(schedule, depth, chunks, in_full if repeats else microbatches)

    @property
    def jobs(self) -> int:
        """Number of passes and updates in the rounds modelled in full."""
        return self.depth * self.chunks * (2 * self.microbatches + 1)

    @property
    def work(self) -> int:
        """Rough cost of computing one event-graph flow, relative to one small linear program."""
        return self.jobs // effort.JOBS_PER_PROGRAM

    @property
    def has_flows(self) -> bool:
        """True if event-graph flows can be computed for this shape.

        It has several ranks, few enough passes for a program, and a schedule with one stream per rank that is
        not folded and does not split the backward pass.
        """
        rules = SCHEDULES[self.schedule]
        plain = not rules.splits and not rules.folded and rules.streams == 1
        return plain and self.depth > 1 and self.jobs <= effort.MOST_SHAPE_JOBS

    def pipeline(self, activation_s: float, gradient_s: float, exposed: float) -> Pipeline:
        """Build a template pipeline of this shape, with passes and updates only.

        `exposed` is the share of transfers that occupies ranks.
        """
        stage = StageCost(1.0, 1.0, send_activation_s=activation_s, send_gradient_s=gradient_s)
        return Pipeline(
            (stage,) * (self.depth * self.chunks),
            self.microbatches,
            self.schedule,
            chunks=self.chunks,
            exposed_transfers=exposed,
        )

    def moments(self) -> list[tuple[Ints, Ints]]:
        """Stages of each rank, and its in-flight microbatches per stage at possible memory peaks.

        The second array has one row per peak, (peaks, chunks + 1). Its last column is 1 if the stage that
        computes has no head, and has layers whenever the rank has any.
        """
        return _moments(self)


@lru_cache(maxsize=256)
def _moments(shape: PipelineShape) -> list[tuple[Ints, Ints]]:
    pipeline = shape.pipeline(0.0, 0.0, 0.0)
    jobs, by_rank = kept_event_graph(shape_of(pipeline)).jobs, []
    for rank in range(shape.depth):
        jobs_of_rank = slice(*jobs.first[rank : rank + 2])
        kind, stage = jobs.kind[jobs_of_rank], jobs.stage[jobs_of_rank]
        inner = ((stage > 0) | (shape.chunks == 1)) & (stage < len(pipeline.stages) - 1)
        inner &= (kind >= JobKind.FORWARD) & (kind < JobKind.SYNC)
        in_flight = in_flight_by_stage(pipeline, rank, kind, stage)
        moments, _ = distinct_rows(np.column_stack([in_flight, inner]))
        by_rank.append((pipeline.stages_of(rank), moments[undominated(moments)]))
    return by_rank


@dataclass(frozen=True, eq=False)
class ShortGraph:
    """Event graph of a shape, in which one chain of passes per rank replaces the repeated middle rounds."""

    graph: EventGraph
    between: Floats
    """1 for jobs of the chains that replace the rounds in between, 0 for other jobs, (N,)."""

    @classmethod
    def of(cls, pipeline: Pipeline) -> ShortGraph:
        """Build the graph for a pipeline that has only the rounds modelled in full."""
        graph = kept_event_graph(shape_of(pipeline)).of(pipeline)
        jobs = graph.jobs
        cuts = _cuts(jobs, pipeline.depth)
        chain = 2 * pipeline.chunks
        resource = jobs.resource
        behind = np.arange(len(jobs)) >= cuts[resource]
        # Jobs move behind the chains of earlier ranks; later jobs also behind the chain of their own rank.
        place = np.arange(len(jobs)) + chain * (resource + behind)
        inserted = (cuts + chain * np.arange(pipeline.depth))[:, None] + np.arange(chain)
        count = len(jobs) + chain * pipeline.depth
        stages = np.stack([np.repeat(pipeline.stages_of(rank), 2) for rank in range(pipeline.depth)])
        kinds = np.tile([JobKind.FORWARD, JobKind.BACKWARD], (pipeline.depth, pipeline.chunks))

        def spread(original: NDArray[T], chains: Ints) -> NDArray[T]:
            short = np.empty(count, original.dtype)
            short[place], short[inserted.ravel()] = original, chains.ravel()
            return short

        first = jobs.first + chain * np.arange(len(jobs.first))
        passes = spread(jobs.kind, kinds), spread(jobs.stage, stages), spread(jobs.microbatch, 0 * stages)
        short_jobs = Jobs(*passes, first)
        waiting = np.repeat(np.arange(len(jobs)), np.diff(graph.preceded))
        # Dependencies across the cut are left out: fewer of them only shorten paths, so bounds stay valid.
        same_side = behind[waiting] == behind[graph.predecessor]
        waits = np.bincount(place[waiting[same_side]], minlength=count)
        preceded, predecessor = np.concatenate([[0], np.cumsum(waits)]), place[graph.predecessor[same_side]]
        delays = graph.delay_s[same_side], graph.lag[same_side]
        short = EventGraph(short_jobs, np.zeros(count), preceded, predecessor, *delays)
        return cls(short, spread(np.zeros(len(jobs), np.int64), 1 + 0 * stages).astype(float))

    def times(self, repetitions: float) -> Floats:
        """Multiplicity of each job, (N,): `repetitions` in chains that replace the middle rounds, else 1."""
        return 1.0 + (repetitions - 1.0) * self.between


def _cuts(jobs: Jobs, depth: int) -> Ints:
    """Index of each rank's job at which the repeated middle rounds are inserted, (ranks,).

    It is in the middle of the alternating passes, one pair later on every next rank, so that few dependencies
    cross it.
    """
    cuts, middle = [], 0
    for rank, (first, end) in enumerate(pairwise(jobs.first[: depth + 1].tolist())):
        forward = jobs.kind[first:end] == JobKind.FORWARD
        ahead = int(np.argmax(jobs.kind[first:end] == JobKind.BACKWARD))  # passes before the first pair
        turns = int(forward.sum()) - ahead
        middle = (turns - depth) // 2 if rank == 0 else middle + 1
        cuts.append(first + ahead + 2 * min(max(middle, 0), turns))
    return np.array(cuts)
