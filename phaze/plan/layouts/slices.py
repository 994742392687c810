"""Costs of a layout's model shard: layers by kind under all recompute options, embedding and head.

A shard (`Slices`) depends on few fields of a layout, so many layouts share it. Shards that differ only in
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
from phaze.layout import ON_DEVICE, SHARD_FIELDS, Layout, Offloaded, Recompute
from phaze.plan.layouts.divisions import LayerOrder
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.lowered import LayerCost
from phaze.plan.machines import host_bytes_per_s
from phaze.plan.plan import Machine
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
    again_s: Floats
    """Recompute time of a layer, in seconds."""
    hidden_forward_s: Floats
    """Upper bound on the forward time that overlaps with another microbatch's backward pass."""
    hidden_backward_s: Floats
    """Upper bound on the backward time that overlaps with another microbatch's forward pass."""
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
class Slices:
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
        tokens = 1 / grid.cp if common == "tokens" else 1.0
        if common == "tokens":
            grid = replace(grid, cp=np.ones_like(grid.cp), cp_kind=np.zeros_like(grid.cp_kind))
        every = int(np.lcm.reduce(grid.microbatch))
        if every > grid.microbatch.min():  # the same for all parts of a space, so that few shards are costed
            every = lcm(every, question.task.global_batch)
        own = common in ("nothing", "recompute")
        microbatch = grid.microbatch if own else np.full(len(grid), every)
        grid, share = replace(grid, microbatch=microbatch), tokens * grid.microbatch / microbatch
        stack = question.machine.stack
        paired = np.full(len(grid), "ep" in stack.overlap) & ((grid.pp == 1) | (grid.vp > 1))
        whole = (grid.zero >= 2) & stack.ordered_queue
        columns = [*(getattr(grid, name) for name in SHARD_FIELDS), paired.astype(int), whole.astype(int)]
        _, places, where = distinct_rows(np.stack(columns, axis=1))
        layouts = _representatives(grid, places, whole)
        _prepare(question, layouts)
        if own:
            # Of common shards the bound assumes all overlap together, whatever their hardware queues allow.
            many = paired & _faster_in_many(question, grid, layouts, where)
            _, places, where = distinct_rows(np.stack([*columns, many.astype(int)], axis=1))
            layouts = _representatives(grid, places, whole)
        words, model = grid.recomputes, question.task.model
        pairs = [
            [bool(paired[place]) and pairs_passes(replace(layout, recompute=word), model) for word in words]
            for place, layout in zip(places.tolist(), layouts, strict=True)
        ]
        known = [
            [
                question.lowering(layout).layers(layout, many=own and one and bool(many[place]))
                for one in by_word
            ]
            for place, layout, by_word in zip(places.tolist(), layouts, pairs, strict=True)
        ]
        order = LayerOrder(known[0][0].workload.order[1:-1])
        kept = Waiting(question.machine, Offloaded.of(grid.offload), len(order.names))
        part = question.runtime.recomputed_counts != "all"
        layers = np.array([
            [
                [_layer_figures(one.costs[name], word, kept, part) for name in order.kinds]
                for word, one in zip(words, by_word, strict=True)
            ]
            for by_word in known
        ])  # fmt: skip
        beside = [
            [question.lowering(layout).beside_bytes(by_word[0].costs[name], layout) for name in order.kinds]
            for layout, by_word in zip(layouts, known, strict=True)
        ]
        layers[..., WORK] += np.array(beside)[:, None]
        for slice_, (layout, by_word) in enumerate(zip(layouts, known, strict=True)):
            lowering = question.lowering(layout)
            exchanged = lowering.overlap_share, lowering.lost_processors
            for row, one in enumerate(by_word):
                if pairs[slice_][row] and (not own or "ep" in one.stack.overlap):
                    layers[slice_, row, :, HIDDEN] = np.transpose(
                        [_hidden_s(one.costs[name], *exchanged, own=own) for name in order.kinds]
                    )
        ends = np.array([
            [_end_figures(one.costs["embedding"], one.costs["head"]) for one in by_word] for by_word in known
        ])  # fmt: skip
        links = np.array([[by_word[0].costs[name].links_s for name in order.kinds] for by_word in known])
        if common != "nothing":
            layers, ends = _any_option(layers), ends.min(axis=1, keepdims=True)
        return cls(order, layers, ends, links, where, share)

    def layers_of(self, which: Ints, recompute: Ints) -> LayerFigures:
        """Layer costs, (N, K) each, for the layouts and recompute options at these indices, (N,) each."""
        found = LayerFigures(*np.moveaxis(self.layers[self.where[which], recompute], 2, 0))
        share = self.share[which][:, None]
        scaled = {name: share * getattr(found, name) for name in LayerFigures._fields[:8]}
        return found._replace(**scaled)

    def ends_of(self, which: Ints, recompute: Ints) -> EndFigures:
        """Costs of embedding and head, (N,) each, for the layouts and recompute options at these indices."""
        found = EndFigures(*self.ends[self.where[which], recompute].T)
        scaled = {name: self.share[which] * getattr(found, name) for name in EndFigures._fields[:6]}
        return found._replace(**scaled)

    def links_of(self, which: Ints) -> Floats:
        """Link time of collectives for the layouts at these indices, (N, K, 2, levels)."""
        found: Floats = self.share[which][:, None, None, None] * self.links[self.where[which]]
        return found

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
        weighed = np.stack([
            figures.forward_s,
            figures.backward_s,
            *figures.alone_s(),
            figures.stash_bytes,
            figures.work_bytes,
        ], axis=3)  # fmt: skip
        several = [place for place, word in enumerate(recomputes) if word != "full"]
        found = np.zeros((len(weighed), len(recomputes), len(recomputes)), np.bool_)
        for own in several:
            for other in several:
                ahead = (weighed[:, other] <= weighed[:, own]).all(axis=(1, 2))
                if other > own:
                    ahead &= (weighed[:, other] < weighed[:, own]).any(axis=(1, 2))
                found[:, own, other] = ahead & (other != own)
        return found


