"""What a slice of a layout takes: its layers by kind under all that may run forward again, and its ends.

Slices depend on few fields of a layout, so that all layouts share them. Slices that differ in the microbatch
alone have a common bound, as a microbatch that is k times as large takes at most k times as long: products
fill their waves no worse, and what starts a kernel or a message is there once. It keeps k times the bytes.
Tokens that context parallelism deals out are so many fewer, but for the exchanges between its ranks. Of all
that may run forward again, a layer takes no less than the fastest and keeps no less than the leanest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.layout import ON_DEVICE, Offloaded, Recompute, pairs_passes
from phaze.plan.layouts.divisions import LayerOrder
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.lowered import LayerCost
from phaze.plan.machines import host_bytes_per_s
from phaze.plan.plan import Machine
from phaze.runtimes.grid import LayoutGrid

FIELDS = ("tp", "cp", "cp_kind", "ep", "etp", "microbatch", "sequence_parallel")
"""Fields of a layout that its slices depend on."""

Common = Literal["nothing", "microbatch", "tokens"]
"""What layouts have in common that share a slice, whose figures are bounds of theirs: all that matters; that
but the microbatch; or but the tokens of a rank, and what runs forward again."""

MOST_TABLED = 16
"""Size of a table of numbers over how many there are, beyond which sorting them is faster."""


class LayerFigures(NamedTuple):
    """Figures of one slice: of layers by kind, (N, K) each."""

    forward_s: Floats
    backward_s: Floats
    again_s: Floats
    """Of a layer that runs forward again."""
    hidden_forward_s: Floats
    """Of the forward pass what hides behind the backward pass of another microbatch, at most."""
    hidden_backward_s: Floats
    """The same the other way round."""
    stash_bytes: Floats
    """Kept by a layer of a microbatch."""
    saved_bytes: Floats
    """Less by one that runs forward again."""
    dense: Floats
    """Parameters that are trained, those of experts aside."""
    frozen: Floats
    """Parameters that are not."""
    experts: Floats
    """Parameters of experts."""


HIDDEN = [LayerFigures._fields.index(name) for name in ("hidden_forward_s", "hidden_backward_s")]


class EndFigures(NamedTuple):
    """Figures of one slice: of the embedding (first) and the head (last), (N,) each."""

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
    """What layers keep, and for how long their passes wait, where activations wait in the host's memory."""

    machine: Machine
    offloaded: Offloaded
    blocks: int
    """Blocks of a device of which some keep nothing."""

    def bytes(self, layer: LayerCost, recompute: Recompute) -> tuple[float, float]:
        """Bytes kept of a microbatch, and held while a layer is at work."""
        return layer.kept_bytes(recompute, self.offloaded, self.blocks)

    def seconds(self, layer: LayerCost, recompute: Recompute) -> tuple[float, float]:
        """Seconds by which the forward and the backward pass of a layer are longer."""
        if self.offloaded == ON_DEVICE:
            return 0.0, 0.0
        return layer.waited_s(recompute, self.offloaded, self.blocks, host_bytes_per_s(self.machine))


