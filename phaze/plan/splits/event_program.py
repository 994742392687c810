"""Flows through the event graph of a step; each proves a lower bound for every pipeline split.

Every path through the events of a step has a length that is linear in the layers of stages (`planes`). So has
a mean of paths, which is a unit flow along the dependencies of events. A linear program over the layers and
the end times of all events has the best such flow as its dual solution. That flow also gives a valid bound
for other layouts with the same events, for any durations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit, njit_inlined
from phaze.plan.splits.planes import Paths
from phaze.solver.linear import LinearProgram, SparseRows


class Flow(NamedTuple):
    """Unit flow through the event graph, from the first events of a step to its end."""

    jobs: Floats
    """Flow through every job, (N,)."""
    waits: Floats
    """Flow along every dependency of a job, in the order of the event graph, (E,)."""
    point: Floats
    """Layers, then recomputed layers, by stage and kind, at which the flow is the longest path."""
    prices: Floats
    """Dual prices of the constraints on the pipeline split itself, in seconds per unit, (rows,)."""


@dataclass(frozen=True, eq=False)
class EventFlows:
    """Flows through the event graph of a layout, found by linear programs."""

    paths: Paths

    @cached_property
    def key(self) -> bytes:
        """Hash that is equal for layouts with the same event graph."""
        graph, jobs = self.paths.graph, self.paths.graph.jobs
        parts = (jobs.kind, jobs.stage, jobs.first, graph.preceded, graph.predecessor)
        return sha256(b"".join(np.asarray(part, np.int32).tobytes() for part in parts)).digest()

    def best(self, program: LinearProgram, variables: int) -> Flow | None:
        """Event-graph flow that gives the best lower bound for all pipeline splits; None if infeasible.

        The program has `variables` variables, n and k of all stages first and the step time last, followed by
        one per job.
        """
        graph, jobs, planes = self.paths.graph, self.paths.graph.jobs, self.paths.planes
        takes = self.paths.times[:, None] * planes.seconds[jobs.kind, jobs.stage]
        begin = np.unique(jobs.first[:-1])
        chained = np.setdiff1d(np.arange(len(jobs)), begin)
        late = self.paths.synchronising
        of_wait, delay = takes[self.paths.edges], graph.delay_s.copy()
        # Gradients are sent while the last backward pass still runs, so that synchronisation waits for less.
        of_wait[late] -= planes.early[jobs.stage[self.paths.edges[late]]]
        delay[late] = 0.0
        job = np.concatenate([chained, self.paths.edges, begin])
        before = np.concatenate([chained - 1, graph.predecessor, np.full(len(begin), -1)])
        seconds = np.concatenate([takes[chained], of_wait, takes[begin]])
        apart = np.concatenate([np.zeros(len(chained)), delay, np.zeros(len(begin))]) + seconds[:, 0]
        first = program.add(self._rows(variables, job, before, seconds), apart)
        last = jobs.first[1:] - 1
        at_end = program.add(self._ends(variables, last), np.zeros(len(last)))
        answer = program.solve_inside()
        if answer is None:
            return None
        point, prices = answer
        # Dual values of inequalities are at least 0, except for the tolerance of the solver.
        split_prices, prices = prices[:first], np.maximum(prices, 0.0)
        through, leaving = np.zeros(len(jobs)), np.zeros(len(jobs))
        through[chained] = prices[first : first + len(chained)]
        along = prices[first + len(chained) : first + len(chained) + len(self.paths.edges)]
        leaving[last] = prices[at_end : at_end + len(last)]
        # The step ends once, so that its end has one unit of flow, except for a tolerance.
        leaving /= leaving.sum()
        # Solvers conserve flow up to a tolerance: rebuilt from its proportions, it is a mean of paths.
        flow = unit_flow(jobs.first, graph.preceded, graph.predecessor, through, along, leaving)
        layers = 2 * planes.early.shape[0] * (planes.early.shape[1] // 2)
        return Flow(*flow, point[:layers], split_prices)

    def _ends(self, variables: int, last: Ints) -> SparseRows:
        """Constraint matrix: a step ends no earlier than its last jobs, (R, variables + N)."""
        columns = variables + np.stack([np.full(len(last), -1), last], axis=1)
        return SparseRows.of(np.tile([1.0, -1.0], (len(last), 1)), columns)

    def _rows(self, variables: int, job: Ints, before: Ints, seconds: Floats) -> SparseRows:
        """Constraint matrix: a job ends at least its duration after an earlier job, (R, variables + N).

        The seconds depend on n and k of its stage, (R, 1 + 2K). -1 in `before` is the start of the step.
        """
        jobs, planes = self.paths.graph.jobs, self.paths.planes
        kinds = (seconds.shape[1] - 1) // 2
        stage = jobs.stage[job][:, None]
        places = stage * kinds + np.arange(kinds)
        job_columns = variables + np.stack([job, np.maximum(before, 0)], axis=1)
        columns = [places, places + planes.early.shape[0] * kinds, job_columns]
        values = [-seconds[:, 1:], np.ones((len(job), 1)), -(before >= 0)[:, None].astype(float)]
        return SparseRows.of(np.hstack(values), np.hstack(columns))

    def cut(self, flow: Flow) -> Floats:
        """Coefficients of 1, layers and recomputed layers in the cut from a flow, (stages, 1 + 2K)."""
        graph, jobs, planes = self.paths.graph, self.paths.graph.jobs, self.paths.planes
        of_kind = np.zeros(planes.seconds.shape[:2])
        np.add.at(of_kind, (jobs.kind, jobs.stage), flow.jobs)
        coefficients: Floats = np.einsum("ks,ksc->sc", of_kind, planes.seconds)
        late, stage = self.paths.synchronising, jobs.stage[self.paths.edges]
        delayed = flow.waits * graph.delay_s
        delayed[late] = 0.0
        np.add.at(coefficients[:, 0], stage, delayed)
        np.subtract.at(coefficients, stage[late], flow.waits[late, None] * planes.early[stage[late]])
        return coefficients


def unit_flow(
    first: Ints, preceded: Ints, predecessor: Ints, chained: Floats, waits: Floats, leaving: Floats
) -> tuple[Floats, Floats]:
    """Unit flow through jobs, (N,), and along their dependencies, (E,), computed backwards.

    The flow leaves the jobs as given by `leaving`. Each job shares its flow among `chained`, from the job
    before on its resource (N,), and `waits` (E,).
    """
    begins = np.zeros(len(chained), np.bool_)
    begins[first[:-1]] = True
    flow, along = leaving.copy(), np.zeros(len(predecessor))
    listed = np.zeros(len(chained), np.bool_), first[:-1].copy(), np.empty(len(chained), np.int64)
    _share_flow((first, preceded, predecessor), (chained, waits), begins, listed, flow, along)
    return flow, along


@njit
def _share_flow(
    graph: tuple[Ints, Ints, Ints],
    shares: tuple[Floats, Floats],
    begins: Bools,
    listed: tuple[Bools, Ints, Ints],
    flow: Floats,
    along: Floats,
) -> None:
    """Distribute the unit flow over jobs and dependencies, from the last jobs backwards.

    `begins` marks the first job of each resource; `listed` are the buffers of `list_in_order`.
    """
    (first, preceded, predecessor), (chained, waits), (done, position, order) = graph, shares, listed
    for place in range(list_in_order(first, preceded, predecessor, done, position, order) - 1, -1, -1):
        i = order[place]
        total = 0.0 if begins[i] else chained[i]
        for e in range(preceded[i], preceded[i + 1]):
            total += waits[e]
        if flow[i] == 0 or total <= 0:
            continue
        if not begins[i]:
            flow[i - 1] += flow[i] * chained[i] / total
        for e in range(preceded[i], preceded[i + 1]):
            along[e] = flow[i] * waits[e] / total
            flow[predecessor[e]] += along[e]


@njit_inlined
def list_in_order(
    first: Ints, preceded: Ints, predecessor: Ints, done: Bools, position: Ints, order: Ints
) -> int:
    """Fill `order` with the jobs in topological order, and return their number.

    `done` (N,) marks jobs that are listed, `position` (R,) are the next jobs of resources.
    """
    count, before = 0, -1
    while before < count:
        before = count
        for resource in range(len(first) - 1):
            while position[resource] < first[resource + 1]:
                i, ready = position[resource], True
                for e in range(preceded[i], preceded[i + 1]):
                    ready = ready and done[predecessor[e]]
                if not ready:
                    break
                done[i], order[count] = True, i
                count, position[resource] = count + 1, i + 1
    return count
