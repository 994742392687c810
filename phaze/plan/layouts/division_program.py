"""The linear program over the layers of a layout's virtual stages: what all divisions keep, and cuts.

Variables are, for every stage and kind of layers, the layers n and those k that run forward again, then the
layers of every rank by kind, and the seconds x of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import inf

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.units import GIB
from phaze.plan.layouts.divisions import DividedLayout, Numbers, blocks_at, ordered_blocks
from phaze.plan.layouts.held import held_at_work
from phaze.plan.layouts.planes import Paths
from phaze.solver.linear import LinearProgram


@dataclass(frozen=True, eq=False)
class DivisionProgram:
    """Least seconds of a step over all divisions of a layout, as far as cuts tell."""

    divided: DividedLayout
    paths: Paths
    limit_bytes: float
    most_blocks: int
    """Most layers of a stage."""
    _cuts: list[tuple[Floats, float]] = field(default_factory=list)

    @cached_property
    def linear(self) -> LinearProgram:
        """The program with its cuts."""
        program = self.constrained()
        for row, low_s in self._cuts:
            program.add(row[None], np.full(1, -inf), np.array([-low_s]))
        return program

    def release(self) -> None:
        """Free the program, which is made again from its cuts if asked for."""
        self.__dict__.pop("linear", None)

    @property
    def variables(self) -> int:
        """Variables of the program: n, k, the layers of every rank by kind, and x."""
        return (2 * self.divided.count + self.divided.layout.pp) * len(self.totals) + 1

    def constrained(self, more: int = 0) -> LinearProgram:
        """The program without paths, with some more variables behind its own."""
        count, depth, partial = self.divided.count, self.divided.layout.pp, self.divided.partial
        kinds, columns = len(self.totals), self.variables
        each, ranked = count * kinds, depth * kinds
        n, k, ranks = np.split(np.eye(columns)[:-1], [each, 2 * each])
        upper = np.full(columns, inf)
        upper[:each], upper[each : 2 * each] = self._most.ravel(), self._most.ravel() * partial
        lower = np.zeros(columns)
        lower[:each] = self.fewest.ravel()
        whole = np.zeros(columns, np.bool_)
        whole[2 * each : -1] = True
        free, cost = np.zeros(more), np.eye(columns)[-1]
        program = LinearProgram(
            np.append(cost, free),
            np.append(lower, free),
            np.append(upper, free + inf),
            np.append(whole, free > 0),
        )
        totals, memory, room = self.totals, *self._memory_rows
        own = np.kron(self._of_rank, np.eye(kinds))
        of_kind = np.tile(np.eye(kinds), count)
        program.add(of_kind @ n, totals, totals)
        if kinds > 1:
            few, most = np.array(blocks_at(self.divided), float).T
            of_stage = np.repeat(np.eye(count), kinds, axis=1)
            program.add(of_stage @ n, few, np.minimum(most, self.most_blocks))
            for rows, high in self._in_order(n.reshape(count, kinds, -1), k.reshape(count, kinds, -1)):
                program.add(rows, np.full(len(high), -inf), high)
        program.add(own @ n - ranks, np.zeros(ranked), np.zeros(ranked))
        program.add(memory @ np.vstack([n, k]), np.full(len(room), -inf), room)
        if partial:
            program.add(k - n, np.full(each, -inf), np.zeros(each))
        return program

    def add_cut(self, cut: Floats) -> None:
        """Let the program's time be at least that of a path, (stages, 1 + 2K) of 1, n and k."""
        kinds = len(self.totals)
        own, again = cut[:, 1 : 1 + kinds].ravel(), cut[:, 1 + kinds :].ravel()
        row = np.concatenate([own, again, np.zeros(self.divided.layout.pp * kinds), [-1.0]])
        low_s = float(cut[:, 0].sum())
        self.linear.add(row[None], np.full(1, -inf), np.array([-low_s]))
        self._cuts.append((row, low_s))

    def _in_order(self, n: Floats, k: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Rows and what they are at most, that runs of layers keep because of their order: those of a stage,
        of it those that run forward again and those that do not, and all up to the end of a stage; n and k
        are (stages, K, columns).
        """
        order = self.divided.order
        most = min(self.most_blocks, self.divided.layers)
        runs = order.most_in_runs[: most + 1], order.fewest_in_runs[: most + 1]
        parts = [n, k, n - k] if self.divided.partial else [n]
        begun = np.cumsum(n, axis=0)
        ways = [(part, *runs) for part in parts] + [(begun[:-1], order.before, order.before)]
        for counts, high, low in ways:
            total = counts.sum(axis=1)
            for kind in range(n.shape[1]):
                for slope, room in _hull(high[:, kind]):
                    yield counts[:, kind] - slope * total, np.full(len(total), room)
                for slope, room in _hull(-low[:, kind]):
                    yield -counts[:, kind] - slope * total, np.full(len(total), room)

    @cached_property
    def _of_rank(self) -> Floats:
        """Which stages are on every rank, (ranks, stages) ones and zeros."""
        ranks = np.arange(self.divided.layout.pp)
        found: Floats = (self.divided.frame.groups == ranks[:, None]).astype(float)
        return found

    @cached_property
    def totals(self) -> Floats:
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
    def fewest(self) -> Floats:
        """Layers of every kind that a stage has at least, (stages, K)."""
        few = np.array([float(low) for low, _ in blocks_at(self.divided)])[:, None]
        return few if len(self.totals) == 1 else np.zeros((len(few), len(self.totals)))

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
        planes, depth, count = self.paths.planes, self.divided.layout.pp, self.divided.count
        kinds, rows, room = len(self.totals), [], []
        for rank in range(depth):
            own = self.divided.frame.stages_of(rank)
            for held, work in zip(*held_at_work(self.divided, rank, planes.work), strict=True):
                each = planes.fixed[own] + held[:, None] * planes.stash[own]
                row = np.zeros((2, count, kinds))
                row[0, own], row[1, own] = each[:, 1 : 1 + kinds], each[:, 1 + kinds :]
                rows.append(row.ravel() / GIB)
                room.append((self.limit_bytes - each[:, 0].sum() - work) / GIB)
        return np.array(rows), np.array(room)

    def rounded(self, n: Floats, k: Floats) -> tuple[Numbers, Numbers]:
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
        # The point may be that of another layout, with the same events and layers that recompute in full.
        again = np.minimum(np.ceil(k.sum(axis=1) - 1e-6).astype(int), blocks) * self.divided.partial
        return tuple(blocks.tolist()), tuple(again.tolist())

    def layers_of(self, rank: int) -> int:
        """Variable of the layers of a rank, where these are of one kind."""
        return 2 * self.divided.count + rank


def _hull(values: Ints) -> list[tuple[float, float]]:
    """Lines above all points (i, values[i]), slope and height at 0 of each, that touch two of them."""
    corners: list[tuple[int, int]] = []
    for point in enumerate(values.tolist()):
        while len(corners) > 1 and _turns_up(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    slopes = [(high - low) / (end - start) for (start, low), (end, high) in pairwise(corners)]
    return [(slope, low - slope * start) for slope, (start, low) in zip(slopes, corners, strict=False)]


def _turns_up(first: tuple[int, int], second: tuple[int, int], third: tuple[int, int]) -> bool:
    """Whether the second point is not above the line from the first to the third."""
    return (second[1] - first[1]) * (third[0] - first[0]) <= (third[1] - first[1]) * (second[0] - first[0])


def _rounded_to(values: Floats, total: int) -> Ints:
    """Whole numbers next to values that sum up to a total: the largest remainders are rounded up."""
    floors = np.floor(values + 1e-6).astype(int)
    up = np.argsort(floors - values, kind="stable")[: max(total - int(floors.sum()), 0)]
    floors[up] += 1
    found: Ints = floors
    return found
