"""Extra kernels, GEMMs and HBM bytes of software stacks with incomplete kernel fusion.

Launches of extra kernels are counted from the operations of PyTorch's autograd, apex and Megatron-LM of 2021
and 2022, in addition to one per product and elementwise group. These kernels move few bytes: their cost is
the launch overhead. Views, which launch nothing, are part of the mean time of a launch.

With context parallelism a rank has the queries of a part of the sequence. In a ring (cp_kind p2p) keys and
values arrive in parts: the first kernel has those of the rank's own part, every other one those of another
rank. A rank has one block from the start of the sequence and one from its end, so a causal mask leaves half
of each other part, without a mask inside (Transformer Engine, `AttnFuncWithCPAndKVP2P`; PyTorch,
`_templated_ring_attention`). Partial results are then merged. If keys and values are gathered, each of the
two blocks of queries is one kernel (`AttnFuncWithCPAndKVAllGather`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.cost.kernels import KERNEL_LIMITS, Kernel, KernelTimes, kernels_of
from phaze.cost.memory import HALF
from phaze.layout import Compute, Layout
from phaze.plan.layers.activations import SCAN
from phaze.plan.layers.experts import multiplies_experts, primitives_of, row_traffic
from phaze.spec.system import Device, Stack
from phaze.workload.lower.attention import first_products, scores_of
from phaze.workload.lower.memory import GATED
from phaze.workload.operators import Operator
from phaze.workload.primitives import Scores
from phaze.workload.workload import Layer

HBM = KERNEL_LIMITS.index("hbm")
USUAL = "2"
"""Default attention kernel of a stack that names none: FlashAttention-2."""
JOINED = (("query", "key", "value"), ("feed_forward_in", "feed_forward_up"), ("shared_in", "shared_up"))
"""Names of the GEMMs that are joined into one (Megatron-Core, `linear_qkv` and `linear_fc1`)."""
INSIDE_SCANS = ("convolution_silu", "scan_decay", "scan_keys_decay")
"""Operators inside other kernels of a scan: the activation of its convolution (causal-conv1d), and the decay
of scores, which products apply to their tiles (mamba_ssm, ops/triton/ssd_chunk_scan.py)."""
SCAN_OUTPUTS = ("scan_within", "scan_across")
"""Products of a scan that its backward pass does not run again: it recomputes the states of chunks and the
scores, not the outputs (mamba_ssm, `_mamba_chunk_scan_combined_bwd`)."""
FORK = "_fork.backward"
STEPS, STEPS_BYTES = 5, 9.0
"""Number of kernels for attention scores without a fused kernel, and their bytes relative to one.

Scores are converted to single precision, scaled, masked, normalised, and converted back (36 bytes per score
instead of 4; Megatron-LM, `fused_softmax`).
"""
NORM = 4
"""Number of extra kernels in the backward pass of a norm.

