"""Lower bounds on step time and memory, for many layouts at once.

Every layer of a layout takes at least u seconds per microbatch, and r more if it is recomputed; the embedding
and the head take e. A rank s with n layers, k of them recomputed, needs

    m (e_s + Σ n u + Σ k r) + Σ n t

seconds for m microbatches and its weight update. Here t is the update of a layer, with the weight gather that
follows; each chunk but one also starts such a collective. The rank begins when the first microbatch has
passed the ranks before it. After its own passes, concurrent with its update, the last microbatch still passes
those ranks backwards. This does not hold for schedules that defer weight gradients, because a rank may
compute its last ones meanwhile.

The memory of a rank has the weights and states of its layers, and for each microbatch in flight the
activations of n − k layers and the inputs of k layers. Consider ranks that work at most x seconds each. The
smallest x at which they have room for all layers is a lower bound for every pipeline split. Without
interleaving each rank takes as many consecutive layers as it can, which leaves the fewest for later ranks.
With interleaving a rank has layers from all over the model, so it takes as much work as it can of any kinds.

`LayoutLoads` has the seconds and bytes of the layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.pipeline.durations import JobKind
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.schedules import SCHEDULES
from phaze.pipeline.schedules.interleaved import least_group
from phaze.pipeline.stages import StageCost
from phaze.plan.bounds.capacity import least_times
from phaze.plan.bounds.loads import LayoutLoads
from phaze.plan.bounds.shards import Common, ShardCosts, distinct_rows
from phaze.plan.machines import device_of
from phaze.plan.question import PlanQuestion
from phaze.plan.splits.in_flight import in_flight_by_stage
from phaze.runtimes.grid import COLUMNS, LayoutGrid

_NOTHING = StageCost(0.0)
AT_ONCE = 250_000
"""Maximum number of layouts that are bounded in one batch, which limits memory use."""
NEAR = 50_000
"""Number of layouts, smallest average bounds first, for which the tighter per-rank bound is computed."""
ROUNDS = 4
"""Number of microbatch groups, of at least pp each, after which every schedule has reached its peak."""


@dataclass(frozen=True, eq=False)
class LayoutBounds:
    """Lower bounds on step time and memory shortfall for every layout of a grid, (N,) each."""

    time_s: Floats
    """Lower bound on the step time; infinite if no pipeline split fits."""
    lacking_bytes: Floats
    """Lower bound on the memory shortfall of the peak rank; 0 if some pipeline split may fit.

    The smallest values are exact.
    """

    @property
    def fits(self) -> Bools:
        """Mask of the layouts for which some pipeline split may fit, (N,)."""
        return self.lacking_bytes <= 0

    def sharpen(self, which: Ints, other: LayoutBounds) -> None:
        """Raise the bounds of layouts `which` to those of `other` where these are higher."""
        self.time_s[which] = np.maximum(self.time_s[which], other.time_s)
        self.lacking_bytes[which] = np.maximum(self.lacking_bytes[which], other.lacking_bytes)

    def in_order(self, which: Bools) -> Ints:
        """Indices of the layouts in mask `which` that may fit, by increasing time bound."""
        places = np.flatnonzero(which & self.fits)
        ordered: Ints = places[np.argsort(self.time_s[places], kind="stable")]
        return ordered

    def joined(self, other: LayoutBounds) -> LayoutBounds:
        """Concatenate these bounds with those of other layouts."""
        return LayoutBounds(
            np.concatenate([self.time_s, other.time_s]),
            np.concatenate([self.lacking_bytes, other.lacking_bytes]),
        )

    def take(self, which: Bools) -> LayoutBounds:
        """Bounds of the layouts in mask `which`."""
        return LayoutBounds(self.time_s[which], self.lacking_bytes[which])


def bound_layouts(question: PlanQuestion, grid: LayoutGrid, common: Common = "nothing") -> LayoutBounds:
    """Lower bounds on time and memory of all layouts of a grid, from the costs of shared model shards.

    `common` sets how much the layouts of a shard may differ (`ShardCosts`). Unless it is "nothing", the
    bounds hold for every recompute option, and most are means over ranks only.
    """
    if not len(grid):
        return LayoutBounds(np.zeros(0), np.zeros(0))
    # Without measured products times come from the mapper, where larger microbatches may be slower.
    if common != "nothing" and not device_of(question.machine).products:
        common = "recompute"
    if common == "nothing":
        return bounds_by(question, grid, ShardCosts.of(question, grid), np.arange(len(grid)))
    fewer = ("recompute", "cp_kind") if common == "tokens" else ("recompute",)
    others = [getattr(grid, name) for name in COLUMNS if name not in fewer]
    _, first, where = distinct_rows(np.stack(others, axis=1))
    few = replace(grid.take(first), recompute=np.zeros_like(first))
    shard_costs = ShardCosts.of(question, few, common)
    bounds = bounds_by(question, few, shard_costs, np.arange(len(few)), on_average=True)
    return LayoutBounds(bounds.time_s[where], bounds.lacking_bytes[where])


def bounds_by(
    question: PlanQuestion,
    grid: LayoutGrid,
    shard_costs: ShardCosts,
    which: Ints,
    *,
    on_average: bool = False,
) -> LayoutBounds:
    """Lower bounds for layouts from known shard costs; `which` are their indices in the shards' grid."""
    # Batches keep arrays of all layouts, kinds and levels within memory.
    parts = np.array_split(np.arange(len(grid)), -(-len(grid) // AT_ONCE))
    bounds = [
        _bounds_of_part(question, grid.take(part), shard_costs, which[part], on_average) for part in parts
    ]
    return LayoutBounds(*(np.concatenate(columns) for columns in zip(*bounds, strict=True)))


def _bounds_of_part(
    question: PlanQuestion, grid: LayoutGrid, shard_costs: ShardCosts, which: Ints, on_average: bool
) -> tuple[Floats, Floats]:
    """Lower bounds for one batch of layouts, which is small enough to be processed at once."""
    figures, by_kind, shapes, in_flight = _figures_of(LayoutLoads.of(question, grid, shard_costs, which))
    before, limits = shard_costs.order.before, question.limits_bytes(grid)
    time_s, lacking = least_times(figures, by_kind, shapes, in_flight, before, limits, on_average)
    if on_average:
        # The mean over ranks is quick; only layouts that may win deserve the bound by rank.
        near = np.argsort(time_s)[:NEAR]
        time_s[near], _ = least_times(
            figures[near], by_kind[near], shapes[near], in_flight, before, limits[near], False
        )
    return time_s, lacking


def _figures_of(loads: LayoutLoads) -> tuple[Floats, Floats, Ints, Floats]:
    """First four inputs of `least_times` for the layouts with these loads."""
    grid, count = loads.grid, loads.microbatches
    in_flight, first = _in_flight_rows(loads.question, grid)
    by_kind = (
        loads.forward_s + loads.backward_s,
        loads.forward_s,
        loads.recompute_s,
        loads.update_s,
        loads.fixed_bytes,
        loads.layers.stash_bytes,
        loads.layers.saved_bytes,
        loads.layers.work_bytes,
    )
    rows = (
        count,
        sum(loads.first_s) - loads.ahead_s[0] / count,
        sum(loads.last_s) - loads.ahead_s[1] / count,
        *loads.end_bytes,
        loads.first_s[0],
        ~loads.splits,
        loads.start_s,
    )
    folded = np.array([SCHEDULES[name].folded for name in grid.schedules])[grid.schedule]
    shapes = np.stack([grid.pp, grid.vp, first, np.where(folded, 0, grid.pp - 1)], axis=1)
    return np.stack(rows, axis=1), np.stack(by_kind, axis=2), shapes, in_flight


def _in_flight_rows(question: PlanQuestion, grid: LayoutGrid) -> tuple[Floats, Ints]:
    """Microbatches in flight, one row per rank of each distinct pipeline, and each layout's first row.

    Layouts with the same pipeline share its rows. Columns are a, b, c and d. A rank with n layers stores
    activations of at least a n + b layers at its peak, and no layer stores more than c microbatches. At that
    peak a stage without the head is at work, whose first layer is at least layer d; -1 if it may have none.
    """
    count = grid.microbatches(question.task.global_batch)
    keys = np.stack([grid.schedule, grid.pp, grid.vp, count], axis=1)
    distinct, _, where = distinct_rows(keys)
    rows = [in_flight_by_rank(grid.schedules[name], pp, vp, m) for name, pp, vp, m in distinct.tolist()]
    starts = np.cumsum([0, *(len(row) for row in rows)])[:-1]
    return np.concatenate(rows), starts[where]


def in_flight_by_rank(schedule: str, depth: int, chunks: int, count: int) -> Floats:
    """Microbatches in flight on each rank of a pipeline, (ranks, 4); columns as in `_in_flight_rows`."""
    if chunks > 1:
        return in_flight_of_chunks(schedule, depth, chunks, *_enough(depth, count))
    pipeline = Pipeline((_NOTHING,) * depth, count, schedule)
    in_flight = np.array(pipeline.in_flight, float)
    first = np.maximum(np.arange(depth) - 1, 0)  # a first stage without layers stores nothing
    first[-1] = -1
    return np.stack([in_flight, np.zeros(depth), in_flight, first], axis=1)


def _enough(depth: int, count: int) -> tuple[int, int]:
    """Reduced microbatch count with the same memory peak, and the size of a microbatch group.

    Enough groups for the peak remain, plus the last, smaller group.
    """
    # Peaks are reached after a few groups, so simulating all microbatches would show no other.
    size = least_group(count, depth)
    return min(count // size, ROUNDS) * size + count % size, size


@lru_cache(maxsize=4096)
def in_flight_of_chunks(schedule: str, depth: int, chunks: int, count: int, group: int = 0) -> Floats:
    """Microbatches in flight on ranks with several stages, (ranks, 4), from the order of their passes.

    At the peak of a rank, all but one layer of each stage may be in the stage with the fewest microbatches.
    The first and the last stage may be empty. Of equal peaks, the one with the latest active inner stage
    counts.
    """
    pipeline = Pipeline(
        (_NOTHING,) * (depth * chunks), count, schedule, chunks=chunks, microbatch_group=group
    )
    rows = []
    for rank in range(depth):
        kind, stage = pipeline.rules.order(pipeline, rank, np.arange(count))[:2]
        moments, ends = in_flight_by_stage(pipeline, rank, kind, stage), (0, depth * chunks - 1)
        at_work = (kind >= JobKind.FORWARD) & (kind < JobKind.SYNC) & np.isin(stage, ends, invert=True)
        first = np.where(at_work, stage - 1, -1)
        # Of moments with the most activations, the one whose working memory is certain counts.
        place = np.lexsort((moments.min(axis=1), first, moments.sum(axis=1)))[-1]
        fullest, fewest = moments[place], moments[place].min()
        inner = np.isin(pipeline.stages_of(rank), ends, invert=True)
        rows.append((fewest, ((fullest - fewest) * inner).sum(), moments.max(), first[place]))
    return np.array(rows, float)
