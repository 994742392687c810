"""Lower bounds on step time from event-graph flows that all layouts of a pipeline shape share.

The passes of a schedule wait for each other in the same way for every model. A unit flow along them
(`event_program`) bounds a step from below: a step takes at least the mean length of the flow's paths. Let
φ_q, β_q and υ_q be the flow through the forward passes, the backward passes and the updates of a virtual
stage q. A layer there adds φ_q f + β_q b + υ_q u if its passes take f and b and its update u, and β_q r more
if it is recomputed in r. The least sum over all pipeline splits whose ranks have room for their bytes
(`room_prices`), with at least one layer on every stage between the ends, bounds the layout. The best flow of
one layout therefore bounds all layouts of its shape at once. `ShapeFlows` raises the bounds of undecided
layouts with such flows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Self

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.units import GIB
from phaze.layout import SHARD_FIELDS
from phaze.pipeline.durations import JobKind, occupied_s
from phaze.pipeline.graph import Lag
from phaze.plan.layouts.divisions import LayerOrder
from phaze.plan.layouts.event_program import EventFlows, Flow
from phaze.plan.layouts.families import LayoutFamilies
from phaze.plan.layouts.loads import LayoutLoads
from phaze.plan.layouts.pipeline_shapes import PipelineShape, ShortGraph
from phaze.plan.layouts.planes import Paths, Planes
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.room_prices import least_costs
from phaze.plan.layouts.slices import Slices, distinct_rows
from phaze.plan.stage_costs import send_s
from phaze.plan.terms.overlap import lost_to_messages
from phaze.runtimes.grid import LayoutGrid
from phaze.solver.linear import LinearProgram

SEVERAL = 2
"""Minimum number of layouts per flow of a pipeline shape."""
ROUNDING = 1e-9
"""Relative reduction of bounds, as a margin for rounding errors."""
AT_ONCE = 20_000
"""Maximum number of layouts whose costs by stage are in memory together."""
LEAST = 1e-6
"""Dual price of a rank's memory, relative to the highest one, below which it is solver noise."""


class Passing(NamedTuple):
    """Event-graph flow through the passes, updates and transfers of each virtual stage, (stages,) each."""

    forward: Floats
    backward: Floats
    update: Floats
    sent: Floats
    """Flow along the activations sent to the next stage."""
    returned: Floats
    """Flow along the gradients received from the next stage."""


@dataclass(frozen=True, eq=False)
class PipelineFlow:
    """Unit flow through the passes of a pipeline, which bounds the step time of all layouts of its shape."""

    shape: PipelineShape
    passing: Passing
    """Flow by virtual stage in the microbatch rounds that are modelled in full."""
    between: Floats
    """Flow by virtual stage per microbatch of the rounds in between, (stages,)."""
    held: Floats
    """Microbatches in flight per stage at the times that limit memory, (stages,)."""
    at_work: Floats
    """Share of those times at which a stage with layers is active, by rank, (ranks,)."""
    prices: Floats
    """Ratio of a layer's dual price to its mean cost, by kind, (K,)."""

    def through(self, more: float) -> Passing:
        """Total flow in a step with `more` microbatches between the rounds modelled in full."""
        whole = self.passing
        rest = more * self.between
        return whole._replace(forward=whole.forward + rest, backward=whole.backward + rest)