Two sum the gradients of its parameters (apex, `cuComputePartGradGammaBeta`, `cuComputeGradGammaBeta`), and
two add them to those of earlier microbatches (autograd, `AccumulateGrad`).
"""
CONTEXT = 1
"""One copy that makes attention heads contiguous again, in either pass (Megatron-LM, `ParallelAttention`)."""
SCORES = 3
"""Backward kernels of scores: two scale gradients of queries and keys, one joins them with the values'."""
LOSS = (20, 9)
"""Number of extra kernels of an unfused loss, forward and backward.

22 and 11 operations (Megatron-LM, `vocab_parallel_cross_entropy`, mask of the loss) less log-softmax and
selection, which are already counted. Collectives are counted separately.
"""
MASKED_LOOKUP = 7
"""Number of extra kernels of an embedding lookup in a sharded vocabulary.

A mask takes five operations, and two apply it (Megatron-LM, `VocabParallelEmbedding`).
"""
LOOKUP_GRADIENT = 8
"""Kernels of an embedding's gradient: about six sort the tokens, two sum their gradients.

Source: PyTorch, `embedding_dense_backward_cuda`.
"""
BIAS, CLAMP, LAST = "experts_out_bias", "experts_in_clamp", "experts_out"
"""Names of primitives: bias of an expert's last GEMM, clamp of its projections, and the last GEMM."""
BIAS_KERNELS = (2, 6)
"""Number of kernels per expert bias, forward and backward.

Forward: bias times weight, and sum. Backward: two products and two sums for the gradients of bias and weight,
and two sums that add the gradients of both biases to those of earlier microbatches (Megatron-Core,
`TEGroupedMLP._apply_bias`, `DistributedDataParallel`).
"""
CLAMP_KERNELS = 3
"""Kernels per clamp: two clamps and a concatenation, or gradients (`weighted_bias_quick_geglu_impl`)."""
ROTARY = ("query_scaled_rotary", "key_scaled_rotary")
"""Names of the primitives of scaled rotary embeddings."""
ROTARY_KERNELS = (11, 8)
"""Number of kernels beyond the first of a scaled rotary embedding, forward and backward.

Forward: two products, negation, concatenation, sum and concatenation, and six on the small tables. Backward:
two products, negation, concatenation, sum, and gradients of two slices with their sum (Megatron-Core,
`_apply_rotary_pos_emb_bshd`).
"""
COPIED = ("scan_in", "scan_out")
"""Names of the products whose result or input a scan copies, to put samples before tokens or after them."""
PADDING_KERNELS = 2
"""Number of kernels that pad rows before the first GEMM and remove the padding after the last one."""


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
    passes_s, launches = np.zeros((2, len(KERNEL_LIMITS))), 0
    for scores in scores_of(core):
        kernels, merges = kernels_on(scores, layout, stack), 0
        kernels_s = times.attention(kernels, kernel)
        if in_ring(scores, layout, stack):
            merges = len(kernels) - 1
            whole_sequence = replace(scores, queries=scores.keys)
            # At least their share of one long kernel, on which the bounds of layouts rest.
            kernels_s = np.maximum(
                kernels_s, times.attention((whole_sequence,), kernel) * scores.queries / scores.keys
            )
        passes_s += kernels_s
        per_byte_s = merges / (device.hbm_bandwidth_bytes_per_s * device.sustained_hbm)
        for row, (elements, merged_bytes) in enumerate(zip(_merged(scores), stack.merge_bytes, strict=True)):
            passes_s[row, HBM] += elements * merged_bytes * per_byte_s
        launches += len(kernels) + merges
    forward_s, backward_s = passes_s
    return Fused(FusedPass(forward_s, launches), FusedPass(backward_s, launches))


def attention_kernel(device: Device, stack: Stack) -> str | None:
    """Name of a stack's attention kernel on a device; None if the device names none.

    Raises PhazeError if the device has only other kernels.
    """
    trained = [name for name, kernel in device.attention.items() if kernel.backward is not None]
    # Device files without attention kernels are priced by products and vector lanes.
    if not trained:
        return None
    for name in stack.attention or (USUAL, *trained):
        if name in trained:
            return name
    raise PhazeError(
        f"flash_attention: the software stack has attention {', '.join(stack.attention)}, and device "
        f"{device.name} knows {', '.join(trained)}"
    )


def in_ring(scores: Scores, layout: Layout, stack: Stack) -> bool:
    """True if attention processes keys and values in parts and merges partial results (ring attention)."""
    passes_on = layout.cp_kind not in ("all_gather", "a2a") or stack.ring_attention
    return scores.queries < scores.keys and not scores.windowed and passes_on


