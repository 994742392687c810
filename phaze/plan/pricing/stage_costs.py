"""Costs of a plan's pipeline stages on a machine, as inputs of the pipeline simulation.

Layers have their seconds and bytes. This module adds the network time of tensors between stages, and the
sharding of gradients, weights and optimizer states by ZeRO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import ceil
from typing import Literal

import numpy as np

from phaze.layout import Group, Layout
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.schedules import SCHEDULES
from phaze.pipeline.stages import StageCost
from phaze.plan.plan import Execution, Machine, Plan, Stage
from phaze.plan.terms.exchange import Exchange, collectives, in_passes, per_step
from phaze.plan.terms.overlap import (
    exchanged_pass_s,
    gathered_after_s,
    longer_s,
    lost_share,
    lost_to_messages,
    moved_s,
    slowdown_s,
    waits_s,
)

MATRICES = 4
"""Number of matrices of a block, which buckets do not split: two in attention, two in feed-forward."""
TENSORS = 7
"""Number of weight tensors of a gated block, each on one rank if ranks own whole tensors: queries, keys and
values in one, output, three in feed-forward, two norms."""


def pipeline_of(plan: Plan, machine: Machine, costs: Sequence[StageCost] | None = None) -> Pipeline:
    """Build a plan's pipeline for simulation; stage costs are computed unless they are given."""
    groups = [stage.layout for stage in plan.stages[: plan.depth]]
    if costs is None:
        costs = _stage_costs(plan, machine)
    return Pipeline(
        tuple(costs),
        plan.microbatches,
        plan.schedule,
        chunks=plan.layout.vp,
        data=plan.data,
        tensor=tuple(layout.tp * layout.cp for layout in groups),
        transfers=plan.execution.transfers,
        exposed_transfers=plan.execution.exposed_transfers,
        overlap_sync=plan.execution.overlap_sync > 0,
        early_recompute=plan.execution.early_recompute,
    )


def _stage_costs(plan: Plan, machine: Machine) -> list[StageCost]:
    """Costs of all stages of a plan; stages that differ only by their places are computed once."""
    by_key: dict[tuple[Stage, float, float, int], StageCost] = {}
    costs, streams = [], SCHEDULES[plan.schedule].streams
    for q, stage in enumerate(plan.stages):
        # Beyond its content the cost of a stage depends on its neighbours' messages, on whether it is the
        # first one, and on the distance of its copy in schedules where microbatches enter at both ends.
        first = min(stage.first_layer, 1)
        moved = replace(stage, first_layer=first, last_layer=first + stage.layers - 1)
        key = moved, *_messages_bytes(plan, q), q if streams > 1 else 0
        if key not in by_key:
            by_key[key] = stage_cost(plan, machine, q)
        costs.append(by_key[key])
    return costs


