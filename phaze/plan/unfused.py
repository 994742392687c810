"""Separate kernels of a stack that a fused kernel could replace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phaze.layout import Compute
from phaze.plan.expert_kernels import multiplies_experts, primitives_of
from phaze.spec.system import Stack
from phaze.workload.operators import Operator

BIAS, CLAMP, LAST = "experts_out_bias", "experts_in_clamp", "experts_out"
"""Primitives of the biases of an expert's last product, of clamped projections, and of that product."""
BIAS_KERNELS = (2, 6)
"""Kernels per expert bias, forward and backward.

Forward: bias times weight, and sum. Backward: two products and two sums for the gradients of bias and weight,
and two sums that add the gradients of both biases to those of earlier microbatches (Megatron-Core,
`TEGroupedMLP._apply_bias`, `DistributedDataParallel`).
"""
CLAMP_KERNELS = 3
"""Two clamps and a concatenation, or their gradients (`weighted_bias_quick_geglu_impl`)."""
ROTARY = ("query_scaled_rotary", "key_scaled_rotary")
"""Primitives of scaled rotary embeddings."""
ROTARY_KERNELS = (11, 8)
"""Kernels beyond the first of a scaled rotary embedding, forward and backward.

Forward: two products, negation, concatenation, sum and concatenation, and six on the small tables. Backward:
two products, negation, concatenation, sum, and gradients of two slices with their sum (Megatron-Core,
`_apply_rotary_pos_emb_bshd`).
"""
PADDING_KERNELS = 2
"""Kernels that pad rows before the first product and remove the padding after the last one."""


class Unfused(NamedTuple):
    """Work of operators in addition to their kernels."""

    nbytes: float
    """Bytes of HBM traffic."""
    launches: int
    """Kernels that the host launches."""


def unfused(operators: Sequence[Operator], compute: Compute, stack: Stack) -> Unfused:
    """Additional kernels of one pass of a layer: of experts, and of scaled rotary embeddings.

    CUDA graphs of attention capture the rotary embeddings.
    """
    found = _of_experts(operators, compute, stack)
    scaled = [one for one in operators if any(_has(one, name) for name in ROTARY)]
    if not scaled or not stack.rotary_bytes[0]:
        return found
    backward = _is_backward(scaled[0])
    elements = sum(max(part.elements for part in one.parts) for one in scaled)
    captured = bool({"attn", "full"} & {*stack.cuda_graphs})
    launches = 0 if captured else ROTARY_KERNELS[backward] * len(scaled)
    return Unfused(found.nbytes + elements * stack.rotary_bytes[backward], found.launches + launches)


def _of_experts(operators: Sequence[Operator], compute: Compute, stack: Stack) -> Unfused:
    """Additional kernels of experts.

    Biases of the last product are added expert by expert, because every row has its own weight. Lower
    precision needs rows of an expert in multiples of a block. All-to-all dispatch does not pad them, so they
    are copied; HybridEP pads in its own copy.
    """
    if not any("moe" in one.regions for one in operators):
        return Unfused(0.0, 0)
    if stack.experts == "fused":
        return Unfused(0.0, _router_kernels(operators, stack))
    nbytes, launches = 0.0, _router_kernels(operators, stack)
    last = [(one, one.parts[0]) for one in operators if _has(one, LAST) and multiplies_experts(one)]
    for operator in operators:
        if not {BIAS, CLAMP} & primitives_of(operator.name):
            continue
        backward = _is_backward(operator)
        elements = max((part.elements for part in operator.parts), default=0)
        if _has(operator, BIAS) and stack.expert_bias_bytes[0]:
            nbytes += elements * stack.expert_bias_bytes[backward]
            launches += BIAS_KERNELS[backward] * sum(part.batch for _, part in last)
        if _has(operator, CLAMP) and stack.clamp_bytes[0]:
            nbytes += elements * stack.clamp_bytes[backward]
            launches += CLAMP_KERNELS
    if compute != "bf16" and stack.dispatch == "rows" and stack.padding_bytes:
        rows = sum(part.batch * part.m * (part.k if _is_backward(one) else part.n) for one, part in last)
        nbytes += rows * PADDING_KERNELS * stack.padding_bytes
        launches += PADDING_KERNELS * len(last)
    return Unfused(nbytes, launches)


def _router_kernels(operators: Sequence[Operator], stack: Stack) -> int:
    """Kernels of router and dispatch that are no operators; 0 if a CUDA graph captures them."""
    if {"moe_router", "full"} & {*stack.cuda_graphs} or not any(one.name == "router" for one in operators):
        return 0
    own = sum(one.name.startswith("router") for one in operators)
    return max(stack.router_kernels - own, 0)


def _is_backward(operator: Operator) -> bool:
    return operator.name.endswith(".backward")


def _has(operator: Operator, name: str) -> bool:
    """True if a primitive is part of an operator, forward or backward."""
    return name in primitives_of(operator.name)
