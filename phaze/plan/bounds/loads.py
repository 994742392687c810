"""Lower bounds on the seconds and bytes of a layout's layers and ends, as terms of the price.

Each is the term of a plan's price (`plan/terms`) for one layer of a kind, with the most favourable value of
what only a pipeline split decides: a stage has so many equal operators that the first and the last one take
no time, and collectives have no fixed time.

Replica collectives overlap with layer passes, so a stage takes the longer of its passes and its exchanges on
the links. A maximum of sums may be smaller than the sum of maxima: experts that wait for their weights
overlap with layers that do not. All layers of a layout and its ends are therefore bounded by the same side:
passes, exchanges, or traffic on one level of the network (`pass_sides_s`). Each side bounds every stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.units import GIB
from phaze.layout import SHARED_OPTIONS, Group, Layout
from phaze.pipeline.schedules import SCHEDULES
from phaze.plan.bounds.shards import EndFigures, LayerFigures, ShardCosts, distinct_rows
from phaze.plan.question import PlanQuestion
from phaze.plan.terms.exchange import Exchange, collectives, in_passes, per_step
from phaze.plan.terms.overlap import (
    gathered_after_s,
    longer_s,
    lost_share,
    paired_share,
    pass_sides_s,
    slowdown_s,
    waits_s,
)
from phaze.plan.terms.state import StateTerms
from phaze.runtimes.grid import LayoutGrid

ENDLESS = 2.0**50
"""Collective size in bytes at which fixed time and the choice of algorithm no longer matter."""
ROUNDING = 1e-9
"""Relative tolerance for equal bandwidths."""
PASSES = 2
"""Number of the first sides of a pass (`pass_sides_s`) that its kernels decide."""


EXCHANGES: tuple[Exchange, ...] = ("all_gather", "reduce_scatter")
"""Exchanges of weights and of gradients if replicas shard their states."""


@dataclass(frozen=True, eq=False)
class LayoutLoads:
    """Lower bounds on the work of layers by kind, (N, K), and of the embedding and the head, (N,).

    Passes are per microbatch, all other work is per step.
    """

    question: PlanQuestion
    grid: LayoutGrid
    layers: LayerFigures
    ends: EndFigures
    links_s: Floats
    """Link time of the collectives in both passes of a layer, (N, K, 2, levels)."""
    totals: Ints
    """Number of layers of each kind, (K,)."""

    @classmethod
    def of(cls, question: PlanQuestion, grid: LayoutGrid, shard_costs: ShardCosts, which: Ints) -> Self:
        """Loads of layouts, which have the indices `which` in the grid of the shards."""
        layers = shard_costs.layers_of(which, grid.recompute)
        ends = shard_costs.ends_of(which, grid.recompute)
        return cls(question, grid, layers, ends, shard_costs.links_of(which), shard_costs.order.before[-1])

    @cached_property
    def microbatches(self) -> Floats:
        """Number of microbatches per step, (N,)."""
        return self.grid.microbatches(self.question.task.global_batch).astype(float)

    @cached_property
    def splits(self) -> Bools:
        """True for schedules that defer weight gradients, (N,)."""
        return np.array([SCHEDULES[name].splits for name in self.grid.schedules])[self.grid.schedule]

    @cached_property
    def _passes_s(self) -> tuple[Floats, Floats]:
        """Forward and backward time of a layer without exchanges of replicas, (N, K) each."""
        pp, count = self.grid.pp.astype(float), self.microbatches
        forward_s, backward_s = self.layers.alone_s(paired_share(pp, count)[:, None])
        accumulation_s = self._trained(
            lambda parameters, zero, shards: self._state.accumulation_s(
                parameters, zero, shards, count[:, None]
            )
        )
        return forward_s, backward_s + accumulation_s

    @cached_property
    def _idle_s(self) -> tuple[Floats, Floats]:
        """Time that the device waits for the host in a layer's forward and backward pass, (N, K) each."""
        layers = self.layers
        return layers.forward_s - layers.busy_forward_s, layers.backward_s - layers.busy_backward_s

    @cached_property
    def _most_idle_s(self) -> tuple[Floats, Floats]:
        """Upper bounds on the idle time of a stage, forward and backward, (N, 1): 0 or inf.

        Only slowdowns once per step use them, which are small: they count if no layer waits for the host.
        """
        forward, backward = (
            np.where(np.any((idle_s > 0) & (self.totals > 0), axis=1, keepdims=True), np.inf, 0.0)
            for idle_s in self._idle_s
        )
        return forward, backward

    @cached_property
    def _forward(self) -> tuple[Floats, Bools]:
        ends_s = self.ends.first_forward_s + self.ends.last_forward_s
        gather_s = self._exchange_s["all_gather"] * self._occurs(in_passes, "all_gather")
        return self._with_exchanges(0, gather_s, self.links_s[:, :, 0], ends_s)

    @cached_property
    def _backward(self) -> tuple[Floats, Bools]:
        # The ends count if passes bound the layers; otherwise their recompute overlaps with exchanges too.
        ends = self.ends
        ends_s = ends.first_s - ends.first_forward_s + ends.last_s - ends.last_forward_s
        exchanges = [self._exchange_s[kind] * self._occurs(in_passes, kind) for kind in EXCHANGES]
        # Weight gradients that are computed apart send nothing.
        links_s = self.links_s[:, :, 1] * ~self.splits[:, None, None]
        return self._with_exchanges(1, exchanges[0] + exchanges[1], links_s, ends_s)

    @property
    def forward_s(self) -> Floats:
        """Time of a layer's forward pass, (N, K)."""
        return self._forward[0]

    @property
    def backward_s(self) -> Floats:
        """Time of a layer's backward pass, (N, K)."""
        return self._backward[0]

    @cached_property
    def recompute_s(self) -> Floats:
        """Recompute time of a layer per microbatch, for stages that may choose what to recompute, (N, K)."""
        return self.layers.recompute_s * self._backward[1][:, None]

    @cached_property
    def first_s(self) -> tuple[Floats, Floats]:
        """Time of the forward and of the backward pass of the embedding, (N,) each."""
        return self._end_s(self.ends.first_s, self.ends.first_forward_s, self.ends.first_parameters)

    @cached_property
    def last_s(self) -> tuple[Floats, Floats]:
        """Time of the forward and of the backward pass of the head, (N,) each."""
        return self._end_s(self.ends.last_s, self.ends.last_forward_s, self.ends.last_parameters)

    @cached_property
    def update_s(self) -> Floats:
        """Time of a layer's weight update, and of its exchanges that passes do not cover, (N, K)."""
        share, state = self._share, self._state
        moved_bytes: Floats = self._trained(state.update_bytes)
        update_s = moved_bytes / state.hbm_bytes_per_s + self._gathered[0]
        if not share:
            return update_s
        reduce_s = self._once_s("reduce_scatter")
        late_s = reduce_s - share * reduce_s
        slowed_s = slowdown_s(share * reduce_s, self._passes_s[1], self._lost, idle_s=self._most_idle_s[1])
        return update_s + late_s + slowed_s

    @property
    def start_s(self) -> Floats:
        """Fixed time that every rank needs after its updates, (N,)."""
        return self._gathered[1]

    @cached_property
    def ahead_s(self) -> tuple[Floats, Floats]:
        """Gather time per step that overlaps with the forward passes of the embedding and of the head."""
        covered = self._gathered[2]
        return covered * self.first_s[0], covered * self.last_s[0]

    @cached_property
    def fixed_bytes(self) -> Floats:
        """Bytes of the model state of a layer, (N, K)."""
        frozen = self._state.frozen_bytes(self.layers.frozen, self._zero, self._shards)
        fixed_bytes: Floats = self._trained(self._state_bytes) + frozen
        return fixed_bytes

    @cached_property
    def bytes_each(self) -> Floats:
        """Bytes of a layer: static, stored per microbatch, saved per microbatch by recompute, (N, K, 3)."""
        return np.stack([self.fixed_bytes, self.layers.stash_bytes, self.layers.saved_bytes], axis=2)

    @cached_property
    def end_bytes(self) -> tuple[Floats, Floats]:
        """Bytes of the embedding and of the head at their ranks' memory peaks, at least, (N,) each."""
        ends = self.ends
        return (
            self._end_bytes(ends.first_parameters, ends.first_frozen, ends.first_bytes),
            self._end_bytes(ends.last_parameters, ends.last_frozen, ends.last_bytes),
        )

    def _end_s(self, passes_s: Floats, forward_s: Floats, parameters: Floats) -> tuple[Floats, Floats]:
        """Forward and backward time of an end; 0 where layers are bounded by exchanges, (N,) each."""
        zero, shards = self._zero[:, 0], self._shards[:, 0]
        added_s = self._state.accumulation_s(parameters, zero, shards, self.microbatches)
        return forward_s * self._forward[1], (passes_s + added_s - forward_s) * self._backward[1]

    def _end_bytes(self, parameters: Floats, frozen: Floats, stash_bytes: Floats) -> Floats:
        zero, shards = self._zero[:, 0], self._shards[:, 0]
        alone = self.grid.vp == 1  # a rank with other stages may have no microbatch in its end at its peak
        states_bytes = self._state_bytes(parameters, zero, shards)
        frozen_bytes = self._state.frozen_bytes(frozen, zero, shards)
        end_bytes: Floats = states_bytes + frozen_bytes + stash_bytes * alone
        return end_bytes

    @property
    def _share(self) -> float:
        return self.question.machine.stack.overlap_share("dp")

    @property
    def _lost(self) -> float:
        return lost_share(self.question.machine)

    @cached_property
    def _state(self) -> StateTerms:
        layout = Layout(**{name: getattr(self.grid, name) for name in SHARED_OPTIONS})
        return self.question.lowering(layout).state(layout)

    @cached_property
    def _zero(self) -> Floats:
        return self.grid.zero.astype(float)[:, None]

    @cached_property
    def _shards(self) -> Floats:
        return self.grid.shards.astype(float)[:, None]

    def _trained(self, term: Callable[[Floats, Floats, Floats], Floats]) -> Floats:
        """A term of model state for a layer's dense and expert parameters together, (N, K)."""
        expert_shards = self.grid.expert_shards.astype(float)[:, None]
        dense: Floats = term(self.layers.dense, self._zero, self._shards)
        return dense + term(self.layers.experts, self._zero, expert_shards)

    def _state_bytes(self, parameters: Floats, zero: Floats, shards: Floats) -> Floats:
        return self._state.device_bytes(parameters, zero, shards, pipelined=False)

    def _occurs(self, rule: Callable[[Exchange, Ints], Ints], kind: Exchange) -> Ints:
        return rule(kind, self.grid.zero)[:, None, None]

    def _once_s(self, kind: Exchange) -> Floats:
        """Time of a layer's exchange that occurs once per step, (N, K)."""
        exchange_s: Floats = (self._exchange_s[kind] * self._occurs(per_step, kind)).sum(axis=2)
        return exchange_s

    @cached_property
    def _gathered(self) -> tuple[Floats, Floats, Floats]:
        """Exposed time to gather updated weights once per step, in seconds.

        The values are per layer (N, K), and fixed (N,): each chunk but one starts a collective. The third is
        1 if the passes of the ends also overlap with the gather, (N,). A layer's forward pass covers its own
        weights only if all layers are gathered longer than they compute: otherwise the rest of one layer
        overlaps with another layer.
        """
        grid, share, gather_s = self.grid, self._share, self._once_s("all_gather")
        fixed_s = collective_s(self.question, "all_gather", self._shards[:, 0], grid.tp.astype(float))[0]
        start_s = fixed_s * per_step("all_gather", grid.zero) * (grid.vp - 1)
        exposed: Bools = np.all(share * gather_s > self.layers.forward_s, axis=1)
        free_s = np.where(exposed[:, None], self.layers.forward_s, np.inf)
        each_s = gathered_after_s(gather_s, free_s, share=share, lost=self._lost, idle_s=self._most_idle_s[0])
        if not share:
            return each_s, start_s, np.zeros(len(grid))
        return each_s, start_s * exposed, exposed.astype(float)

    @cached_property
    def _exchange_s(self) -> dict[Exchange, Floats]:
        """Link time of a layer's weight all-gather and gradient reduce-scatter, (N, K, levels) each.

        Both occur from ZeRO 1 on. The fixed time of a collective is left out.
        """
        size = self._state.size
        widths = (size.weights, size.gradients)
        return {kind: self._exchanged_s(kind, width) for kind, width in zip(EXCHANGES, widths, strict=True)}

    def _exchanged_s(self, kind: Exchange, width: int) -> Floats:
        grid, layers = self.grid, self.layers
        total_s = np.zeros((1, 1, 1))
        for parameters, *columns in (
            (layers.dense, grid.sharers, grid.shards, grid.tp),
            (layers.experts, grid.edp, grid.expert_shards, grid.expert_stride),
        ):
            sharded_bytes = width * parameters * (self._zero >= 1)
            groups = tuple(column.astype(float)[:, None] for column in columns)
            for name, nbytes, ranks, apart in collectives(kind, sharded_bytes, *groups):
                byte_s = collective_s(self.question, name, ranks[:, 0], apart[:, 0])[1]
                total_s = total_s + nbytes[:, :, None] * byte_s[:, None]
        return total_s

    def _with_exchanges(
        self, direction: Literal[0, 1], exchange_s: Floats, links_s: Floats, ends_s: Floats
    ) -> tuple[Floats, Bools]:
        """Time of a pass with its replica collectives, (N, K), and whether the pass is the bottleneck, (N,).

        The pass is forward (0) or backward (1). A share of the exchanges overlaps with it, on links that
        also carry the pass's own collectives; both are (N, K, levels). The seconds of the ends, (N,), count
        only if passes bound the layout. The bounding side is the one with the longest total over all layers
        and the ends.
        """
        levels_s = self._share * exchange_s
        sent_s = levels_s.sum(axis=2)
        waits = list(np.moveaxis(waits_s(levels_s, links_s), 2, 0))
        lost_s = longer_s(self._lost, sent_s, 0.0) - self._idle_s[direction]
        sides_s = np.stack(pass_sides_s(self._passes_s[direction], lost_s, sent_s, waits), axis=2)
        stage_s = np.einsum("nks,k->ns", sides_s, self.totals)
        stage_s[:, :PASSES] += ends_s[:, None]
        side = np.argmax(stage_s, axis=1)
        exposed_s = (exchange_s - levels_s).sum(axis=2)
        time_s: Floats = exposed_s + np.take_along_axis(sides_s, side[:, None, None], axis=2)[:, :, 0]
        return time_s, side < PASSES


def collective_s(
    question: PlanQuestion, kind: Exchange, ranks: Floats, stride: Floats
) -> tuple[Floats, Floats]:
    """Fixed time of collectives, (N,), and time per byte on the links of each level, (N, levels).

    Groups have `ranks` members, `stride` devices apart. Together both are a lower bound: a collective takes
    the fastest of several algorithms, each with a time linear in size. Empty collectives show the smallest
    fixed time, very large ones the smallest time per byte.
    """
    network = question.machine.network
    distinct, _, where = distinct_rows(np.stack([ranks, stride], axis=1).astype(np.int64))
    groups = [Group(*row) for row in distinct.tolist()]
    start_s = np.array([network.seconds(kind, 0.0, group) for group in groups])
    nothing, many, most, twice = (
        np.array([network.by_level(kind, nbytes, group) for group in groups])
        for nbytes in (0.0, GIB, ENDLESS, 2.0 * ENDLESS)
    )
    byte_s, least_s = (many - nothing) / GIB, (twice - most) / ENDLESS
    concave = least_s < byte_s * (1.0 - ROUNDING)
    return start_s[where], np.where(concave, least_s, byte_s)[where]
