"""Overlap of communication with compute: conditions, and the slowdown of concurrent work.

While a collective runs, it occupies SMs that concurrent kernels lack: NCCL takes sixteen on a node with eight
network cards, and its thread blocks share an SM with nothing else (its maintainer, issue 689 of NVIDIA/nccl).
Userbuffers of Transformer Engine take as many (`num_sm`). A message to one device takes two
(`NCCL_NCHANNELS_PER_NET_PEER`, issue 1424).

A collective also moves bytes through the HBM of the device. HBM-bound kernels wait for them, and kernels
bound by tensor cores do not: a layer with an HBM-bound fraction h of its time takes longer by h times the
seconds that the HBM needs for the bytes of the collective. A message between stages is neglected: it is one
activation, a few thousandths of the bytes that a stage moves itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from phaze.base.arrays import Floats
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


def lost_to_messages(machine: Machine) -> float:
    """Fraction of compute speed that kernels lose to a concurrent message to one device."""
    if machine.device is None or not machine.stack.held_processors:
        return 0.0
    return MESSAGE_PROCESSORS / machine.device.num_tc


def moved_s(machine: Machine, kind: Kind, size_bytes: float, ranks: int) -> float:
    """HBM time of the bytes that a collective or message moves; sizes as in `Network.seconds`."""
    if kind == "send":
        return MOVED * size_bytes * (ranks > 1) / machine.hbm_bytes_per_s
    reduces = {"all_reduce": 0.5, "reduce_scatter": 1.0, "reduce": 1.0}.get(kind, 0.0)
    return (MOVED + ADDED * reduces) * sent_bytes(kind, size_bytes, ranks) / machine.hbm_bytes_per_s


def longer_s(machine: Machine, sent_s: float, exposed_s: float, waited_s: float) -> float:
    """Extra seconds that a collective costs concurrent kernels.

    They are its exposed time, the slowdown of concurrent kernels, and the wait for its HBM bytes.
    """
    return exposed_s + (sent_s - exposed_s) * lost_share(machine) + waited_s


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
    """True if some overlap needs one hardware queue, and that of token dispatch several.

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
    found = float(sum(sent_s for sent_s, _ in by_axis.values()))
    if not kept_apart(layout, machine):
        sent_s, hbm_s = machine.stack.overlap_share("tp") * by_axis["tp"]
        left_s = max(sent_s / layout.tp, sent_s - products_s.sum())
        found += longer_s(machine, sent_s, left_s, hbm_share(products_s) * hbm_s) - sent_s
    if layout.cp_kind not in ("all_gather", "a2a") and not takes_many_queues(layout, machine):
        axis: Axis = "cp" if layout.cp_kind == "p2p" else "cp-ring"
        parts = layout.group(axis).ranks
        sent_s, hbm_s = machine.stack.overlap_share("cp") * by_axis[axis]
        left_s = max(sent_s - core_s.sum() * (parts - 1) / parts, 0.0)
        found += longer_s(machine, sent_s, left_s, hbm_share(core_s) * hbm_s) - sent_s
    return found
