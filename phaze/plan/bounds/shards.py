"""Costs of a layout's model shard: layers by kind under all recompute options, embedding and head.

A shard (`ShardCosts`) depends on few fields of a layout, so many layouts share it. Shards that differ only in
microbatch size have a common bound: a microbatch that is k times as large takes at most k times as long,
because products fill their waves at least as well and fixed times of kernels and messages occur once. It
stores k times the bytes. Context parallelism divides the tokens of a rank, apart from the exchanges between
its ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Literal, NamedTuple, Self

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.cost.kernels import KERNEL_LIMITS
from phaze.layout import ON_DEVICE, SHARD_FIELDS, Layout, Offloaded, Recompute
from phaze.plan.layers.costs import LayerCost
from phaze.plan.machines import host_bytes_per_s
from phaze.plan.plan import Machine
from phaze.plan.pricing.lowering import LoweredLayers
from phaze.plan.question import PlanQuestion
from phaze.plan.splits.split import LayerOrder
from phaze.plan.terms.overlap import paired_share
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.rules import pairs_passes

Common = Literal["nothing", "recompute", "microbatch", "tokens"]
"""Differences allowed between layouts that share one shard, whose costs then bound all of them.

Nothing that matters; recompute; also the microbatch size; or also the tokens of a rank.
"""

ROUNDING = 1e-12
"""Relative reduction of recompute times, as a margin for rounding errors."""
MOST_TABLED = 16
"""Ratio of table size to array length above which sorting is faster than a table lookup."""


class LayerFigures(NamedTuple):
    """Costs of the layers of one shard, by kind, (N, K) each."""

    forward_s: Floats
    backward_s: Floats
    recompute_s: Floats
    """Recompute time of a layer, in seconds."""
    hidden_forward_s: Floats
    """Upper bound on the forward time that overlaps with another microbatch's backward pass."""
    hidden_backward_s: Floats
    """Upper bound on the backward time that overlaps with another microbatch's forward pass."""
    busy_forward_s: Floats
    """Forward time without the device's idle time."""
    busy_backward_s: Floats
    """Backward time without the device's idle time."""
    stash_bytes: Floats
    """Bytes that a layer stores per microbatch."""
    saved_bytes: Floats
    """Bytes per microbatch that recomputing the layer saves."""
    work_bytes: Floats
    """Minimum working memory of a stage that contains the layer."""
    dense: Floats
    """Trained parameters other than those of experts."""
    frozen: Floats
    """Frozen parameters."""
    experts: Floats
    """Expert parameters."""

    def alone_s(self, paired: Floats | float = 1.0) -> tuple[Floats, Floats]:
        """Forward and backward time, less the overlap if a share `paired` of microbatches is paired."""
        forward_s = self.forward_s - paired * self.hidden_forward_s
        return forward_s, self.backward_s - paired * self.hidden_backward_s


HOST = KERNEL_LIMITS.index("host")
WORK = LayerFigures._fields.index("work_bytes")
HIDDEN = [LayerFigures._fields.index(name) for name in ("hidden_forward_s", "hidden_backward_s")]


class EndFigures(NamedTuple):
    """Costs of the embedding (first) and the head (last) of one shard, (N,) each."""

    first_s: Floats
    first_forward_s: Floats
    last_s: Floats
    last_forward_s: Floats
    first_bytes: Floats
    last_bytes: Floats
    first_parameters: Floats
    last_parameters: Floats
    first_frozen: Floats
    last_frozen: Floats


@dataclass(frozen=True, eq=False)
class Waiting:
    """Stored bytes and wait times of layers whose activations are offloaded to host memory."""

    machine: Machine
    offloaded: Offloaded
    blocks: int
    """Number of blocks per device; some of them may be offloaded."""

    def bytes(self, layer: LayerCost, recompute: Recompute) -> tuple[float, float]:
        """Bytes stored per microbatch, and bytes in use while a layer computes."""
        return layer.kept_bytes(recompute, self.offloaded, self.blocks)

    def seconds(self, layer: LayerCost, recompute: Recompute) -> tuple[float, float]:
        """Exposed offload time of a layer's forward pass and of its backward pass, in seconds."""
        if self.offloaded == ON_DEVICE:
            return 0.0, 0.0
        return layer.waited_s(recompute, self.offloaded, self.blocks, host_bytes_per_s(self.machine))


