"""Linear bounds of what the stages of a layout take, by their blocks and how many of them run forward again.

Seconds and bytes of a stage are nearly linear in both numbers n and k. A plane a + b n + c k that no stage in
a range of n lies below makes every path through the events of a step a linear bound of its time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.pipeline.durations import JobKind, durations, overlap_s
from phaze.pipeline.graph import EventGraph, event_graph
from phaze.pipeline.longest_path import longest_path
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.timeline import Timeline
from phaze.plan.layouts.divisions import DividedLayout, Place

SAMPLES = 24
"""Numbers of blocks at which planes are held against stages; where there are more, so many among them."""


@dataclass(frozen=True, eq=False)
class Planes:
    """Coefficients a, b, c of planes over (n, k) for every stage of a layout, by what they bound.

    Seconds of kinds of jobs and of what overlaps, and bytes, each (rows, stages, 3).
    """

    seconds: Floats
    """(kinds of jobs, stages, 3), none below."""
    early: Floats
    """(stages, 3): how long before the end of the last backward pass gradients may go, at most."""
    stash: Floats
    """(stages, 3): bytes kept of a microbatch, at least."""
    fixed: Floats
    """(stages, 3): bytes there all the time, at least."""
    work: Floats
    """(stages,): bytes while at work, at least."""


def planes_of(divided: DividedLayout, most: int) -> Planes:
    """Planes that hold for stages of at most so many blocks."""
    by_place = {place: _Sampled(divided, place, most) for place in dict.fromkeys(divided.places)}
    each = [by_place[place] for place in divided.places]
    return Planes(
        seconds=np.stack([one.seconds for one in each], axis=1),
        early=np.stack([one.early for one in each]),
        stash=np.stack([one.plane(lambda cost: cost.stash_bytes) for one in each]),
        fixed=np.stack([one.plane(lambda cost: cost.fixed_bytes) for one in each]),
        work=np.array([min(cost.work_bytes for cost in one.costs) for one in each]),
    )


@dataclass(frozen=True, eq=False)
class _Sampled:
    """Costs of a stage at one place at some n and k."""

    divided: DividedLayout
    place: Place
    most: int

    @cached_property
    def numbers(self) -> Ints:
        """Rows of n and k, (samples, 2)."""
        layers = self.divided.layers
        least = {"whole": layers, "middle": 1}.get(self.place, 0)
        n = np.unique(np.linspace(least, max(self.most, least), SAMPLES).astype(int))
        if not self.divided.partial:
            return np.stack([n, np.zeros_like(n)], axis=1)
        # With ZeRO 3 the time is convex in k, so that every k has to be looked at.
        every = self.divided.layout.zero >= 2
        rows = [(i, k) for i in n.tolist() for k in (range(i + 1) if every else {0, i})]
        return np.array(sorted(rows))

    @cached_property
    def costs(self) -> list[StageCost]:
        """Costs at these numbers."""
        return [self.divided.cost(self.place, n, k) for n, k in self.numbers.tolist()]

    @cached_property
    def _pipelines(self) -> list[Pipeline]:
        count, q = self.divided.count, self.divided.places.index(self.place)
        frame = self.divided.frame.stages
        return [self.divided.framed([*frame[:q], cost, *frame[q + 1 : count]]) for cost in self.costs]

    @cached_property
    def seconds(self) -> Floats:
        """Planes below the seconds of every kind of job, (kinds, 3)."""
        q = self.divided.places.index(self.place)
        found = np.array([durations(pipeline)[:, q] for pipeline in self._pipelines])
        return np.stack([self._below(column) for column in found.T])

    @cached_property
    def early(self) -> Floats:
        """Plane above the time for which gradients go beside the last backward pass, (3,)."""
        q = self.divided.places.index(self.place)
        return -self._below(-np.array([overlap_s(pipeline)[q] for pipeline in self._pipelines]))

    def plane(self, of: Callable[[StageCost], float]) -> Floats:
        """Plane below one of the costs, (3,)."""
        return self._below(np.array([of(cost) for cost in self.costs]))

    def _below(self, values: Floats) -> Floats:
        """Plane through the ends of the range, lowered until no sample lies below it, (3,)."""
        n, k = self.numbers[:, 0], self.numbers[:, 1]
        plain = np.flatnonzero(k == 0)
        span = n[plain[-1]] - n[plain[0]]
        b = (values[plain[-1]] - values[plain[0]]) / span if span else 0.0
        top = int(np.argmax(k))
        beside = int(plain[n[plain] == n[top]][0])
        c = (values[top] - values[beside]) / k[top] if k[top] else 0.0
        return np.array([(values - b * n - c * k).min(), b, c])


@dataclass(frozen=True, eq=False)
class Paths:
    """Events of a step of a layout, whose longest paths are cuts: bounds that are linear in n and k."""

    divided: DividedLayout
    planes: Planes

    @cached_property
    def graph(self) -> EventGraph:
        """Events and what they wait for; times in it are of no division."""
        return event_graph(self.divided.frame)

    @cached_property
    def _edges(self) -> Ints:
        """The job at the end of every delay."""
        return np.repeat(np.arange(len(self.graph.jobs)), np.diff(self.graph.preceded))

    @cached_property
    def _synchronising(self) -> Ints:
        """Delays before the end of the last backward pass."""
        return np.flatnonzero(self.graph.jobs.kind[self._edges] == JobKind.SYNC)

    def seconds(self, point: Floats) -> Floats:
        """Seconds of every kind of job at every stage, (kinds, stages), at (stages, 3) of 1, n and k."""
        found: Floats = np.maximum(np.einsum("ksc,sc->ks", self.planes.seconds, point), 0.0)
        return found

    def timeline(self, seconds: Floats, point: Floats) -> Timeline:
        """Events with these seconds of the kinds of jobs (kinds, stages)."""
        graph, jobs = self.graph, self.graph.jobs
        duration = seconds[jobs.kind, jobs.stage]
        delay = graph.delay_s.copy()
        late = self._synchronising
        delay[late] = -np.einsum("sc,sc->s", self.planes.early, point)[jobs.stage[self._edges[late]]]
        start, arrival, binding, _ = longest_path(
            jobs.first, duration, graph.preceded, graph.predecessor, delay
        )
        return Timeline(self.divided.frame, jobs, start, duration, arrival, binding)

    def cut(self, timeline: Timeline) -> Floats:
        """Coefficients (stages, 3) of 1, n and k: their sum is what the critical path takes at least."""
        jobs, planes = self.graph.jobs, self.planes
        path = np.array(timeline.critical_jobs)
        job, sent = path[:, 0], path[path[:, 1] > 0, 0]
        found = np.zeros((self.divided.count, 3))
        np.add.at(found, jobs.stage[job], planes.seconds[jobs.kind[job], jobs.stage[job]])
        early = sent[jobs.kind[sent] == JobKind.SYNC]
        np.subtract.at(found, jobs.stage[early], planes.early[jobs.stage[early]])
        late = sent[jobs.kind[sent] != JobKind.SYNC]
        on_the_way = timeline.arrival_s[late] - timeline.end_s[timeline.binding[late]]
        np.add.at(found[:, 0], jobs.stage[late], on_the_way)
        return found
