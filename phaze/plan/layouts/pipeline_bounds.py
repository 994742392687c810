"""Bounds of pipelines that all layouts with as many ranks, chunks and microbatches have in common.

Whatever a model and its slices are, the passes of a schedule wait for each other in the same way. A flow of
one unit along them (`event_program`) bounds a step from below: a step takes at least the mean of the paths of
the flow. With φ_q, β_q and υ_q through the forward passes, the backward passes and the updates of a virtual
stage q, a layer there adds φ_q f + β_q b + υ_q u, if its passes take f and b and its update u. The least of
this over all stages, and that of a stage itself for the one layer that it must have, bounds all divisions.
So the best flow of one layout bounds all layouts of its shape at once. Their memory does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Self

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.pipeline.durations import JobKind, occupied_s
from phaze.pipeline.graph import EventGraph, Lag, kept_event_graph, shape_of
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.schedules import SCHEDULES
from phaze.plan.layouts.bounds import LayoutLoads, loads_of
from phaze.plan.layouts.divisions import LayerOrder
from phaze.plan.layouts.event_program import EventFlows, Flow
from phaze.plan.layouts.planes import Paths, Planes
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.slices import FIELDS, distinct_rows
from phaze.plan.overlap import lost_to_messages
from phaze.plan.stage_costs import send_s
from phaze.runtimes.grid import LayoutGrid
from phaze.solver.linear import LinearProgram

MOST_JOBS = 25000
"""Passes and updates of a step that are in one linear program at most."""
JOBS = 70_000
"""Square of passes with which a program takes as long as one without any: order of magnitude."""
ROUNDING = 1e-9
"""Share by which bounds are lowered for rounding."""


class PipelineShape(NamedTuple):
    """What decides which passes of a pipeline wait for which."""

    schedule: str
    depth: int
    chunks: int
    microbatches: int

    @property
    def jobs(self) -> int:
        """Passes and updates of a step."""
        return self.depth * self.chunks * (2 * self.microbatches + 1)

    @property
    def work(self) -> int:
        """Programs that take as long as that for a flow: order of magnitude."""
        return self.jobs**2 // JOBS

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


@dataclass(frozen=True, eq=False)
class PipelineFlow:
    """One unit along the passes of a pipeline, by virtual stage, (stages,) each."""

    forward: Floats
    backward: Floats
    update: Floats
    sent: Floats
    """Along activations to the next stage."""
    returned: Floats
    """Along gradients from the next stage."""

    @classmethod
    def of(cls, flow: Flow, graph: EventGraph, count: int) -> Self:
        """Sums of a flow over microbatches."""
        jobs = graph.jobs

        def through(kind: JobKind) -> Floats:
            own = jobs.kind == kind
            weights = np.asarray(flow.jobs[own], np.float64)
            found: Floats = np.bincount(jobs.stage[own], weights, minlength=count).astype(np.float64)
            return found

        waits = np.bincount(graph.lag, flow.waits, minlength=count * len(Lag)).reshape(len(Lag), count)
        passes = through(JobKind.FORWARD), through(JobKind.BACKWARD), through(JobKind.UPDATE)
        return cls(*passes, waits[Lag.ACTIVATION], waits[Lag.GRADIENT])


@dataclass(frozen=True, eq=False)
class PipelineBounds:
    """Bounds of some layouts by flows."""

    places: Ints
    """Of the layouts in a grid, (N,)."""
    loads: LayoutLoads
    sent_s: Floats
    """Transfers of an activation and of a gradient between stages, (N, 2)."""
    exposed: float
    """Share of them that occupies sender and receiver."""
    lost: float
    """Share of the rest by which the pass of the sender is longer."""
    totals: Ints
    """Layers of the model by kind, (K,)."""
    shapes: tuple[PipelineShape, ...]
    """Distinct shapes."""
    shape: Ints
    """Of every layout, (N,)."""

    @classmethod
    def of(cls, question: PlanQuestion, every: LayoutGrid, places: Ints) -> Self:
        """Bounds of the layouts at some places of a grid."""
        grid = every.take(places)
        workload, _ = question.lowering(grid.layout(0)).layers(grid.layout(0))
        totals = LayerOrder(workload.order[1:-1]).before[-1]
        count = grid.microbatches(question.task.global_batch)
        rows, _, where = distinct_rows(np.stack([grid.schedule, grid.pp, grid.vp, count], axis=1))
        shapes = tuple(PipelineShape(grid.schedules[name], *rest) for name, *rest in rows.tolist())
        exposed = 1.0 - question.machine.stack.overlap_share("pp")
        lost = lost_to_messages(question.machine)
        loads = loads_of(question, grid)  # first, as it costs all slices together
        return cls(places, loads, _sent_s(question, grid), exposed, lost, totals, shapes, where)

    def alike(self, place: int, undecided: Bools) -> Ints:
        """Layouts with the shape of that at a place of the grid, itself first, as far as undecided, (N,)."""
        own = np.flatnonzero(self.places == place)
        if not len(own):
            return own
        others = np.flatnonzero(undecided & (self.shape == self.shape[own[0]]))
        return np.concatenate([own, others[others != own[0]]])

    def by_flow(self, flow: PipelineFlow, which: Ints) -> Floats:
        """Least seconds of layouts of a flow's shape, (which,)."""
        loads, sent_s = self.loads, self.sent_s[which]
        passes = (flow.forward, loads.forward_s, 0), (flow.backward, loads.backward_s, 1)
        each = sum(through[:, None] * own[which][:, None] for through, own, _ in passes)
        each = each + flow.update[:, None] * loads.update_s[which][:, None]  # (which, stages, K)
        least = each.min(axis=1)
        found: Floats = least @ self.totals.astype(float) + loads.start_s[which]
        found += (
            (each - least[:, None])[:, 1:-1].min(axis=2).sum(axis=1)
        )  # one layer on each between the ends
        for through, _, way in passes:
            found += through[0] * loads.first_s[way][which] + through[-1] * loads.last_s[way][which]
        found -= flow.update[0] * loads.ahead_s[0][which] + flow.update[-1] * loads.ahead_s[1][which]
        sender = np.array([flow.forward[:-1].sum(), flow.backward[1:].sum()])
        receiver = np.array([flow.forward[1:].sum(), flow.backward[:-1].sum()])
        on_the_way = np.array([flow.sent.sum(), flow.returned.sum()]) + self.lost * sender
        each_s = (1.0 - self.exposed) * on_the_way + self.exposed * (sender + receiver)
        whole: Floats = (found + sent_s @ each_s) * (1 - ROUNDING)
        return whole

    def best(self, layout: int) -> PipelineFlow | None:
        """Flow that bounds a layout best."""
        shape, loads, kinds = self.shapes[self.shape[layout]], self.loads, len(self.totals)
        pipeline = shape.pipeline(*self.sent_s[layout].tolist(), self.exposed)
        count = len(pipeline.stages)
        graph = kept_event_graph(shape_of(pipeline)).of(pipeline)
        seconds = np.zeros((len(JobKind), count, 1 + 2 * kinds))
        for way, kind, own in (
            (0, JobKind.FORWARD, loads.forward_s),
            (1, JobKind.BACKWARD, loads.backward_s),
        ):
            seconds[kind, :, 1 : 1 + kinds] = own[layout]
            seconds[kind, 0, 0] = loads.first_s[way][layout]
            seconds[kind, -1, 0] += loads.last_s[way][layout]
        seconds[JobKind.UPDATE, :, 1 : 1 + kinds] = loads.update_s[layout]
        seconds[:, :, 0] += occupied_s(pipeline)
        none = np.zeros((count, 1 + 2 * kinds))
        paths = Paths(pipeline, graph, Planes(seconds, none, none, none, np.zeros(count), 0))
        flow = EventFlows(paths).best(*_program(count, self.totals, len(graph.jobs)))
        return None if flow is None else PipelineFlow.of(flow, graph, count)