@dataclass(frozen=True, eq=False)
class ShardCosts:
    """Costs of all S model shards of a grid of layouts, under its R recompute options.

    With `_any_option` a single option bounds all of them.
    """

    order: LayerOrder
    """Order of the model's layers."""
    layers: Floats
    """Layer costs, with the fields of `LayerFigures`, (S, R, K, figures)."""
    ends: Floats
    """Costs of embedding and head, with the fields of `EndFigures`, (S, R, figures).

    They depend on the recompute option only by the number of hardware queues, which the option decides.
    """
    links: Floats
    """Link time of the collectives in both passes of a layer, (S, K, 2, levels)."""
    where: Ints
    """Shard index of every layout, (N,)."""
    share: Floats
    """Ratio of a layout's tokens per rank and microbatch to those of its shard, (N,)."""

    @classmethod
    def of(cls, question: PlanQuestion, grid: LayoutGrid, common: Common = "nothing") -> Self:
        """Compute the costs of all shards of a grid together.

        Shared over microbatch sizes, a shard has a common multiple of all sizes. Shared over tokens, it has
        the layout's tokens at cp 1, scaled by 1 / cp.
        """
        # cp divides the tokens of a rank. Its exchanges are left out: with one rank they take no time.
        tokens = 1 / grid.cp if common == "tokens" else 1.0
        if common == "tokens":
            grid = replace(grid, cp=np.ones_like(grid.cp), cp_kind=np.zeros_like(grid.cp_kind))
        # A common multiple of all microbatches: a larger one is never slower per token (see above).
        every = int(np.lcm.reduce(grid.microbatch))
        if every > grid.microbatch.min():  # the same for all parts of a space, so that few shards are costed
            every = lcm(every, question.task.global_batch)
        exact = common in ("nothing", "recompute")
        microbatch = grid.microbatch if exact else np.full(len(grid), every)
        grid, share = replace(grid, microbatch=microbatch), tokens * grid.microbatch / microbatch
        shards = _shards_of(question, grid, exact=exact)
        order = LayerOrder(shards.lowered[0][0].workload.order[1:-1])
        layers = _layers_of(question, grid, shards, order, exact=exact)
        of_ends = [
            [_end_figures(option.costs["embedding"], option.costs["head"]) for option in options]
            for options in shards.lowered
        ]
        ends = np.array(of_ends)
        # Collectives of a pass are the same under every recompute option and number of queues.
        links = [[options[0].costs[name].links_s for name in order.kinds] for options in shards.lowered]
        if common != "nothing":
            layers, ends = _any_option(layers), _any_end(ends)
        return cls(order, layers, ends, np.array(links), shards.where, share)

    def layers_of(self, which: Ints, recompute: Ints) -> LayerFigures:
        """Layer costs, (N, K) each, for the layouts and recompute options at these indices, (N,) each."""
        figures = LayerFigures(*np.moveaxis(self.layers[self.where[which], recompute], 2, 0))
        share = self.share[which][:, None]
        scaled = {name: share * getattr(figures, name) for name in LayerFigures._fields[:10]}
        return figures._replace(**scaled)

    def ends_of(self, which: Ints, recompute: Ints) -> EndFigures:
        """Costs of embedding and head, (N,) each, for the layouts and recompute options at these indices."""
        figures = EndFigures(*self.ends[self.where[which], recompute].T)
        scaled = {name: self.share[which] * getattr(figures, name) for name in EndFigures._fields[:6]}
        return figures._replace(**scaled)

    def links_of(self, which: Ints) -> Floats:
        """Link time of collectives for the layouts at these indices, (N, K, 2, levels)."""
        links_s: Floats = self.share[which][:, None, None, None] * self.links[self.where[which]]
        return links_s

    def dominated(self, recomputes: Sequence[Recompute]) -> Bools:
        """Dominance of recompute options by shard, (S, R, R): True if the second dominates the first.

        For layers of every kind the better option takes no longer in either pass, with any share of exchanges
        overlapped. It stores at most the bytes per microbatch, and uses at most the bytes while at work. The
        price of a plan is monotonic in these figures, and figures of a stage are sums over its layers. So
        each pipeline split with the worse option is no faster, and fits only if the same split with the
        better one fits. Of equal options the first dominates. `full` is left out, since any number of layers
        may recompute.
        """
        figures = LayerFigures(*np.moveaxis(self.layers, 3, 0))
        times_s = *figures[:2], *figures.alone_s(), figures.busy_forward_s, figures.busy_backward_s
        weighed = np.stack([*times_s, figures.stash_bytes, figures.work_bytes], axis=3)
        # With `full` the runtime may recompute any number of layers, so its figures are no single point.
        several = [place for place, word in enumerate(recomputes) if word != "full"]
        dominates = np.zeros((len(weighed), len(recomputes), len(recomputes)), np.bool_)
        for option in several:
            for other in several:
                ahead = (weighed[:, other] <= weighed[:, option]).all(axis=(1, 2))
                # Embedding and head differ only by the hardware queues that an option allows.
                ahead &= (self.ends[:, other] <= self.ends[:, option]).all(axis=1)
                if other > option:
                    ahead &= (weighed[:, other] < weighed[:, option]).any(axis=(1, 2))
                dominates[:, option, other] = ahead & (other != option)
        return dominates


