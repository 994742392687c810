"""Host time to launch the kernels of a pass, and the time that the device waits for it.

The host runs ahead of the device. Where it launches experts one by one, it reads back their token counts in
every forward pass, and then has no lead. From one such wait to the next it launches kernels in order:

    a kernel starts after the kernel before it, and after its own launch.

The segment therefore takes the longest, over its kernels k, of the launches up to k and the device time from
k on. Blocks are alike, so that the kernels before a block's read-back follow those after it. The backward
pass knows the counts, and takes the longer of all its launches and all its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats
from phaze.cost.experts import expert_speed
from phaze.cost.kernels import kernels_of
from phaze.layout import Compute, Layout
from phaze.plan.layers.activations import multiplies_weights
from phaze.plan.layers.captured import launched
from phaze.plan.layers.experts import multiplies_experts, primitives_of
from phaze.plan.layers.kernels import (
    CLAMP,
    STEPS,
    FusedPass,
    Unfused,
    in_steps_of,
    is_backward,
    more_launches,
)
from phaze.spec.system import Device, Stack
from phaze.workload.operators import Operator, Part


class Launched(NamedTuple):
    """Kernels of consecutive operators of a pass, as a software stack on a device launches them."""

    operators: Sequence[Operator]
    layout: Layout
    stack: Stack
    device: Device
    attention: FusedPass
    """Fused attention among the operators."""
    extra: Unfused
    """Extra kernels of the stack."""

    @property
    def by_host(self) -> list[bool]:
        """Mask of the operators whose kernels no CUDA graph captures."""
        return launched(self.operators, self.stack.cuda_graphs)

    @property
    def each(self) -> bool:
        """True if the host launches the GEMMs of experts among the operators one by one."""
        return launches_each(self.operators, self.stack)

    @property
    def read_backs(self) -> list[int]:
        """Numbers of operators launched before the host waits for the device, in order; empty if it does not.

        It waits for token counts. All-to-all needs them before dispatch (Megatron-Core, `cuda_sync_point`:
        `before_ep_alltoall`), HybridEP returns them after dispatch (`num_permuted_tokens` is None), and
        without expert parallelism the GEMMs need them. An activation with clamps copies its offset from
        pageable memory, which waits for the GEMM before it (`weighted_bias_quick_geglu_impl`: `torch.tensor`
        on the device).
        """
        if not self.each or is_backward(self.operators[0]):
            return []
        places = range(len(self.operators))
        sends = [n for n in places if any(part.axis == "ep" for part in self.operators[n].parts)]
        gemms = [n for n in places if multiplies_experts(self.operators[n])]
        counts = [sends[0] + (self.stack.dispatch == "tokens")] if sends else gemms[:1]
        clamps = [n for n in places if CLAMP in primitives_of(self.operators[n].name)]
        return counts + clamps * bool(self.stack.clamp_bytes[0])

    def total_s(self) -> float:
        """Time of the host to launch all kernels of the operators, in seconds."""
        stack, launching = self.stack, self._launching
        launches = self._attention_launches + (STEPS - 1) * in_steps_of(self.operators, stack)
        launches += sum(bool(part.axis) for operator in launching for part in operator.parts)
        launches += more_launches(launching, self.layout.tp, stack) + self.extra.launches
        if self.each:
            return float(self._kernels_s().sum()) + launches * stack.launch_s
        launches += sum(len(kernels_of(operator)) for operator in launching)
        return (launches + len(casts_of(launching, self.layout))) * stack.launch_s

    def waited_s(self, device_s: Floats, total_s: float) -> float:
        """Time that the device waits for the host, in seconds.

        `device_s` is the time of each operator's kernels and token dispatch, (O,). `total_s` is the time of
        the pass on the device, with casts, extra kernels and all exposed communication.
        """
        ends_s, starts = self.total_s(), self.read_backs
        if starts:
            device_s = device_s + self._at_attention(float(self.attention.seconds.sum()))
            both = np.stack([self._by_operator_s(starts[0]), device_s])
            segments = np.split(np.roll(both, -starts[0], axis=1), np.subtract(starts[1:], starts[0]), axis=1)
            ends_s = max(ends_s, sum(segment_s(*segment) for segment in segments))
        return max(ends_s - total_s, 0.0)

    @property
    def _launching(self) -> list[Operator]:
        return [operator for operator, by in zip(self.operators, self.by_host, strict=True) if by]

    @property
    def _attention_launches(self) -> int:
        return 0 if {"attn", "full"} & {*self.stack.cuda_graphs} else self.attention.launches

    def _kernels_s(self) -> Floats:
        """Launch overhead of each kernel of the operators, in seconds, (W,)."""
        words = precisions_of(self.operators, self.layout)
        return host_s(self.operators, words, self.stack, self.device)

    def _by_operator_s(self, start: int) -> Floats:
        """Launch overhead of each operator, in seconds, (O,).

        Extra kernels, most of which choose experts, count before the read-back.
        """
        counts = [len(kernels_of(operator)) for operator in self.operators]
        owners = np.repeat(np.arange(len(self.operators)), counts)
        seconds = np.bincount(owners, self._kernels_s(), minlength=len(self.operators))
        launches = self._at_attention(self._attention_launches)
        for n, (operator, by) in enumerate(zip(self.operators, self.by_host, strict=True)):
            if by:
                launches[n] += sum(bool(part.axis) for part in operator.parts)
                launches[n] += more_launches([operator], self.layout.tp, self.stack)
        launches[start - 1] += self.extra.launches
        by_operator_s: Floats = seconds + launches * self.stack.launch_s
        return by_operator_s

    def _at_attention(self, amount: float) -> Floats:
        """Array (O,) with an amount at the place of fused attention, before its output projection."""
        at = np.zeros(len(self.operators))
        at[next((n for n, o in enumerate(self.operators) if "attn_proj" in o.regions), 0)] = amount
        return at


def segment_s(launch_s: Floats, device_s: Floats) -> float:
    """Time from one read-back to the next, in seconds, for operators in launch order, (O,) each."""
    return float((np.cumsum(launch_s) + np.cumsum(device_s[::-1])[::-1]).max(initial=0.0))


def launches_each(operators: Sequence[Operator], stack: Stack) -> bool:
    """True if the host launches the GEMMs of experts among the operators one by one."""
    alone = stack.experts == "each" and "full" not in stack.cuda_graphs
    return alone and any("moe" in operator.regions for operator in operators)


def precisions_of(operators: Sequence[Operator], layout: Layout) -> list[Compute]:
    """Precision of each kernel of the operators."""
    return [
        layout.compute if multiplies_weights(operator) else "bf16"
        for operator in operators
        for _ in kernels_of(operator)
    ]


def casts_of(operators: Sequence[Operator], layout: Layout) -> list[float]:
    """Number of elements of every operand that is cast to a lower precision.

    These are inputs, each once, and gradients that two products read. Weights are cast once for all
    microbatches, which is neglected.
    """
    if layout.compute == "bf16":
        return []
    low = [operator for operator in operators if multiplies_weights(operator)]
    inputs = [o.stashed_bytes / layout.bytes_per_element for o in low if o.stashed_bytes]
    gradients = [p.batch * p.m * p.k for o in low for p in o.parts if p.role == "data_gradient"]
    return [*inputs, *map(float, gradients)]


def host_s(operators: Sequence[Operator], words: Sequence[Compute], stack: Stack, device: Device) -> Floats:
    """Launch overhead of each kernel of the operators, in seconds, (W,); 0 for kernels in CUDA graphs.

    One call launches the expert GEMMs one after another, and in lower precision another one their casts. Each
    takes its time for every expert. Weight gradients need no casts: the GEMM before them has already cast
    their operands.
    """
    by_host = launched(operators, stack.cuda_graphs)
    kernels = [
        (kernel[0], operator, is_launched)
        for operator, is_launched in zip(operators, by_host, strict=True)
        for kernel in kernels_of(operator)
    ]
    return np.array([
        _started_s(first, operator_of, word, stack, device) if is_launched else 0.0
        for (first, operator_of, is_launched), word in zip(kernels, words, strict=True)
    ])  # fmt: skip


def _started_s(first: Part, operator: Operator, word: Compute, stack: Stack, device: Device) -> float:
    """Launch overhead of a kernel and its casts, in seconds; `first` is the kernel's first part."""
    cast = word != "bf16" and first.role != "weight_gradient"
    if not multiplies_experts(operator):
        return (1 + cast) * stack.launch_s
    speed = expert_speed(device, "each", word)
    # A device file times the launch of one expert's GEMM inside the loop, which is shorter than a call.
    looped_s = speed.expert_s if speed else stack.launch_s
    return (1 + cast) * (stack.launch_s + first.batch * stack.expert_launch_s) + first.batch * looped_s