@dataclass(frozen=True, eq=False)
class PipelineBounds:
    """Loads and memory limits of layouts, from which flows give lower bounds on their step times."""

    places: Ints
    """Indices of the layouts in a grid, (N,)."""
    loads: LayoutLoads
    limits: Floats
    """Memory limit of a rank of each layout, (N,)."""
    sent_s: Floats
    """Transfer times of an activation and of a gradient between stages, (N, 2)."""
    exposed: float
    """Share of a transfer during which it occupies sender and receiver."""
    lost: float
    """Slowdown of the sender's pass, as a share of the overlapped part of the transfer."""
    before: Ints
    """Number of layers of every kind before each layer of the model, and in total, (L + 1, K)."""
    microbatches: Ints
    """Number of microbatches per step, (N,)."""
    shapes: tuple[PipelineShape, ...]
    """Distinct pipeline shapes of the layouts."""
    shape: Ints
    """Index of every layout's shape in `shapes`, (N,)."""

    @classmethod
    def of(cls, question: PlanQuestion, every: LayoutGrid, places: Ints) -> Self:
        """Collect the loads and limits of the layouts at these indices of a grid."""
        grid = every.take(places)
        workload = question.lowering(grid.layout(0)).layers(grid.layout(0)).workload
        count = grid.microbatches(question.task.global_batch)
        rows, _, where = distinct_rows(np.stack([grid.schedule, grid.pp, grid.vp, count], axis=1))
        each = [PipelineShape.of(grid.schedules[name], *rest) for name, *rest in rows.tolist()]
        shapes = tuple(dict.fromkeys(each))
        number = {shape: place for place, shape in enumerate(shapes)}
        return cls(
            places,
            LayoutLoads.of(question, grid, Slices.of(question, grid), np.arange(len(grid))),
            question.limits_bytes(grid),
            _sent_s(question, grid),
            1.0 - question.machine.stack.overlap_share("pp"),
            lost_to_messages(question.machine),
            LayerOrder(workload.order[1:-1]).before,
            count,
            shapes,
            np.array([number[shape] for shape in each])[where],
        )

    @property
    def totals(self) -> Ints:
        """Number of layers of the model by kind, (K,)."""
        found: Ints = self.before[-1]
        return found

    def alike(self, place: int, undecided: Bools) -> Ints:
        """Layout at a grid index, followed by the undecided layouts with the same pipeline shape."""
        own = np.flatnonzero(self.places == place)
        if not len(own):
            return own
        others = np.flatnonzero(undecided & (self.shape == self.shape[own[0]]))
        return np.concatenate([own, others[others != own[0]]])

    def by_flow(self, flow: PipelineFlow, which: Ints) -> Floats:
        """Lower bounds on the step time of layouts from a flow for their pipeline shape, (which,)."""
        found = np.empty(len(which))
        counts = self.microbatches[which]
        for count in np.unique(counts).tolist():
            own = np.flatnonzero(counts == count)
            passing = flow.through(count - flow.shape.microbatches)
            for some in np.array_split(own, -(-len(own) // AT_ONCE)):
                found[some] = self._by_flow(flow, passing, which[some])
        return found

    def _by_flow(self, flow: PipelineFlow, passing: Passing, which: Ints) -> Floats:
        """Lower bounds on the step time of layouts with equal microbatch counts from one flow, (which,)."""
        loads, sent_s = self.loads, self.sent_s[which]
        passes = (passing.forward, loads.forward_s, 0), (passing.backward, loads.backward_s, 1)
        each = sum(through[:, None] * own[which][:, None] for through, own, _ in passes)
        each = each + passing.update[:, None] * loads.update_s[which][:, None]  # (which, stages, K)
        again = passing.backward[:, None] * loads.again_s[which][:, None]
        found: Floats = least_costs(
            np.stack([each, again], axis=3),
            loads.bytes_each[which],
            self._rooms(which, flow.shape, flow.at_work),
            self.totals.astype(float),
            flow.held,
            flow.prices,
        )
        found += loads.start_s[which]
        for through, _, way in passes:
            found += through[0] * loads.first_s[way][which] + through[-1] * loads.last_s[way][which]
        found -= passing.update[0] * loads.ahead_s[0][which] + passing.update[-1] * loads.ahead_s[1][which]
        sender = np.array([passing.forward[:-1].sum(), passing.backward[1:].sum()])
        receiver = np.array([passing.forward[1:].sum(), passing.backward[:-1].sum()])
        on_the_way = np.array([passing.sent.sum(), passing.returned.sum()]) + self.lost * sender
        each_s = (1.0 - self.exposed) * on_the_way + self.exposed * (sender + receiver)
        whole: Floats = (found + sent_s @ each_s) * (1 - ROUNDING)
        return whole

    def _rooms(self, which: Ints, shape: PipelineShape, at_work: Floats) -> Floats:
        """Memory left for the layers of each rank at its peaks, in bytes, (which, ranks).

        `at_work` is the share of these peaks at which a stage with layers is at work, (ranks,). A rank
        without layers needs no working memory.
        """
        found = np.repeat(self.limits[which][:, None], shape.depth, axis=1)
        found[:, 0] -= self.loads.end_bytes[0][which]
        found[:, -1] -= self.loads.end_bytes[1][which]
        first = np.maximum(np.arange(shape.depth) - 1, 0)  # every stage between the ends has a layer
        first[0] = (shape.depth - 1) * (shape.chunks > 1)
        there = self.totals > self.before[np.minimum(first, len(self.before) - 2)]
        least = np.where(there, self.loads.layers.work_bytes[which][:, None], inf).min(axis=2)
        left: Floats = np.maximum(found - at_work * least, np.minimum(found, 0.0))
        return left

    def best(self, layout: int) -> PipelineFlow | None:
        """Event-graph flow that gives the best lower bound for a layout; None if infeasible."""
        shape, loads, kinds = self.shapes[self.shape[layout]], self.loads, len(self.totals)
        pipeline = shape.pipeline(*self.sent_s[layout].tolist(), self.exposed)
        count, more = len(pipeline.stages), float(self.microbatches[layout] - shape.microbatches)
        short = ShortGraph.of(pipeline)
        seconds = np.zeros((len(JobKind), count, 1 + 2 * kinds))
        for way, kind, own in (
            (0, JobKind.FORWARD, loads.forward_s),
            (1, JobKind.BACKWARD, loads.backward_s),
        ):
            seconds[kind, :, 1 : 1 + kinds] = own[layout]
            seconds[kind, 0, 0] = loads.first_s[way][layout]
            seconds[kind, -1, 0] += loads.last_s[way][layout]
        seconds[JobKind.BACKWARD, :, 1 + kinds :] = loads.again_s[layout]
        seconds[JobKind.UPDATE, :, 1 : 1 + kinds] = loads.update_s[layout]
        seconds[:, :, 0] += occupied_s(pipeline)
        none = np.zeros((count, 1 + 2 * kinds))
        planes = Planes(seconds, none, none, none, np.zeros(count), 0)
        events = EventFlows(Paths(pipeline, short.graph, planes, short.times(more)))
        moments = [(stages, one) for stages, held in shape.held() for one in held]
        program = self._program(layout, moments, len(short.graph.jobs))
        flow = events.best(program, 2 * count * kinds + 1)
        if flow is None:
            return None
        passing, between = _passing(flow, short, count)
        each = (passing.forward + more * between)[:, None] * loads.forward_s[layout]
        each = each + (passing.backward + more * between)[:, None] * loads.backward_s[layout]
        each = each + passing.update[:, None] * loads.update_s[layout]
        prices = flow.prices[:kinds] / each.mean(axis=0)
        of_moments = -flow.prices[kinds + max(count - 2, 0) :][: len(moments)]
        held, at_work = _held(moments, of_moments, shape)
        return PipelineFlow(shape, passing, between, held, at_work, prices)

    def _program(self, layout: int, moments: list[tuple[Ints, Ints]], jobs: int) -> LinearProgram:
        """Linear program over the layers n and recomputed layers k of stages, and the step time.

        Variables for jobs follow. Rows: layers of every kind; layers of stages between the ends; GiB of ranks
        at times with given microbatches in flight; k of all stages and kinds.
        """
        shape, loads, kinds = self.shapes[self.shape[layout]], self.loads, len(self.totals)
        count = shape.depth * shape.chunks
        each = count * kinds
        columns = 2 * each + 1 + jobs
        upper = np.full(columns, inf)
        partial = loads.again_s[layout] > 0
        upper[each : 2 * each] = np.where(np.tile(partial, count), inf, 0.0)
        cost = np.zeros(columns)
        cost[2 * each] = 1.0
        program = LinearProgram(cost, np.zeros(columns), upper, np.zeros(columns, np.bool_))
        n, k = np.eye(each, 2 * each), np.eye(each, 2 * each, each)
        totals = self.totals.astype(float)
        program.add(np.tile(np.eye(kinds), count) @ n, totals, totals)
        if count > 2:
            of_stage = np.repeat(np.eye(count), kinds, axis=1) @ n
            program.add(of_stage[1:-1], np.ones(count - 2))
        always, kept, saved = loads.bytes_each[layout].T / GIB
        idle, busy = (
            self._rooms(np.array([layout]), shape, np.full(shape.depth, share))[0] / GIB
            for share in (0.0, 1.0)
        )
        rows = np.zeros((len(moments), 2 * each))
        for row, (stages, held) in zip(rows, moments, strict=True):
            at = (stages[:, None] * kinds + np.arange(kinds)).ravel()
            row[at] = (always + held[:-1, None] * kept).ravel()
            row[each + at] = -(held[:-1, None] * saved).ravel()
        room = np.array([(busy if held[-1] else idle)[stages[0]] for stages, held in moments])
        program.add(rows, np.full(len(room), -inf), room)
        if partial.any():
            program.add(k - n, np.full(each, -inf), np.zeros(each))
        return program


@dataclass(eq=False)
class ShapeFlows:
    """Event-graph flows that bound all layouts of a pipeline shape at once, computed for selected layouts."""

    question: PlanQuestion
    families: LayoutFamilies
    work: int = 0
    """Count of linear programs solved, weighted by their relative duration."""
    _pipelines: PipelineBounds | None = None
    """Loads of the layouts that the flows bound; None before the first flow."""
    _flowed: dict[PipelineShape, list[int]] = field(default_factory=dict)
    """Layouts whose best flow was computed, by pipeline shape."""

    def begin_again(self) -> None:
        """Discard all flows, so that flows of other layouts can be computed."""
        self._pipelines, self._flowed = None, {}

    def bound_like(self, place: int, enough_s: float) -> bool:
        """Raise the bounds of all layouts of a pipeline shape with the best flow of one of them.

        Only bounds below `enough_s` count. False if the flow was already used, or too few layouts have the
        shape.
        """
        bounds = self.families.own
        if self._pipelines is None:
            some = np.flatnonzero(bounds.fits & (bounds.time_s < enough_s))
            self._pipelines = PipelineBounds.of(self.question, self.families.grid, some)
        found = self._pipelines
        alike = found.alike(place, bounds.time_s[found.places] < enough_s)
        if not len(alike) or not (shape := found.shapes[found.shape[alike[0]]]).has_flows:
            return False
        flowed = self._flowed.setdefault(shape, [])
        if place in flowed or len(alike) < SEVERAL * (1 + len(flowed)):
            return False
        flowed.append(place)
        self.work += shape.work
        flow = found.best(int(alike[0]))
        if flow is None:
            return False
        own = found.places[alike]
        bounds.time_s[own] = np.maximum(bounds.time_s[own], found.by_flow(flow, alike))
        return True


def _passing(flow: Flow, short: ShortGraph, count: int) -> tuple[Passing, Floats]:
    """Flow through each stage, summed over the fully modelled rounds, and per microbatch in between."""
    graph = short.graph
    jobs = graph.jobs

    def through(which: Bools) -> Floats:
        weights = np.asarray(flow.jobs[which], np.float64)
        found: Floats = np.bincount(jobs.stage[which], weights, minlength=count).astype(np.float64)
        return found

    between = short.between > 0
    waits = np.bincount(graph.lag, flow.waits, minlength=count * len(Lag)).reshape(len(Lag), count)
    forward, backward, update = (
        through((jobs.kind == kind) & ~between)
        for kind in (JobKind.FORWARD, JobKind.BACKWARD, JobKind.UPDATE)
    )
    passing = Passing(forward, backward, update, waits[Lag.ACTIVATION], waits[Lag.GRADIENT])
    return passing, through(between & (jobs.kind == JobKind.FORWARD))


def _held(moments: list[tuple[Ints, Ints]], prices: Floats, shape: PipelineShape) -> tuple[Floats, Floats]:
    """Price-weighted means over memory peaks: microbatches in flight by stage, active share by rank.

    Prices are dual prices. A rank without prices counts at its peak.
    """
    found, most = np.zeros((2, shape.depth, shape.chunks + 1))
    weights = np.zeros((shape.depth, 1))
    for (stages, held), price in zip(moments, np.maximum(prices, 0.0).tolist(), strict=True):
        rank = stages[0]
        found[rank] += price * held
        weights[rank] += price
        if held[:-1].sum() > most[rank, :-1].sum():
            most[rank] = held
    counts = weights > LEAST * weights.max(initial=0.0)
    mean = np.where(counts, found / np.where(counts, weights, 1.0), most)
    return mean[:, :-1].T.ravel(), mean[:, -1]


def _sent_s(question: PlanQuestion, grid: LayoutGrid) -> Floats:
    """Minimum transfer times of an activation and of a gradient between ranks, in seconds, (N, 2)."""
    columns = [getattr(grid, name) for name in (*SHARD_FIELDS, "dp")]  # shards, and the distance of stages
    _, places, where = distinct_rows(np.stack(columns, axis=1))
    found = np.zeros((len(places), 2))
    for row, layout in enumerate(map(grid.layout, places.tolist())):
        lowering = question.lowering(layout)
        costs, way = lowering.layers(layout).costs, lowering.execution(layout)
        sizes = (
            min(one.layer.input_bytes for name, one in costs.items() if name != "embedding"),
            min(one.layer.output_bytes for name, one in costs.items() if name != "head"),
        )
        found[row] = [send_s(way, question.machine, layout, size) for size in sizes]
    return found[where]