class _Shards(NamedTuple):
    """Distinct model shards of a grid of layouts."""

    layouts: list[Layout]
    """Representative layout of each shard, with one stage and one replica."""
    pairs: list[list[bool]]
    """True if token dispatch may overlap with a paired microbatch, by shard and recompute option."""
    lowered: list[list[LoweredLayers]]
    """Layers with their costs, by shard and recompute option."""
    where: Ints
    """Shard index of every layout, (N,)."""


def _shards_of(question: PlanQuestion, grid: LayoutGrid, *, exact: bool) -> _Shards:
    """Lower every distinct shard of a grid; `exact`: the microbatch sizes are the layouts' own."""
    stack, model = question.machine.stack, question.task.model
    paired = np.full(len(grid), "ep" in stack.overlap) & ((grid.pp == 1) | (grid.vp > 1))
    # FSDP takes the one hardware queue that other overlap needs, so it changes the costs of layers.
    fsdp = (grid.zero >= 2) & stack.ordered_queue
    columns = [*(getattr(grid, name) for name in SHARD_FIELDS), paired.astype(int), fsdp.astype(int)]
    _, places, where = distinct_rows(np.stack(columns, axis=1))
    layouts = _representatives(grid, places, fsdp)
    for width in {layout.tp for layout in layouts}:  # one lowering for each padded vocabulary
        of_width = [layout for layout in layouts if layout.tp == width]
        question.lowering(of_width[0]).prepare(of_width)
    many = np.zeros(len(grid), np.bool_)
    if exact:
        # Of common shards the bound assumes all overlap together, whatever their hardware queues allow.
        many = paired & _faster_in_many(question, grid, layouts, where)
        _, places, where = distinct_rows(np.stack([*columns, many.astype(int)], axis=1))
        layouts = _representatives(grid, places, fsdp)
    pairs = [
        [
            bool(paired[place]) and pairs_passes(replace(layout, recompute=word), model)
            for word in grid.recomputes
        ]
        for place, layout in zip(places.tolist(), layouts, strict=True)
    ]
    lowered = [
        [question.lowering(layout).layers(layout, many=pair and bool(many[place])) for pair in of_shard]
        for place, layout, of_shard in zip(places.tolist(), layouts, pairs, strict=True)
    ]
    return _Shards(layouts, pairs, lowered, where)


