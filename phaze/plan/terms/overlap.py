"""Overlap of communication with compute: conditions, exposed time, and the slowdown of concurrent work.

While a collective runs, it occupies SMs that concurrent kernels lack: NCCL takes sixteen on a node with eight
network cards, and its thread blocks share an SM with nothing else (its maintainer, issue 689 of NVIDIA/nccl).
Userbuffers of Transformer Engine take as many (`num_sm`). A message to one device takes two
(`NCCL_NCHANNELS_PER_NET_PEER`, issue 1424).

A collective also moves bytes through the HBM of the device. HBM-bound kernels wait for them, and kernels
bound by tensor cores do not: a layer with an HBM-bound fraction h of its time takes longer by h times the
seconds that the HBM needs for the bytes of the collective. A message between stages is neglected: it is one
activation, a few thousandths of the bytes that a stage moves itself.

Slower kernels take no longer where the device idles anyway, because it waits for the host to launch the next
kernel: only the slowdown beyond the idle time of a pass counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from phaze.base.arrays import Floats, Number
from phaze.cost.kernels import KERNEL_LIMITS
from phaze.cost.network.network import Kind, Levels, sent_bytes
from phaze.layout import Axis, Layout
from phaze.plan.machines import device_of
from phaze.plan.plan import Machine

HBM = KERNEL_LIMITS.index("hbm")
MESSAGE_PROCESSORS = 2
"""Number of SMs occupied by a message to one device."""
MOVED = 2.0
"""HBM bytes moved per byte that a rank sends in a collective: its own read, and the receiver's write.

