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

Replica collectives overlap with layer passes, so a stage takes the longer of its passes and its exchanges on
the links. A maximum of sums may be smaller than the sum of maxima: experts that wait for their weights
overlap with layers that do not. All layers of a layout and its ends are therefore bounded by the same side:
passes, exchanges, or traffic on one level of the network. Each side bounds every stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.units import GIB
from phaze.cost.memory import parameter_bytes
from phaze.cost.network.network import Kind
from phaze.layout import Group, Layout
from phaze.pipeline.durations import JobKind
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.schedules import SCHEDULES
from phaze.pipeline.schedules.interleaved import least_group
from phaze.plan.layouts.capacity import least_times
from phaze.plan.layouts.held import held_of_stages
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.slices import Common, LayerFigures, Slices, distinct_rows
from phaze.plan.machines import device_of
from phaze.plan.overlap import lost_share
from phaze.runtimes.grid import COLUMNS, LayoutGrid

ENDLESS = 2.0**50
"""Collective size in bytes at which fixed time and the choice of algorithm no longer matter."""
ROUNDING = 1e-9
"""Relative tolerance for equal bandwidths."""
_NOTHING = StageCost(0.0)
AT_ONCE = 250_000
"""Maximum number of layouts that are bounded in one batch, which limits memory use."""
NEAR = 50_000
"""Number of layouts, smallest average bounds first, for which the tighter per-rank bound is computed."""
ROUNDS = 4
"""Number of microbatch groups, of at least pp each, after which every schedule has reached its peak."""


def with_exchanges(
    question: PlanQuestion, pass_s: Floats, exchange_s: Floats, links_s: Floats, totals: Ints, ends_s: Floats
) -> tuple[Floats, Bools]:
    """Time of a pass with its replica collectives, (N, K), and whether the pass is the bottleneck, (N,).

    A share of the exchanges overlaps with the pass, on links that also carry the pass's own collectives; both
    are (N, K, levels). The seconds of the ends count only if passes bound the layout. The bounding side is
    the one with the longest total over all layers (K,) and the ends (N,).
    """
    overlapped_s = question.machine.stack.overlap_share("dp") * exchange_s
    sent_s = overlapped_s.sum(axis=2)
    longer_s = pass_s + lost_share(question.machine) * sent_s
    shared_s = np.where(overlapped_s > 0, overlapped_s + links_s, 0.0)
    sides = np.concatenate([np.stack([longer_s, sent_s], axis=2), shared_s], axis=2)
    whole_s = np.einsum("nks,k->ns", sides, totals)
    whole_s[:, 0] += ends_s
    side = np.argmax(whole_s, axis=1)
    exposed_s = (exchange_s - overlapped_s).sum(axis=2)
    found: Floats = exposed_s + np.take_along_axis(sides, side[:, None, None], axis=2)[:, :, 0]
    return found, side == 0


