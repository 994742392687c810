"""Expert GEMMs: their kernels in each software stack."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from phaze.cost.experts import expert_speed
from phaze.cost.kernels import kernels_of
from phaze.layout import Layout
from phaze.spec.speeds.experts import Experts
from phaze.spec.system import Device, Stack
from phaze.workload.operators import Operator

SENT = {"experts_dispatch", "experts_combine"}
"""Primitives that copy a token once per expert, or sum its copies."""
ROW_PASSES = SENT | {"experts_sort", "experts_unsort"}
"""Primitives that move dispatched tokens: copy them to experts, sort them, copy them back or sum them."""


def multiplies_experts(operator: Operator) -> bool:
    """True if an operator is a GEMM of a rank's experts, or of their gradients."""
    moe = operator.core == "tensor" and "moe" in operator.regions
    return moe and not operator.regions & {"router", "shared_experts"} and operator.parts[0].batch > 1


def experts_of(operators: Sequence[Operator], stack: Stack) -> list[Experts | None]:
    """Expert implementation that each kernel of the operators uses; None for other kernels."""
    return [
        stack.experts if multiplies_experts(operator) else None
        for operator in operators
        for _ in kernels_of(operator)
    ]


def run_alone(operators: tuple[Operator, ...], layout: Layout, stack: Stack) -> tuple[Operator, ...]:
    """Operators that remain separate kernels once the stack has fused the others.

    Fused experts include their activation. If the dispatcher sends a token once per rank, it also copies
    tokens per expert and sums the copies (Megatron-Core, optimizations of DeepSeek-V3 on GB200, Section
    2.1.1).
    """
    if stack.experts == "fused":
        operators = tuple(operator for operator in operators if "moe_act" not in operator.regions)
    if stack.dispatch == "tokens" and layout.ep > 1:
        operators = tuple(operator for operator in operators if not SENT & primitives_of(operator.name))
    return operators


@cache
def primitives_of(name: str) -> frozenset[str]:
    """Names of the primitives that an operator consists of, parsed from the operator's name."""
    return frozenset(name.removesuffix(".backward").split("+"))


def row_traffic(operator: Operator, stack: Stack, device: Device) -> float:
    """Slowdown factor of a kernel that moves dispatched tokens; 1 for other kernels.

    It is the sustained HBM fraction of kernels over the fraction that measured indexed passes reach,
    multiplied by the stack's factor over these passes.
    """
    names = primitives_of(operator.name)
    if not ROW_PASSES & names:
        return 1.0
    permuted = stack.permuted if SENT & names else 1.0
    speed = expert_speed(device, "grouped", "bf16")
    if speed is None or speed.passes is None:
        return permuted
    # Indexed rows reach a lower share of the HBM bandwidth than passes over whole tensors.
    return permuted * max(device.sustained_hbm / speed.passes, 1.0)