def stage_cost(plan: Plan, machine: Machine, q: int) -> StageCost:
    """Times and bytes of the q-th stage of a plan, including communication with its neighbours."""
    stage, zero = plan.stages[q], plan.stages[q].layout.zero
    splits = SCHEDULES[plan.schedule].splits
    passes_s = [*stage.passes_s]
    share, lost = plan.execution.overlap_sync, lost_share(machine)
    after_s = 0.0
    if per_step("all_gather", zero):
        gather_share = 0.0 if machine.stack.zero_1 == "broadcast" and zero == 1 else share
        gathered_s = gathered_after_s(
            _exchange_s(stage, machine, "all_gather"),
            passes_s[0] - _wait_s(stage, machine, ("all_gather",), 0, gather_share),
            share=gather_share,
            lost=lost,
            waited_s=gather_share * _waited_s(stage, machine, "all_gather"),
            idle_s=stage.idle_s[0],
            operators=_overlapped_parts(stage, machine),
        )
        after_s = float(gathered_s)
    activation_s, gradient_s = _passed_on_s(plan, machine, q)
    sync_s, late_s = _sync_s(plan, machine, q, passes_s[1] + passes_s[2])
    # A message takes two SMs, which slows the concurrent pass of its sender.
    if plan.execution.transfers == "overlapped":
        lost_to_sends = lost_to_messages(machine, plan.execution.exposed_transfers)
        passes_s[0] += max(lost_to_sends * activation_s - stage.idle_s[0], 0.0)
        passes_s[2] += max(lost_to_sends * gradient_s - stage.idle_s[1], 0.0)
    slowed_s = 0.0
    if share:
        kind = _sync_kind(stage, machine)
        waiting_s = share * _waited_s(stage, machine, kind) if kind else 0.0
        # The last backward pass overlaps with the synchronisation, and is slowed by it.
        backward_s = passes_s[1] + passes_s[2]
        slowed_s = float(slowdown_s(sync_s, backward_s, lost, waiting_s, stage.idle_s[1]))
    cost = StageCost(
        forward_s=passes_s[0],
        backward_s=passes_s[2],
        weight_s=min(stage.weight_s, passes_s[2]) if splits else 0.0,
        recompute_s=passes_s[1],
        send_activation_s=activation_s,
        send_gradient_s=gradient_s,
        sync_s=sync_s,
        update_s=stage.update_bytes / machine.hbm_bytes_per_s + stage.states_s + late_s + slowed_s,
        gather_s=after_s,
        operators=_overlapped_parts(stage, machine),
        stash_bytes=stage.stash_bytes,
        work_bytes=stage.work_bytes,
        fixed_bytes=stage.fixed_bytes,
        update_bytes=stage.states_bytes,
    )
    return _sharded(cost, stage, machine, share) if in_passes("reduce_scatter", zero) else cost


def _sharded(cost: StageCost, stage: Stage, machine: Machine, share: float) -> StageCost:
    """Cost of a stage whose replicas exchange gradients, and with ZeRO 3 weights, in every pass."""
    lost, gathers = lost_share(machine), in_passes("all_gather", stage.layout.zero)
    # Weights of ZeRO 2 stay whole during a step; they are gathered after the update alone.
    gather_s = _exchange_s(stage, machine, "all_gather") * gathers
    reduce_s = _exchange_s(stage, machine, "reduce_scatter")
    # Weight gradients that are computed apart send nothing while the pass communicates.
    during: list[Exchange] = [] if cost.weight_s else ["reduce_scatter"]
    during += ["all_gather"] * gathers
    return with_exchanges(
        cost,
        gather_s,
        reduce_s,
        (
            _wait_s(stage, machine, ("all_gather",), 0, share),
            _wait_s(stage, machine, during, 1, share),
        ),
        overlap=share,
        lost_s=(
            share * longer_s(lost, gather_s, 0.0, _waited_s(stage, machine, "all_gather")),
            share * longer_s(lost, reduce_s, 0.0, _waited_s(stage, machine, "reduce_scatter")),
        ),
        idle_s=stage.idle_s,
    )


def with_exchanges(
    stage: StageCost,
    gather_s: float,
    reduce_s: float,
    waits_s: tuple[float, float] = (0.0, 0.0),
    *,
    overlap: float = 1.0,
    lost_s: tuple[float, float] = (0.0, 0.0),
    idle_s: tuple[float, float] = (0.0, 0.0),
) -> StageCost:
    """Stage cost with weight gathers and gradient reduce-scatters around its passes (ZeRO 2 and 3).

    The share `overlap` of each exchange overlaps with compute. `waits_s` are the seconds that the exchange
    waits for other traffic on its links, in the forward pass and in the other passes. `lost_s` are the
    slowdowns of kernels concurrent with weight and with gradient exchange. `idle_s` is the time that the
    device waits for the host in the forward and in the backward pass.
    """

    def longer(pass_s: float, exchange_s: float, lost_s: float, wait_s: float = 0.0) -> float:
        return exchanged_pass_s(
            pass_s, exchange_s, share=overlap, lost_s=lost_s, wait_s=wait_s, operators=stage.operators
        )

    # Gradients are scattered while weight gradients are computed: in their own pass if it is separate,
    # or else inside the backward pass.
    weight_s = longer(stage.weight_s, reduce_s, lost_s[1])
    inner_s = stage.recompute_s + stage.backward_s - stage.weight_s
    inside = not weight_s
    slower_s = lost_s[0] + inside * lost_s[1] - idle_s[1]
    backward_s = longer(inner_s, gather_s + inside * reduce_s, slower_s, waits_s[1])
    return replace(
        stage,
        forward_s=longer(stage.forward_s, gather_s, lost_s[0] - idle_s[0], waits_s[0]),
        # One gather serves recompute and backward pass; the recompute job keeps its own duration.
        backward_s=max(backward_s - stage.recompute_s, 0.0) + weight_s,
        weight_s=weight_s,
    )


