"""Linear bounds on the costs of stages, as functions of their layers and recomputed layers.

Seconds and bytes of a stage are nearly linear in its layers n of every kind and its recomputed layers k. A
plane a + b n + c k that is below every stage in a range of n makes every path through the events of a step a
linear lower bound on its time.

No stage is below its planes. A plane is below all costs that were computed: those of every run of layers in
the range of n, without recompute and with all layers recomputed. Below ZeRO 2 the costs with other k follow:

    one kind of layers   With the same n, costs are linear in k, and so is the plane: it is below them for
                         every k if it is for k = 0 and k = n. Synchronisation and update of a batch are not
                         linear; their least values over k stand for them (`StagedLayout.least_once_s`).
    several kinds        The recomputed layers of a run are a run themselves. Only the seconds of recompute
                         and the bytes per microbatch depend on k. They are linear in n and k of all kinds, so
                         that the slopes c, found from all runs, are exact, and the rest does not depend on k.
                         Gradients are sent no earlier than without recompute and all its seconds.

From ZeRO 2 on, exchanges that overlap with passes make the time convex in k: costs are computed for all k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.pipeline.durations import JobKind, durations, occupied_s, overlap_s
from phaze.pipeline.graph import EventGraph
from phaze.pipeline.longest_path import longest_path
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.timeline import Timeline
from phaze.plan import effort
from phaze.plan.splits.split import Place, Split, StagedLayout
from phaze.solver.linear import LinearProgram

STRAIGHT = 1e-9
"""Relative deviation from a plane up to which costs count as linear."""
NEAR = 1e-6
"""Tolerance for linear dependence of the sampled layer counts."""


@dataclass(frozen=True, eq=False)
class Planes:
    """Linear bounds on the costs of each stage, as functions of its layers n and recomputed layers k.

    Seconds of kinds of jobs and of overlaps, and bytes, each (rows, stages, 1 + 2K) for K kinds of layers:
    the constant, coefficients of n by kind, coefficients of k by kind.
    """

    seconds: Floats
    """(kinds of jobs, stages, 1 + 2K): lower bounds on the duration of jobs."""
    early: Floats
    """(stages, 1 + 2K): upper bound on the time of sending gradients before the last backward pass ends."""
    stash: Floats
    """(stages, 1 + 2K): lower bound on the bytes stored per microbatch."""
    fixed: Floats
    """(stages, 1 + 2K): lower bound on the static bytes."""
    work: Floats
    """(1 + K + 1, stages): minimum working memory of a stage, of one with each kind of layer, and of one
    with recompute."""
    samples: int
    """Number of stage costs computed for these bounds."""


def planes_of(staged: StagedLayout, most: int, near: Split) -> Planes:
    """Linear bounds on the costs of stages of up to `most` layers, tightest near a pipeline split."""
    by_place = {place: _StageSamples(staged, place, most, near) for place in dict.fromkeys(staged.places)}
    stages = [by_place[place] for place in staged.places]
    return Planes(
        seconds=np.stack([samples.seconds for samples in stages], axis=1),
        early=np.stack([samples.early for samples in stages]),
        stash=np.stack([samples.plane(lambda cost: cost.stash_bytes) for samples in stages]),
        fixed=np.stack([samples.plane(lambda cost: cost.fixed_bytes) for samples in stages]),
        work=np.stack([samples.work for samples in stages], axis=1),
        samples=sum(len(samples.costs) for samples in by_place.values()),
    )


@dataclass(frozen=True, eq=False)
class _StageSamples:
    """Costs of the stages at one pipeline position, for a sample of layer counts."""

    staged: StagedLayout
    place: Place
    most: int
    near: Split

    @cached_property
    def samples(self) -> list[tuple[range, int]]:
        """Layer ranges with recompute counts whose costs are computed; equivalent ones are dropped."""
        staged, layers = self.staged, self.staged.layers
        least = {"whole": layers, "middle": 1}.get(self.place, 0)
        # Costs are linear in k between the ends otherwise, see the docstring of the module.
        every = staged.layout.zero >= 2 or self.place == "whole"
        rows = [
            (window, k)
            for length in range(least, max(self.most, least) + 1)
            for window in staged.windows(self.place, length)
            for k in (range(0, length + 1, 1 if every else max(length, 1)) if staged.partial else [0])
        ]
        return list({staged.content(self.place, *row): row for row in rows}.values())

    @cached_property
    def numbers(self) -> tuple[Ints, Ints]:
        """Layers n and recomputed layers k of the samples, by kind, (samples, K) each."""
        contents = [self.staged.content(self.place, *row) for row in self.samples]
        return np.array([content[1] for content in contents]), np.array([content[2] for content in contents])

    @cached_property
    def costs(self) -> list[StageCost]:
        """Stage costs of the samples."""
        return [self.staged.cost(self.place, *row) for row in self.samples]

    @cached_property
    def work(self) -> Floats:
        """Minimum working memory: of any stage, of one with each kind of layer, of one that recomputes.

        The shape is (1 + K + 1,). The working memory is that of the largest layer, so a stage has at least
        that of a part of it.
        """
        work_bytes, (_, k) = np.array([cost.work_bytes for cost in self.costs]), self.numbers
        least = float(work_bytes.min())
        with_kind = [self._least_work(window, least) for window in self._shortest]
        recompute = float(work_bytes[k[:, 0] > 0].min(initial=inf)) if k.shape[1] == 1 else least
        return np.array([least, *with_kind, max(recompute, *with_kind) if k.shape[1] == 1 else least])

    @property
    def _shortest(self) -> list[range]:
        """Shortest run of layers at this position that contains each kind of layer, one run per kind."""
        kind, layers = self.staged.order.kind, self.staged.layers
        runs = []
        for number in range(len(self.staged.order.kinds)):
            first, last = np.flatnonzero(kind == number)[[0, -1]].tolist()
            ends = {"first": (0, first + 1), "middle": (first, first + 1), "last": (last, layers)}
            runs.append(range(*ends.get(self.place, (0, layers))))
        return runs

    def _least_work(self, window: range, least: float) -> float:
        """Minimum working memory of a run of layers; `least` if it has too many recompute options."""
        counts = range(len(window) + 1) if self.staged.partial else range(1)
        if len(counts) > effort.FEW_COUNTS:
            return least
        return min(self.staged.cost(self.place, window, k).work_bytes for k in counts)

    @cached_property
    def _stage_indices(self) -> list[int]:
        """Indices of the stages at this position of the pipeline."""
        return [q for q, place in enumerate(self.staged.places) if place == self.place]

    def _of_pipelines(self, of: Callable[[Pipeline], Floats], costs: Sequence[StageCost]) -> Floats:
        """Values of a per-stage function of pipelines with these stage costs, (..., samples).

        No transfer occupies a stage in these pipelines.
        """
        values, frame = [], replace(self.staged.frame, transfers="overlapped", exposed_transfers=0.0)
        # As many samples at once as the template pipeline has stages.
        for first in range(0, len(costs), len(frame.stages)):
            group = costs[first : first + len(frame.stages)]
            values.append(of(replace(frame, stages=(*group, *frame.stages[len(group) :]))))
        return np.concatenate(values, axis=-1)[..., : len(costs)]

    @cached_property
    def seconds(self) -> Floats:
        """Linear lower bounds on the duration of each kind of job, (job kinds, 1 + 2K)."""
        # Transfers that occupy a rank do not depend on its layers: least over the stages at this position.
        occupied = occupied_s(self.staged.frame)[:, self._stage_indices].min(axis=1)
        every = self._of_pipelines(durations, self._least_costs) + occupied[:, None]
        return np.stack([self._lower_plane(row) for row in every])

    @property
    def _least_costs(self) -> list[StageCost]:
        """Costs of the samples, with times once a batch that are least over all recompute counts."""
        if not self.staged.partial or self.staged.layout.zero >= 2:
            return self.costs
        plain = self._plain.tolist()
        once_s = {i: self.staged.least_once_s(self.place, self.samples[i][0]) for i in {*plain}}
        timed = zip(self.costs, [once_s[i] for i in plain], strict=True)
        return [replace(cost, sync_s=sync_s, update_s=update_s) for cost, (sync_s, update_s) in timed]

    @cached_property
    def early(self) -> Floats:
        """Linear upper bound on the time of sending gradients during the last backward pass, (1 + 2K,)."""
        # An upper bound is minus a lower bound of the negated values.
        latest_s = -self._of_pipelines(overlap_s, self.costs)
        mixed = self.staged.order.mixed
        latest = -self._lower_plane(latest_s[self._plain] if mixed else latest_s)
        return np.asarray(latest + mixed * self.seconds[JobKind.RECOMPUTE])

    def plane(self, of: Callable[[StageCost], float]) -> Floats:
        """Linear lower bound on one of the stage costs, (1 + 2K,)."""
        return self._lower_plane(np.array([of(cost) for cost in self.costs]))

    @cached_property
    def _plain(self) -> Ints:
        """For each sample, the index of the sample with the same layers and no recompute, (samples,)."""
        n, k = self.numbers
        plain = {tuple(row): i for i, row in enumerate(n.tolist()) if not k[i].any()}
        return np.array([plain[tuple(row)] for row in n.tolist()])

    @cached_property
    def _centre(self) -> Floats:
        """Mean of 1, n and k over the pipeline split's stages at this position, (1 + 2K,)."""
        order, windows = self.staged.order, self.near.windows
        stages = [(windows[q], windows[q][: self.near.recomputed[q]]) for q in self._stage_indices]
        points = [(1, *order.counts(window), *order.counts(first)) for window, first in stages]
        return np.asarray(np.mean(points, axis=0))

    @cached_property
    def _points(self) -> tuple[Floats, Floats, Floats]:
        """Samples as points (1, n, k), with weights and the directions that span them.

        The weights, (samples,), increase towards the centre. The directions, (1 + 2K, directions), span the
        points, without k if layers are of several kinds.
        """
        n, k = self.numbers
        points = np.concatenate([np.ones((len(n), 1)), n, k], axis=1)
        # Directions in which samples do not vary would leave the linear program unbounded.
        tilted = np.concatenate([np.ones((len(n), 1)), n, k * (not self.staged.order.mixed)], axis=1)
        directions, sizes, _ = np.linalg.svd(tilted.T, full_matrices=False)
        weights = np.exp(-np.abs(points - self._centre).sum(axis=1))
        return points, weights, directions[:, sizes > NEAR * sizes[0]]

    def _lower_plane(self, values: Floats) -> Floats:
        """Linear lower bound on the values of all samples, (1 + 2K,).

        It passes through the ends of the range; if samples are not linear, it is the highest plane near the
        centre.
        """
        n, k = self.numbers
        plain = np.flatnonzero(~k.any(axis=1))
        # Slopes from the ends of the range, height from the lowest sample: below all, and exact if linear.
        b = slopes(n[plain] - n[plain[0]], values[plain] - values[plain[0]])
        c = slopes(k, values - values[self._plain])
        above = values - n @ b - k @ c
        lowered: Floats = np.concatenate([[above.min()], b, c])
        size = float(np.abs(values).max())
        if above.max() - above.min() <= STRAIGHT * size:
            return lowered
        points, weights, directions = self._points
        # Scaled to the size of the values, so that tolerances do not depend on seconds or bytes.
        room = (above - above.min()) / size
        free = np.full(directions.shape[1], inf)
        # Highest plane that no sample is below, with samples weighted by closeness to the split.
        program = LinearProgram(-weights @ points @ directions, -free, free, free < 0)
        program.add(points @ directions, np.full(len(room), -inf), room)
        highest = program.solve()
        if highest.point is None or highest.bound == -inf:
            return lowered
        plane: Floats = lowered + size * directions @ highest.point
        plane[0] += (values - points @ plane).min()  # except for a tolerance
        return plane


