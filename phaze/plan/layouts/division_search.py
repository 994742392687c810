"""The best division of one layout: a bound of all of them, and one that is simulated.

A step takes as long as the longest path through its events, and with the seconds of stages below as planes
(`planes`) every path is linear in the layers n_q of every virtual stage q and those k_q that run forward
again:

    least   x
    with    x >= every path found so far,   Σ n = L,   k <= n,   bytes of every rank <= its HBM

A mean of paths that is as good as all of them together is found in one program (`event_program`), or in that
for another layout with the same events. Where a step has too many events, the program's answer is simulated
instead; the critical path is a new constraint, until the simulation takes no longer than the program says
(Kelley, 1960). The program with whole n and k bounds all divisions, and its points are
simulated as they are priced. Of a model with layers of several kinds n and k are numbers of every kind: the
program leaves their order open, as far as it does not keep them from a stage, and bounds all the more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from math import ceil, inf

import numpy as np

from phaze.base.arrays import Floats
from phaze.plan.layouts.division_program import DivisionProgram
from phaze.plan.layouts.divisions import (
    MOVES,
    DividedLayout,
    Division,
    Numbers,
    Place,
    all_divisions,
    blocks_at,
    by_chunks,
    even_blocks,
    even_division,
    neighbours,
)
from phaze.plan.layouts.event_program import EventFlows, Flow
from phaze.plan.layouts.held import held_microbatches
from phaze.plan.layouts.planes import Paths, Planes, planes_of

CLOSE = 2e-4
"""Relative distance of simulation and program at which no new path is looked for."""
MOST_JOBS = 25000
"""Events of a step that are in one linear program at most; with more of them paths are added one by one."""
JOBS = 25
"""Events that take a program as long as one without any: order of magnitude."""
SAMPLES = 16
"""Stages that are looked up or priced while a program is solved: order of magnitude."""
NEARLY = 0.997
"""Share of the bound that is wanted from which on a layout's own flow may do better than that of another."""
LATER = 1.03
"""How much longer divisions may take whose neighbours are simulated."""
MOST_SPARE = 4
"""How much more layers ranks may have in all than there are, if one of so many ranks is to be full."""
FlowKey = tuple[bytes, int, int]
ROUNDS = 300
"""Linear programs with parts of layers that are solved for a layout at most."""
BUSIER = 1.5
"""How much longer stages take when paths through them are looked for."""
WHOLE_ROUNDS = 8
"""The same with whole numbers of layers for every rank, which take longest."""
MOST_STAGES = 24
"""Stages with which such programs are solved although flows bound whole numbers, too."""
WHOLE_WORK = 10
"""Linear programs that take as long as one with whole numbers: order of magnitude."""
FEW_NUMBERS = 32
"""Layers of a kind on a stage, as numbers in a program that counts once."""
FEW = 300
"""Divisions that are all simulated instead."""
ROUNDED_UP = tuple(np.linspace(0.05, 0.95, 10).tolist())
"""Parts of a layer from which on it is rounded to a whole one."""
REPAIRS = 6
"""Times that more blocks are let run forward again where a division does not fit."""


@dataclass(frozen=True)
class FoundDivision:
    """A division that fits, and the seconds of its step."""

    division: Division
    time_s: float