def _layers_of(
    question: PlanQuestion, grid: LayoutGrid, shards: _Shards, order: LayerOrder, *, exact: bool
) -> Floats:
    """Layer costs with the fields of `LayerFigures`, (S, R, K, figures)."""
    offload = Waiting(question.machine, Offloaded.of(grid.offload), len(order.names))
    partial = question.runtime.recomputed_counts != "all"
    of_options = [
        [
            [_layer_figures(option.costs[name], word, offload, partial) for name in order.kinds]
            for word, option in zip(grid.recomputes, options, strict=True)
        ]
        for options in shards.lowered
    ]
    layers = np.array(of_options)
    for shard, (layout, options) in enumerate(zip(shards.layouts, shards.lowered, strict=True)):
        lowering = question.lowering(layout)
        layers[shard, ..., WORK] += [
            lowering.beside_bytes(options[0].costs[name], layout) for name in order.kinds
        ]
        overlap = lowering.overlap_share, lowering.lost_processors
        for row, option in enumerate(options):
            if shards.pairs[shard][row] and (not exact or "ep" in option.stack.overlap):
                layers[shard, row, :, HIDDEN] = np.transpose(
                    [_hidden_s(option.costs[name], *overlap, exact=exact) for name in order.kinds]
                )
    return layers


def _representatives(grid: LayoutGrid, places: Ints, fsdp: Bools) -> list[Layout]:
    """Layouts of one stage and one replica at these indices; those that take many queues shard gradients."""
    return [
        replace(grid.layout(place), pp=1, vp=1, dp=1, zero=2 if fsdp[place] else 0)
        for place in places.tolist()
    ]


def _faster_in_many(
    question: PlanQuestion, grid: LayoutGrid, layouts: Sequence[Layout], where: Ints
) -> Bools:
    """Mask of the layouts that are faster in many hardware queues, as `Lowering.layers` decides, (N,)."""
    options = [question.lowering(layout).options(layout) for layout in layouts]
    longer_s, hidden_s = (
        np.array([getattr(option, name) for option in options])[where] for name in ("longer_s", "hidden_s")
    )
    count = grid.microbatches(question.task.global_batch).astype(float)
    faster: Bools = paired_share(grid.pp.astype(float), count) * hidden_s > longer_s
    return faster


def _hidden_s(layer: LayerCost, share: float, lost: float, *, exact: bool) -> Floats:
    """Time of a layer's two passes that overlaps with another microbatch's passes, in seconds, (2,).

    If the microbatch size is not a layout's own, these are all exchanges of experts, because the passes that
    they overlap with need not grow with them.
    """
    return layer.hidden_s(share, lost) if exact else share * layer.exchanges_s.sum(axis=1)


def _layer_figures(layer: LayerCost, recompute: Recompute, offload: Waiting, part: bool) -> tuple[float, ...]:
    chosen = part and recompute == "full"  # as many layers as needed; else all of them
    every = recompute != "none" and not chosen
    recompute_s = float(layer.again_s(recompute).sum())
    own_bytes, work_bytes = offload.bytes(layer, recompute)
    stays, work_bytes = offload.bytes(layer, "none") if chosen else (own_bytes, work_bytes)
    saved = stays - own_bytes if chosen else 0.0
    waited_s = offload.seconds(layer, recompute)
    forward_s = float(layer.forward_s.sum()) + waited_s[0]
    backward_s = float(layer.backward_s.sum()) + recompute_s * every + waited_s[1]
    return (
        forward_s,
        backward_s,
        recompute_s * chosen,
        0.0,
        0.0,
        forward_s - float(layer.forward_s[HOST]),
        backward_s - float(layer.backward_s[HOST]),
        stays,
        saved,
        work_bytes,
        float(layer.layer.trained - layer.layer.groups.get("expert", 0)),
        float(layer.layer.frozen),
        float(layer.layer.groups.get("expert", 0)),
    )


