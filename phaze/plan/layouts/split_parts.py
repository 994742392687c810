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
from phaze.plan.layouts.division_program import CLOSE, DivisionProgram, SplitLimits
from phaze.plan.layouts.event_program import EventFlows, Flow
from phaze.plan.layouts.time_limit import Work

JOBS = 25
"""Number of events that add as much solve time as a program without events (order of magnitude)."""
FEW_NUMBERS = 32
"""Number of variables of a linear program that counts as one unit of work."""
WHOLE_WORK = 10
"""Number of linear programs solved in the time of one integer program (order of magnitude)."""
ROUNDS = 20
"""Maximum number of flows computed for given layer counts per rank, over all pipeline splits."""
PART_ROUNDS = 3
"""Maximum number of flows computed for given layer counts per rank, within one subset of the splits."""
MOST_TRIED = 6
"""Maximum number of branchings that are compared for one subset of the pipeline splits."""
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

    program: DivisionProgram
    flows: dict[bytes, list[Flow]]
    """Known flows by event graph; the first of each is the best one over all pipeline splits."""
    work: Work
    on_point: Callable[[Floats], None]
    """Callback that receives the layers per stage at which a new flow is the best one."""
    events: EventFlows = field(init=False)
    closed_s: float = inf
    """Smallest bound of the subsets that need not or cannot be divided further."""
    _used: int = 0
    """Number of known flows that are already cuts of the program."""
    _parts: list[SplitPart] = field(default_factory=list)
    _count: int = 0

    def __post_init__(self) -> None:
        self.events = EventFlows(self.program.paths)

    @property
    def known(self) -> list[Flow]:
        """Known flows through this layout's event graph."""
        return self.flows.setdefault(self.events.key, [])

    def cut(self) -> None:
        """Add a cut to this layout's program for every known flow that has none yet."""
        for flow in self.known[self._used :]:
            self.program.add_cut(self.events.cut(flow))
        self._used = len(self.known)

    def best_flow(self, limits: SplitLimits, ranks: Floats | None = None) -> Flow | None:
        """Best flow for all pipeline splits within limits, or for those with the given layers per rank.

        It becomes a known flow. None if the constraints are infeasible.
        """
        jobs = len(self.events.paths.graph.jobs)
        self.work.add(jobs // JOBS)
        program = self.program.constrained(limits, jobs)
        if ranks is not None:
            for variable, number in zip(self.program.of_whole, ranks.tolist(), strict=True):
                program.at_least(variable, number)
        found = self.events.best(program, self.program.variables)
        if found is not None:
            self.known.append(found)
        return found

    def divide_among_ranks(
        self, limits: SplitLimits, enough_s: float, rounds: int = ROUNDS, part_of: SplitPart | None = None
    ) -> tuple[float, Floats | None]:
        """Lower bound for whole layers on every rank, and the fractional split of the last flow, if any.

        Each round finds the layer counts with the lowest bound, and adds the best flow for exactly these
        counts; the first flow of a subset is for all of its counts. It ends when the bound reaches `enough_s`
        or stops rising.
        """
        cut, bound_s, point = self.program.within(limits), part_of.bound_s if part_of else 0.0, None
        for turn in range(rounds + 1):
            exact = turn > 0 or part_of is None
            self.cut()
            self.work.add((WHOLE_WORK if exact else 1) * -(-self.program.variables // FEW_NUMBERS))
            answer = cut.solve(exact=exact)
            bound_s = max(bound_s, answer.bound)
            if bound_s >= enough_s or answer.point is None or turn == rounds:
                break
            numbers = np.round(answer.point[self.program.of_whole]) if exact else None
            found = self.best_flow(limits, numbers)
            if found is None:
                break
            point = found.point
            self.on_point(point)
            here_s = float((self.program.by_stage(point) * self.events.cut(found)).sum())
            if exact and here_s <= bound_s * (1 + CLOSE):
                break
        return bound_s, point

    def begin(self, bound_s: float, point: Floats) -> None:
        """Start branch and bound with one subset, which contains all pipeline splits."""
        self._parts = [SplitPart(bound_s, 0, self.program.limits, point)]

    @property
    def begun(self) -> bool:
        """True once the pipeline splits are divided into subsets."""
        return bool(self._parts) or self._count > 0

    def branch(self, enough_s: float) -> bool:
        """Divide the subset with the smallest bound; False if none below `enough_s` can be divided.

        A subset is divided by the stages of one chunk whose layers (or recomputed layers) of one kind are
        fractional: all are rounded down, or a first one is rounded up.
        """
        if not self._parts or self._parts[0].bound_s >= enough_s:
            return False
        part = heappop(self._parts)
        ways = list(self._ways(part))
        if not ways:
            self.closed_s = min(self.closed_s, part.bound_s)
            return False
        tried = []
        for way in ways[:MOST_TRIED]:
            limits = _limited(part.limits, most=way)
            bound_s, _ = self.divide_among_ranks(limits, enough_s, 1, part)
            tried.append((bound_s, limits, way))
            if bound_s >= enough_s:
                break
        bound_s, limits, way = max(tried, key=lambda one: one[0])
        self._add(part._replace(bound_s=bound_s), limits, enough_s)
        before: dict[int, int] = {}
        for variable, floor in way.items():
            up = _limited(_limited(part.limits, most=before), least={variable: floor + 1})
            self._add(part, up, enough_s)
            before[variable] = floor
        return True

    @property
    def bound_s(self) -> float:
        """Lower bound over all pipeline splits, from the bounds of their subsets."""
        return min(self.closed_s, min((one.bound_s for one in self._parts), default=inf))

    def _add(self, of: SplitPart, limits: SplitLimits, enough_s: float) -> None:
        """Bound a new subset of `of`, and queue the subset for branching if the bound is below `enough_s`."""
        bound_s, point = of.bound_s, None
        if bound_s < enough_s:
            bound_s, point = self.divide_among_ranks(limits, enough_s, PART_ROUNDS, of)
        if bound_s >= enough_s:
            self.closed_s = min(self.closed_s, bound_s)
        else:
            self._count += 1
            heappush(
                self._parts, SplitPart(bound_s, self._count, limits, of.point if point is None else point)
            )

    def _ways(self, part: SplitPart) -> Iterator[dict[int, int]]:
        """Yield candidate branchings: the fractional layer counts of one kind in one chunk, rounded down."""
        layout, (least, most) = self.program.divided.layout, part.limits
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
            own = row[apart[row] > 0]
            if len(own):
                yield dict(zip(own.tolist(), floors[own].astype(int).tolist(), strict=True))


def _limited(
    limits: SplitLimits, least: dict[int, int] | None = None, most: dict[int, int] | None = None
) -> SplitLimits:
    """Copy of limits, with tighter bounds on some layer counts."""
    low, high = (one.copy() for one in limits)
    for variable, number in (least or {}).items():
        low[variable] = max(low[variable], number)
    for variable, number in (most or {}).items():
        high[variable] = min(high[variable], number)
    return SplitLimits(low, high)
