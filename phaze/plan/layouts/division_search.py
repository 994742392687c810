"""The best division of one layout: a bound of all of them, and one that is simulated.

A step takes as long as the longest path through its events, and with the seconds of stages below as planes
(`planes`) every path is linear in the blocks n_q of every virtual stage q and those k_q that run forward
again:

    least   x
    with    x >= every path found so far,   Σ n = L,   k <= n,   bytes of every rank <= its HBM

Its answer is simulated; the critical path is a new constraint, until the simulation takes no longer than the
program says (Kelley, 1960). The program with whole n and k bounds all divisions, and its points are
simulated as they are priced.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from math import ceil, inf

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.pipeline.durations import JobKind
from phaze.plan.layouts.divisions import DividedLayout, Division, all_divisions, blocks_at, even_blocks
from phaze.plan.layouts.planes import Paths, Planes, planes_of
from phaze.solver.linear import LinearProgram

CLOSE = 2e-4
"""Relative distance of simulation and program at which no new path is looked for."""
ROUNDS = 300
"""Linear programs with parts of blocks that are solved for a layout at most."""
BUSIER = 1.5
"""How much longer stages take when paths through them are looked for."""
WHOLE_ROUNDS = 8
"""The same with whole numbers of blocks for every rank, which take longest."""
FEW = 300
"""Divisions that are all simulated instead."""
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
    """The bound does not rise any further with parts of blocks."""
    done: bool = False
    """Nor with whole ones."""
    _tried: set[Division] = field(default_factory=set)
    _centre: Floats = field(default_factory=lambda: np.zeros((0, 3)))
    """Best point simulated so far, of 1, n and k."""

    @cached_property
    def most_blocks(self) -> int:
        """Most blocks of a stage that does not take longer than a plan that is known."""
        divided, known_s = self.divided, min(self.enough_s, self.found.time_s if self.found else inf)
        place = divided.places[len(divided.places) // 2]
        if divided.count == 1 or known_s == inf:
            return divided.layers
        few, more = (divided.cost(place, blocks, 0) for blocks in (1, 2))
        each_s = more.forward_s + more.backward_s - few.forward_s - few.backward_s
        turns = divided.frame.lane_microbatches
        fastest = max(int(known_s / (turns * each_s)), -(-divided.layers // divided.count))
        return min(fastest, max(most for _, most in blocks_at(divided)))

    @cached_property
    def planes(self) -> Planes:
        """Linear bounds of all stages."""
        return planes_of(self.divided, self.most_blocks)

    @cached_property
    def paths(self) -> Paths:
        """Events of a step."""
        return Paths(self.divided, self.planes)

    @property
    def simulated(self) -> int:
        """Divisions that were simulated."""
        return len(self._tried)

    def quickly(self) -> None:
        """A first division and a first bound: equal stages, whatever rank is busiest."""
        few = list(islice(all_divisions(self.divided), FEW + 1))
        if len(few) <= FEW:
            for division in few:
                self._measure(division)
            self.bound_s, self.done = (self.found.time_s if self.found else inf), True
            return
        self._look_at_equal_stages()
        self._step(exact=False)

    def relax(self, enough_s: float) -> None:
        """Raise the bound with parts of blocks until it reaches `enough_s`, or paths tell nothing more."""
        for _ in range(ROUNDS):
            if self.bound_s >= enough_s or self.done or self.relaxed:
                break
            self._step(exact=False)
        self.relaxed = True

    def finish(self, enough_s: float) -> None:
        """Raise the bound with whole numbers of blocks until it reaches `enough_s`, or as far as it goes."""
        for _ in range(WHOLE_ROUNDS):
            if self.bound_s >= enough_s or self.done:
                break
            self._step(exact=True)
        self.done = True

    def _look_at_equal_stages(self) -> None:
        """Simulate equal stages, and find the longest paths where a rank or a stage is busier than others."""
        layers, count, depth = self.divided.layers, self.divided.count, self.divided.layout.pp
        blocks = even_blocks(self.divided)
        self._try(blocks, (0,) * count)
        n = np.full(count, layers / count)
        self._centre = np.stack([np.ones(count), n, 0 * n], axis=1)
        seconds = self.paths.seconds(self._centre)
        groups = [slice(0, 0), *(slice(rank, None, depth) for rank in range(depth))]
        if count > depth:
            groups += [slice(q, q + 1) for q in range(count)]
        for group in groups:
            own = seconds.copy()
            own[:, group] *= BUSIER
            self._add_cut(self.paths.cut(self.paths.timeline(own, self._centre)))

    def _step(self, *, exact: bool) -> None:
        """Solve the program once more, and simulate what it says."""
        answer = self._program.solve(exact=exact, gap=CLOSE)
        self.bound_s = max(self.bound_s, answer.bound)
        if answer.point is None:
            self.done = True
            return
        count = self.divided.count
        n, k = answer.point[:count], answer.point[count : 2 * count]
        point = np.stack([np.ones(count), n, k], axis=1)
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
            self._try(*self._rounded(n, k))
            if exact and close and len(self._tried) == known:
                self.done = True
        if close and not exact:
            self.relaxed = True
        if self.found and self.bound_s >= self.found.time_s:
            self.done = True

    def _cut_at(self, point: Floats) -> float:
        """Seconds at a point of 1, n and k (stages, 3), whose longest path becomes a cut."""
        timeline = self.paths.timeline(self.paths.seconds(point), point)
        self._add_cut(self.paths.cut(timeline))
        return timeline.time_s

    @cached_property
    def _program(self) -> LinearProgram:
        """The program without paths. Variables are n, k, the blocks of every rank, and x."""
        count, depth, partial = self.divided.count, self.divided.layout.pp, self.divided.partial
        columns = 2 * count + depth + 1
        n, k, ranks = np.split(np.eye(columns)[:-1], [count, 2 * count])
        upper = np.full(columns, inf)
        upper[:count], upper[count : 2 * count] = self._most, self._most * partial
        lower = np.zeros(columns)
        lower[:count] = self._fewest
        whole = np.zeros(columns, np.bool_)
        whole[2 * count : -1] = True
        program = LinearProgram(np.eye(columns)[-1], lower, upper, whole)
        layers, memory, room = float(self.divided.layers), *self._memory_rows
        own = np.tile(np.eye(depth), self.divided.layout.vp)
        program.add(np.array([n.sum(axis=0)]), np.array([layers]), np.array([layers]))
        program.add(own @ n - ranks, np.zeros(depth), np.zeros(depth))
        program.add(memory @ np.vstack([n, k]), np.full(len(room), -inf), room)
        if partial:
            program.add(k - n, np.full(count, -inf), np.zeros(count))
            program.add(np.array([k.sum(axis=0)]), np.ones(1), np.full(1, inf))
        return program

    def _add_cut(self, cut: Floats) -> None:
        """Let the program's time be at least that of a path, (stages, 3) of 1, n and k."""
        row = np.concatenate([cut[:, 1], cut[:, 2], np.zeros(self.divided.layout.pp), [-1.0]])
        self._program.add(row[None], np.full(1, -inf), np.array([-cut[:, 0].sum()]))

    @cached_property
    def _fewest(self) -> Floats:
        """Blocks that every stage has at least."""
        return np.array([float(low) for low, _ in blocks_at(self.divided)])

    @cached_property
    def _most(self) -> Floats:
        """Blocks that every stage has at most."""
        return np.array([float(min(high, self.most_blocks)) for _, high in blocks_at(self.divided)])

    @cached_property
    def _memory_rows(self) -> tuple[Floats, Floats]:
        """Bytes that n and k take on every rank at its fullest moments, and what there is, (rows,)."""
        planes, depth, count = self.planes, self.divided.layout.pp, self.divided.count
        rows, room = [], []
        for rank in range(depth):
            own = np.arange(rank, count, depth)
            for held in held_microbatches(self.paths, rank):
                each = planes.fixed[own] + held[:, None] * planes.stash[own]
                row = np.zeros(2 * count)
                row[own], row[count + own] = each[:, 1], each[:, 2]
                rows.append(row)
                room.append(self.limit_bytes - each[:, 0].sum() - planes.work[own].min())
        return np.array(rows), np.array(room)

    def _rounded(self, n: Floats, k: Floats) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Whole numbers of blocks near the program's, that sum up to all; first those of every rank."""
        depth, layers = self.divided.layout.pp, self.divided.layers
        of_ranks = _rounded_to(n.reshape(-1, depth).sum(axis=0), layers)
        blocks = np.zeros(len(n), int)
        for rank, total in enumerate(of_ranks.tolist()):
            own = slice(rank, None, depth)
            blocks[own] = _rounded_to(n[own], total)
        again = np.minimum(np.ceil(k - 1e-6).astype(int), blocks)
        return tuple(blocks.tolist()), tuple(again.tolist())

    def _try(self, blocks: tuple[int, ...], again: tuple[int, ...]) -> None:
        """Simulate a division, with more blocks that run forward again where it does not fit."""
        if self.divided.partial and not any(again):  # else it is a layout without recomputation
            fullest = int(np.argmax(blocks))
            again = (*again[:fullest], 1, *again[fullest + 1 :])
        division = Division(blocks, again)
        for _ in range(REPAIRS):
            if division in self._tried or sum(blocks) != self.divided.layers:
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
        """The same with more blocks that run forward again on ranks that lack memory."""
        again = np.array(division.recomputed)
        blocks, depth = np.array(division.blocks), self.divided.layout.pp
        for rank in np.flatnonzero(over > 0).tolist():
            own = np.arange(rank, self.divided.count, depth)
            held = held_microbatches(self.paths, rank).max(axis=0)
            saved = np.maximum(-self.planes.stash[own, 2] * held, 1.0)
            lacking = over[rank]
            for q, each in sorted(zip(own.tolist(), saved.tolist(), strict=True), key=lambda one: -one[1]):
                more = min(max(ceil(lacking / each), 0), int(blocks[q] - again[q]))
                again[q] += more
                lacking -= more * each
        return replace(division, recomputed=tuple(again.tolist()))


