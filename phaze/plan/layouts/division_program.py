"""Linear program over the pipeline splits of a layout: layers per virtual stage, constraints and cuts.

Variables are the layers n and recomputed layers k for every stage and kind, then the layers of every rank by
kind, the same for recomputed layers if only a part may be, whether stages that may be empty have layers, the
one number K of recomputed layers that applies to all stages of some runtimes, and the step time x.

With such a number a stage of n layers recomputes k = min(K, n), which is not convex. The program has k <= K
and k above the convex envelope of min(K, n) for l <= n <= N and 0 <= K <= H: with a = min(H, l) and
b = min(H, N) the larger of a K / H and b K / H - (b - a) (N - n) / (N - l). Every such split satisfies both,
so the program stays a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.units import GIB
from phaze.plan.layouts.divisions import DividedLayout, Numbers, blocks_at, ordered_blocks
from phaze.plan.layouts.held import held_at_work, held_while_busy
from phaze.plan.layouts.planes import Paths
from phaze.solver.linear import LinearAnswer, LinearProgram

CLOSE = 2e-4
"""Relative distance between lower bound and step time below which the bound is not raised further."""


class SplitLimits(NamedTuple):
    """Limits on layers n and recomputed layers k by stage and kind: all n, then all k, (2 stages K,)."""

    least: Floats
    most: Floats


@dataclass(eq=False)
class CutProgram:
    """Linear program of a layout, to which every solve first adds the cutting planes found since."""

    linear: LinearProgram
    cuts: list[tuple[Floats, float]]
    _added: int = 0

    def solve(self, *, exact: bool = False) -> LinearAnswer:
        """Solve for the minimum step time; with `exact`, layers per rank are integers."""
        for row, low_s in self.cuts[self._added :]:
            self.linear.add(row[None], np.full(1, -inf), np.array([-low_s]))
        self._added = len(self.cuts)
        return self.linear.solve(exact=exact, gap=CLOSE)


@dataclass(frozen=True, eq=False)
class DivisionProgram:
    """Lower bound on the step time over all pipeline splits of a layout, from linear cuts."""

    divided: DividedLayout
    paths: Paths
    limit_bytes: float
    most_blocks: int
    """Maximum number of layers of a stage."""
    _cuts: list[tuple[Floats, float]] = field(default_factory=list)

    def within(self, limits: SplitLimits) -> CutProgram:
        """Linear program over pipeline splits within `limits`, with all cutting planes."""
        return CutProgram(self.constrained(limits), self._cuts)

    @cached_property
    def limits(self) -> SplitLimits:
        """Limits on layers and recomputed layers that hold for all pipeline splits."""
        high = self._most.ravel()
        low: Floats = self.fewest.ravel().astype(float)
        return SplitLimits(np.append(low, 0 * low), np.append(high, high * self.divided.partial))

    @property
    def variables(self) -> int:
        """Number of variables: layers, recomputed layers, sums per rank, flags of used stages, step time."""
        return 2 * self.divided.count * len(self.totals) + len(self.of_whole) + 1

    def constrained(self, limits: SplitLimits, more: int = 0) -> LinearProgram:
        """Linear program within limits but without cuts; `more` further variables are appended."""
        count, depth, partial = self.divided.count, self.divided.layout.pp, self.divided.partial
        kinds, columns, ends = len(self.totals), self.variables, self._ends
        each, ranked = count * kinds, depth * kinds * (1 + partial)
        parts = np.cumsum([each, each, ranked, len(ends), int(self.divided.equal)])
        n, k, ranks, used, equal, _ = np.split(np.eye(columns), parts)
        low, high = (one[:each].reshape(count, kinds).sum(axis=1)[ends] for one in limits)
        lower, upper = np.zeros(columns), np.full(columns, inf)
        lower[: 2 * each], upper[: 2 * each] = limits
        lower[parts[2] : parts[3]], upper[parts[2] : parts[3]] = low >= 1, 1.0
        whole = np.zeros(columns, np.bool_)
        whole[self.of_whole] = True
        free, cost = np.zeros(more), np.eye(columns)[-1]
        program = LinearProgram(
            np.append(cost, free),
            np.append(lower, free),
            np.append(upper, free + inf),
            np.append(whole, free > 0),
        )
        totals, memory, room = self.totals, *self.memory_rows(limits)
        own = np.kron(self._of_rank, np.eye(kinds))
        of_kind, of_stage = np.tile(np.eye(kinds), count), np.repeat(np.eye(count), kinds, axis=1)
        program.add(of_kind @ n, totals, totals)
        if kinds > 1:
            few, most = np.array(blocks_at(self.divided), float).T
            program.add(of_stage @ n, few, np.minimum(most, self.most_blocks))
            for rows, above in self._in_order(n.reshape(count, kinds, -1), k.reshape(count, kinds, -1)):
                program.add(rows, np.full(len(above), -inf), above)
        of_ranks = np.vstack([own @ n, own @ k])[:ranked]
        program.add(of_ranks - ranks, np.zeros(ranked), np.zeros(ranked))
        most_used = np.minimum(high, self.most_blocks)[:, None] * used
        program.add((of_stage @ n)[ends] - most_used, np.full(len(ends), -inf), np.zeros(len(ends)))
        program.add(memory @ np.vstack([n, k, used]), np.full(len(room), -inf), room)
        if partial:
            program.add(k - n, np.full(each, -inf), np.zeros(each))
        if self.divided.equal:
            self._same_number(program, of_stage @ n, of_stage @ k, equal, limits)
        return program

    def _same_number(
        self, program: LinearProgram, n: Floats, k: Floats, equal: Floats, limits: SplitLimits
    ) -> None:
        """Add the constraints of one number of recomputed layers for all stages; rows are (stages, columns).

        Layers of multi-token prediction recompute only if all layers do, so their stage has a lower limit.
        """
        of_n = (one[: len(one) // 2].reshape(len(n), -1).sum(axis=1) for one in limits)
        least, most = (np.minimum(one, self.most_blocks) for one in of_n)
        highest = max(float(most.max()), 1.0)
        low, high = np.minimum(highest, least), np.minimum(highest, most)
        slope = (high - low) / np.maximum(most - least, 1.0)
        apart, inside = np.zeros(len(n)), np.full(len(n), inf)
        apart[-2:] = self.divided.further
        program.add(equal, np.zeros(1), np.full(1, highest))
        program.add(k - equal, -inside, 0 * apart)
        program.add(k - np.outer(low / highest, equal), -apart, inside)
        program.add(k - np.outer(high / highest, equal) - slope[:, None] * n, -slope * most - apart, inside)

    def add_cut(self, cut: Floats) -> None:
        """Add a cut from a path's coefficients of 1, layers n and recomputed layers k, (stages, 1 + 2K)."""
        kinds = len(self.totals)
        own, again = cut[:, 1 : 1 + kinds].ravel(), cut[:, 1 + kinds :].ravel()
        row = np.concatenate([own, again, np.zeros(len(self.of_whole)), [-1.0]])
        self._cuts.append((row, float(cut[:, 0].sum())))

    def by_stage(self, point: Floats) -> Floats:
        """Reshape a solution n, k of shape (2 stages K,) to rows [1, n, k] by stage, (stages, 1 + 2K)."""
        n, k = point.reshape(2, self.divided.count, -1)
        n = np.maximum(n, self.fewest)  # except for a tolerance
        found: Floats = np.concatenate([np.ones((len(n), 1)), n, k], axis=1)
        return found

    def _in_order(self, n: Floats, k: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Yield constraints (rows, upper bounds) that the order of layers imposes on runs of layers.

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
        """Number of layers of the model by kind, (K,)."""
        found: Floats = self.divided.order.before[-1].astype(float)
        return found

    @cached_property
    def _reach(self) -> tuple[Ints, Ints]:
        """Earliest possible first layer and latest possible end of every stage, (stages,) each."""
        few, most = np.array(blocks_at(self.divided)).T
        most, layers = np.minimum(most, self.most_blocks), self.divided.layers
        before, after = (np.concatenate([[0], np.cumsum(side)[:-1]]) for side in (few, few[::-1]))
        least_end = np.concatenate([[0], np.cumsum(most[::-1])[:-1]])[::-1]
        start = np.maximum(before, layers - least_end - most)
        end = np.minimum(layers - after[::-1], np.cumsum(most))
        return start, end

    @cached_property
    def fewest(self) -> Floats:
        """Minimum number of layers of every kind on a stage, (stages, K)."""
        few = np.array([float(low) for low, _ in blocks_at(self.divided)])[:, None]
        return few if len(self.totals) == 1 else np.zeros((len(few), len(self.totals)))

    @cached_property
    def _most(self) -> Floats:
        """Maximum number of layers of every kind on a stage, within its reach, (stages, K)."""
        before, (start, end) = self.divided.order.before, self._reach
        within = (before[np.maximum(end, start)] - before[start]).astype(float)
        high = np.array([float(min(high, self.most_blocks)) for _, high in blocks_at(self.divided)])
        found: Floats = np.minimum(within, high[:, None])
        return found

    @cached_property
    def _ends(self) -> Ints:
        """Indices of the stages that may be empty."""
        return np.flatnonzero([low == 0 for low, _ in blocks_at(self.divided)])

    @cached_property
    def _moments(self) -> list[tuple[Ints, Ints]]:
        """Microbatches in flight on every rank over time, with the active stage, see `held_while_busy`."""
        return [held_while_busy(self.divided, rank) for rank in range(self.divided.layout.pp)]

    def _work(self, limits: SplitLimits) -> Floats:
        """Minimum working memory of stages within limits, (stages, 1 + number of ends).

        The first column holds for any stage, the others are the excess of stages that may be empty, if not.
        """
        of_any, *of_kinds, again = self.paths.planes.work
        shape = 2, self.divided.count, -1
        (low, low_again), (high, _) = (one.reshape(shape) >= 1 for one in limits)
        each = np.array(of_kinds).T
        filled = np.where(high, each, inf).min(axis=1)
        filled = np.maximum(filled, np.where(low, each, 0.0).max(axis=1))
        filled = np.maximum(filled, np.where(low_again.any(axis=1), again, 0.0))
        filled = np.where(np.isfinite(filled), np.maximum(filled, of_any), of_any)
        found = np.zeros((self.divided.count, 1 + len(self._ends)))
        found[:, 0] = filled
        for column, q in enumerate(self._ends.tolist()):
            found[q, 0], found[q, 1 + column] = of_any[q], filled[q] - of_any[q]
        return found

    def memory_rows(self, limits: SplitLimits) -> tuple[Floats, Floats]:
        """Memory constraints of ranks at their peaks, as rows of GiB per variable and available GiB."""
        planes, count, kinds = self.paths.planes, self.divided.count, len(self.totals)
        rows, room, work = [], [], self._work(limits)
        for rank, moments in enumerate(self._moments):
            own = self.divided.frame.stages_of(rank)
            for held, busy in zip(*held_at_work(*moments, work), strict=True):
                each = planes.fixed[own] + held[:, None] * planes.stash[own]
                row = np.zeros((2, count, kinds))
                row[0, own], row[1, own] = each[:, 1 : 1 + kinds], each[:, 1 + kinds :]
                rows.append(np.append(row.ravel(), busy[1:]) / GIB)
                room.append((self.limit_bytes - each[:, 0].sum() - busy[0]) / GIB)
        return np.array(rows), np.array(room)

    def excess(self, blocks: Ints) -> tuple[Floats, Floats]:
        """Memory of a layer of the most common kind, and memory in excess of the limit, in GiB.

        Shapes are (rows, stages) and (rows,). Rows are ranks at their peaks; `blocks` are the layers per
        stage, (stages,).
        """
        rows, room = self.memory_rows(self.limits)
        own, used = np.split(rows, [2 * self.divided.count * len(self.totals)], axis=1)
        each = own[:, : self.divided.count * len(self.totals)].reshape(len(rows), self.divided.count, -1)
        counts = np.diff(self.divided.order.before[np.append(0, np.cumsum(blocks))], axis=0)
        found: Floats = np.einsum("rsk,sk->r", each, counts) + used @ (blocks[self._ends] > 0) - room
        return each[:, :, self.usual], found

    def rounded(self, n: Floats, k: Floats) -> tuple[Numbers, Numbers]:
        """Round fractional layers and recomputed layers, (stages, K) each, to integer numbers by stage.

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
        """Index of the most common layer kind."""
        return int(np.argmax(self.totals))

    @property
    def of_whole(self) -> range:
        """Indices of the integer variables: layers and recomputed layers per rank, and stage flags.

        Recomputed layers per rank are included only if `divided.partial`. Each stage that may be empty has a
        0/1 flag, which must be 1 if the stage has layers. The number of recomputed layers comes last.
        """
        each, depth = self.divided.count * len(self.totals), self.divided.layout.pp
        ranked = depth * len(self.totals) * (1 + self.divided.partial)
        return range(2 * each, 2 * each + ranked + len(self._ends) + self.divided.equal)


def _hull(values: Ints) -> list[tuple[float, float]]:
    """Upper hull of the points (i, values[i]), as lines with slope and intercept."""
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
    """Integers close to `values` that add up to `total`; the largest remainders are rounded up."""
    floors = np.floor(values + 1e-6).astype(int)
    up = np.argsort(floors - values, kind="stable")[: max(total - int(floors.sum()), 0)]
    floors[up] += 1
    found: Ints = floors
    return found
