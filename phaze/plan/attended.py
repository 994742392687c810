"""Fused attention of a layer on one tensor-parallel rank: its kernels, and their time by limiting resource.

With context parallelism a rank has the queries of a part of the sequence. In a ring (cp_kind p2p) keys and
values arrive in parts: the first kernel has those of the rank's own part, every other one those of another
rank. A rank has one block from the start of the sequence and one from its end, so a causal mask leaves half
of each other part, without a mask inside (Transformer Engine, `AttnFuncWithCPAndKVP2P`; PyTorch,
`_templated_ring_attention`). Partial results are then merged. If keys and values are gathered, each of the
two blocks of queries is one kernel (`AttnFuncWithCPAndKVAllGather`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.cost.kernels import KERNEL_LIMITS, KernelTimes
from phaze.layout import Layout
from phaze.spec.system import Device, Stack
from phaze.workload.operators import Operator, Part
from phaze.workload.primitives import Scores

HBM = KERNEL_LIMITS.index("hbm")
USUAL = "2"
"""Default attention kernel of a stack that names none: FlashAttention-2."""


class FusedPass(NamedTuple):
    """One pass of a layer's attention cores, executed by fused kernels."""

    seconds: Floats
    """Time by limiting resource, in seconds, (limits,)."""
    launches: int
    """Number of kernels that the host launches."""


class Fused(NamedTuple):
    """Both passes of a layer's attention cores, executed by fused kernels."""

    forward: FusedPass
    backward: FusedPass


NO_ATTENTION = FusedPass(np.zeros(len(KERNEL_LIMITS)), 0)
"""Pass without fused attention."""


def fused_attention(core: Sequence[Operator], layout: Layout, stack: Stack, times: KernelTimes) -> Fused:
    """Cost of a layer's attention cores as fused kernels, from their forward operators `core`.

    Parts of a ring take at least their share of one kernel on the whole sequence. Kernels without a mask are
    a few percent faster, but the lower bounds of layouts, which count tokens per rank, model only whole
    sequences.
    """
    kernel, device = attention_kernel(times.device, stack), times.device
    found, launches = np.zeros((2, len(KERNEL_LIMITS))), 0
    for scores in scores_of(core):
        kernels, merges = kernels_on(scores, layout, stack), 0
        own = times.attention(kernels, kernel)
        if in_ring(scores, layout, stack):
            merges = len(kernels) - 1
            whole = replace(scores, queries=scores.keys)
            own = np.maximum(own, times.attention((whole,), kernel) * scores.queries / scores.keys)
        found += own
        per_byte_s = merges / (device.hbm_bandwidth_bytes_per_s * device.sustained_hbm)
        for row, (elements, each) in enumerate(zip(_merged(scores), stack.merge_bytes, strict=True)):
            found[row, HBM] += elements * each * per_byte_s
        launches += len(kernels) + merges
    forward_s, backward_s = found
    return Fused(FusedPass(forward_s, launches), FusedPass(backward_s, launches))


def attention_kernel(device: Device, stack: Stack) -> str | None:
    """Name of a stack's attention kernel on a device; None if the device names none.

    Raises PhazeError if the device has only other kernels.
    """
    trained = [name for name, kernel in device.attention.items() if kernel.backward is not None]
    if not trained:
        return None
    for name in stack.attention or (USUAL, *trained):
        if name in trained:
            return name
    raise PhazeError(
        f"flash_attention: the software stack has attention {', '.join(stack.attention)}, and device "
        f"{device.name} knows {', '.join(trained)}"
    )


def scores_of(core: Sequence[Operator]) -> list[Scores]:
    """Shape of each attention core of a layer, derived from its GEMMs if the operators do not store it."""
    if found := [operator.scores for operator in core if operator.scores is not None]:
        return found
    products = [part for operator in core for part in operator.parts if part.kind == "matmul"]
    return [_shape(*pair) for pair in zip(products[::2], products[1::2], strict=True)]


def _shape(scores: Part, context: Part) -> Scores:
    """Shape of a causal attention core over whole sequences, derived from its two GEMMs."""
    keys, heads = scores.n, scores.batch * scores.m // scores.n
    return Scores(1, keys, keys, keys, keys / 2, heads, scores.batch, scores.k, context.n)


def in_ring(scores: Scores, layout: Layout, stack: Stack) -> bool:
    """True if attention processes keys and values in parts and merges partial results (ring attention)."""
    passes_on = layout.cp_kind not in ("all_gather", "a2a") or stack.ring_attention
    return scores.queries < scores.keys and not scores.windowed and passes_on


def kernels_on(scores: Scores, layout: Layout, stack: Stack) -> tuple[Scores, ...]:
    """Attention kernels that the slowest context-parallel rank runs, in order."""
    own, whole = scores.queries, scores.keys
    if own == whole or scores.windowed:
        return (scores,)
    causal = scores.mean < scores.longest
    if in_ring(scores, layout, stack):
        seen = own // 2 if causal else own
        first = replace(scores, keys=own, longest=own, mean=seen)
        other = replace(scores, keys=seen, longest=seen, mean=seen)
        return (first, *[other] * (whole // own - 1))
    if not causal:
        return (scores,)
    half = own // 2
    first = replace(scores, queries=half, keys=half, longest=half, mean=half / 2)
    return first, replace(scores, queries=half, mean=whole - half / 2)


def _merged(scores: Scores) -> tuple[float, float]:
    """Number of elements merged from a partial result of ring attention, and from its partial gradients.

    The gradients are those of queries, and of the keys and values of another rank's part that a causal mask
    leaves.
    """
    part = 0.5 if scores.mean < scores.longest else 1.0
    keys = part * scores.kv_heads * (scores.size + scores.value_size)
    rows = scores.samples * scores.queries
    return rows * scores.heads * scores.value_size, rows * (scores.heads * scores.size + keys)
