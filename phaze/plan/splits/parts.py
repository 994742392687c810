"""Lower bounds for pipeline splits with whole layers, from event-graph flows and branch and bound.

The program with whole layers per rank finds the layer counts with the lowest bound; the best flow for exactly
these counts is a new cut (Benders, 1962). Where that is not enough, limits on the layers of single stages
divide all pipeline splits into subsets, each with its own bound (branch and bound; Land and Doig, 1960).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.plan import effort
from phaze.plan.splits.event_program import EventFlows, Flow
from phaze.plan.splits.program import CLOSE, SplitLimits, SplitProgram
from phaze.plan.time_limit import Work

WHOLE = 1e-3
"""Distance from an integer up to which a number of layers is treated as whole."""


class SplitPart(NamedTuple):
    """Subset of pipeline splits, given by limits on the layers of every stage, with its lower bound."""

    bound_s: float
    number: int
    """Sequence number of the subset, in order of discovery."""
    limits: SplitLimits
    point: Floats
    """Layers per stage at which the last flow of the bound is the longest path, see `Flow`."""


@dataclass(eq=False)
class SplitParts:
    """Lower bounds for a layout's pipeline splits, from event-graph flows and branch and bound."""

    program: SplitProgram
    flows: dict[bytes, list[Flow]]
    """Known flows by event graph; the first of each is the best one over all pipeline splits."""
    work: Work
    on_point: Callable[[Floats], None]
    """Callback that receives the layers per stage at which a new flow is the best one."""
    events: EventFlows = field(init=False)
    closed_s: float = inf
    """Smallest bound of the subsets that need not or cannot be divided further."""
    _cuts_added: int = 0
    """Number of known flows that are already cuts of the program."""
    _parts: list[SplitPart] = field(default_factory=list)
    _count: int = 0

    def __post_init__(self) -> None:
        self.events = EventFlows(self.program.paths)

    @property
    def graph_flows(self) -> list[Flow]:
        """Known flows through this layout's event graph."""
        return self.flows.setdefault(self.events.key, [])

    def add_cuts(self) -> None:
        """Add a cut to this layout's program for every known flow that has none yet."""
        for flow in self.graph_flows[self._cuts_added :]:
            self.program.add_cut(self.events.cut(flow))
        self._cuts_added = len(self.graph_flows)

    def best_flow(self, limits: SplitLimits, ranks: Floats | None = None) -> Flow | None:
        """Best flow for all pipeline splits within limits, or for those with the given layers per rank.

        It becomes a known flow. None if the constraints are infeasible.
        """
        jobs = len(self.events.paths.graph.jobs)
        self.work.add(jobs // effort.JOBS_PER_PROGRAM)
        program = self.program.constrained(limits, jobs)
        if ranks is not None:
            for variable, number in zip(self.program.integers, ranks.tolist(), strict=True):
                program.at_least(variable, number)
        flow = self.events.best(program, self.program.variables)
        if flow is not None:
            self.graph_flows.append(flow)
        return flow

    def divide_among_ranks(
        self,
        limits: SplitLimits,
        target_s: float,
        rounds: int = effort.FLOW_ROUNDS,
        part_of: SplitPart | None = None,
    ) -> tuple[float, Floats | None]:
        """Lower bound for whole layers on every rank, and the fractional split of the last flow, if any.

        Each round finds the layer counts with the lowest bound, and adds the best flow for exactly these
        counts; the first flow of a subset is for all of its counts. It ends when the bound reaches `target_s`
        or stops rising.
        """
        program, bound_s, point = self.program.within(limits), part_of.bound_s if part_of else 0.0, None
        for turn in range(rounds + 1):
            exact = turn > 0 or part_of is None
            self.add_cuts()
            self.work.add_program(self.program.variables, exact=exact)
            answer = program.solve(exact=exact)
            bound_s = max(bound_s, answer.bound)
            if bound_s >= target_s or answer.point is None or turn == rounds:
                break
            # Integers of the solver are whole up to a tolerance.
            numbers = np.round(answer.point[self.program.integers]) if exact else None
            flow = self.best_flow(limits, numbers)
            if flow is None:
                break
            point = flow.point
            self.on_point(point)
            here_s = float((self.program.by_stage(point) * self.events.cut(flow)).sum())
            # The best flow for these counts says no more than the cuts already do.
            if exact and here_s <= bound_s * (1 + CLOSE):
                break
        return bound_s, point

    def start_branching(self, bound_s: float, point: Floats) -> None:
        """Start branch and bound with one subset, which contains all pipeline splits."""
        self._parts = [SplitPart(bound_s, 0, self.program.limits, point)]

    @property
    def is_branching(self) -> bool:
        """True once the pipeline splits are divided into subsets."""
        return bool(self._parts) or self._count > 0

    def branch(self, target_s: float) -> bool:
        """Divide the subset with the smallest bound; False if none below `target_s` can be divided.

        A subset is divided by the stages of one chunk whose layers (or recomputed layers) of one kind are
        fractional: all are rounded down, or a first one is rounded up.
        """
        if not self._parts or self._parts[0].bound_s >= target_s:
            return False
        part = heappop(self._parts)
        branchings = list(self._branchings(part))
        if not branchings:
            self.closed_s = min(self.closed_s, part.bound_s)
            return False
        tried = []
        # Strong branching: the one whose parts below raise the bound most leaves the smallest tree.
        for branching in branchings[: effort.MOST_BRANCHINGS]:
            limits = _limited(part.limits, most=branching)
            bound_s, _ = self.divide_among_ranks(limits, target_s, 1, part)
            tried.append((bound_s, limits, branching))
            if bound_s >= target_s:
                break
        bound_s, limits, branching = max(tried, key=lambda branch: branch[0])
        self._add(part._replace(bound_s=bound_s), limits, target_s)
        before: dict[int, int] = {}
        # The subsets are disjoint: each keeps the variables before its own rounded down.
        for variable, floor in branching.items():
            up = _limited(_limited(part.limits, most=before), least={variable: floor + 1})
            self._add(part, up, target_s)
            before[variable] = floor
        return True

    @property
    def bound_s(self) -> float:
        """Lower bound over all pipeline splits, from the bounds of their subsets."""
        return min(self.closed_s, min((part.bound_s for part in self._parts), default=inf))

    def _add(self, parent: SplitPart, limits: SplitLimits, target_s: float) -> None:
        """Bound a new subset of `parent`, and queue it for branching if its bound is below `target_s`."""
        bound_s, point = parent.bound_s, None
        if bound_s < target_s:
            bound_s, point = self.divide_among_ranks(limits, target_s, effort.PART_FLOW_ROUNDS, parent)
        if bound_s >= target_s:
            self.closed_s = min(self.closed_s, bound_s)
        else:
            self._count += 1
            point = parent.point if point is None else point
            heappush(self._parts, SplitPart(bound_s, self._count, limits, point))

    def _branchings(self, part: SplitPart) -> Iterator[dict[int, int]]:
        """Yield candidate branchings: the fractional layer counts of one kind in one chunk, rounded down."""
        layout, (least, most) = self.program.staged.layout, part.limits
        point = np.clip(part.point, least, most)
        floors = np.floor(point + WHOLE)
        apart = np.minimum(point - floors, 1 - (point - floors))
        apart[apart <= WHOLE] = 0.0
        # (n or k, chunk, rank, kind), flattened to one row for every kind of a chunk
        shape = 2, layout.vp, layout.pp, -1
        places: Ints = np.moveaxis(np.arange(len(point)).reshape(shape), 2, 3).reshape(-1, layout.pp)
        if not apart.any():  # whether a stage has a kind of layers changes its working memory
            floors[:] = 0.0
            apart = np.minimum(point, 1 - least).clip(0.0)
        for row in places[np.argsort(-apart[places].sum(axis=1), kind="stable")]:
            fractional = row[apart[row] > 0]
            if len(fractional):
                yield dict(zip(fractional.tolist(), floors[fractional].astype(int).tolist(), strict=True))


def _limited(
    limits: SplitLimits, least: dict[int, int] | None = None, most: dict[int, int] | None = None
) -> SplitLimits:
    """Copy of limits, with tighter bounds on some layer counts."""
    low, high = (limit.copy() for limit in limits)
    for variable, number in (least or {}).items():
        low[variable] = max(low[variable], number)
    for variable, number in (most or {}).items():
        high[variable] = min(high[variable], number)
    return SplitLimits(low, high)