def kernels_on(scores: Scores, layout: Layout, stack: Stack) -> tuple[Scores, ...]:
    """Attention kernels that the slowest context-parallel rank runs, in order."""
    queries, keys = scores.queries, scores.keys
    if queries == keys or scores.windowed:
        return (scores,)
    causal = scores.mean < scores.longest
    if in_ring(scores, layout, stack):
        # A causal mask leaves half of the own part: one block from the start, one from the end.
        seen = queries // 2 if causal else queries
        first = replace(scores, keys=queries, longest=queries, mean=seen)
        other = replace(scores, keys=seen, longest=seen, mean=seen)
        return (first, *[other] * (keys // queries - 1))
    if not causal:
        return (scores,)
    # Two kernels: the early block sees few keys, the late one nearly all.
    half = queries // 2
    first = replace(scores, queries=half, keys=half, longest=half, mean=half / 2)
    return first, replace(scores, queries=half, mean=keys - half / 2)


def _merged(scores: Scores) -> tuple[float, float]:
    """Number of elements merged from a partial result of ring attention, and from its partial gradients.

    The gradients are those of queries, and of the keys and values of another rank's part that a causal mask
    leaves.
    """
    part = 0.5 if scores.mean < scores.longest else 1.0
    keys = part * scores.kv_heads * (scores.size + scores.value_size)
    rows = scores.samples * scores.queries
    return rows * scores.heads * scores.value_size, rows * (scores.heads * scores.size + keys)


def without_fused_scans(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Operators of a pass, without those that scans compute inside other kernels."""
    return tuple(operator for operator in operators if operator.name.partition(".")[0] not in INSIDE_SCANS)


def recomputed_in_scans(layer: Layer) -> tuple[Operator, ...]:
    """Forward operators of a layer's scan that its backward pass runs again."""
    return tuple(operator for operator in layer.forward_in(SCAN) if operator.name not in SCAN_OUTPUTS)


def scan_products_s(operator: Operator, kernel: Kernel, device: Device) -> float:
    """Seconds of a product of a scan on the vector lanes; 0 for another kernel.

    Kernels of a scan scale operands by decays in single precision between their products, and tiles of a
    chunk are small (mamba_ssm, ops/triton). Mamba-2 with 1.4B parameters trains on A100, H200 and GB200 as if
    the lanes multiplied (state-spaces/mamba, issue 904). Delta nets are assumed to be alike. Tiles above the
    diagonal are skipped in the forward pass.
    """
    if not operator.regions & SCAN:
        return 0.0
    multiplied = sum(part.batch * part.m * part.n * part.k for part in kernel)
    share = 0.5 if operator.name == "scan_within" else 1.0
    return share * multiplied / (device.num_vc * device.lanes * device.clock_hz * device.sustained_clock)


def without_sums(operators: Sequence[Operator], stack: Stack) -> tuple[Operator, ...]:
    """Operators of a pass, without the sums of input gradients that joined GEMMs make unnecessary.

    A sum follows the products it adds up; it remains for the gradients of other readers of the input.
    """
    summed = list(operators)
    if not stack.joined_products:
        return tuple(summed)
    places = {operator.name: place for place, operator in enumerate(summed)}
    for names in JOINED:
        joined = [places[f"{name}.backward"] for name in names if f"{name}.backward" in places]
        later = range(max(joined, default=len(summed)), len(summed))
        sums = next((place for place in later if summed[place].name.endswith(FORK)), None)
        if len(joined) > 1 and sums is not None:
            summed[sums] = _of_fewer(summed[sums], len(joined) - 1)
    return tuple(summed)


def _of_fewer(operator: Operator, fewer: int) -> Operator:
    """Reduce the number of summed gradients by `fewer`; a single remaining gradient needs no sum."""
    # A joined product has already summed its input gradients inside.
    remaining = len(operator.parts) - fewer
    if remaining <= 0:
        return replace(operator, parts=())
    nbytes = sum(part.streamed_bytes for part in operator.parts)
    gradient_bytes = nbytes // (len(operator.parts) + 2)
    first = replace(operator.parts[0], streamed_bytes=nbytes - fewer * gradient_bytes)
    return replace(operator, parts=(first, *operator.parts[1:remaining]))


def moves_of(
    owned: Iterable[tuple[Operator, Sequence[Kernel]]], stack: Stack, device: Device, *, in_steps: bool
) -> list[float]:
    """HBM traffic of each kernel of the operators on a stack, as a multiple of the minimum.

    Slower kernels count as the bytes that would take their time.
    """
    moves = []
    for operator, kernels in owned:
        slower = row_traffic(operator, stack, device)
        moves += [_moved(kernel, stack, in_steps=in_steps) * slower for kernel in kernels]
    return moves


def _moved(kernel: Kernel, stack: Stack, *, in_steps: bool) -> float:
    """HBM traffic of a kernel on a stack, as a multiple of the minimum; scores are unfused if `in_steps`."""
    kinds = {part.kind for part in kernel}
    # Products have their own speed; only passes through memory are multiplied.
    if "matmul" in kinds:
        return 1.0
    if "softmax" in kinds and in_steps:
        return STEPS_BYTES
    if "log_softmax" in kinds:
        return stack.loss
    return stack.elementwise * (_without_first_factor(kernel) if stack.fused_gate else 1.0)


def _without_first_factor(kernel: Kernel) -> float:
    """Fraction of a gated activation's bytes that a fused kernel moves; 1 for other kernels.

    The fused kernel recomputes the first factor in the backward pass instead of writing and reading it.
    """
    first = next((part for part in kernel if part.kind in GATED), None)
    if first is None or all(part.kind != "mul" for part in kernel):
        return 1.0
    return 1.0 - HALF * first.elements / sum(part.streamed_bytes for part in kernel)


def in_steps_of(operators: Sequence[Operator], stack: Stack) -> bool:
    """True if separate kernels scale, mask and normalise the attention scores.

    A stack's fused kernel may require the heads of all samples of a microbatch to be a multiple of a number.
    """
    products = first_products([operator for operator in operators if operator.attention])
    return any(scores.batch * scores.m // scores.n % stack.fused_heads > 0 for scores in products[:1])


def more_launches(operators: Iterable[Operator], tp: int, stack: Stack) -> int:
    """Number of extra kernels that the host launches for operators on `tp` shards.

    torch.compile fuses them with others.
    """
    # torch.compile fuses these kernels with others.
    if stack.compiled:
        return 0
    stepwise, apart = stack.loss > 1.0, not stack.fused_gradients
    return sum(
        _more(operator.name, operator.core == "tensor" and not operator.attention and apart, tp > 1, stepwise)
        for operator in operators
    )


@cache
def _more(name: str, adds_gradient: bool, sharded: bool, stepwise: bool) -> int:
    """Number of extra kernels of one operator, by the primitives in its name.

    `adds_gradient`: a kernel adds the weight gradient to the one of earlier microbatches.
    """
    primitives = primitives_of(name)
    lookups = sum(primitive.endswith("_lookup") for primitive in primitives)
    if not name.endswith(".backward"):
        launches = (len(primitives) - 1 if lookups else 0) + MASKED_LOOKUP * (
            sharded and "word_lookup" in primitives
        )
        return (
            launches
            + CONTEXT * ("context" in primitives)
            + LOSS[0] * (stepwise and "log_softmax" in primitives)
        )
    biases, norms = (sum(primitive.endswith(kind) for primitive in primitives) for kind in ("_bias", "_norm"))
    launches = NORM * norms + 2 * biases - (len(primitives) == biases) + (LOOKUP_GRADIENT + 1) * lookups
    launches += CONTEXT * ("context" in primitives) + SCORES * ("scores" in primitives) + adds_gradient
    return launches + LOSS[1] * (stepwise and "log_softmax" in primitives)


class Unfused(NamedTuple):
    """HBM traffic and launches of a stack's extra kernels, in addition to those of the operators."""

    nbytes: float
    """Bytes of HBM traffic."""
    launches: int
    """Number of kernels that the host launches."""


def unfused(operators: Sequence[Operator], layout: Layout, stack: Stack) -> Unfused:
    """Extra kernels of experts, of scans and of scaled rotary embeddings in one pass of a layer.

    CUDA graphs of attention capture the rotary embeddings.
    """
    extra = _of_experts(operators, layout.compute, stack)
    if stack.sequence_first and layout.microbatch > 1:
        copied = _copied_by_scans(operators)
        by_host = 0 if {"mamba", "full"} & {*stack.cuda_graphs} else len(copied)
        extra = Unfused(extra.nbytes + 2 * HALF * sum(copied), extra.launches + by_host)
    scaled = [operator for operator in operators if any(_has(operator, name) for name in ROTARY)]
    if not scaled or not stack.rotary_bytes[0]:
        return extra
    backward = is_backward(scaled[0])
    elements = sum(max(part.elements for part in operator.parts) for operator in scaled)
    captured = bool({"attn", "full"} & {*stack.cuda_graphs})
    launches = 0 if captured else ROTARY_KERNELS[backward] * len(scaled)
    return Unfused(extra.nbytes + elements * stack.rotary_bytes[backward], extra.launches + launches)


def _copied_by_scans(operators: Iterable[Operator]) -> list[int]:
    """Numbers of elements that scans copy so that samples come before tokens, and back."""
    copied = []
    for operator in operators:
        if any(_has(operator, name) for name in COPIED):
            # The first product of either pass has the tokens as rows.
            first, into = operator.parts[0], _has(operator, COPIED[0])
            copied.append(first.m * (first.n if into != is_backward(operator) else first.k))
    return copied


def _of_experts(operators: Sequence[Operator], compute: Compute, stack: Stack) -> Unfused:
    """Extra kernels of experts in one pass of a layer.

    Biases of the last product are added expert by expert, because every row has its own weight. Lower
    precision needs rows of an expert in multiples of a block. All-to-all dispatch does not pad them, so they
    are copied; HybridEP pads in its own copy.
    """
    if not any("moe" in product.regions for product in operators):
        return Unfused(0.0, 0)
    if stack.experts == "fused":
        return Unfused(0.0, _router_kernels(operators, stack))
    nbytes, launches = 0.0, _router_kernels(operators, stack)
    last = [
        (product, product.parts[0])
        for product in operators
        if _has(product, LAST) and multiplies_experts(product)
    ]
    for operator in operators:
        if not {BIAS, CLAMP} & primitives_of(operator.name):
            continue
        backward = is_backward(operator)
        elements = max((part.elements for part in operator.parts), default=0)
        if _has(operator, BIAS) and stack.expert_bias_bytes[0]:
            nbytes += elements * stack.expert_bias_bytes[backward]
            launches += BIAS_KERNELS[backward] * sum(part.batch for _, part in last)
        if _has(operator, CLAMP) and stack.clamp_bytes[0]:
            nbytes += elements * stack.clamp_bytes[backward]
            launches += CLAMP_KERNELS
    if compute != "bf16" and stack.dispatch == "rows" and stack.padding_bytes:
        rows = sum(
            part.batch * part.m * (part.k if is_backward(product) else part.n) for product, part in last
        )
        nbytes += rows * PADDING_KERNELS * stack.padding_bytes
        launches += PADDING_KERNELS * len(last)
    return Unfused(nbytes, launches)


def _router_kernels(operators: Sequence[Operator], stack: Stack) -> int:
    """Number of router and dispatch kernels in addition to the operators; 0 if a CUDA graph captures them."""
    routing = [operator for operator in operators if operator.name.startswith("router")]
    if {"moe_router", "full"} & {*stack.cuda_graphs} or not routing:
        return 0
    kernels = sum(len(kernels_of(operator)) for operator in routing)
    return max(stack.router_kernels[is_backward(routing[0])] - kernels, 0)


def is_backward(operator: Operator) -> bool:
    """True if an operator belongs to the backward pass."""
    return operator.name.endswith(".backward")


def _has(operator: Operator, name: str) -> bool:
    """True if a primitive is part of an operator, forward or backward."""
    return name in primitives_of(operator.name)