@dataclass(eq=False)
class DivisionSearch:
    """Search for the best division of a layout under the memory of every rank, with a bound that rises."""

    divided: DividedLayout
    limit_bytes: float
    enough_s: float = inf
    """Seconds of a plan that is known; divisions that take longer need not be told apart."""
    bound_s: float = 0.0
    """No division takes less; infinite where none fits."""
    found: FoundDivision | None = None
    relaxed: bool = False
    """The bound does not rise any further with parts of layers."""
    done: bool = False
    """Nor with whole ones."""
    flows: dict[FlowKey, Flow] = field(default_factory=dict)
    """Flows that are known by now, by events of a step, and rank with so many layers."""
    work: int = 0
    """Programs that were solved, longer ones as many as they take longer."""
    _tried: set[Division] = field(default_factory=set)
    _centre: Floats = field(default_factory=lambda: np.zeros((0, 3)))
    """Best point simulated so far, (stages, 1 + 2K) of 1, n and k."""

    @cached_property
    def most_blocks(self) -> int:
        """Most blocks of a stage that does not take longer than a plan that is known."""
        divided, known_s = self.divided, min(self.enough_s, self.found.time_s if self.found else inf)
        place = divided.places[len(divided.places) // 2]
        if divided.count == 1 or known_s == inf:
            return divided.layers
        each_s = min(self._longer_s(place, number) for number in range(len(divided.order.kinds)))
        turns = divided.frame.lane_microbatches
        fastest = max(int(known_s / (turns * each_s)), -(-divided.layers // divided.count))
        return min(fastest, max(most for _, most in blocks_at(divided)))

    def _longer_s(self, place: Place, kind: int) -> float:
        """Seconds by which a layer of a kind makes the passes of a middle or last stage longer."""
        divided = self.divided
        found = np.flatnonzero(divided.order.kind == kind)
        if place == "last":
            own, end = int(found[-1]), divided.layers
            few, more = range(own + 1, end), range(own, end)
        else:
            own = int(found[1]) if len(found) > 1 else int(found[0])
            beside = own - 1 if own else 1
            few, more = range(beside, beside + 1), range(min(own, beside), max(own, beside) + 1)
        less, longer = (divided.cost(place, window, 0) for window in (few, more))
        return longer.forward_s + longer.backward_s - less.forward_s - less.backward_s

    @cached_property
    def planes(self) -> Planes:
        """Linear bounds of all stages, close to the best division by now."""
        near = self.found.division if self.found else even_division(self.divided)
        found = planes_of(self.divided, self.most_blocks, near)
        self.work += found.samples // SAMPLES
        return found

    @cached_property
    def paths(self) -> Paths:
        """Events of a step."""
        return Paths(self.divided.frame, self.divided.events, self.planes)

    @cached_property
    def _events(self) -> EventFlows:
        return EventFlows(self.paths)

    @cached_property
    def _program(self) -> DivisionProgram:
        return DivisionProgram(self.divided, self.paths, self.limit_bytes, self.most_blocks)

    @property
    def simulated(self) -> int:
        """Divisions that were simulated."""
        return len(self._tried)

    def guess(self) -> None:
        """A first division: equal stages; of few divisions the best."""
        few = list(islice(all_divisions(self.divided), FEW + 1))
        if len(few) <= FEW:
            for division in few:
                self._measure(division)
            self.bound_s, self.done = (self.found.time_s if self.found else inf), True
        else:
            for blocks in dict.fromkeys([even_blocks(self.divided), *by_chunks(self.divided)]):
                self._try(blocks, (0,) * self.divided.count)

    def relax(self, enough_s: float) -> None:
        """Raise the bound with parts of layers until it reaches `enough_s`, or tells nothing more."""
        if len(self.paths.graph.jobs) <= MOST_JOBS:
            self._follow(enough_s)
        if self.bound_s < enough_s and (self._events.key, -1, 0) not in self.flows:
            self._look_at_first()
            for _ in range(ROUNDS):
                if self.bound_s >= enough_s or self.done or self.relaxed:
                    break
                self._step(exact=False)
        self.relaxed = True

    def _follow(self, enough_s: float, rank: int = -1, layers: int = 0) -> float:
        """Least seconds of divisions, of those with so many layers or more on a rank if told: by a flow that
        is known for the same events, or else by the best one.
        """
        key = (self._events.key, rank, layers)
        bound_s = self._followed(self.flows.get(key), rank, layers)
        if NEARLY * enough_s < bound_s < enough_s or (bound_s < enough_s and key not in self.flows):
            jobs = len(self.paths.graph.jobs)
            self.work += jobs // JOBS
            program = self._program.constrained(jobs)
            if rank >= 0:
                program.at_least(self._program.layers_of(rank), layers)
            found = self._events.best(program, self._program.variables)
            if found is not None:
                self.flows[key] = found
                if rank < 0:
                    self._look_around(found.point)
                bound_s = self._followed(found, rank, layers)
        if rank < 0:
            self.bound_s, self.done = max(self.bound_s, bound_s), bound_s == inf
        return bound_s

    def _followed(self, flow: Flow | None, rank: int, layers: int) -> float:
        """Least seconds with one flow more, of divisions with so many layers or more on a rank if told."""
        if flow is not None:
            self._program.add_cut(self._events.cut(flow))
        self.work += 1
        if rank < 0:
            return self._program.linear.solve().bound
        self._program.linear.at_least(self._program.layers_of(rank), layers)
        found = self._program.linear.solve().bound
        self._program.linear.at_least(self._program.layers_of(rank), 0)
        return found

    def finish(self, enough_s: float) -> None:
        """Raise the bound with whole numbers of layers until it reaches `enough_s`, or as far as it goes."""
        if not len(self._centre):
            self._look_at_first()
        several = self.divided.count > self.divided.layout.pp > 1 and len(self._program.totals) == 1
        ranked = several and (self._events.key, -1, 0) in self.flows
        if ranked:
            self.bound_s = max(self.bound_s, self._with_whole_ranks(enough_s))
        for _ in range(0 if ranked and self.divided.count > MOST_STAGES else WHOLE_ROUNDS):
            if self.bound_s >= enough_s or self.done:
                break
            self._step(exact=True)
        self._end(enough_s)

    def follow(self, other: DivisionSearch, enough_s: float) -> None:
        """Take the bound of a search for divisions of which these are some."""
        self.bound_s, self.relaxed = max(self.bound_s, other.bound_s), other.relaxed
        if other.done:
            self._end(enough_s)

    def _end(self, enough_s: float) -> None:
        if self.bound_s < enough_s and len(self._centre):
            self._try_cuts()
        if self.found and self.found.time_s < LATER * enough_s:
            self.climb()
        self.done = True

    def _with_whole_ranks(self, enough_s: float) -> float:
        """Seconds below which no division is, as ranks have whole numbers of layers.

        If a division were faster than `enough_s`, no rank had more than so many layers; these are few more
        than all layers in all, so that of some ranks at least one has as many.
        """
        depth, layers = self.divided.layout.pp, self.divided.layers
        most = [-(-layers // depth)] * depth
        for rank in range(depth):
            while most[rank] < layers and self._followed(None, rank, most[rank] + 1) < enough_s:
                most[rank] += 1
        found, spare = enough_s, sum(most) - layers
        if spare >= MOST_SPARE:
            return self.bound_s
        for rank in sorted(range(depth), key=lambda rank: (-most[rank], -rank)):
            if spare < 0 or found <= self.bound_s:
                break
            found, spare = min(found, self._follow(enough_s, rank, most[rank])), spare - 1
        return found if spare < 0 else self.bound_s

    def release(self) -> None:
        """Free the events, programs and planes of a search that is done; they are made again if asked for."""
        for name in ("planes", "paths", "_events", "_program", "most_blocks"):
            self.__dict__.pop(name, None)
        self.divided.release()

    def park(self) -> None:
        """Free the linear program of a search that goes on later; its cuts stay."""
        if "_program" in self.__dict__:
            self._program.release()

    def climb(self) -> None:
        """Move to the best neighbour of the best division as long as it is faster; where none is, to one in
        which only as many layers are recomputed as it takes to fit.
        """
        most, known = len(self._tried) + MOVES, None
        while self.found is not None and self.found is not known:
            known = self.found
            for fewest in (False, True)[: 1 + self.divided.partial]:
                if self.found is known:
                    self._move(known.division, most + fewest * MOVES, fewest=fewest)

    def _move(self, division: Division, most: int, *, fewest: bool) -> None:
        """Simulate the neighbours of a division, or those with the fewest layers that are recomputed, until
        so many divisions were.
        """
        for other in neighbours(self.divided, division):
            if len(self._tried) >= most or self.found is None or self.bound_s >= self.found.time_s:
                return
            if fewest and other.blocks != division.blocks:
                self._try(other.blocks, (0,) * self.divided.count)
            elif not fewest and other not in self._tried and self.divided.may_be(other.blocks):
                self._measure(other)

    def _try_cuts(self) -> None:
        """Simulate divisions whose stages end next to those of the best point by now, all a little earlier or
        later.
        """
        kinds, layers = len(self._program.totals), self.divided.layers
        ends = np.cumsum(self._centre[:, 1 : 1 + kinds].sum(axis=1))[:-1]
        for share in ROUNDED_UP:
            cuts = np.minimum(np.floor(ends + share).astype(int), layers)
            blocks = np.diff(np.concatenate([[0], cuts, [layers]]))
            self._try(tuple(blocks.tolist()), (0,) * self.divided.count)

    def _look_around(self, point: Floats) -> None:
        """Simulate a division next to a point of n and k, and find its longest paths where a rank is busier
        than others.
        """
        n, k = point.reshape(2, self.divided.count, -1)
        n = np.maximum(n, self._program.fewest)  # but for a tolerance
        self._centre = np.concatenate([np.ones((self.divided.count, 1)), n, k], axis=1)
        self._cut_by_ranks()
        self._try(*self._program.rounded(n, k))

    def _look_at_first(self) -> None:
        """The same next to the best point of a flow that is known, of another layout it may be, or else next
        to equal parts.
        """
        flow = self.flows.get((self._events.key, -1, 0))
        n = np.tile(self._program.totals / self.divided.count, (self.divided.count, 1))
        self._look_around(np.stack([n, 0 * n]).ravel() if flow is None else flow.point)

    def _cut_by_ranks(self) -> None:
        seconds = self.paths.seconds(self._centre)
        for rank in (None, *range(self.divided.layout.pp)):
            own = seconds.copy()
            if rank is not None:
                own[:, self.divided.frame.stages_of(rank)] *= BUSIER
            self._program.add_cut(self.paths.cut(self.paths.timeline(own, self._centre)))

    def _step(self, *, exact: bool) -> None:
        """Solve the program once more, and simulate what it says."""
        size = -(-self.divided.count * len(self._program.totals) // FEW_NUMBERS)
        self.work += (WHOLE_WORK if exact else 1) * size
        answer = self._program.linear.solve(exact=exact, gap=CLOSE)
        self.bound_s = max(self.bound_s, answer.bound)
        if answer.point is None:
            self.done = True
            return
        shape = self.divided.count, len(self._program.totals)
        n, k = answer.point[: 2 * shape[0] * shape[1]].reshape(2, *shape)
        point = np.concatenate([np.ones((shape[0], 1)), n, k], axis=1)
        # The program's points jump from one extreme to another: paths halfway to the best point cut deeper.
        best_s = self._cut_at(self._centre)
        for share in (0.5, 0.0):
            there = share * self._centre + (1 - share) * point
            time_s = self._cut_at(there)
            if time_s < best_s:
                best_s, self._centre = time_s, there
        close = time_s <= answer.bound * (1 + CLOSE)
        if exact or close:
            known = len(self._tried)
            self._try(*self._program.rounded(n, k))
            if exact and close and len(self._tried) == known:
                self.done = True
        if close and not exact:
            self.relaxed = True
        if self.found and self.bound_s >= self.found.time_s:
            self.done = True

    def _cut_at(self, point: Floats) -> float:
        """Seconds at a point of 1, n and k (stages, 1 + 2K), whose longest path becomes a cut."""
        timeline = self.paths.timeline(self.paths.seconds(point), point)
        self._program.add_cut(self.paths.cut(timeline))
        return timeline.time_s

    def _try(self, blocks: Numbers, again: Numbers) -> None:
        """Simulate a division, with more layers that run forward again where it does not fit."""
        if self.divided.partial and not any(again):  # else it is a layout without recomputation
            fullest = int(np.argmax(blocks))
            again = (*again[:fullest], 1, *again[fullest + 1 :])
        division = Division(blocks, again)
        for _ in range(REPAIRS):
            if (
                division in self._tried
                or sum(blocks) != self.divided.layers
                or not self.divided.may_be(blocks)
            ):
                return
            over = self._measure(division)
            if (over <= 0).all() or not self.divided.partial:
                return
            division = self._leaner(division, over)

    def _measure(self, division: Division) -> Floats:
        """Simulate a division; bytes by which every rank exceeds its memory, (ranks,)."""
        self._tried.add(division)
        timeline = self.divided.timeline(division)
        over: Floats = timeline.peak_bytes - self.limit_bytes
        if (over <= 0).all() and (self.found is None or timeline.time_s < self.found.time_s):
            self.found = FoundDivision(division, timeline.time_s)
        return over

    def _leaner(self, division: Division, over: Floats) -> Division:
        """The same with more layers that run forward again on ranks that lack memory."""
        again, divided = np.array(division.recomputed), self.divided
        for rank in np.flatnonzero(over > 0).tolist():
            held = held_microbatches(divided, rank).max(axis=0)
            lacking, freed = over[rank], []
            for q, microbatches in zip(divided.frame.stages_of(rank).tolist(), held.tolist(), strict=True):
                place, window, k = divided.places[q], division.windows[q], int(again[q])
                if k < len(window):
                    now, least = (divided.cost(place, window, one).stash_bytes for one in (k, len(window)))
                    freed.append((max((now - least) * microbatches / (len(window) - k), 1.0), -q))
            for each, place_of in sorted(freed, reverse=True):
                more = min(max(ceil(lacking / each), 0), division.blocks[-place_of] - int(again[-place_of]))
                again[-place_of] += more
                lacking -= more * each
        return replace(division, recomputed=tuple(again.tolist()))
