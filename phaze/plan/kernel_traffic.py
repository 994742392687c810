"""Bytes that the kernels of a stack move, over those that they must."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phaze.cost.kernels import Kernel
from phaze.cost.products import HALF
from phaze.plan.expert_kernels import row_traffic
from phaze.plan.kept import first_products
from phaze.spec.system import Device, Stack
from phaze.workload.lower.memory import GATED
from phaze.workload.operators import Operator

STEPS, STEPS_BYTES = 5, 9.0
"""Kernels for scores where no fused one does it, and the bytes that they move over its: to single precision,
scaled, masked, normalised, and back (36 bytes a score instead of 4; Megatron-LM, `fused_softmax`)."""


def moves_of(
    owned: Iterable[tuple[Operator, Sequence[Kernel]]], stack: Stack, device: Device, *, in_steps: bool
) -> list[float]:
    """Bytes that a stack moves for each kernel of operators, over those that it must, or as many as would
    take the time of slower ones.
    """
    found = []
    for operator, own in owned:
        slower = row_traffic(operator, stack, device)
        found += [_moved(kernel, stack, in_steps=in_steps) * slower for kernel in own]
    return found


def _moved(kernel: Kernel, stack: Stack, *, in_steps: bool) -> float:
    """Bytes that a stack moves for a kernel, over those that it must; scores may be masked in steps."""
    kinds = {part.kind for part in kernel}
    if "matmul" in kinds:
        return 1.0
    if "softmax" in kinds and in_steps:
        return STEPS_BYTES
    if "log_softmax" in kinds:
        return stack.loss
    return stack.elementwise * (_without_first_factor(kernel) if stack.fused_gate else 1.0)


def _without_first_factor(kernel: Kernel) -> float:
    """Share of the bytes of a gated activation that one kernel moves, which makes its first factor again in
    the backward pass instead of writing and reading it; 1 for other kernels.
    """
    first = next((part for part in kernel if part.kind in GATED), None)
    if first is None or all(part.kind != "mul" for part in kernel):
        return 1.0
    return 1.0 - HALF * first.elements / sum(part.streamed_bytes for part in kernel)


def in_steps_of(operators: Sequence[Operator], stack: Stack) -> bool:
    """Whether scores are scaled, masked and normalised by a kernel each: the fused kernel of a stack may need
    a multiple of so many heads, those of all samples of a microbatch.
    """
    products = first_products([operator for operator in operators if operator.attention])
    return any(scores.batch * scores.m // scores.n % stack.fused_heads > 0 for scores in products[:1])