def exchanged_s(question: PlanQuestion, grid: LayoutGrid, layers: LayerFigures) -> tuple[Floats, Floats]:
    """Link seconds of a layer's weight all-gather and gradient reduce-scatter, (N, K, levels) each.

    Both occur from ZeRO 1 on; the gather is in every pass with ZeRO 3, the scatter from ZeRO 2 on. The fixed
    time of a collective is left out.
    """
    size = parameter_bytes(question.optimizer, "mixed", question.machine.stack.gradient_bytes)
    groups = (
        (layers.dense, grid.sharers, grid.shards, grid.tp),
        (layers.experts, grid.edp, grid.expert_shards, grid.expert_stride),
    )

    def sent_s(kind: Kind, parameters: Floats, ranks: Ints, stride: Ints) -> Floats:
        each: Floats = (parameters * (grid.zero >= 1)[:, None])[:, :, None]
        found: Floats = each * _collectives(question, kind, ranks, stride)[1][:, None]
        return found

    ways: tuple[tuple[Kind, int], ...] = (("all_gather", size.weights), ("reduce_scatter", size.gradients))
    gathered_s, reduced_s = (
        sum(
            (sent_s(kind, width * parameters, shards, stride) for parameters, _, shards, stride in groups),
            np.zeros(1),
        )
        for kind, width in ways
    )
    for parameters, sharers, shards, stride in groups:
        if (sharers > shards).any():  # replicas of the shards all-reduce them
            shard = size.gradients * parameters / shards[:, None]
            reduced_s = reduced_s + sent_s("all_reduce", shard, sharers // shards, stride * shards)
    return gathered_s, reduced_s


def _collectives(question: PlanQuestion, kind: Kind, ranks: Ints, stride: Ints) -> tuple[Floats, Floats]:
    """Fixed time of collectives, (N,), and time per byte on the links of each level, (N, levels).

    Groups have `ranks` members, `stride` devices apart. Together both are a lower bound: a collective takes
    the fastest of several algorithms, each with a time linear in size. Empty collectives show the smallest
    fixed time, very large ones the smallest time per byte.
    """
    network = question.machine.network
    distinct, _, where = distinct_rows(np.stack([ranks, stride], axis=1))
    groups = [Group(*row) for row in distinct.tolist()]
    start_s = np.array([network.seconds(kind, 0.0, group) for group in groups])
    nothing, many, most, twice = (
        np.array([network.by_level(kind, nbytes, group) for group in groups])
        for nbytes in (0.0, GIB, ENDLESS, 2.0 * ENDLESS)
    )
    byte_s, least_s = (many - nothing) / GIB, (twice - most) / ENDLESS
    concave = least_s < byte_s * (1.0 - ROUNDING)
    return start_s[where], np.where(concave, least_s, byte_s)[where]


def lost_once_s(question: PlanQuestion, grid: LayoutGrid, reduce_s: Floats, backward_s: Floats) -> Floats:
    """Time that each layer loses to the ZeRO 1 gradient reduce-scatter of a step, in seconds, (N, K).

    It is the slowdown of the last backward pass and the exposed part of the reduce-scatter.
    """
    share = question.machine.stack.overlap_share("dp")
    if not share:
        return np.zeros_like(reduce_s)
    lost_s = lost_share(question.machine) * np.minimum(share * reduce_s, backward_s)
    return np.asarray((reduce_s - share * reduce_s + lost_s) * (grid.zero == 1)[:, None])


def late_s(
    question: PlanQuestion, grid: LayoutGrid, layers: LayerFigures, gather_s: Floats
) -> tuple[Floats, Floats, Floats]:
    """Exposed time to gather updated weights among replicas under ZeRO 1 and 2, in seconds.

    The values are per layer (N, K), and fixed (N,), both without the part that overlaps with the first
    forward pass. The third value is 1 if the passes of the ends also overlap with the gather, (N,).
    """
    after = (grid.zero == 1) | (grid.zero == 2)
    start_s = after * (grid.vp - 1) * _collectives(question, "all_gather", grid.shards, grid.tp)[0]
    each_s = gather_s.sum(axis=2) * after[:, None]
    share = question.machine.stack.overlap_share("dp")
    if not share:
        return each_s, start_s, np.zeros(len(grid))
    beside_s = share * each_s
    lost, left_s = lost_share(question.machine), beside_s - layers.forward_s
    counts = after & (left_s > 0).all(axis=1)  # otherwise the rest of a layer overlaps with another layer
    late_s = np.where(counts[:, None], left_s + lost * layers.forward_s, lost * beside_s)
    return each_s - beside_s + late_s, start_s * counts, counts.astype(float)


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
        found: Ints = places[np.argsort(self.time_s[places], kind="stable")]
        return found

    def joined(self, other: LayoutBounds) -> LayoutBounds:
        """Concatenate these bounds with those of other layouts."""
        return LayoutBounds(
            np.concatenate([self.time_s, other.time_s]),
            np.concatenate([self.lacking_bytes, other.lacking_bytes]),
        )

    def take(self, which: Bools) -> LayoutBounds:
        """Bounds of the layouts in mask `which`."""
        return LayoutBounds(self.time_s[which], self.lacking_bytes[which])


class StateFigures(NamedTuple):
    """Costs of model state per parameter under each layout, (N,) each."""

    bytes_each: Floats
    """Bytes of weights, gradients and optimizer states."""
    update_s: Floats
    """Time of the optimizer step, in seconds."""
    added_s: Floats
    """Time to accumulate the gradients of a microbatch, in seconds."""
    frozen_bytes: Floats
    """Bytes of a frozen parameter, which has no gradient."""


class LayoutLoads(NamedTuple):
    """Lower bounds on the time of layers by kind, (N, K), and of other work, (N,), in seconds.

    Passes are per microbatch, all other work is per step.
    """

    forward_s: Floats
    backward_s: Floats
    update_s: Floats
    """Time of the weight update and the weight gather that follows."""
    first_s: tuple[Floats, Floats]
    """Time of the forward and of the backward pass of the embedding."""
    last_s: tuple[Floats, Floats]
    """Time of the forward and of the backward pass of the head."""
    start_s: Floats
    """Fixed time that every rank needs after its updates."""
    ahead_s: tuple[Floats, Floats]
    """Weight-gather time per step that overlaps with the passes of the embedding and of the head."""
    again_s: Floats
    """Recompute time of a layer per microbatch, for stages that may choose what to recompute, (N, K)."""
    bytes_each: Floats
    """Bytes of a layer: static, stored per microbatch, and saved per microbatch by recompute, (N, K, 3)."""
    work_bytes: Floats
    """Minimum working memory of a stage that contains a layer of the given kind, (N, K)."""
    end_bytes: tuple[Floats, Floats]
    """Bytes of the embedding and of the head at their ranks' memory peaks, at least, (N,) each."""


class _Figures(NamedTuple):
    """Inputs of `least_times` for a grid of layouts, and the layouts' loads."""

    rows: Floats
    by_kind: Floats
    shapes: Ints
    held: Floats
    loads: LayoutLoads


def bound_layouts(question: PlanQuestion, grid: LayoutGrid, common: Common = "nothing") -> LayoutBounds:
    """Lower bounds on time and memory of all layouts of a grid, from the costs of shared model shards.

    `common` sets how much the layouts of a shard may differ (`Slices`). Unless it is "nothing", the bounds
    hold for every recompute option, and most are means over ranks only.
    """
    if not len(grid):
        return LayoutBounds(np.zeros(0), np.zeros(0))
    if common != "nothing" and not device_of(question.machine).products:
        common = "recompute"
    if common == "nothing":
        return bounds_by(question, grid, Slices.of(question, grid), np.arange(len(grid)))
    fewer = ("recompute", "cp_kind") if common == "tokens" else ("recompute",)
    others = [getattr(grid, name) for name in COLUMNS if name not in fewer]
    _, first, where = distinct_rows(np.stack(others, axis=1))
    few = replace(grid.take(first), recompute=np.zeros_like(first))
    slices = Slices.of(question, few, common)
    found = bounds_by(question, few, slices, np.arange(len(few)), on_average=True)
    return LayoutBounds(found.time_s[where], found.lacking_bytes[where])


def bounds_by(
    question: PlanQuestion, grid: LayoutGrid, slices: Slices, which: Ints, *, on_average: bool = False
) -> LayoutBounds:
    """Lower bounds for layouts from known shard costs; `which` are their indices in the shards' grid."""
    parts = np.array_split(np.arange(len(grid)), -(-len(grid) // AT_ONCE))
    each = [_bounds_of_part(question, grid.take(part), slices, which[part], on_average) for part in parts]
    return LayoutBounds(*(np.concatenate(one) for one in zip(*each, strict=True)))


def loads_of(question: PlanQuestion, grid: LayoutGrid) -> LayoutLoads:
    """Lower bounds on the work of each layout, from the costs of its own model shard."""
    return _figures_of(question, grid, Slices.of(question, grid), np.arange(len(grid))).loads


def _bounds_of_part(
    question: PlanQuestion, grid: LayoutGrid, slices: Slices, which: Ints, on_average: bool
) -> tuple[Floats, Floats]:
    """Lower bounds for one batch of layouts, which is small enough to be processed at once."""
    figures, by_kind, shapes, held, _ = _figures_of(question, grid, slices, which)
    before, limits = slices.order.before, question.limits_bytes(grid)
    found, lacking = least_times(figures, by_kind, shapes, held, before, limits, on_average)
    if on_average:
        near = np.argsort(found)[:NEAR]
        found[near], _ = least_times(
            figures[near], by_kind[near], shapes[near], held, before, limits[near], False
        )
    return found, lacking


def _figures_of(question: PlanQuestion, grid: LayoutGrid, slices: Slices, which: Ints) -> _Figures:
    """Inputs of `least_times` for the layouts at indices `which` of the shards' grid."""
    layers, ends = slices.layers_of(which, grid.recompute), slices.ends_of(which)
    links_s = slices.links_of(which)
    sharded = grid.shards, grid.expert_shards
    states, of_experts = (_state_figures(question, grid, ranks) for ranks in sharded)
    gathered_s, reduced_s = exchanged_s(question, grid, layers)
    gather_s = gathered_s * (grid.zero == 3)[:, None, None]
    reduce_s = reduced_s * (grid.zero >= 2)[:, None, None]
    held, first = _held(question, grid)
    count = grid.microbatches(question.task.global_batch).astype(float)
    added_s = states.added_s * (count > 1)
    paired = np.maximum(1.0 - grid.pp / count, 0.0)[:, None]  # share of microbatches, as `Lowering.hidden_s`
    alone_s, alone_back_s = layers.alone_s(paired)
    totals = slices.order.before[-1]
    forward_s, of_forward = with_exchanges(
        question, alone_s, gather_s, links_s[:, :, 0], totals, ends.first_forward_s + ends.last_forward_s
    )
    added_to = [(states, layers.dense), (of_experts, layers.experts)]

    def of_layers(each: Callable[[StateFigures], Floats]) -> Floats:
        found: Floats = sum((each(own)[:, None] * number for own, number in added_to), np.zeros(1))
        return found

    backward_s = alone_back_s + (count > 1)[:, None] * of_layers(lambda own: own.added_s)
    frozen_bytes = [states.frozen_bytes * each for each in (ends.first_frozen, ends.last_frozen)]
    splits = np.array([SCHEDULES[name].splits for name in grid.schedules])[grid.schedule]
    beside_s = links_s[:, :, 1] * ~splits[:, None, None]  # separate weight gradients send nothing
    once_s = lost_once_s(question, grid, reduced_s.sum(axis=2), backward_s)
    sent_s = gather_s + reduce_s, beside_s
    # The ends count if layers are bounded by their passes; otherwise recompute overlaps with exchanges too.
    ends_s = ends.first_s - ends.first_forward_s + ends.last_s - ends.last_forward_s
    backward_s, of_backward = with_exchanges(question, backward_s, *sent_s, totals, ends_s)
    again_s = layers.again_s * of_backward[:, None]
    behind_s, start_s, hidden = late_s(question, grid, layers, gathered_s)
    update_s = of_layers(lambda own: own.update_s) + behind_s + once_s
    first_s, last_s = (
        (of * of_forward, (passes + added_s * parameters - of) * of_backward)
        for of, passes, parameters in (
            (ends.first_forward_s, ends.first_s, ends.first_parameters),
            (ends.last_forward_s, ends.last_s, ends.last_parameters),
        )
    )
    ahead_s = hidden * first_s[0], hidden * last_s[0]
    lone = grid.vp == 1  # a rank with other stages may have no microbatch in its end at its peak
    by_kind = np.stack([
        forward_s + backward_s,
        forward_s,
        again_s,
        update_s,
        of_layers(lambda own: own.bytes_each) + states.frozen_bytes[:, None] * layers.frozen,
        layers.stash_bytes,
        layers.saved_bytes,
        layers.work_bytes,
    ], axis=2)  # fmt: skip
    figures = np.stack([
        count,
        sum(first_s) - ahead_s[0] / count,
        sum(last_s) - ahead_s[1] / count,
        states.bytes_each * ends.first_parameters + frozen_bytes[0] + ends.first_bytes * lone,
        states.bytes_each * ends.last_parameters + frozen_bytes[1] + ends.last_bytes * lone,
        first_s[0],
        ~splits,
        start_s,
    ], axis=1)  # fmt: skip
    folded = np.array([SCHEDULES[name].folded for name in grid.schedules])[grid.schedule]
    shapes = np.stack([grid.pp, grid.vp, first, np.where(folded, 0, grid.pp - 1)], axis=1)
    loads = LayoutLoads(
        forward_s,
        backward_s,
        update_s,
        first_s,
        last_s,
        start_s,
        ahead_s,
        again_s,
        by_kind[:, :, 4:7],
        layers.work_bytes,
        (figures[:, 3], figures[:, 4]),
    )
    return _Figures(figures, by_kind, shapes, held, loads)


def _state_figures(question: PlanQuestion, grid: LayoutGrid, shards: Ints) -> StateFigures:
    """Costs of model state per parameter when it is sharded over `shards` ranks, (N,) each."""
    distinct, _, where = distinct_rows(np.stack([grid.zero, shards], axis=1))
    machine, lowering = question.machine, question.lowering(Layout())
    width = parameter_bytes(question.optimizer, "mixed", machine.stack.gradient_bytes).gradients
    rows = []
    for zero, ranks in distinct.tolist():
        layout = Layout(dp=ranks, zero=zero, offload=grid.offload)
        update_s = lowering.update_bytes(layout, 1, width) / machine.hbm_bytes_per_s
        frozen = lowering.frozen_bytes(1, layout)
        rows.append((lowering.state_bytes(1, layout), update_s, lowering.added_s(width, layout), frozen))
    return StateFigures(*np.array(rows)[where].T)


def _held(question: PlanQuestion, grid: LayoutGrid) -> tuple[Floats, Ints]:
    """Microbatches in flight, one row per rank of each distinct pipeline, and each layout's first row.

    Layouts with the same pipeline share its rows. Columns are a, b, c and d. A rank with n layers stores
    activations of at least a n + b layers at its peak, and no layer stores more than c microbatches. At that
    peak a stage without the head is at work, whose first layer is at least layer d; -1 if it may have none.
    """
    count = grid.microbatches(question.task.global_batch)
    keys = np.stack([grid.schedule, grid.pp, grid.vp, count], axis=1)
    distinct, _, where = distinct_rows(keys)
    rows = [held_by_rank(grid.schedules[name], pp, vp, m) for name, pp, vp, m in distinct.tolist()]
    starts = np.cumsum([0, *(len(row) for row in rows)])[:-1]
    return np.concatenate(rows), starts[where]


def held_by_rank(schedule: str, depth: int, chunks: int, count: int) -> Floats:
    """Microbatches in flight on each rank of a pipeline, (ranks, 4), with the columns of `_held`."""
    if chunks > 1:
        return held_of_chunks(schedule, depth, chunks, *_enough(depth, count))
    pipeline = Pipeline((_NOTHING,) * depth, count, schedule)
    held = np.array(pipeline.in_flight, float)
    first = np.maximum(np.arange(depth) - 1, 0)  # a first stage without layers stores nothing
    first[-1] = -1
    return np.stack([held, np.zeros(depth), held, first], axis=1)


def _enough(depth: int, count: int) -> tuple[int, int]:
    """Reduced microbatch count with the same memory peak, and the size of a microbatch group.

    Enough groups for the peak remain, plus the last, smaller group.
    """
    size = least_group(count, depth)
    return min(count // size, ROUNDS) * size + count % size, size


@lru_cache(maxsize=4096)
def held_of_chunks(schedule: str, depth: int, chunks: int, count: int, group: int = 0) -> Floats:
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
        moments, ends = held_of_stages(pipeline, rank, kind, stage), (0, depth * chunks - 1)
        at_work = (kind >= JobKind.FORWARD) & (kind < JobKind.SYNC) & np.isin(stage, ends, invert=True)
        first = np.where(at_work, stage - 1, -1)
        place = np.lexsort((moments.min(axis=1), first, moments.sum(axis=1)))[-1]
        fullest, fewest = moments[place], moments[place].min()
        inner = np.isin(pipeline.stages_of(rank), ends, invert=True)
        rows.append((fewest, ((fullest - fewest) * inner).sum(), moments.max(), first[place]))
    return np.array(rows, float)