@dataclass(frozen=True, eq=False)
class Slices:
    """Figures of all slices S of a grid of layouts, under its R words for what runs forward again, or of one
    that bounds them all.
    """

    order: LayerOrder
    """Order of the layers."""
    layers: Floats
    """`LayerFigures`, (S, R, K, figures)."""
    ends: Floats
    """`EndFigures`, (S, figures)."""
    work: Floats
    """Bytes that a layer makes again while it is at work, (S, R, K)."""
    links: Floats
    """Seconds for which collectives of both passes of a layer are on links, (S, K, 2, levels)."""
    where: Ints
    """Slice of every layout, (N,)."""
    share: Floats
    """Microbatch of every layout over that of its slice, (N,)."""

    @classmethod
    def of(cls, question: PlanQuestion, grid: LayoutGrid, common: Common = "nothing") -> Self:
        """Slices of a grid, costed together, with what is told in common: of all microbatches a multiple, of
        tokens those of one rank.
        """
        tokens = 1 / grid.cp if common == "tokens" else 1.0
        if common == "tokens":
            grid = replace(grid, cp=np.ones_like(grid.cp), cp_kind=np.zeros_like(grid.cp_kind))
        every = int(np.lcm.reduce(grid.microbatch))
        microbatch = grid.microbatch if common == "nothing" else np.full(len(grid), every)
        grid, share = replace(grid, microbatch=microbatch), tokens * grid.microbatch / microbatch
        paired = np.full(len(grid), "ep" in question.machine.stack.overlap) & ((grid.pp == 1) | (grid.vp > 1))
        columns = [*(getattr(grid, name) for name in FIELDS), paired.astype(np.int64)]
        _, places, where = distinct_rows(np.stack(columns, axis=1))
        layouts = [replace(grid.layout(place), pp=1, vp=1, dp=1, zero=0) for place in places.tolist()]
        for first in {layout.tp: layout for layout in layouts}.values():
            question.lowering(first).prepare([layout for layout in layouts if layout.tp == first.tp])
        known = [question.lowering(layout).layers(layout) for layout in layouts]
        order = LayerOrder(known[0][0].order[1:-1])
        kept = Waiting(question.machine, Offloaded.of(grid.offload), len(order.names))
        part, words = question.runtime.recomputes_part, grid.recomputes
        layers = np.array([
            [[_layer_figures(costs[name], word, kept, part) for name in order.kinds] for word in words]
            for _, costs in known
        ])  # fmt: skip
        mtp = question.task.model.mtp
        for slice_, (place, layout, (_, costs)) in enumerate(
            zip(places.tolist(), layouts, known, strict=True)
        ):
            lowering = question.lowering(layout)
            exchanged = lowering.overlap_share, lowering.lost_processors
            for row, word in enumerate(grid.recomputes):
                if paired[place] and pairs_passes(replace(layout, recompute=word), mtp):
                    layers[slice_, row, :, HIDDEN] = np.transpose(
                        [_hidden_s(costs[name], *exchanged, common) for name in order.kinds]
                    )
        work = np.array([
            [[kept.bytes(costs[name], word)[1] for name in order.kinds] for word in words]
            for _, costs in known
        ])  # fmt: skip
        ends = np.array([_end_figures(costs["embedding"], costs["head"]) for _, costs in known])
        links = np.array([[costs[name].links_s for name in order.kinds] for _, costs in known])
        if common == "tokens":
            layers, work = _leanest(layers, grid), work.min(axis=1, keepdims=True)
        return cls(order, layers, ends, work, links, where, share)

    def layers_of(self, which: Ints, recompute: Ints) -> LayerFigures:
        """Figures of the layers of layouts at places of the grid, with these words (N,), (N, K) each."""
        found = LayerFigures(*np.moveaxis(self.layers[self.where[which], recompute], 2, 0))
        share = self.share[which][:, None]
        scaled = {name: share * getattr(found, name) for name in LayerFigures._fields[:7]}
        return found._replace(**scaled)

    def ends_of(self, which: Ints) -> EndFigures:
        """Figures of the ends of layouts at places of the grid, (N,) each."""
        found = EndFigures(*self.ends[self.where[which]].T)
        scaled = {name: self.share[which] * getattr(found, name) for name in EndFigures._fields[:6]}
        return found._replace(**scaled)

    def links_of(self, which: Ints) -> Floats:
        """Seconds for which collectives are on links, (N, K, 2, levels)."""
        found: Floats = self.share[which][:, None, None, None] * self.links[self.where[which]]
        return found

    def dominated(self, grid: LayoutGrid) -> Bools:
        """Layouts beside which another word of the grid takes no longer, whatever share of microbatches hides
        exchanges, and keeps no more of any layer, (N,).

        Whole layers are left out, of which as many may run forward again as it takes.
        """
        words = [word for word in np.unique(grid.recompute).tolist() if grid.recomputes[word] != "full"]
        figures = LayerFigures(*np.moveaxis(self.layers, 3, 0))
        weighed = [
            figures.forward_s,
            figures.backward_s,
            figures.forward_s - figures.hidden_forward_s,
            figures.backward_s - figures.hidden_backward_s,
            figures.stash_bytes,
        ]
        found = np.zeros(self.layers.shape[:2], np.bool_)
        for own in words:
            for other in words:
                ahead = [each[:, other] <= each[:, own] for each in (*weighed, self.work)]
                better = np.all(ahead, axis=(0, 2))
                same = np.all([each[:, other] == each[:, own] for each in (*weighed, self.work)], axis=(0, 2))
                found[:, own] |= better & (~same | (other < own))
        dominated: Bools = found[self.where, grid.recompute]
        return dominated