def _representatives(grid: LayoutGrid, places: Ints, whole: Bools) -> list[Layout]:
    """Layouts of one stage and one replica at these indices; those that take many queues shard gradients."""
    return [
        replace(grid.layout(place), pp=1, vp=1, dp=1, zero=2 if whole[place] else 0)
        for place in places.tolist()
    ]


def _prepare(question: PlanQuestion, layouts: Sequence[Layout]) -> None:
    for first in {layout.tp: layout for layout in layouts}.values():
        question.lowering(first).prepare([layout for layout in layouts if layout.tp == first.tp])


def _faster_in_many(
    question: PlanQuestion, grid: LayoutGrid, layouts: Sequence[Layout], where: Ints
) -> Bools:
    """Mask of the layouts that are faster in many hardware queues, as `Lowering.layers` decides, (N,)."""
    options = [question.lowering(layout).options(layout) for layout in layouts]
    longer_s, hidden_s = (
        np.array([getattr(one, name) for one in options])[where] for name in ("longer_s", "hidden_s")
    )
    count = grid.microbatches(question.task.global_batch)
    found: Bools = np.maximum(1.0 - grid.pp / count, 0.0) * hidden_s > longer_s
    return found


def _hidden_s(layer: LayerCost, share: float, lost: float, *, own: bool) -> Floats:
    """Time of a layer's two passes that overlaps with another microbatch's passes, in seconds, (2,).

    If the microbatch size is not a layout's own, these are all exchanges of experts, because the passes that
    they overlap with need not grow with them.
    """
    return layer.hidden_s(share, lost) if own else share * layer.exchanges_s.sum(axis=1)


def _layer_figures(layer: LayerCost, recompute: Recompute, kept: Waiting, part: bool) -> tuple[float, ...]:
    chosen = part and recompute == "full"  # as many layers as needed; else all of them
    every = recompute != "none" and not chosen
    again_s = float(layer.again_s(recompute).sum())
    own_bytes, work_bytes = kept.bytes(layer, recompute)
    stays, work_bytes = kept.bytes(layer, "none") if chosen else (own_bytes, work_bytes)
    saved = stays - own_bytes if chosen else 0.0
    waited_s = kept.seconds(layer, recompute)
    return (
        float(layer.forward_s.sum()) + waited_s[0],
        float(layer.backward_s.sum()) + again_s * every + waited_s[1],
        again_s * chosen,
        0.0,
        0.0,
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
    found: Floats = layers.min(axis=1, keepdims=True)
    found[..., HIDDEN] = layers[..., HIDDEN].max(axis=1, keepdims=True)
    takes = layers[..., at["forward_s"]] + layers[..., at["backward_s"]]
    stays = layers[..., at["stash_bytes"]]
    fastest = takes.min(axis=1, keepdims=True)
    most = np.where(takes <= fastest, stays, np.inf).min(axis=1, keepdims=True)
    takes = np.concatenate([takes, takes + layers[..., at["again_s"]]], axis=1)
    stays = np.concatenate([stays, stays - layers[..., at["saved_bytes"]]], axis=1)
    saved = np.maximum(most - stays, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(saved > 0, (takes - fastest) / saved, np.inf).min(axis=1)
    found[:, 0, :, at["stash_bytes"]] = most[:, 0]
    found[:, 0, :, at["saved_bytes"]] = saved.max(axis=1)
    rate[np.isinf(rate)] = 0.0  # for layers with no bytes to save
    found[:, 0, :, at["again_s"]] = rate * saved.max(axis=1) * (1 - ROUNDING)
    return found


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
    found: Ints = order[np.sort(distinct_rows(kinds)[1])]
    return found


def _numbered(values: Ints) -> tuple[Ints, Ints]:
    """Distinct values in ascending order, and the index of each value among them."""
    most = int(values.max(initial=0))
    if most > MOST_TABLED * max(len(values), 1):
        found, place = np.unique(values, return_inverse=True)
        return found, place
    there = np.zeros(most + 1, np.bool_)
    there[values] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[values]