def slopes(points: Ints, values: Floats) -> Floats:
    """Slopes of a plane through the origin, fitted to the most distant of the points, (K,).

    `points` are (samples, K), `values` the targets of the plane there, (samples,). The farthest point comes
    first, then the point farthest from the line to it, and so on (Gram-Schmidt with pivots).
    """
    remaining, missed = points.astype(float), values.copy()
    fitted = np.zeros(points.shape[1])
    for _ in range(points.shape[1]):
        lengths = np.sqrt((remaining**2).sum(axis=1))
        far = int(np.argmax(lengths))
        if lengths[far] < NEAR:
            break
        unit, slope = remaining[far] / lengths[far], missed[far] / lengths[far]
        along = remaining @ unit
        fitted += slope * unit
        missed = missed - slope * along
        remaining = remaining - along[:, None] * unit
    return fitted


@dataclass(frozen=True, eq=False)
class Paths:
    """Event graph of a step, whose longest paths give cuts: linear lower bounds on the step time."""

    frame: Pipeline
    """Template pipeline with arbitrary stage costs."""
    graph: EventGraph
    """Events and their dependencies."""
    planes: Planes
    repeats: Floats | None = None
    """Number of repetitions of every job, (N,); None if each occurs once."""

    @cached_property
    def times(self) -> Floats:
        """Number of repetitions of every job, (N,)."""
        return np.ones(len(self.graph.jobs)) if self.repeats is None else self.repeats

    @cached_property
    def edges(self) -> Ints:
        """Index of the waiting job of every dependency."""
        return np.repeat(np.arange(len(self.graph.jobs)), np.diff(self.graph.preceded))

    @cached_property
    def synchronising(self) -> Ints:
        """Indices of the dependencies of gradient synchronisation on the last backward pass."""
        return np.flatnonzero(self.graph.jobs.kind[self.edges] == JobKind.SYNC)

    def seconds(self, point: Floats) -> Floats:
        """Duration of every kind of job on every stage, (kinds, stages), at a point, (stages, 1 + 2K)."""
        return np.asarray(np.maximum(np.einsum("ksc,sc->ks", self.planes.seconds, point), 0.0))

    def timeline(self, seconds: Floats, point: Floats) -> Timeline:
        """Timeline of a step with these job durations in seconds, (kinds, stages)."""
        graph, jobs = self.graph, self.graph.jobs
        duration = seconds[jobs.kind, jobs.stage]
        delay, late = graph.delay_s.copy(), self.synchronising
        delay[late] = -np.einsum("sc,sc->s", self.planes.early, point)[jobs.stage[self.edges[late]]]
        dependencies = graph.preceded, graph.predecessor, delay
        start, arrival, binding, _ = longest_path(jobs.first, duration, *dependencies)
        return Timeline(self.frame, jobs, start, duration, arrival, binding)

    def cut(self, timeline: Timeline) -> Floats:
        """Cut from the critical path: coefficients of 1, layers and recomputed layers, (stages, 1 + 2K)."""
        jobs, planes = self.graph.jobs, self.planes
        job, waited = timeline.critical_jobs
        sent = job[waited]
        coefficients = np.zeros(planes.early.shape)
        np.add.at(coefficients, jobs.stage[job], planes.seconds[jobs.kind[job], jobs.stage[job]])
        early = sent[jobs.kind[sent] == JobKind.SYNC]
        np.subtract.at(coefficients, jobs.stage[early], planes.early[jobs.stage[early]])
        # Transfers between stages do not depend on layers: constants of the cut.
        late = sent[jobs.kind[sent] != JobKind.SYNC]
        on_the_way = timeline.arrival_s[late] - timeline.end_s[timeline.binding[late]]
        np.add.at(coefficients[:, 0], jobs.stage[late], on_the_way)
        return coefficients
