"""What hides behind computing, what keeps it from doing so, and what both lose while they run at once.

A collective holds processors while it runs, which kernels beside it do not have: NCCL takes sixteen on a node
with eight network cards, and its thread blocks share a processor with nothing else (its maintainer, issue 689
of NVIDIA/nccl); userbuffers of Transformer Engine take as many (`num_sm`). A message to one device takes two
(`NCCL_NCHANNELS_PER_NET_PEER`, issue 1424).
"""

from __future__ import annotations

from phaze.cost.network.network import Levels
from phaze.layout import Layout
from phaze.plan.machines import device_of
from phaze.plan.plan import Machine

MESSAGE_PROCESSORS = 2
"""Processors that a message to one device holds."""


def lost_share(machine: Machine) -> float:
    """Share of their speed that kernels lose while a collective runs beside them."""
    return 0.0 if machine.device is None else machine.stack.held_processors / machine.device.num_tc


def lost_to_messages(machine: Machine) -> float:
    """The same while a message to one device does."""
    if machine.device is None or not machine.stack.held_processors:
        return 0.0
    return MESSAGE_PROCESSORS / machine.device.num_tc


def kept_apart(layout: Layout, machine: Machine) -> str:
    """Why collectives of tensor parallel slices do not hide behind products, empty where they do."""
    stack = machine.stack
    if "tp" not in stack.overlap or layout.tp == 1:
        return "the stack does not do it"
    if not layout.sequence_parallel:
        return "it needs sequence parallelism (Transformer Engine, `ub_overlap_ag`)"
    if isinstance(machine.network, Levels) and layout.tp > machine.network.tiers[0].devices:
        return "it needs the slices in one NVLink domain (Transformer Engine, userbuffers)"
    if stack.ordered_queue and layout.zero == 3 and not device_of(machine).is_blackwell:
        return (
            "it needs one hardware queue, and FSDP several (Megatron-Core, `CUDA_DEVICE_MAX_CONNECTIONS`, "
            "before Blackwell)"
        )
    return ""