def _any_option(layers: Floats) -> Floats:
    """Layer costs (S, 1, K, figures) that bound every recompute option, from costs (S, R, K, figures).

    A layer takes the time of the fastest option, and stores S, the fewest bytes of any option that fast.
    Another option saves s of them for t more seconds: at least s times the smallest t / s of all options. So
    the layer may recompute in part, at that rate, up to the largest saving of any option.
    """
    at = {name: place for place, name in enumerate(LayerFigures._fields)}
    # The least of each figure bounds all options, except overlap, which makes a pass shorter.
    figures: Floats = layers.min(axis=1, keepdims=True)
    figures[..., HIDDEN] = layers[..., HIDDEN].max(axis=1, keepdims=True)
    takes = layers[..., at["forward_s"]] + layers[..., at["backward_s"]]
    stays = layers[..., at["stash_bytes"]]
    fastest = takes.min(axis=1, keepdims=True)
    most = np.where(takes <= fastest, stays, np.inf).min(axis=1, keepdims=True)
    takes = np.concatenate([takes, takes + layers[..., at["recompute_s"]]], axis=1)
    stays = np.concatenate([stays, stays - layers[..., at["saved_bytes"]]], axis=1)
    saved = np.maximum(most - stays, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(saved > 0, (takes - fastest) / saved, np.inf).min(axis=1)
    figures[:, 0, :, at["stash_bytes"]] = most[:, 0]
    figures[:, 0, :, at["saved_bytes"]] = saved.max(axis=1)
    rate[np.isinf(rate)] = 0.0  # for layers with no bytes to save
    # Rounding must not make the joint option slower than the one that it bounds.
    figures[:, 0, :, at["recompute_s"]] = rate * saved.max(axis=1) * (1 - ROUNDING)
    return figures


def _any_end(ends: Floats) -> Floats:
    """Costs of embedding and head (S, 1, figures) that bound every recompute option, from (S, R, figures)."""
    least: Floats = ends.min(axis=1, keepdims=True)
    for both, part in (("first_s", "first_forward_s"), ("last_s", "last_forward_s")):
        total, forward = EndFigures._fields.index(both), EndFigures._fields.index(part)
        # Forward and backward pass each, so that their difference bounds the backward pass as well.
        backward = (ends[..., total] - ends[..., forward]).min(axis=1, keepdims=True)
        least[..., total] = least[..., forward] + backward
    return least


def _end_figures(first: LayerCost, last: LayerCost) -> tuple[float, ...]:
    return (
        float((first.forward_s + first.backward_s).sum()),
        float(first.forward_s.sum()),
        float((last.forward_s + last.backward_s).sum()),
        float(last.forward_s.sum()),
        first.kept_bytes("none")[0],
        last.kept_bytes("none")[0],
        float(first.layer.trained),
        float(last.layer.trained),
        float(first.layer.frozen),
        float(last.layer.frozen),
    )


def distinct_rows(rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Distinct rows of an array, the indices of their first occurrences, and the inverse indices.

    The rows are (N, C) integers >= 0. The result is that of `np.unique`, but much faster, by table lookup.
    """
    where = np.zeros(len(rows), np.int64)
    for column in rows.T:
        values, place = _numbered(column)
        _, where = _numbered(where * len(values) + place)
    first = np.empty(int(where.max(initial=-1)) + 1, np.int64)
    first[where[::-1]] = np.arange(len(rows))[::-1]
    return rows[first], first, where


def first_of_each(order: Ints, *columns: Ints | Bools) -> Ints:
    """First index, in the given order, of each group of rows with equal values in all columns."""
    kinds = np.stack([column[order] for column in columns], axis=1).astype(np.int64)
    first: Ints = order[np.sort(distinct_rows(kinds)[1])]
    return first


def _numbered(values: Ints) -> tuple[Ints, Ints]:
    """Distinct values in ascending order, and the index of each value among them."""
    most = int(values.max(initial=0))
    if most > MOST_TABLED * max(len(values), 1):
        distinct, place = np.unique(values, return_inverse=True)
        return distinct, place
    present = np.zeros(most + 1, np.bool_)
    present[values] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[values]
