"""What a slice of a layout takes: its layers by kind under all that may run forward again, and its ends.

Slices depend on few fields of a layout, so that all layouts share them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.layout import ON_DEVICE, Offloaded, Recompute
from phaze.plan.layouts.divisions import LayerOrder
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.lowered import LayerCost, host_bytes_per_s
from phaze.plan.plan import Machine
from phaze.runtimes.grid import LayoutGrid

FIELDS = ("tp", "cp", "cp_kind", "ep", "etp", "microbatch", "sequence_parallel")
"""Fields of a layout that its slices depend on."""


class LayerFigures(NamedTuple):
    """Figures of one slice: of layers by kind, (N, K) each."""

    forward_s: Floats
    backward_s: Floats
    again_s: Floats
    """Of a layer that runs forward again."""
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


class EndFigures(NamedTuple):
    """Figures of one slice: of the embedding (first) and the head (last), (N,) each."""

    first_s: Floats
    first_forward_s: Floats
    last_s: Floats
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
    """Figures of all slices S of a grid of layouts, under its R words for what runs forward again."""

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

    @classmethod
    def of(cls, question: PlanQuestion, grid: LayoutGrid) -> Self:
        """Slices of a grid, costed together."""
        _, places, where = distinct_rows(np.stack([getattr(grid, name) for name in FIELDS], axis=1))
        layouts = [replace(grid.layout(place), pp=1, vp=1, dp=1, zero=0) for place in places.tolist()]
        for first in {layout.tp: layout for layout in layouts}.values():
            question.lowering(first).prepare([layout for layout in layouts if layout.tp == first.tp])
        known = [question.lowering(layout).layers(layout) for layout in layouts]
        order = LayerOrder(known[0][0].order[1:-1])
        kept = Waiting(question.machine, Offloaded.of(grid.offload), len(order.names))
        layers = np.array([
            [[_layer_figures(costs[name], word, kept) for name in order.kinds] for word in grid.recomputes]
            for _, costs in known
        ])  # fmt: skip
        work = np.array([
            [[kept.bytes(costs[name], word)[1] for name in order.kinds] for word in grid.recomputes]
            for _, costs in known
        ])  # fmt: skip
        ends = np.array([_end_figures(costs["embedding"], costs["head"]) for _, costs in known])
        links = np.array([[costs[name].links_s for name in order.kinds] for _, costs in known])
        return cls(order, layers, ends, work, links, where)

    def dominated(self, grid: LayoutGrid) -> Bools:
        """Layouts beside which another word of the grid takes no longer and keeps no more of any layer, (N,).

        Whole layers are left out, of which as many may run forward again as it takes.
        """
        words = [word for word in np.unique(grid.recompute).tolist() if grid.recomputes[word] != "full"]
        names = LayerFigures._fields
        weighed = [self.layers[..., names.index(name)] for name in ("forward_s", "backward_s", "stash_bytes")]
        found = np.zeros(self.layers.shape[:2], np.bool_)
        for own in words:
            for other in words:
                ahead = [each[:, other] <= each[:, own] for each in (*weighed, self.work)]
                better = np.all(ahead, axis=(0, 2))
                same = np.all([each[:, other] == each[:, own] for each in (*weighed, self.work)], axis=(0, 2))
                found[:, own] |= better & (~same | (other < own))
        dominated: Bools = found[self.where, grid.recompute]
        return dominated


def _layer_figures(layer: LayerCost, recompute: Recompute, kept: Waiting) -> tuple[float, ...]:
    every = recompute not in ("none", "full")  # all layers do; with full recomputation as many as it takes
    again_s = float(layer.again_s(recompute).sum())
    stays = kept.bytes(layer, recompute if every else "none")[0]
    saved = stays - kept.bytes(layer, "full")[0] if recompute == "full" else 0.0
    waited_s = kept.seconds(layer, recompute)
    return (
        float(layer.forward_s.sum()) + waited_s[0],
        float(layer.backward_s.sum()) + again_s * every + waited_s[1],
        again_s * (recompute == "full"),
        stays,
        saved,
        float(layer.layer.trained - layer.layer.groups.get("expert", 0)),
        float(layer.layer.frozen),
        float(layer.layer.groups.get("expert", 0)),
    )


def _end_figures(first: LayerCost, last: LayerCost) -> tuple[float, ...]:
    return (
        float((first.forward_s + first.backward_s).sum()),
        float(first.forward_s.sum()),
        float((last.forward_s + last.backward_s).sum()),
        first.kept_bytes("none")[0],
        last.kept_bytes("none")[0],
        float(first.layer.trained),
        float(last.layer.trained),
        float(first.layer.frozen),
        float(last.layer.frozen),
    )


def distinct_rows(rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Rows that differ, the place of the first of each, and which of them every row is, (N, C) whole numbers
    >= 0; as `np.unique`, but many times as fast, by one number for each row.
    """
    number = np.zeros(len(rows), np.int64)
    for column in rows.T:
        values, place = np.unique(column, return_inverse=True)
        number = number * len(values) + place
    _, first, where = np.unique(number, return_index=True, return_inverse=True)
    return rows[first], first, where