Source: NCCL's maintainer, the bandwidth of links "multiplied by at least 2x" (NVIDIA/nccl issue 1428).
"""
ADDED = 1.0
"""Additional HBM bytes if the receiver also reads its own addend ("it can be 3x", NVIDIA/nccl issue 1428)."""


def lost_share(machine: Machine) -> float:
    """Fraction of compute speed that kernels lose to a concurrent collective."""
    return 0.0 if machine.device is None else machine.stack.held_processors / machine.device.num_tc


def lost_to_messages(machine: Machine, exposed: float = 0.0) -> float:
    """Fraction of compute speed lost to a point-to-point message, a share of which is exposed."""
    if machine.device is None or not machine.stack.held_processors:
        return 0.0
    return MESSAGE_PROCESSORS / machine.device.num_tc * (1.0 - exposed)


def moved_s(machine: Machine, kind: Kind, size_bytes: float, ranks: int) -> float:
    """HBM time of the bytes that a collective or message moves; sizes as in `Network.seconds`."""
    if not machine.traffic:
        return 0.0
    if kind == "send":
        return MOVED * size_bytes * (ranks > 1) / machine.hbm_bytes_per_s
    reduces = {"all_reduce": 0.5, "reduce_scatter": 1.0, "reduce": 1.0}.get(kind, 0.0)
    return (MOVED + ADDED * reduces) * sent_bytes(kind, size_bytes, ranks) / machine.hbm_bytes_per_s


def longer_s(
    lost: float,
    sent_s: Number,
    exposed_s: Number,
    waited_s: Number | float = 0.0,
    idle_s: Number | float = 0.0,
) -> Number:
    """Extra seconds that a collective costs concurrent kernels, which lose the share `lost` of their speed.

    They are its exposed time, and the slowdown of concurrent kernels and their wait for its HBM bytes beyond
    the `idle_s` seconds that the device waits for the host.
    """
    return exposed_s + _most((sent_s - exposed_s) * lost + waited_s - idle_s, 0.0)


def paired_share(pp: Number, microbatches: Number) -> Number:
    """Share of a batch's microbatches that are paired with the opposite pass of another one.

    One more microbatch goes forward before the first pair, so m − p of m microbatches are paired, with or
    without virtual stages.
    """
    return _most(1.0 - pp / microbatches, 0.0)


def waits_s(levels_s: Floats, links_s: Floats) -> Floats:
    """Time on each network level that an exchange waits for a pass's own collectives, (..., levels).

    `levels_s` is the exchange's time on the links of each level, `links_s` that of the pass's collectives. A
    link that carries both needs the seconds of both. Negative where a level is not the longest.
    """
    busy_s = np.where(levels_s > 0, levels_s + links_s, 0.0)
    difference: Floats = busy_s - levels_s.sum(axis=-1, keepdims=True)
    return difference


def pass_sides_s(pass_s: Number, lost_s: Number, sent_s: Number, waits_s: Sequence[Number]) -> list[Number]:
    """Lower bounds on a pass concurrent with an exchange: two of its kernels, the exchange, and each network
    level.

    The kernels take `lost_s` longer, less the time that the device idles in the pass; negative if it idles
    longer. Each bound is linear in the work of a stage, and the largest of them is the time of a pass of many
    equal operators.
    """
    return [pass_s, pass_s + lost_s, sent_s] + [sent_s + wait_s for wait_s in waits_s]


def exchanged_pass_s(
    pass_s: float, exchange_s: float, *, share: float, lost_s: float, wait_s: float, operators: int
) -> float:
    """Time in seconds of a pass of equal operators with a partly overlapped exchange.

    Kernels take `lost_s` longer, less the idle time of the device, as in `pass_sides_s`.

    During an operator the weights of the next one are gathered and the gradients of the previous one are
    scattered. As in a two-machine flow shop, n operators take c/n + (n - 1) max(f, c)/n + f/n, with f seconds
    of compute and c seconds of overlapped exchange; the exposed rest follows. More operators take less time,
    and never less than the largest of `pass_sides_s`, because a max is at most each sum of both parts.
    """
    if not pass_s:
        return 0.0
    sent_s = share * exchange_s
    last_s = max(pass_s, wait_s if sent_s else 0.0)
    longest_s = max(pass_sides_s(pass_s, lost_s, sent_s, (wait_s,)))
    return exchange_s - sent_s + (sent_s + (operators - 1) * longest_s + last_s) / operators


def gathered_after_s(
    gather_s: Number,
    free_s: Number,
    *,
    share: float,
    lost: float,
    waited_s: Number | float = 0.0,
    idle_s: Number | float = 0.0,
    operators: float = np.inf,
) -> Number:
    """Exposed time per step to gather updated weights during the first forward pass, in seconds.

    With overlap this is the part that the `free_s` seconds of the pass do not cover, and at least that of the
    first of its operators, plus the slowdown of the pass, whose device idles `idle_s` seconds.
    """
    if not share:
        return gather_s
    sent_s = share * gather_s
    exposed_s = _most(sent_s - free_s, sent_s / operators)
    return gather_s - sent_s + longer_s(lost, sent_s, exposed_s, waited_s, idle_s)


def slowdown_s(
    sent_s: Number,
    pass_s: Number,
    lost: float,
    waited_s: Number | float = 0.0,
    idle_s: Number | float = 0.0,
) -> Number:
    """Time that a pass loses to an exchange that begins with it, in seconds; its device idles `idle_s`."""
    # Only while both run does the exchange take processors from the pass.
    exposed_s = _most(sent_s - pass_s, 0.0)
    return longer_s(lost, sent_s, exposed_s, waited_s, idle_s) - exposed_s


def _most(first: Number, second: Number | float) -> Number:
    """Greater of two numbers, element by element for arrays."""
    return cast(Number, np.maximum(first, second))


def kept_apart(layout: Layout, machine: Machine) -> str:
    """Reason why tensor-parallel collectives do not overlap with GEMMs; empty if they do."""
    stack = machine.stack
    if "tp" not in stack.overlap or layout.tp == 1:
        return "the stack does not do it"
    if not layout.sequence_parallel:
        return "it needs sequence parallelism (Transformer Engine, `ub_overlap_ag`)"
    if isinstance(machine.network, Levels) and layout.tp > machine.network.tiers[0].devices:
        return "it needs all tensor-parallel ranks in one NVLink domain (Transformer Engine, userbuffers)"
    if takes_many_queues(layout, machine):
        return (
            "it needs one hardware queue, and FSDP several (Megatron-Core, `CUDA_DEVICE_MAX_CONNECTIONS`, "
            "before Blackwell)"
        )
    return ""


def takes_many_queues(layout: Layout, machine: Machine) -> bool:
    """True if FSDP takes the one hardware queue that overlap of tensor- and context-parallel ranks needs."""
    ordered = machine.stack.ordered_queue and not device_of(machine).is_blackwell
    return ordered and layout.zero >= 2


def queues_conflict(layout: Layout, machine: Machine) -> bool:
    """True if one overlap needs a single hardware queue while that of token dispatch needs several.

    Before Blackwell, collectives of tensor- and context-parallel ranks overlap as their kernels are ordered
    (`CUDA_DEVICE_MAX_CONNECTIONS=1`). With one queue an all-to-all waits for the kernels before it
    (Megatron-LM, issue 2180; 32 instead of 1 doubled the gain on 64 H100, pull request 6311).
    """
    stack = machine.stack
    if "ep" not in stack.overlap or not stack.ordered_queue or device_of(machine).is_blackwell:
        return False
    ring = layout.cp > 1 and layout.cp_kind not in ("all_gather", "a2a") and stack.overlap_share("cp") > 0
    return (ring and not takes_many_queues(layout, machine)) or not kept_apart(layout, machine)


def hbm_share(seconds: Floats) -> float:
    """HBM-bound fraction of kernel times, which are indexed by limiting resource, (limits,)."""
    return float(seconds[HBM] / seconds.sum()) if seconds.any() else 0.0


def exposed_s(
    by_axis: Mapping[str, Floats], layout: Layout, machine: Machine, products_s: Floats, core_s: Floats
) -> float:
    """Extra time of a pass due to collectives, in seconds; `by_axis` has their time and HBM time, (2,) each.

    Its GEMMs take `products_s` by limiting resource, (limits,), of which attention takes `core_s`. With
    overlap, collectives of tensor-parallel ranks run in t pieces during the neighbouring product. Keys and
    values of context-parallel ranks are exposed, except in a ring, where the next part arrives while
    attention works on a part.
    """
    exposed = float(sum(sent_s for sent_s, _ in by_axis.values()))
    if not kept_apart(layout, machine):
        # t pieces: the first has no product to overlap with, the others overlap with the neighbouring one.
        sent_s, hbm_s = machine.stack.overlap_share("tp") * by_axis["tp"]
        left_s = max(sent_s / layout.tp, sent_s - products_s.sum())
        # A wait for the host that this slowdown shortens counts beyond the time of the whole pass alone.
        waited_s = hbm_share(products_s) * hbm_s
        exposed += longer_s(lost_share(machine), sent_s, left_s, waited_s) - sent_s
    if layout.cp_kind not in ("all_gather", "a2a") and not takes_many_queues(layout, machine):
        axis: Axis = "cp" if layout.cp_kind == "p2p" else "cp-ring"
        parts = layout.group(axis).ranks
        # A ring of n parts has n - 1 attention steps behind which the next part can arrive.
        sent_s, hbm_s = machine.stack.overlap_share("cp") * by_axis[axis]
        left_s = max(sent_s - core_s.sum() * (parts - 1) / parts, 0.0)
        exposed += longer_s(lost_share(machine), sent_s, left_s, hbm_share(core_s) * hbm_s) - sent_s
    return exposed


def least_exposed_s(by_axis: Mapping[str, Floats], layout: Layout, machine: Machine) -> float:
    """Lower bound on `exposed_s` in seconds for any compute time, less what paired passes may hide."""
    shares = {axis: machine.stack.overlap_share(axis) for axis in ("tp", "ep")}
    if layout.cp_kind not in ("all_gather", "a2a"):
        shares["cp" if layout.cp_kind == "p2p" else "cp-ring"] = machine.stack.overlap_share("cp")
    return sum(float(sent_s) * (1.0 - shares.get(axis, 0.0)) for axis, (sent_s, _) in by_axis.items())
