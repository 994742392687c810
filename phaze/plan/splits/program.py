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
from phaze.plan.splits.in_flight import in_flight_with_stage, peaks_with_work
from phaze.plan.splits.planes import Paths
from phaze.plan.splits.split import Numbers, StagedLayout, layer_ranges, ordered_blocks
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
        # The list of cuts is shared: programs within other limits may have added to it.
        for row, low_s in self.cuts[self._added :]:
            self.linear.add(row[None], np.full(1, -inf), np.array([-low_s]))
        self._added = len(self.cuts)
        return self.linear.solve(exact=exact, gap=CLOSE)


@dataclass(frozen=True, eq=False)
class SplitProgram:
    """Lower bound on the step time over all pipeline splits of a layout, from linear cuts."""

    staged: StagedLayout
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
        return SplitLimits(np.append(low, 0 * low), np.append(high, high * self.staged.partial))

    @property
    def variables(self) -> int:
        """Number of variables: layers, recomputed layers, sums per rank, flags of used stages, step time."""
        return 2 * self.staged.count * len(self.totals) + len(self.integers) + 1

    def constrained(self, limits: SplitLimits, further: int = 0) -> LinearProgram:
        """Linear program within limits but without cuts; `further` further variables are appended."""
        count, depth, partial = self.staged.count, self.staged.layout.pp, self.staged.partial
        kinds, columns, ends = len(self.totals), self.variables, self._optional
        stage_kinds, ranked = count * kinds, depth * kinds * (1 + partial)
        parts = np.cumsum([stage_kinds, stage_kinds, ranked, len(ends), int(self.staged.equal)])
        n, k, ranks, used, equal, _ = np.split(np.eye(columns), parts)
        low, high = (limit[:stage_kinds].reshape(count, kinds).sum(axis=1)[ends] for limit in limits)
        lower, upper = np.zeros(columns), np.full(columns, inf)
        lower[: 2 * stage_kinds], upper[: 2 * stage_kinds] = limits
        lower[parts[2] : parts[3]], upper[parts[2] : parts[3]] = low >= 1, 1.0
        integral = np.zeros(columns, np.bool_)
        integral[self.integers] = True
        # Further variables have no cost and no limit but 0.
        none, cost = np.zeros(further), np.eye(columns)[-1]
        lower, upper = np.append(lower, none), np.append(upper, none + inf)
        program = LinearProgram(np.append(cost, none), lower, upper, np.append(integral, none > 0))
        totals, memory, room_gib = self.totals, *self.memory_rows(limits)
        # Sums per rank are the integer variables: p of them for each kind of layers instead of p v.
        by_rank = np.kron(self._stages_by_rank, np.eye(kinds))
        of_kind, of_stage = np.tile(np.eye(kinds), count), np.repeat(np.eye(count), kinds, axis=1)
        program.add(of_kind @ n, totals, totals)
        if kinds > 1:
            # With one kind of layers the limits of variables already say all of this.
            program.add(of_stage @ n, *(limit.astype(float) for limit in self._ranges))
            for rows, above in self._order_rows(n.reshape(count, kinds, -1), k.reshape(count, kinds, -1)):
                program.add(rows, np.full(len(above), -inf), above)
        of_ranks = np.vstack([by_rank @ n, by_rank @ k])[:ranked]
        program.add(of_ranks - ranks, np.zeros(ranked), np.zeros(ranked))
        # An empty stage needs no working memory: flags charge it only to stages that have layers.
        most_used = np.minimum(high, self.most_blocks)[:, None] * used
        program.add((of_stage @ n)[ends] - most_used, np.full(len(ends), -inf), np.zeros(len(ends)))
        program.add(memory @ np.vstack([n, k, used]), np.full(len(room_gib), -inf), room_gib)
        if partial:
            program.add(k - n, np.full(stage_kinds, -inf), np.zeros(stage_kinds))
        if self.staged.equal:
            self._add_equal_counts(program, of_stage @ n, of_stage @ k, equal, limits)
        return program

    def _add_equal_counts(
        self, program: LinearProgram, n: Floats, k: Floats, equal: Floats, limits: SplitLimits
    ) -> None:
        """Add the constraints of one number of recomputed layers for all stages; rows are (stages, columns).

        Layers of multi-token prediction recompute only if all layers do, so their stage has a lower limit.
        """
        layer_limits = (limit[: len(limit) // 2].reshape(len(n), -1).sum(axis=1) for limit in limits)
        least, most = (np.minimum(limit, self.most_blocks) for limit in layer_limits)
        highest = max(float(most.max()), 1.0)
        low, high = np.minimum(highest, least), np.minimum(highest, most)
        # Envelope of min(K, n) on its box, see the docstring of the module.
        slope = (high - low) / np.maximum(most - least, 1.0)
        apart, inside = np.zeros(len(n)), np.full(len(n), inf)
        apart[-2:] = self.staged.mtp
        program.add(equal, np.zeros(1), np.full(1, highest))
        program.add(k - equal, -inside, 0 * apart)
        program.add(k - np.outer(low / highest, equal), -apart, inside)
        program.add(k - np.outer(high / highest, equal) - slope[:, None] * n, -slope * most - apart, inside)

    def add_cut(self, cut: Floats) -> None:
        """Add a cut from a path's coefficients of 1, layers n and recomputed layers k, (stages, 1 + 2K)."""
        kinds = len(self.totals)
        layers, recomputed = cut[:, 1 : 1 + kinds].ravel(), cut[:, 1 + kinds :].ravel()
        row = np.concatenate([layers, recomputed, np.zeros(len(self.integers)), [-1.0]])
        self._cuts.append((row, float(cut[:, 0].sum())))

    def by_stage(self, point: Floats) -> Floats:
        """Reshape a solution n, k of shape (2 stages K,) to rows [1, n, k] by stage, (stages, 1 + 2K)."""
        n, k = point.reshape(2, self.staged.count, -1)
        n = np.maximum(n, self.fewest)  # except for a tolerance
        return np.concatenate([np.ones((len(n), 1)), n, k], axis=1)

    def _order_rows(self, n: Floats, k: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Yield constraints (rows, upper bounds) that the order of layers imposes on runs of layers.

        Runs are the layers of a stage, its recomputed and its other layers, and all layers up to the end of a
        stage; n and k are (stages, K, columns).
        """
        order = self.staged.order
        most = min(self.most_blocks, self.staged.layers)
        runs = order.in_runs[0][: most + 1], order.in_runs[1][: most + 1]
        parts = [n, k, n - k] if self.staged.partial else [n]
        up_to_end = np.cumsum(n, axis=0)
        ordered = [(part, *runs) for part in parts] + [(up_to_end[:-1], order.before, order.before)]
        for counts, high, low in ordered:
            total = counts.sum(axis=1)
            for kind in range(n.shape[1]):
                # Counts among t layers lie between two curves in t: hulls are their tightest linear limits.
                for slope, room in _hull(high[:, kind]):
                    yield counts[:, kind] - slope * total, np.full(len(total), room)
                for slope, room in _hull(-low[:, kind]):
                    yield -counts[:, kind] - slope * total, np.full(len(total), room)

    @cached_property
    def _stages_by_rank(self) -> Floats:
        """Incidence matrix of ranks and stages, (ranks, stages), 0 or 1."""
        return np.asarray(self.staged.frame.groups == np.arange(self.staged.layout.pp)[:, None], float)

    @cached_property
    def totals(self) -> Floats:
        """Number of layers of the model by kind, (K,)."""
        return np.asarray(self.staged.order.before[-1], float)

    @cached_property
    def _ranges(self) -> tuple[Ints, Ints]:
        """Fewest and most layers of every stage, (stages,) each."""
        few, most = np.array(layer_ranges(self.staged)).T
        return few, np.minimum(most, self.most_blocks)

    @cached_property
    def _layer_reach(self) -> tuple[Ints, Ints]:
        """Earliest possible first layer and latest possible end of every stage, (stages,) each."""
        (few, most), layers = self._ranges, self.staged.layers
        # Stages before and after have at least their minimum and at most their maximum number of layers.
        before, after = (np.concatenate([[0], np.cumsum(side)[:-1]]) for side in (few, few[::-1]))
        least_end = np.concatenate([[0], np.cumsum(most[::-1])[:-1]])[::-1]
        start = np.maximum(before, layers - least_end - most)
        end = np.minimum(layers - after[::-1], np.cumsum(most))
        return start, end

    @cached_property
    def fewest(self) -> Floats:
        """Minimum number of layers of every kind on a stage, (stages, K)."""
        few = self._ranges[0].astype(float)[:, None]
        return few if len(self.totals) == 1 else np.zeros((len(few), len(self.totals)))

    @cached_property
    def _most(self) -> Floats:
        """Maximum number of layers of every kind on a stage, within its reach, (stages, K)."""
        before, (start, end) = self.staged.order.before, self._layer_reach
        within = (before[np.maximum(end, start)] - before[start]).astype(float)
        return np.asarray(np.minimum(within, self._ranges[1][:, None]))

    @cached_property
    def _optional(self) -> Ints:
        """Indices of the stages that may be empty."""
        return np.flatnonzero(self._ranges[0] == 0)

    @cached_property
    def _in_flight(self) -> list[tuple[Ints, Ints]]:
        """Microbatches in flight and the active stage of every rank over time, see `in_flight_with_stage`."""
        return [in_flight_with_stage(self.staged, rank) for rank in range(self.staged.layout.pp)]

    def _work_bytes(self, limits: SplitLimits) -> Floats:
        """Minimum working memory of stages within limits, (stages, 1 + number of ends).

        The first column holds for any stage, the others are the excess of stages that may be empty, if not.
        """
        of_any, *of_kinds, recompute = self.paths.planes.work
        shape = 2, self.staged.count, -1
        (low, recompute_low), (high, _) = (limit.reshape(shape) >= 1 for limit in limits)
        by_kind = np.array(of_kinds).T
        # The largest layer sets the working memory: at least that of the least kind a stage may have,
        # and of every kind that it must have.
        filled = np.where(high, by_kind, inf).min(axis=1)
        filled = np.maximum(filled, np.where(low, by_kind, 0.0).max(axis=1))
        filled = np.maximum(filled, np.where(recompute_low.any(axis=1), recompute, 0.0))
        filled = np.where(np.isfinite(filled), np.maximum(filled, of_any), of_any)
        work = np.zeros((self.staged.count, 1 + len(self._optional)))
        work[:, 0] = filled
        for column, q in enumerate(self._optional.tolist()):
            work[q, 0], work[q, 1 + column] = of_any[q], filled[q] - of_any[q]
        return work

    def memory_rows(self, limits: SplitLimits) -> tuple[Floats, Floats]:
        """Memory constraints of ranks at their peaks, as rows of GiB per variable and available GiB."""
        planes, count, kinds = self.paths.planes, self.staged.count, len(self.totals)
        rows, room_gib, work = [], [], self._work_bytes(limits)
        for rank, moments in enumerate(self._in_flight):
            stages = self.staged.frame.stages_of(rank)
            for in_flight, busy in zip(*peaks_with_work(*moments, work), strict=True):
                stage_bytes = planes.fixed[stages] + in_flight[:, None] * planes.stash[stages]
                row = np.zeros((2, count, kinds))
                row[0, stages], row[1, stages] = stage_bytes[:, 1 : 1 + kinds], stage_bytes[:, 1 + kinds :]
                # GiB keep the coefficients of memory near those of layers and seconds, as solvers want them.
                rows.append(np.append(row.ravel(), busy[1:]) / GIB)
                room_gib.append((self.limit_bytes - stage_bytes[:, 0].sum() - busy[0]) / GIB)
        return np.array(rows), np.array(room_gib)

    def excess(self, blocks: Ints) -> tuple[Floats, Floats]:
        """Memory of a layer of the most common kind, and memory in excess of the limit, in GiB.

        Shapes are (rows, stages) and (rows,). Rows are ranks at their peaks; `blocks` are the layers per
        stage, (stages,).
        """
        rows, room_gib = self.memory_rows(self.limits)
        layer_rows, used = np.split(rows, [2 * self.staged.count * len(self.totals)], axis=1)
        layer_gib = layer_rows.reshape(len(rows), 2, self.staged.count, -1)[:, 0]
        counts = np.diff(self.staged.order.before[np.append(0, np.cumsum(blocks))], axis=0)
        needed_gib = np.einsum("rsk,sk->r", layer_gib, counts) + used @ (blocks[self._optional] > 0)
        return layer_gib[:, :, np.argmax(self.totals)], needed_gib - room_gib

    def rounded(self, n: Floats, k: Floats) -> tuple[Numbers, Numbers]:
        """Round fractional layers and recomputed layers, (stages, K) each, to integer numbers by stage.

        With one kind, the layers of ranks are rounded first, then those of stages. With several, stage ends
        follow the cumulative work in layer order.
        """
        layers = self.staged.layers
        if n.shape[1] > 1:
            layer_s = self.staged.seconds
            by_kind = np.array([layer_s[self.staged.order.kind == kind][0] for kind in range(n.shape[1])])
            ranges = layer_ranges(self.staged)
            blocks = np.array(ordered_blocks(layer_s, np.cumsum(n @ by_kind), ranges, self.staged.mtp))
        else:
            # Ranks first: their sums are whole at the points of the integer program.
            of_ranks = _rounded_to(self._stages_by_rank @ n[:, 0], layers)
            blocks = np.zeros(len(n), int)
            for rank, total in enumerate(of_ranks.tolist()):
                stages = self.staged.frame.stages_of(rank)
                blocks[stages] = _rounded_to(n[stages, 0], total)
        # The point may come from another layout with the same events and fully recomputed layers.
        recomputed = np.minimum(np.ceil(k.sum(axis=1) - 1e-6).astype(int), blocks) * self.staged.partial
        return tuple(blocks.tolist()), tuple(recomputed.tolist())

    @property
    def integers(self) -> range:
        """Indices of the integer variables: layers and recomputed layers per rank, and stage flags.

        Recomputed layers per rank are included only if `staged.partial`. Each stage that may be empty has a
        0/1 flag, which must be 1 if the stage has layers. The number of recomputed layers comes last.
        """
        stage_kinds, depth = self.staged.count * len(self.totals), self.staged.layout.pp
        ranked = depth * len(self.totals) * (1 + self.staged.partial)
        return range(2 * stage_kinds, 2 * stage_kinds + ranked + len(self._optional) + self.staged.equal)


def _hull(values: Ints) -> list[tuple[float, float]]:
    """Upper hull of the points (i, values[i]), as lines with slope and intercept."""
    corners: list[tuple[int, int]] = []
    for point in enumerate(values.tolist()):
        while len(corners) > 1 and _is_below(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    slopes = [(high - low) / (end - start) for (start, low), (end, high) in pairwise(corners)]
    return [(slope, low - slope * start) for slope, (start, low) in zip(slopes, corners, strict=False)]


def _is_below(first: tuple[int, int], second: tuple[int, int], third: tuple[int, int]) -> bool:
    """True if the second point is not above the line from the first to the third."""
    return (second[1] - first[1]) * (third[0] - first[0]) <= (third[1] - first[1]) * (second[0] - first[0])


def _rounded_to(values: Floats, total: int) -> Ints:
    """Integers close to `values` that add up to `total`; the largest remainders are rounded up."""
    # 1e-6: numbers that are whole up to the tolerance of the solver stay so.
    floors = np.floor(values + 1e-6).astype(int)
    up = np.argsort(floors - values, kind="stable")[: max(total - int(floors.sum()), 0)]
    floors[up] += 1
    return floors