def _hidden_s(layer: LayerCost, share: float, lost: float, common: Common) -> Floats:
    """Seconds of both passes of a layer that hide behind those of another microbatch, (2,); all exchanges
    of experts where they are told in common, as what they hide behind need not grow with them.
    """
    return layer.hidden_s(share, lost) if common == "nothing" else share * layer.exchanges_s.sum(axis=1)


def _layer_figures(layer: LayerCost, recompute: Recompute, kept: Waiting, part: bool) -> tuple[float, ...]:
    chosen = part and recompute == "full"  # as many layers as it takes; else all do
    every = recompute != "none" and not chosen
    again_s = float(layer.again_s(recompute).sum())
    stays = kept.bytes(layer, recompute if every else "none")[0]
    saved = stays - kept.bytes(layer, "full")[0] if chosen else 0.0
    waited_s = kept.seconds(layer, recompute)
    return (
        float(layer.forward_s.sum()) + waited_s[0],
        float(layer.backward_s.sum()) + again_s * every + waited_s[1],
        again_s * chosen,
        0.0,
        0.0,
        stays,
        saved,
        float(layer.layer.trained - layer.layer.groups.get("expert", 0)),
        float(layer.layer.frozen),
        float(layer.layer.groups.get("expert", 0)),
    )


def _leanest(layers: Floats, grid: LayoutGrid) -> Floats:
    """Figures (S, 1, K, figures) of layers that are as fast and keep as little as under any word (S, R, K,
    figures), and may run forward again as whole ones where a word says so.
    """
    again, stash, saved = (
        LayerFigures._fields.index(name) for name in ("again_s", "stash_bytes", "saved_bytes")
    )
    found: Floats = layers.min(axis=1, keepdims=True)
    found[..., HIDDEN] = layers[..., HIDDEN].max(axis=1, keepdims=True)
    if "full" in grid.recomputes:
        full = grid.recomputes.index("full")
        found[:, 0, :, again] = layers[:, full, :, again]
        kept = layers[:, full, :, stash] - layers[:, full, :, saved]
        found[:, 0, :, saved] = np.maximum(found[:, 0, :, stash] - kept, 0.0)
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
    """Rows that differ, the place of the first of each, and which of them every row is, (N, C) whole numbers
    >= 0; as `np.unique`, but many times as fast, as numbers are looked up in tables.
    """
    where = np.zeros(len(rows), np.int64)
    for column in rows.T:
        values, place = _numbered(column)
        _, where = _numbered(where * len(values) + place)
    first = np.empty(int(where.max(initial=-1)) + 1, np.int64)
    first[where[::-1]] = np.arange(len(rows))[::-1]
    return rows[first], first, where


def _numbered(values: Ints) -> tuple[Ints, Ints]:
    """Values that differ, in order, and the place of each among them."""
    most = int(values.max(initial=0))
    if most > MOST_TABLED * max(len(values), 1):
        found, place = np.unique(values, return_inverse=True)
        return found, place
    there = np.zeros(most + 1, np.bool_)
    there[values] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[values]