def _waited_s(stage: Stage, machine: Machine, kind: Exchange) -> float:
    """Time that HBM-bound parts of layers wait for the bytes of a collective among replicas, in seconds."""
    parts = zip(stage.hbm_shares, _exchanged(stage, kind), strict=False)
    return sum(
        share * moved_s(machine, exchange, size, group.ranks)
        for share, part in parts
        for exchange, size, group in part
    )


def _exchange_s(stage: Stage, machine: Machine, kind: Exchange) -> float:
    """Time for replicas to exchange the gradients or weights of a stage.

    Those of experts are separate, and gradients go bucket by bucket if the stack has buckets.
    """
    exchange_s = 0.0
    for exchange, size, group in chain(*_exchanged(stage, kind)):
        # Every bucket pays the fixed time of a collective.
        buckets = _collectives(stage, machine, exchange, size, group.ranks)
        exchange_s += buckets * machine.network.seconds(exchange, size / buckets, group)
    return exchange_s


def _overlapped_parts(stage: Stage, machine: Machine) -> int:
    """Number of parts in which a stage's exchanges follow its operators: layers, or larger buckets."""
    layers = stage.pieces or stage.layers
    return layers if stage.layout.zero >= 2 else min(_buckets(stage, machine) or layers, layers)


def _buckets(stage: Stage, machine: Machine) -> int:
    """Number of buckets of a stage whose parameters are exchanged once per step; 0 if the stack has none."""
    least, of_replica = machine.stack.bucket_parameters
    if not least or stage.layout.zero != 1:
        return 0
    trained = (stage.gradient_bytes or stage.weight_bytes) / machine.stack.gradient_bytes
    return 1 if stage.first_layer else max(ceil(trained / max(least, of_replica * stage.layout.sharers)), 1)


def _collectives(stage: Stage, machine: Machine, kind: Exchange, size_bytes: float, ranks: int) -> int:
    """Number of collectives among which an exchange is divided.

    Buckets of gradients are at most one per matrix, because they do not split matrices. Ranks that own whole
    tensors broadcast one after another.
    """
    zero, blocks = stage.layout.zero, stage.pieces or stage.layers
    broadcast = machine.stack.zero_1 == "broadcast" and zero == 1
    if broadcast and kind == "all_gather":
        return min(TENSORS * blocks, ranks)
    if not machine.stack.bucket_bytes or kind != "all_reduce" or not (zero == 0 or broadcast):
        return _buckets(stage, machine) or 1
    return max(min(ceil(size_bytes / machine.stack.bucket_bytes), MATRICES * blocks), 1)


def _exchanged(stage: Stage, kind: Exchange) -> list[list[tuple[Exchange, float, Group]]]:
    """Collectives of the replicas of a stage, with bytes and ranks, for each part of its weights."""
    weights = stage.weight_bytes - stage.frozen_bytes * (stage.layout.zero < 3)  # updated, or all with ZeRO 3
    size = weights if kind == "all_gather" else stage.exchanged_bytes
    groups = [
        (part, stage.layout.group(axis), stage.layout.sharding(axis)) for part, axis in stage.replicated
    ]
    return [
        [
            (name, nbytes, Group(int(ranks), int(stride)))
            for name, nbytes, ranks, stride in collectives(
                kind, part * size, group.ranks, within.ranks, group.stride
            )
        ]
        for part, group, (within, _) in groups
    ]


