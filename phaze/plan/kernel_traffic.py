"""Bytes that a stack's kernels move, relative to the minimum."""

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
"""Kernels for scores without a fused kernel, and their bytes relative to it.

Scores are converted to single precision, scaled, masked, normalised, and converted back (36 bytes per score
instead of 4; Megatron-LM, `fused_softmax`).
"""


def moves_of(
    owned: Iterable[tuple[Operator, Sequence[Kernel]]], stack: Stack, device: Device, *, in_steps: bool
) -> list[float]:
    """Bytes that a stack moves per kernel of operators, relative to the minimum.

    Slower kernels count as the bytes that would take their time.
    """
    found = []
    for operator, own in owned:
        slower = row_traffic(operator, stack, device)
        found += [_moved(kernel, stack, in_steps=in_steps) * slower for kernel in own]
    return found


def _moved(kernel: Kernel, stack: Stack, *, in_steps: bool) -> float:
    """Bytes that a stack moves for a kernel, relative to the minimum; scores may be masked in steps."""
    kinds = {part.kind for part in kernel}
    if "matmul" in kinds:
        return 1.0
    if "softmax" in kinds and in_steps:
        return STEPS_BYTES
    if "log_softmax" in kinds:
        return stack.loss
    return stack.elementwise * (_without_first_factor(kernel) if stack.fused_gate else 1.0)


def _without_first_factor(kernel: Kernel) -> float:
    """Fraction of a gated activation's bytes that one fused kernel moves; 1 for other kernels.

    The fused kernel recomputes the first factor in the backward pass instead of writing and reading it.
    """
    first = next((part for part in kernel if part.kind in GATED), None)
    if first is None or all(part.kind != "mul" for part in kernel):
        return 1.0
    return 1.0 - HALF * first.elements / sum(part.streamed_bytes for part in kernel)


def in_steps_of(operators: Sequence[Operator], stack: Stack) -> bool:
    """True if separate kernels scale, mask and normalise scores.

    A stack's fused kernel may require the heads of all samples of a microbatch to be a multiple of a number.
    """
    products = first_products([operator for operator in operators if operator.attention])
    return any(scores.batch * scores.m // scores.n % stack.fused_heads > 0 for scores in products[:1])
