"""Linear program over the layers of virtual stages: constraints of all pipeline splits, and cuts.

Variables are the layers n and recomputed layers k for every stage and kind, then the layers of every rank by
kind, and the step time x.
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
    """Lower bound on step time over all pipeline splits of a layout, from its cuts."""

    divided: DividedLayout
    paths: Paths
    limit_bytes: float
    most_blocks: int
    """Most layers of a stage."""
    _cuts: list[tuple[Floats, float]] = field(default_factory=list)

    @cached_property
    def linear(self) -> LinearProgram:
        """Program with its cuts."""
        program = self.constrained()
        for row, low_s in self._cuts:
            program.add(row[None], np.full(1, -inf), np.array([-low_s]))
        return program

    def release(self) -> None:
        """Free the program, which is rebuilt from its cuts on demand."""
        self.__dict__.pop("linear", None)

    @property
    def variables(self) -> int:
        """Number of variables: n, k, the layers of every rank by kind, and x."""
        return (2 * self.divided.count + self.divided.layout.pp) * len(self.totals) + 1

    def constrained(self, more: int = 0) -> LinearProgram:
        """Program without cuts, with `more` additional variables after its own."""
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
        """Bound the step time from below by a path, (stages, 1 + 2K) of 1, n and k."""
        kinds = len(self.totals)
        own, again = cut[:, 1 : 1 + kinds].ravel(), cut[:, 1 + kinds :].ravel()
        row = np.concatenate([own, again, np.zeros(self.divided.layout.pp * kinds), [-1.0]])
        low_s = float(cut[:, 0].sum())
        self.linear.add(row[None], np.full(1, -inf), np.array([-low_s]))
        self._cuts.append((row, low_s))

    def _in_order(self, n: Floats, k: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Rows and their upper bounds that the order of layers implies for runs of layers.

        Runs are the layers of a stage, its recomputed and its other layers, and all layers up to the end of a
        stage; n and k are (stages, K, columns).
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
        """Incidence matrix of ranks and stages, (ranks, stages), 0 or 1."""
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
        """Earliest first layer of every stage, and latest end of its layers, (stages,) each."""
        few, most = np.array(blocks_at(self.divided)).T
        most, layers = np.minimum(most, self.most_blocks), self.divided.layers
        before, after = (np.concatenate([[0], np.cumsum(side)[:-1]]) for side in (few, few[::-1]))
        least_end = np.concatenate([[0], np.cumsum(most[::-1])[:-1]])[::-1]
        start = np.maximum(before, layers - least_end - most)
        end = np.minimum(layers - after[::-1], np.cumsum(most))
        return start, end

    @cached_property
    def fewest(self) -> Floats:
        """Fewest layers of every kind on a stage, (stages, K)."""
        few = np.array([float(low) for low, _ in blocks_at(self.divided)])[:, None]
        return few if len(self.totals) == 1 else np.zeros((len(few), len(self.totals)))

    @cached_property
    def _most(self) -> Floats:
        """Most layers of every kind on a stage, within its reach, (stages, K)."""
        before, (start, end) = self.divided.order.before, self._reach
        within = (before[np.maximum(end, start)] - before[start]).astype(float)
        high = np.array([float(min(high, self.most_blocks)) for _, high in blocks_at(self.divided)])
        found: Floats = np.minimum(within, high[:, None])
        return found

    @cached_property
    def _memory_rows(self) -> tuple[Floats, Floats]:
        """GiB of n and k on every rank at its peak moments, and the available GiB, (rows,)."""
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

    def excess(self, blocks: Ints) -> tuple[Floats, Floats]:
        """GiB per layer of the usual kind on each stage (rows, stages), and the excess of each row, (rows,).

        Rows are ranks at their peak moments; `blocks` are the layers per stage, (stages,).
        """
        rows, room = self._memory_rows
        each = rows[:, : self.divided.count * len(self.totals)].reshape(len(rows), self.divided.count, -1)
        counts = np.diff(self.divided.order.before[np.append(0, np.cumsum(blocks))], axis=0)
        found: Floats = np.einsum("rsk,sk->r", each, counts) - room
        return each[:, :, self.usual], found

    def rounded(self, n: Floats, k: Floats) -> tuple[Numbers, Numbers]:
        """Integer layers and recomputed layers near the program's (stages, K), adding up to all layers.

        With one kind, the layers of ranks are rounded first, then those of stages. With several, stage ends
        follow the cumulative work in layer order.
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
        # The point may come from another layout with the same events and fully recomputed layers.
        again = np.minimum(np.ceil(k.sum(axis=1) - 1e-6).astype(int), blocks) * self.divided.partial
        return tuple(blocks.tolist()), tuple(again.tolist())

    @property
    def usual(self) -> int:
        """Kind that most layers are of."""
        return int(np.argmax(self.totals))

    @property
    def of_ranks(self) -> range:
        """Indices of the variables for the layers of every rank by kind."""
        return range(2 * self.divided.count * len(self.totals), self.variables - 1)


def _hull(values: Ints) -> list[tuple[float, float]]:
    """Upper hull of the points (i, values[i]): lines as slope and intercept."""
    corners: list[tuple[int, int]] = []
    for point in enumerate(values.tolist()):
        while len(corners) > 1 and _turns_up(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    slopes = [(high - low) / (end - start) for (start, low), (end, high) in pairwise(corners)]
    return [(slope, low - slope * start) for slope, (start, low) in zip(slopes, corners, strict=False)]


def _turns_up(first: tuple[int, int], second: tuple[int, int], third: tuple[int, int]) -> bool:
    """True if the second point is not above the line from the first to the third."""
    return (second[1] - first[1]) * (third[0] - first[0]) <= (third[1] - first[1]) * (second[0] - first[0])


def _rounded_to(values: Floats, total: int) -> Ints:
    """Integers near values that add up to a total; the largest remainders are rounded up."""
    floors = np.floor(values + 1e-6).astype(int)
    up = np.argsort(floors - values, kind="stable")[: max(total - int(floors.sum()), 0)]
    floors[up] += 1
    found: Ints = floors
    return found