def _program(count: int, totals: Ints, jobs: int) -> tuple[LinearProgram, int]:
    """Program over the layers of stages, with variables for jobs behind its own, and how many its own are."""
    kinds = len(totals)
    each = count * kinds
    variables = 2 * each + 1
    upper = np.full(variables + jobs, inf)
    upper[each : 2 * each] = 0.0
    cost = np.zeros(variables + jobs)
    cost[variables - 1] = 1.0
    program = LinearProgram(cost, np.zeros(len(cost)), upper, np.zeros(len(cost), np.bool_))
    n = np.eye(each, len(cost))
    program.add(np.tile(np.eye(kinds), count) @ n, totals.astype(float), totals.astype(float))
    if count > 2:
        of_stage = np.repeat(np.eye(count), kinds, axis=1) @ n
        program.add(of_stage[1:-1], np.ones(count - 2))
    return program, variables


def _sent_s(question: PlanQuestion, grid: LayoutGrid) -> Floats:
    """Least seconds of an activation and of a gradient between stages of different ranks, (N, 2)."""
    columns = [getattr(grid, name) for name in (*FIELDS, "dp")]  # slices, and how far apart stages are
    _, places, where = distinct_rows(np.stack(columns, axis=1))
    found = np.zeros((len(places), 2))
    for row, layout in enumerate(map(grid.layout, places.tolist())):
        lowering = question.lowering(layout)
        costs, way = lowering.layers(layout)[1], lowering.execution(layout)
        sizes = (
            min(one.layer.input_bytes for name, one in costs.items() if name != "embedding"),
            min(one.layer.output_bytes for name, one in costs.items() if name != "head"),
        )
        found[row] = [send_s(way, question.machine, layout, size) for size in sizes]
    return found[where]