def _wait_s(
    stage: Stage, machine: Machine, kinds: Sequence[Exchange], direction: Literal[0, 1], share: float
) -> float:
    """Time that an overlapped exchange among replicas waits for a pass's own collectives on its links.

    The pass is forward or backward.
    """
    exchanged = [collective for kind in kinds for part in _exchanged(stage, kind) for collective in part]
    if not stage.links_s or not exchanged:
        return 0.0
    levels_s = share * np.sum([machine.network.by_level(*collective) for collective in exchanged], axis=0)
    return max(float(waits_s(levels_s, np.array(stage.links_s[direction])).max()), 0.0)


def _sync_kind(stage: Stage, machine: Machine) -> Exchange | None:
    """Collective that synchronises gradients once per batch; None from ZeRO 2 on.

    ZeRO 2 and 3 synchronise in every pass.
    """
    zero = stage.layout.zero
    if zero >= 2:
        return None
    all_reduces = machine.stack.zero_1 != "reduce_scatter" and stage.layout.shards == stage.layout.sharers
    return "all_reduce" if zero == 0 or all_reduces else "reduce_scatter"


def _sync_s(plan: Plan, machine: Machine, q: int, backward_s: float) -> tuple[float, float]:
    """Time to synchronise gradients once per batch, and the part that must follow the last backward pass.

    The second does not overlap even if synchronisation does. From ZeRO 2 on gradients are synchronised after
    every microbatch, except those shared by the first and the last stage, and those of stage copies in
    schedules where microbatches enter at both ends.
    """
    stage = plan.stages[q]
    zero, kind = stage.layout.zero, _sync_kind(stage, machine)
    sync_s = _exchange_s(stage, machine, kind) if kind else 0.0
    share, late_s = plan.execution.overlap_sync, 0.0
    if kind and sync_s and share:
        late_s = sync_s - share * sync_s
        sync_s *= share
        # Synchronisation waits only while the last backward pass still uses the links.
        wait_s = _wait_s(stage, machine, (kind,), 1, share)
        free_s = backward_s - wait_s  # of the last backward pass
        sync_s += wait_s * min(sync_s / free_s, 1.0) if free_s > 0 else wait_s
    rules, depth, stride = SCHEDULES[plan.schedule], plan.depth, stage.layout.group("pp").stride
    groups = rules.groups(depth, plan.layout.vp)
    # Copies of the word embedding on the first and the last stage must stay equal.
    if stage.tied_bytes and depth > 1 and groups[0] != groups[-1]:
        sync_s += machine.network.seconds("all_reduce", stage.tied_bytes, Group(2, (depth - 1) * stride))
    if rules.streams > 1:  # the other copy of the stage is at the same distance from the other end
        apart = abs(depth - 1 - 2 * int(groups[q]))
        size = stage.exchanged_bytes / (stage.layout.shards if zero else 1)
        sync_s += machine.network.seconds("all_reduce", size, Group(2, apart * stride))
    return sync_s, late_s


def _passed_on_s(plan: Plan, machine: Machine, q: int) -> tuple[float, float]:
    """Transfer time of activations to the next stage, and of gradients to the previous one."""
    sent, returned = _messages_bytes(plan, q)
    layout = plan.stages[q].layout
    execution = plan.execution
    return send_s(execution, machine, layout, sent), send_s(execution, machine, layout, returned)


def _messages_bytes(plan: Plan, q: int) -> tuple[float, float]:
    """Bytes of activations sent to the next stage, and of gradients returned to the previous one."""
    sent = plan.stages[q + 1].arriving_bytes if q + 1 < len(plan.stages) else 0.0
    returned = plan.stages[q - 1].departing_bytes if q > 0 else 0.0
    return sent, returned


def send_s(execution: Execution, machine: Machine, layout: Layout, size_bytes: float) -> float:
    """Time to send a tensor to a neighbouring stage, including the all-gather there if it is scattered."""
    if not size_bytes:
        return 0.0
    network, pair = machine.network, Group(2, layout.group("pp").stride)
    # Sharded sequences are sent as they are: every rank has its own tokens.
    if not execution.scattered or layout.cuts_sequence:
        return network.seconds("send", size_bytes, pair)
    scattered_s = network.seconds("send", size_bytes / layout.tp, pair)
    return scattered_s + network.seconds("all_gather", size_bytes, layout.group("tp"))