def _rounded_to(values: Floats, total: int) -> Ints:
    """Whole numbers next to values that sum up to a total: the largest remainders are rounded up."""
    floors = np.floor(values + 1e-6).astype(int)
    up = np.argsort(floors - values, kind="stable")[: max(total - int(floors.sum()), 0)]
    floors[up] += 1
    found: Ints = floors
    return found


def held_microbatches(paths: Paths, rank: int) -> Ints:
    """Microbatches that a rank holds of each of its chunks at its fullest moments, (moments, chunks).

    A moment is left out where another one holds no less of any chunk.
    """
    jobs, depth = paths.graph.jobs, paths.divided.layout.pp
    own = slice(*jobs.first[rank : rank + 2])
    kind, chunk = jobs.kind[own], jobs.stage[own] // depth
    one_hot = np.arange(paths.divided.layout.vp) == chunk[:, None]
    last = kind == paths.divided.frame.rules.last_pass
    taken = np.cumsum(one_hot & (kind == JobKind.FORWARD)[:, None], axis=0)
    freed = np.cumsum(one_hot & last[:, None], axis=0)
    moments = np.unique(taken - freed + (one_hot & last[:, None]), axis=0)
    return moments[_undominated(moments)]


def _undominated(moments: Ints) -> Bools:
    covered = np.all(moments[:, None] <= moments[None], axis=2) & ~np.eye(len(moments), dtype=bool)
    found: Bools = ~np.any(covered, axis=1)
    return found
