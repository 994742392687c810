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
from phaze.plan.bounds.families import LayoutFamilies
from phaze.plan.bounds.loads import LayoutLoads
from phaze.plan.bounds.pipeline_shapes import PipelineShape, ShortGraph
from phaze.plan.bounds.room_prices import least_costs
from phaze.plan.bounds.shards import ShardCosts, distinct_rows
from phaze.plan.pricing.stage_costs import send_s
from phaze.plan.question import PlanQuestion
from phaze.plan.splits.event_program import EventFlows, Flow
from phaze.plan.splits.planes import Paths, Planes
from phaze.plan.splits.split import LayerOrder
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
    in_flight: Floats
    """Microbatches in flight per stage at the times that limit memory, (stages,)."""
    at_work: Floats
    """Share of those times at which a stage with layers is active, by rank, (ranks,)."""
    prices: Floats
    """Ratio of a layer's dual price to its mean cost, by kind, (K,)."""

    def through(self, between_count: float) -> Passing:
        """Total flow in a step with `between_count` microbatches between the rounds modelled in full."""
        passing = self.passing
        between = between_count * self.between
        return passing._replace(forward=passing.forward + between, backward=passing.backward + between)


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
    """Slowdown of the sender's pass, as a share of the transfer."""
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
        exposed = 1.0 - question.machine.stack.overlap_share("pp")
        count = grid.microbatches(question.task.global_batch)
        rows, _, where = distinct_rows(np.stack([grid.schedule, grid.pp, grid.vp, count], axis=1))
        shape_of_row = [PipelineShape.of(grid.schedules[name], *sizes) for name, *sizes in rows.tolist()]
        shapes = tuple(dict.fromkeys(shape_of_row))
        number = {shape: place for place, shape in enumerate(shapes)}
        return cls(
            places,
            LayoutLoads.of(question, grid, ShardCosts.of(question, grid), np.arange(len(grid))),
            question.limits_bytes(grid),
            _sent_s(question, grid),
            exposed,
            lost_to_messages(question.machine, exposed),
            LayerOrder(workload.order[1:-1]).before,
            count,
            shapes,
            np.array([number[shape] for shape in shape_of_row])[where],
        )

    @property
    def totals(self) -> Ints:
        """Number of layers of the model by kind, (K,)."""
        counts: Ints = self.before[-1]
        return counts

    def alike(self, place: int, undecided: Bools) -> Ints:
        """Layout at a grid index, followed by the undecided layouts with the same pipeline shape."""
        chosen = np.flatnonzero(self.places == place)
        if not len(chosen):
            return chosen
        others = np.flatnonzero(undecided & (self.shape == self.shape[chosen[0]]))
        return np.concatenate([chosen, others[others != chosen[0]]])

    def by_flow(self, flow: PipelineFlow, which: Ints) -> Floats:
        """Lower bounds on the step time of layouts from a flow for their pipeline shape, (which,)."""
        bounds_s = np.empty(len(which))
        counts = self.microbatches[which]
        for count in np.unique(counts).tolist():
            of_count = np.flatnonzero(counts == count)
            passing = flow.through(count - flow.shape.microbatches)
            for batch in np.array_split(of_count, -(-len(of_count) // AT_ONCE)):
                bounds_s[batch] = self._by_flow(flow, passing, which[batch])
        return bounds_s

    def _by_flow(self, flow: PipelineFlow, passing: Passing, which: Ints) -> Floats:
        """Lower bounds on the step time of layouts with equal microbatch counts from one flow, (which,)."""
        loads, sent_s = self.loads, self.sent_s[which]
        passes = (passing.forward, loads.forward_s, 0), (passing.backward, loads.backward_s, 1)
        costs_s = sum(through[:, None] * pass_s[which][:, None] for through, pass_s, _ in passes)
        costs_s = costs_s + passing.update[:, None] * loads.update_s[which][:, None]  # (which, stages, K)
        recompute_s = passing.backward[:, None] * loads.recompute_s[which][:, None]
        layers_s: Floats = least_costs(
            np.stack([costs_s, recompute_s], axis=3),
            loads.bytes_each[which],
            self._rooms(which, flow.shape, flow.at_work),
            self.totals.astype(float),
            flow.in_flight,
            flow.prices,
        )
        layers_s += loads.start_s[which]
        for through, _, direction in passes:
            layers_s += (
                through[0] * loads.first_s[direction][which] + through[-1] * loads.last_s[direction][which]
            )
        layers_s -= passing.update[0] * loads.ahead_s[0][which] + passing.update[-1] * loads.ahead_s[1][which]
        sender = np.array([passing.forward[:-1].sum(), passing.backward[1:].sum()])
        receiver = np.array([passing.forward[1:].sum(), passing.backward[:-1].sum()])
        in_flight = np.array([passing.sent.sum(), passing.returned.sum()])
        # An exposed transfer occupies sender and receiver, an overlapped one only delays the tensor.
        flow_s = (1.0 - self.exposed) * in_flight + self.exposed * (sender + receiver) + self.lost * sender
        bound_s: Floats = (layers_s + sent_s @ flow_s) * (1 - ROUNDING)
        return bound_s

    def _rooms(self, which: Ints, shape: PipelineShape, at_work: Floats) -> Floats:
        """Memory left for the layers of each rank at its peaks, in bytes, (which, ranks).

        `at_work` is the share of these peaks at which a stage with layers is at work, (ranks,). A rank
        without layers needs no working memory.
        """
        free_bytes = np.repeat(self.limits[which][:, None], shape.depth, axis=1)
        free_bytes[:, 0] -= self.loads.end_bytes[0][which]
        free_bytes[:, -1] -= self.loads.end_bytes[1][which]
        first = np.maximum(np.arange(shape.depth) - 1, 0)  # every stage between the ends has a layer
        # With chunks the first rank's later stages start at least this far into the model.
        first[0] = (shape.depth - 1) * (shape.chunks > 1)
        present = self.totals > self.before[np.minimum(first, len(self.before) - 2)]
        least = np.where(present, self.loads.layers.work_bytes[which][:, None], inf).min(axis=2)
        rooms: Floats = np.maximum(free_bytes - at_work * least, np.minimum(free_bytes, 0.0))
        return rooms

    def best(self, layout: int) -> PipelineFlow | None:
        """Event-graph flow that gives the best lower bound for a layout; None if infeasible."""
        shape, loads, kinds = self.shapes[self.shape[layout]], self.loads, len(self.totals)
        pipeline = shape.pipeline(*self.sent_s[layout].tolist(), self.exposed)
        count, between_count = len(pipeline.stages), float(self.microbatches[layout] - shape.microbatches)
        short = ShortGraph.of(pipeline)
        seconds = np.zeros((len(JobKind), count, 1 + 2 * kinds))
        for direction, kind, pass_s in (
            (0, JobKind.FORWARD, loads.forward_s),
            (1, JobKind.BACKWARD, loads.backward_s),
        ):
            seconds[kind, :, 1 : 1 + kinds] = pass_s[layout]
            seconds[kind, 0, 0] = loads.first_s[direction][layout]
            seconds[kind, -1, 0] += loads.last_s[direction][layout]
        seconds[JobKind.BACKWARD, :, 1 + kinds :] = loads.recompute_s[layout]
        seconds[JobKind.UPDATE, :, 1 : 1 + kinds] = loads.update_s[layout]
        seconds[:, :, 0] += occupied_s(pipeline)
        none = np.zeros((count, 1 + 2 * kinds))
        planes = Planes(seconds, none, none, none, np.zeros(count), 0)
        events = EventFlows(Paths(pipeline, short.graph, planes, short.times(between_count)))
        moments = [(stages, moment) for stages, in_flight in shape.moments() for moment in in_flight]
        program = self._program(layout, moments, len(short.graph.jobs))
        flow = events.best(program, 2 * count * kinds + 1)
        if flow is None:
            return None
        passing, between = _passing(flow, short, count)
        costs_s = (passing.forward + between_count * between)[:, None] * loads.forward_s[layout]
        costs_s = costs_s + (passing.backward + between_count * between)[:, None] * loads.backward_s[layout]
        costs_s = costs_s + passing.update[:, None] * loads.update_s[layout]
        prices = flow.prices[:kinds] / costs_s.mean(axis=0)
        of_moments = -flow.prices[kinds + max(count - 2, 0) :][: len(moments)]
        in_flight, at_work = _mean_in_flight(moments, of_moments, shape)
        return PipelineFlow(shape, passing, between, in_flight, at_work, prices)

    def _program(self, layout: int, moments: list[tuple[Ints, Ints]], jobs: int) -> LinearProgram:
        """Linear program over the layers n and recomputed layers k of stages, and the step time.

        Variables for jobs follow. Rows: layers of every kind; layers of stages between the ends; GiB of ranks
        at times with given microbatches in flight; k of all stages and kinds.
        """
        shape, loads, kinds = self.shapes[self.shape[layout]], self.loads, len(self.totals)
        count = shape.depth * shape.chunks
        columns_each = count * kinds
        columns = 2 * columns_each + 1 + jobs
        upper = np.full(columns, inf)
        partial = loads.recompute_s[layout] > 0
        # Where a runtime recomputes all or none of a kind, no single layer is chosen.
        upper[columns_each : 2 * columns_each] = np.where(np.tile(partial, count), inf, 0.0)
        cost = np.zeros(columns)
        cost[2 * columns_each] = 1.0
        program = LinearProgram(cost, np.zeros(columns), upper, np.zeros(columns, np.bool_))
        n, k = np.eye(columns_each, 2 * columns_each), np.eye(columns_each, 2 * columns_each, columns_each)
        totals = self.totals.astype(float)
        program.add(np.tile(np.eye(kinds), count) @ n, totals, totals)
        if count > 2:
            of_stage = np.repeat(np.eye(count), kinds, axis=1) @ n
            program.add(of_stage[1:-1], np.ones(count - 2))
        # In GiB, so that coefficients of the program are of similar size.
        always, stored, saved = loads.bytes_each[layout].T / GIB
        idle, busy = (
            self._rooms(np.array([layout]), shape, np.full(shape.depth, share))[0] / GIB
            for share in (0.0, 1.0)
        )
        rows = np.zeros((len(moments), 2 * columns_each))
        for row, (stages, in_flight) in zip(rows, moments, strict=True):
            at = (stages[:, None] * kinds + np.arange(kinds)).ravel()
            row[at] = (always + in_flight[:-1, None] * stored).ravel()
            row[columns_each + at] = -(in_flight[:-1, None] * saved).ravel()
        room = np.array([(busy if in_flight[-1] else idle)[stages[0]] for stages, in_flight in moments])
        program.add(rows, np.full(len(room), -inf), room)
        if partial.any():
            program.add(k - n, np.full(columns_each, -inf), np.zeros(columns_each))
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

    def restart(self) -> None:
        """Discard all flows, so that flows of other layouts can be computed."""
        self._pipelines, self._flowed = None, {}

    def bound_like(self, place: int, enough_s: float) -> bool:
        """Raise the bounds of all layouts of a pipeline shape with the best flow of one of them.

        Only bounds below `enough_s` count. False if the flow was already used, or too few layouts have the
        shape.
        """
        bounds = self.families.layout_bounds
        if self._pipelines is None:
            undecided = np.flatnonzero(bounds.fits & (bounds.time_s < enough_s))
            self._pipelines = PipelineBounds.of(self.question, self.families.grid, undecided)
        pipelines = self._pipelines
        alike = pipelines.alike(place, bounds.time_s[pipelines.places] < enough_s)
        if not len(alike) or not (shape := pipelines.shapes[pipelines.shape[alike[0]]]).has_flows:
            return False
        flowed = self._flowed.setdefault(shape, [])
        # A flow costs a linear program: it must serve several layouts that are undecided.
        if place in flowed or len(alike) < SEVERAL * (1 + len(flowed)):
            return False
        flowed.append(place)
        self.work += shape.work
        flow = pipelines.best(int(alike[0]))
        if flow is None:
            return False
        places = pipelines.places[alike]
        bounds.time_s[places] = np.maximum(bounds.time_s[places], pipelines.by_flow(flow, alike))
        return True


def _passing(flow: Flow, short: ShortGraph, count: int) -> tuple[Passing, Floats]:
    """Flow through each stage, summed over the fully modelled rounds, and per microbatch in between."""
    graph = short.graph
    jobs = graph.jobs

    def through(which: Bools) -> Floats:
        weights = np.asarray(flow.jobs[which], np.float64)
        flow_by_stage: Floats = np.bincount(jobs.stage[which], weights, minlength=count).astype(np.float64)
        return flow_by_stage

    between = short.between > 0
    waits = np.bincount(graph.lag, flow.waits, minlength=count * len(Lag)).reshape(len(Lag), count)
    forward, backward, update = (
        through((jobs.kind == kind) & ~between)
        for kind in (JobKind.FORWARD, JobKind.BACKWARD, JobKind.UPDATE)
    )
    passing = Passing(forward, backward, update, waits[Lag.ACTIVATION], waits[Lag.GRADIENT])
    return passing, through(between & (jobs.kind == JobKind.FORWARD))


def _mean_in_flight(
    moments: list[tuple[Ints, Ints]], prices: Floats, shape: PipelineShape
) -> tuple[Floats, Floats]:
    """Price-weighted means over memory peaks: microbatches in flight by stage, active share by rank.

    Prices are dual prices. A rank without prices counts at its peak.
    """
    mean_in_flight, peak = np.zeros((2, shape.depth, shape.chunks + 1))
    weights = np.zeros((shape.depth, 1))
    for (stages, in_flight), price in zip(moments, np.maximum(prices, 0.0).tolist(), strict=True):
        rank = stages[0]
        mean_in_flight[rank] += price * in_flight
        weights[rank] += price
        if in_flight[:-1].sum() > peak[rank, :-1].sum():
            peak[rank] = in_flight
    counts = weights > LEAST * weights.max(initial=0.0)
    mean = np.where(counts, mean_in_flight / np.where(counts, weights, 1.0), peak)
    return mean[:, :-1].T.ravel(), mean[:, -1]


def _sent_s(question: PlanQuestion, grid: LayoutGrid) -> Floats:
    """Minimum transfer times of an activation and of a gradient between ranks, in seconds, (N, 2)."""
    columns = [getattr(grid, name) for name in (*SHARD_FIELDS, "dp")]  # shards, and the distance of stages
    _, places, where = distinct_rows(np.stack(columns, axis=1))
    sent_s = np.zeros((len(places), 2))
    for row, layout in enumerate(map(grid.layout, places.tolist())):
        lowering = question.lowering(layout)
        costs, execution = lowering.layers(layout).costs, lowering.execution(layout)
        sizes = (
            min(cost.layer.input_bytes for name, cost in costs.items() if name != "embedding"),
            min(cost.layer.output_bytes for name, cost in costs.items() if name != "head"),
        )
        sent_s[row] = [send_s(execution, question.machine, layout, size) for size in sizes]
    return sent_s[where]
