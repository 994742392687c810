"""The best division of one layout: a bound of all of them, and one that is simulated.

A step takes as long as the longest path through its events, and with the seconds of stages below as planes
(`planes`) every path is linear in the layers n_q of every virtual stage q and those k_q that run forward
again:

    least   x
    with    x >= every path found so far,   Σ n = L,   k <= n,   bytes of every rank <= its HBM

Its answer is simulated; the critical path is a new constraint, until the simulation takes no longer than the
program says (Kelley, 1960). The program with whole n and k bounds all divisions, and its points are
simulated as they are priced. Of a model with layers of several kinds n and k are numbers of every kind: the
program leaves their order open, as far as it does not keep them from a stage, and bounds all the more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, permutations
from math import ceil, inf

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.units import GIB
from phaze.plan.layouts.divisions import (
    DividedLayout,
    Division,
    Numbers,
    Place,
    all_divisions,
    blocks_at,
    even_blocks,
    ordered_blocks,
)
from phaze.plan.layouts.held import held_microbatches
from phaze.plan.layouts.planes import Paths, Planes, planes_of
from phaze.solver.linear import LinearProgram

CLOSE = 2e-4
"""Relative distance of simulation and program at which no new path is looked for."""
ROUNDS = 300
"""Linear programs with parts of layers that are solved for a layout at most."""
BUSIER = 1.5
"""How much longer stages take when paths through them are looked for."""
WHOLE_ROUNDS = 8
"""The same with whole numbers of layers for every rank, which take longest."""
WHOLE_WORK = 50
"""Linear programs that take as long as one with whole numbers: order of magnitude."""
FEW = 300
"""Divisions that are all simulated instead."""
MOVES = 300
"""Neighbours of a division that are simulated at most."""
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
    work: int = 0
    """Programs that were solved, those with whole numbers as many as they take longer."""
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
        """Seconds by which a layer of a kind makes the passes of a stage longer."""
        divided = self.divided
        found = np.flatnonzero(divided.order.kind == kind)
        own = int(found[1]) if len(found) > 1 else int(found[0])
        beside = own - 1 if own else 1
        pair = range(min(own, beside), max(own, beside) + 1)
        few, more = (divided.cost(place, one, 0) for one in (range(beside, beside + 1), pair))
        return more.forward_s + more.backward_s - few.forward_s - few.backward_s

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
        """Raise the bound with parts of layers until it reaches `enough_s`, or paths tell nothing more."""
        for _ in range(ROUNDS):
            if self.bound_s >= enough_s or self.done or self.relaxed:
                break
            self._step(exact=False)
        self.relaxed = True

    def finish(self, enough_s: float) -> None:
        """Raise the bound with whole numbers of layers until it reaches `enough_s`, or as far as it goes."""
        for _ in range(WHOLE_ROUNDS):
            if self.bound_s >= enough_s or self.done:
                break
            self._step(exact=True)
        self._climb()
        self.done = True

    def _climb(self) -> None:
        """Move to the best neighbour of the best division as long as it is faster."""
        most, known = len(self._tried) + MOVES, None
        while self.found is not None and self.found is not known:
            known = self.found
            for division in self._beside(known.division):
                if len(self._tried) >= most or self.bound_s >= self.found.time_s:
                    return
                if division not in self._tried and self.divided.may_be(division.blocks):
                    self._measure(division)

    def _beside(self, division: Division) -> Iterator[Division]:
        """Divisions with one layer at another stage, at one beside it where stages are many, and those with
        one more or less that runs forward again.
        """
        blocks, again = division.blocks, division.recomputed
        few, count = [low for low, _ in blocks_at(self.divided)], len(blocks)
        pairs = list(permutations(range(count), 2))
        for source, target in (
            pairs if len(pairs) <= MOVES // 4 else [p for p in pairs if abs(p[0] - p[1]) == 1]
        ):
            if blocks[source] > few[source]:
                moved = np.array(blocks)
                moved[[source, target]] += -1, 1
                kept = np.minimum(again, moved)
                if kept.any() or not self.divided.partial:
                    yield Division(tuple(moved.tolist()), tuple(kept.tolist()))
                if again[source] and self.divided.partial:
                    other = np.array(again)
                    other[[source, target]] += -1, 1
                    yield Division(tuple(moved.tolist()), tuple(other.tolist()))
        for q in range(count if self.divided.partial else 0):
            for one in (again[q] - 1, again[q] + 1):
                if 0 <= one <= blocks[q] and sum(again) - again[q] + one:
                    yield replace(division, recomputed=(*again[:q], one, *again[q + 1 :]))

    def _look_at_equal_stages(self) -> None:
        """Simulate equal stages, and find the longest paths where a rank or a stage is busier than others."""
        count, depth = self.divided.count, self.divided.layout.pp
        self._try(even_blocks(self.divided), (0,) * count)
        n = np.tile(self._totals / count, (count, 1))
        self._centre = np.concatenate([np.ones((count, 1)), n, 0 * n], axis=1)
        seconds = self.paths.seconds(self._centre)
        groups = [np.arange(0), *map(self.divided.frame.stages_of, range(depth))]
        if count > depth:
            groups += list(np.arange(count)[:, None])
        for group in groups:
            own = seconds.copy()
            own[:, group] *= BUSIER
            self._add_cut(self.paths.cut(self.paths.timeline(own, self._centre)))

    def _step(self, *, exact: bool) -> None:
        """Solve the program once more, and simulate what it says."""
        self.work += WHOLE_WORK if exact else 1
        answer = self._program.solve(exact=exact, gap=CLOSE)
        self.bound_s = max(self.bound_s, answer.bound)
        if answer.point is None:
            self.done = True
            return
        shape = self.divided.count, len(self._totals)
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
            self._try(*self._rounded(n, k))
            if exact and close and len(self._tried) == known:
                self.done = True
        if close and not exact:
            self.relaxed = True
        if self.found and self.bound_s >= self.found.time_s:
            self.done = True

    def _cut_at(self, point: Floats) -> float:
        """Seconds at a point of 1, n and k (stages, 1 + 2K), whose longest path becomes a cut."""
        timeline = self.paths.timeline(self.paths.seconds(point), point)
        self._add_cut(self.paths.cut(timeline))
        return timeline.time_s

    @cached_property
    def _program(self) -> LinearProgram:
        """The program without paths. Variables are n, k, the layers of every rank by kind, and x."""
        count, depth, partial = self.divided.count, self.divided.layout.pp, self.divided.partial
        kinds = len(self._totals)
        each, ranked = count * kinds, depth * kinds
        columns = 2 * each + ranked + 1
        n, k, ranks = np.split(np.eye(columns)[:-1], [each, 2 * each])
        upper = np.full(columns, inf)
        upper[:each], upper[each : 2 * each] = self._most.ravel(), self._most.ravel() * partial
        lower = np.zeros(columns)
        lower[:each] = self._fewest.ravel()
        whole = np.zeros(columns, np.bool_)
        whole[2 * each : -1] = True
        program = LinearProgram(np.eye(columns)[-1], lower, upper, whole)
        totals, memory, room = self._totals, *self._memory_rows
        own = np.kron(self._of_rank, np.eye(kinds))
        of_kind = np.tile(np.eye(kinds), count)
        program.add(of_kind @ n, totals, totals)
        if kinds > 1:
            few, most = np.array(blocks_at(self.divided), float).T
            of_stage = np.repeat(np.eye(count), kinds, axis=1)
            program.add(of_stage @ n, few, np.minimum(most, self.most_blocks))
        program.add(own @ n - ranks, np.zeros(ranked), np.zeros(ranked))
        program.add(memory @ np.vstack([n, k]), np.full(len(room), -inf), room)
        if partial:
            program.add(k - n, np.full(each, -inf), np.zeros(each))
            program.add(np.array([k.sum(axis=0)]), np.ones(1), np.full(1, inf))
        return program

    def _add_cut(self, cut: Floats) -> None:
        """Let the program's time be at least that of a path, (stages, 1 + 2K) of 1, n and k."""
        kinds = len(self._totals)
        own, again = cut[:, 1 : 1 + kinds].ravel(), cut[:, 1 + kinds :].ravel()
        row = np.concatenate([own, again, np.zeros(self.divided.layout.pp * kinds), [-1.0]])
        self._program.add(row[None], np.full(1, -inf), np.array([-cut[:, 0].sum()]))

    @cached_property
    def _of_rank(self) -> Floats:
        """Which stages are on every rank, (ranks, stages) ones and zeros."""
        ranks = np.arange(self.divided.layout.pp)
        found: Floats = (self.divided.frame.groups == ranks[:, None]).astype(float)
        return found

    @cached_property
    def _totals(self) -> Floats:
        """Layers of the model by kind, (K,)."""
        found: Floats = self.divided.order.before[-1].astype(float)
        return found

    @cached_property
    def _reach(self) -> tuple[Ints, Ints]:
        """The first layer that every stage may begin with, and the end of the last one, (stages,) each."""
        few, most = np.array(blocks_at(self.divided)).T
        most, layers = np.minimum(most, self.most_blocks), self.divided.layers
        before, after = (np.concatenate([[0], np.cumsum(side)[:-1]]) for side in (few, few[::-1]))
        least_end = np.concatenate([[0], np.cumsum(most[::-1])[:-1]])[::-1]
        start = np.maximum(before, layers - least_end - most)
        end = np.minimum(layers - after[::-1], np.cumsum(most))
        return start, end

    @cached_property
    def _fewest(self) -> Floats:
        """Layers of every kind that a stage has at least, (stages, K)."""
        few = np.array([float(low) for low, _ in blocks_at(self.divided)])[:, None]
        return few if len(self._totals) == 1 else np.zeros((len(few), len(self._totals)))

    @cached_property
    def _most(self) -> Floats:
        """Layers of every kind that a stage has at most, of those in its reach, (stages, K)."""
        before, (start, end) = self.divided.order.before, self._reach
        within = (before[np.maximum(end, start)] - before[start]).astype(float)
        high = np.array([float(min(high, self.most_blocks)) for _, high in blocks_at(self.divided)])
        found: Floats = np.minimum(within, high[:, None])
        return found

    @cached_property
    def _memory_rows(self) -> tuple[Floats, Floats]:
        """GiB that n and k take on every rank at its fullest moments, and what there is, (rows,)."""
        planes, depth, count = self.planes, self.divided.layout.pp, self.divided.count
        kinds, rows, room = len(self._totals), [], []
        for rank in range(depth):
            own = self.divided.frame.stages_of(rank)
            for held in held_microbatches(self.paths, rank):
                each = planes.fixed[own] + held[:, None] * planes.stash[own]
                row = np.zeros((2, count, kinds))
                row[0, own], row[1, own] = each[:, 1 : 1 + kinds], each[:, 1 + kinds :]
                rows.append(row.ravel() / GIB)
                room.append((self.limit_bytes - each[:, 0].sum() - planes.work[own].min()) / GIB)
        return np.array(rows), np.array(room)

    def _rounded(self, n: Floats, k: Floats) -> tuple[Numbers, Numbers]:
        """Whole numbers of layers near the program's, (stages, K) each, that sum up to all; those of one kind
        first of every rank, those of several in their order by the work before the end of every stage.
        """
        layers = self.divided.layers
        if n.shape[1] > 1:
            each_s = self.divided.seconds
            by_kind = np.array([each_s[self.divided.order.kind == kind][0] for kind in range(n.shape[1])])
            ranges = blocks_at(self.divided)
            blocks = np.array(ordered_blocks(each_s, np.cumsum(n @ by_kind), ranges, self.divided.further))
        else:
            of_ranks = _rounded_to(self._of_rank @ n[:, 0], layers)
            blocks = np.zeros(len(n), int)
            for rank, total in enumerate(of_ranks.tolist()):
                own = self.divided.frame.stages_of(rank)
                blocks[own] = _rounded_to(n[own, 0], total)
        again = np.minimum(np.ceil(k.sum(axis=1) - 1e-6).astype(int), blocks)
        return tuple(blocks.tolist()), tuple(again.tolist())

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
        again = np.array(division.recomputed)
        blocks = np.array(division.blocks)
        for rank in np.flatnonzero(over > 0).tolist():
            own = self.divided.frame.stages_of(rank)
            held = held_microbatches(self.paths, rank).max(axis=0)
            kinds = len(self._totals)
            saved = np.maximum(-self.planes.stash[own, 1 + kinds :].max(axis=1) * held, 1.0)
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
