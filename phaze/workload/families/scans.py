"""State space models and delta rules: chunked scans over the sequence, sharded by heads.

Tokens of one chunk interact through products, and chunks pass on states. Scan kernels store their inputs and
recompute everything else (Dao and Gu, ICML 2024, Section 6; Yang et al., ICLR 2025, Section 3.3).
Context-parallel ranks exchange shards of the sequence for a share of the heads before the scan, and back
after it (Megatron-Core, `MambaMixer`).
"""

from __future__ import annotations

from dataclasses import replace

from phaze.spec.rows import Gemm
from phaze.spec.scans import DeltaNet, Mamba
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.primitives import LayerBuilder, Tensor

SOLVED = 16
"""Tokens per block of a chunk whose triangular system is solved; products join the blocks (FLA,
`solve_tril`).
"""


def mamba(layer: LayerBuilder, part: ModelSlice, own: Mamba, x: Tensor) -> Tensor:
    """Append a Mamba-2 mixer with its output matrix: projection, convolution, scan, gated norm."""
    tp, cp, tokens = part.layout.tp, part.layout.cp, part.tokens
    x = part.enter(layer, "scan", x)
    y = layer.dense("scan_in", x, tokens, own.projected // tp, bias=own.bias)
    copies = cp - own.groups // tp
    if copies > 0:  # every rank needs a copy of its heads' groups
        more = 2 * tokens * copies * own.state
        y = layer.add("rearrange", "scan_groups", y, elements=y.elements + more)
    pieces = layer.add("split", "scan_split", part.exchange(layer, "scan_in", y))
    first = layer.count
    total, heads, groups = tokens * cp, own.heads // (tp * cp), max(own.groups // (tp * cp), 1)
    inner, states = heads * own.head_size, groups * own.state
    z = replace(pieces, elements=total * inner)
    steps = layer.add("softplus", "step", replace(pieces, elements=total * heads, piece=2))
    channels = inner + 2 * states
    mixed = _convolved(
        layer, replace(pieces, elements=total * channels, piece=1), channels, own.conv, bias=own.conv_bias
    )
    y = _state_space(layer, part, own, (heads, groups), mixed, steps)
    layer.mark("scan", first)
    first = layer.count
    y = layer.add("mul", "scan_gate", y, layer.add("silu", "scan_silu", z))
    y = layer.add("rms_norm", "scan_norm", y, parameters=inner)
    layer.mark("gate", first)
    return _scan_out(layer, part, y)


def _scan_out(layer: LayerBuilder, part: ModelSlice, y: Tensor) -> Tensor:
    y = part.exchange(layer, "scan_out", y)
    y = layer.dense("scan_out", y, part.tokens, part.model.hidden, bias=False)
    return part.leave(layer, "scan_out", y)


def _convolved(layer: LayerBuilder, x: Tensor, channels: int, taps: int, *, bias: bool) -> Tensor:
    """Append the depthwise convolution along the sequence and its activation."""
    y = layer.add("convolve", "convolution", x, parameters=channels * (taps + bias), times=taps)
    return layer.add("silu", "convolution_silu", y)


def _state_space(
    layer: LayerBuilder, part: ModelSlice, own: Mamba, cut: tuple[int, int], mixed: Tensor, steps: Tensor
) -> Tensor:
    """Append the Mamba-2 scan for (heads, groups); heads of a group share B and C (Mamba-2, Listing 1)."""
    heads, groups = cut
    q, count = _chunks(part, own.chunk)
    p, n = own.head_size, own.state
    mixed = layer.add("split", "state_split", mixed)
    values, write, read = (
        replace(mixed, elements=count * q * size, piece=i)
        for i, size in enumerate((heads * p, groups * n, groups * n))
    )
    values = layer.add("mul", "scan_values", values, steps, parameters=3 * heads)  # A, D and the step bias
    scores = layer.add("matmul", "scan_scores", read, write, gemm=Gemm(count * groups, q, n, q))
    scores = layer.add("decay", "scan_decay", scores, elements=count * heads * q * q)
    within = layer.add("matmul", "scan_within", scores, values, gemm=Gemm(count * heads, q, q, p))
    states = layer.add("matmul", "scan_states", write, values, gemm=Gemm(count * heads, n, q, p))
    states = layer.add("recur", "scan_recur", states)
    across = layer.add("matmul", "scan_across", read, states, gemm=Gemm(count * heads, q, n, p))
    return layer.add("add", "scan_add", within, across)


def delta_net(layer: LayerBuilder, part: ModelSlice, own: DeltaNet, x: Tensor) -> Tensor:
    """Append a gated delta net with its output matrix: projections, convolution, scan, gated norm."""
    tp, cp, tokens = part.layout.tp, part.layout.cp, part.tokens
    x = part.enter(layer, "scan", x)
    y = layer.dense("scan_in", x, tokens, own.projected // tp, bias=False)
    pieces = layer.add("split", "scan_split", part.exchange(layer, "scan_in", y))
    first = layer.count
    total, values, keys = tokens * cp, own.value_heads // (tp * cp), own.key_heads // (tp * cp)
    channels = 2 * keys * own.key_size + values * own.value_size
    z = replace(pieces, elements=total * values * own.value_size)
    steps = layer.add("sigmoid", "step", replace(pieces, elements=2 * total * values, piece=2))
    mixed = _convolved(
        layer, replace(pieces, elements=total * channels, piece=1), channels, own.conv, bias=False
    )
    y = _delta_rule(layer, part, own, values, mixed, steps)
    layer.mark("scan", first)
    first = layer.count
    y = layer.add("rms_norm", "scan_norm", y, parameters=own.value_size)
    y = layer.add("mul", "scan_gate", y, layer.add("silu", "scan_silu", z))
    layer.mark("gate", first)
    return _scan_out(layer, part, y)


def _delta_rule(
    layer: LayerBuilder, part: ModelSlice, own: DeltaNet, heads: int, mixed: Tensor, steps: Tensor
) -> Tensor:
    """Append the delta-rule scan: solve each chunk's updates, then combine them with states and queries."""
    q, count = _chunks(part, own.chunk)
    batch, k, v = count * heads, own.key_size, own.value_size
    mixed = layer.add("split", "state_split", mixed)
    keys_width = (mixed.elements - batch * q * v) // 2
    query, key = (
        layer.add(
            "rearrange", f"{name}_heads", replace(mixed, elements=keys_width, piece=i), elements=batch * q * k
        )
        for i, name in enumerate(("query", "key"))
    )
    values = replace(mixed, elements=batch * q * v, piece=2)
    values = layer.add("mul", "scan_values", values, steps, parameters=2 * heads)  # decay and its bias
    met = layer.add("matmul", "scan_keys", key, key, gemm=Gemm(batch, q, k, q))
    solved = layer.add(
        "solve", "scan_solve", layer.add("decay", "scan_keys_decay", met), times=max(min(SOLVED, q) // 2, 1)
    )
    moved = layer.add("matmul", "scan_moved", solved, key, gemm=Gemm(batch, q, q, k))
    fresh = layer.add("matmul", "scan_fresh", solved, values, gemm=Gemm(batch, q, q, v))
    states = layer.add("matmul", "scan_states", key, fresh, gemm=Gemm(batch, k, q, v))
    states = layer.add("recur", "scan_recur", states)
    known = layer.add("matmul", "scan_known", moved, states, gemm=Gemm(batch, q, k, v))
    fresh = layer.add("add", "scan_update", fresh, known)
    scores = layer.add("matmul", "scan_scores", query, key, gemm=Gemm(batch, q, k, q))
    scores = layer.add("decay", "scan_decay", scores)
    within = layer.add("matmul", "scan_within", scores, fresh, gemm=Gemm(batch, q, q, v))
    across = layer.add("matmul", "scan_across", query, states, gemm=Gemm(batch, q, k, v))
    return layer.add("add", "scan_add", within, across)


def _chunks(part: ModelSlice, chunk: int) -> tuple[int, int]:
    """Tokens per chunk, and chunks of a microbatch; the last chunk of a sequence is padded."""
    size = min(chunk, part.sequence)
    return size, part.microbatch * -(-part.sequence // size)
