"""Parts of a transformer block other than attention: feed-forward networks, experts, and scans.

Feed-forward networks are dense or mixtures of experts. A mixture is sharded as in Megatron-Core
(`MoELayer`). Every rank routes its own tokens and dispatches each to its k experts: an all-to-all over ep,
plus a gather over etp if an expert is sharded. It then receives the results. If tensor-parallel ranks have
the same tokens, each has a shard of every expert instead, as in a dense network, or dispatches its share of
the tokens to whole experts. Sizes are those of the busiest rank under the layout's expert load.

State space models and delta rules are chunked scans over the sequence, sharded by heads. Tokens of one
chunk interact through products, and chunks pass on states. Scan kernels store their inputs and recompute
everything else (Dao and Gu, ICML 2024, Section 6; Yang et al., ICLR 2025, Section 3.3). Context-parallel
ranks exchange shards of the sequence for a share of the heads before the scan, and back after it
(Megatron-Core, `MambaMixer`).
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from phaze.base.errors import PhazeError
from phaze.spec.blocks import Experts, FeedForward
from phaze.spec.rows import Gemm
from phaze.spec.scans import DeltaNet, Mamba
from phaze.workload.expert_loads import load_factor
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.primitives import LayerBuilder, Tensor

SCORE_BYTES = 4
"""Bytes per router score, in single precision."""
CHOICE_BYTES = 26
"""Bytes stored per token and expert: expert index and row position (8 each), score and normalised score in
single precision, and the weight in half precision.
"""
SOLVE_BLOCK = 16
"""Tokens per block in which a chunk's triangular system is solved; GEMMs combine the blocks (FLA,
`solve_tril`).
"""


def dense_network(layer: LayerBuilder, part: ModelSlice, network: FeedForward, x: Tensor) -> Tensor:
    """Append a feed-forward network; the bias of its second matrix is added after the sum over ranks."""
    first = layer.count
    x = part.enter(layer, "feed_forward", x)
    width = network.width // part.layout.tp
    y = _network(layer, part, x, "feed_forward", width, gated=network.gated, bias=network.bias)
    y = part.leave(layer, "feed_forward_out", y)
    layer.mark("mlp", first)
    return y


def _network(
    layer: LayerBuilder, part: ModelSlice, x: Tensor, name: str, width: int, *, gated: bool, bias: bool
) -> Tensor:
    """Append a shard of a feed-forward network, applied to all tokens of the shard."""
    model, tokens = part.model, part.tokens
    prefix = "" if name == "feed_forward" else f"{name}_"
    y = layer.dense(f"{name}_in", x, tokens, width, bias=bias)
    y = layer.add(model.activation, f"{prefix}{model.activation}", y)
    if gated:
        up = layer.dense(f"{name}_up", x, tokens, width, bias=bias)
        y = layer.add("mul", f"{name}_gate", y, up)
    return layer.dense(f"{name}_out", y, tokens, model.hidden, bias=False)


def mixture(layer: LayerBuilder, part: ModelSlice, experts: Experts, x: Tensor) -> Tensor:
    """Append the router, the experts and the shared experts, applied to a rank's own tokens.

    Raises PhazeError if ep or etp does not divide the experts.
    """
    _check(part, experts)
    first = layer.count
    weights = _routed(layer, part, experts, x)
    dispatched = x
    if experts.latent_width:
        dispatched = layer.dense("latent_in", x, part.own_tokens, experts.latent_width, bias=False)
    if part.shares_tokens:
        # Each rank drops the tokens of the others, and gathers all results afterwards.
        sharded = replace(part, layout=replace(part.layout, sequence_parallel=True))
        elements = dispatched.elements // part.layout.tp
        own_tokens = layer.add("select", "experts_own_tokens", dispatched, elements=elements)
        y = sharded.enter(layer, "experts", _combined(layer, sharded, experts, own_tokens, weights))
    elif part.repeats_tokens:
        dispatched = part.enter(layer, "experts", dispatched)
        y = part.leave(layer, "experts", _combined(layer, part, experts, dispatched, weights))
    else:
        y = _combined(layer, part, experts, dispatched, weights)
    if experts.latent_width:
        y = layer.dense("latent_out", y, part.own_tokens, part.model.hidden, bias=False)
    if experts.shared_width:
        y = layer.add("add", "shared_add", y, _shared(layer, part, experts, x))
    layer.mark("moe", first)
    return y


def _check(part: ModelSlice, experts: Experts) -> None:
    layout, where = part.layout, f"model {part.model.name}"
    for axis, key, ranks in (
        ("ep", "count", layout.ep),
        ("etp", "width", layout.expert_slices),
        ("tp", "shared_width", layout.tp),
    ):
        if (size := getattr(experts, key)) % ranks:
            raise PhazeError(f"{where}: {axis} must divide experts.{key} {size}, got {ranks}")
    if part.repeats_tokens and layout.etp not in (1, layout.tp):
        raise PhazeError(
            f"{where}: etp must be tp {layout.tp} without sequence parallelism, got {layout.etp}"
        )


def _routed(layer: LayerBuilder, part: ModelSlice, experts: Experts, x: Tensor) -> Tensor:
    """Append the router's scores and its top-k choice; return the weights of each token's experts."""
    tokens, width = part.own_tokens, part.bytes_per_element
    if experts.scales:
        x = layer.add("rms_norm", "router_norm", x, parameters=part.model.hidden)
    first = layer.count
    y = layer.dense("router", x, tokens, experts.count, bias=experts.bias)
    layer.mark("router", first)
    # The scores are computed and stored in single precision, whatever the width of other tensors.
    wider = max(SCORE_BYTES - width, 0) * y.elements
    y = layer.add("softmax", "router_scores", y, kept_bytes=wider)
    chosen = tokens * experts.per_token
    y = layer.add("top_k", "router_choice", y, elements=chosen, kept_bytes=CHOICE_BYTES * chosen)
    return layer.add("scale", "router_scale", y, parameters=experts.count) if experts.scales else y


def _combined(layer: LayerBuilder, part: ModelSlice, experts: Experts, x: Tensor, weights: Tensor) -> Tensor:
    """Append token dispatch, the experts, and the weighted sum of each token's expert outputs."""
    layout, wide = part.layout, experts.sent_width(part.model.hidden)
    # The load is that of routing the tokens of all ep ranks together.
    routed = part.own_tokens * layout.ep, experts.count, experts.per_token
    load = load_factor(layout.load, *routed, layout.ep, experts.balancing)
    rows = ceil(part.own_tokens * experts.per_token * load)
    # Ranks with shards of one expert need all its rows; ranks that repeat tokens have them already.
    gathers = layout.etp > 1 and not part.repeats_tokens
    y = layer.add("dispatch", "experts_dispatch", x, elements=rows * wide)
    if layout.ep > 1:
        y = layer.add("all_to_all", "experts_dispatch_all_to_all", y, axis="ep")
    if gathers:
        total = y.elements * layout.etp
        y = layer.add("all_gather", "experts_all_gather", y, elements=total, axis="etp")
    if layout.ep > 1 or gathers:
        # Rows arrive in the order of the sending ranks; batched GEMMs need them by expert.
        y = layer.add("rearrange", "experts_sort", y)
    y = _experts(layer, part, experts, y, weights)
    if layout.ep > 1 or gathers:
        y = layer.add("rearrange", "experts_unsort", y)
    if gathers:
        y = layer.add("reduce_scatter", "experts_reduce_scatter", y, elements=rows * wide, axis="etp")
    if layout.ep > 1:
        y = layer.add("all_to_all", "experts_combine_all_to_all", y, axis="ep")
    return layer.add("combine", "experts_combine", y, elements=part.own_tokens * wide)


def _experts(layer: LayerBuilder, part: ModelSlice, experts: Experts, x: Tensor, weights: Tensor) -> Tensor:
    """Append a rank's experts as batched GEMMs; router weights are applied before the second GEMM."""
    model, wide = part.model, experts.sent_width(part.model.hidden)
    inner = experts.width // part.layout.expert_slices
    first = layer.count
    y = gate = _grouped(layer, part, experts, x, "in", wide, inner)
    up = _grouped(layer, part, experts, x, "up", wide, inner) if experts.gated else None
    layer.mark("expert_fc1", first)
    first = layer.count
    if experts.clamped:
        gate = layer.add("clamp", "experts_in_clamp", gate)
        up = None if up is None else layer.add("clamp", "experts_up_clamp", up)
    y = layer.add(model.activation, f"experts_{model.activation}", gate)
    if up is not None:
        y = layer.add("mul", "experts_gate", y, up)
    y = layer.add("weigh", "experts_weigh", y, weights)
    layer.mark("moe_act", first)
    return _grouped(layer, part, experts, y, "out", inner, wide)


def _grouped(
    layer: LayerBuilder, part: ModelSlice, experts: Experts, x: Tensor, name: str, k: int, n: int
) -> Tensor:
    """Append a batched GEMM with one matrix per expert of the rank, and optional biases."""
    count = experts.count // part.layout.ep
    rows = x.elements // k
    # Rows are padded to equal numbers per expert in the GEMM, but not in memory.
    gemm, weights = Gemm(count, -(-rows // count), k, n), count * k * n
    y = layer.add(
        "matmul", f"experts_{name}", x, elements=rows * n, gemm=gemm, parameters=weights, group="expert"
    )
    return layer.bias(f"experts_{name}", y, count * n, group="expert") if experts.bias else y


def _shared(layer: LayerBuilder, part: ModelSlice, experts: Experts, x: Tensor) -> Tensor:
    """Append the shared experts, sharded like a dense network, and their gate."""
    first = layer.count
    y = part.enter(layer, "shared", x)
    y = _network(
        layer, part, y, "shared", experts.shared_width // part.layout.tp, gated=experts.gated, bias=False
    )
    y = part.leave(layer, "shared", y)
    if experts.shared_gate:
        scale = layer.dense("shared_scale", x, part.own_tokens, 1, bias=False)
        y = layer.add("mul", "shared_scaled", y, layer.add("sigmoid", "shared_sigmoid", scale))
    layer.mark("shared_experts", first)
    return y


def mamba(layer: LayerBuilder, part: ModelSlice, mixer: Mamba, x: Tensor) -> Tensor:
    """Append a Mamba-2 mixer with its output projection: projection, convolution, scan, gated norm."""
    tp, cp, tokens = part.layout.tp, part.layout.cp, part.tokens
    x = part.enter(layer, "scan", x)
    y = layer.dense("scan_in", x, tokens, mixer.projected // tp, bias=mixer.bias)
    copies = cp - mixer.groups // tp
    if copies > 0:  # every rank needs a copy of its heads' groups
        copied_elements = 2 * tokens * copies * mixer.state
        y = layer.add("rearrange", "scan_groups", y, elements=y.elements + copied_elements)
    pieces = layer.add("split", "scan_split", part.exchange(layer, "scan_in", y))
    first = layer.count
    # After the exchange a rank has the tokens of all context-parallel ranks, but 1/cp of its heads.
    total, heads, groups = tokens * cp, mixer.heads // (tp * cp), max(mixer.groups // (tp * cp), 1)
    inner, states = heads * mixer.head_size, groups * mixer.state
    z = replace(pieces, elements=total * inner)
    steps = layer.add("softplus", "step", replace(pieces, elements=total * heads, piece=2))
    channels = inner + 2 * states
    mixed = replace(pieces, elements=total * channels, piece=1)
    mixed = _convolved(layer, mixed, channels, mixer.conv, bias=mixer.conv_bias)
    y = _state_space(layer, part, mixer, (heads, groups), mixed, steps)
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
    """Append a depthwise convolution along the sequence, and its activation."""
    y = layer.add("convolve", "convolution", x, parameters=channels * (taps + bias), times=taps)
    return layer.add("silu", "convolution_silu", y)


def _state_space(
    layer: LayerBuilder, part: ModelSlice, mixer: Mamba, cut: tuple[int, int], mixed: Tensor, steps: Tensor
) -> Tensor:
    """Append the Mamba-2 scan for the (heads, groups) in `cut`; a group's heads share B and C (Listing 1)."""
    heads, groups = cut
    q, count = _chunks(part, mixer.chunk)
    p, n = mixer.head_size, mixer.state
    mixed = layer.add("split", "state_split", mixed)
    values, write, read = (
        replace(mixed, elements=count * q * size, piece=i)
        for i, size in enumerate((heads * p, groups * n, groups * n))
    )
    values = layer.add("mul", "scan_values", values, steps, parameters=3 * heads)  # A, D and the step bias
    # Inside a chunk: scores of all pairs of tokens, which decay with their distance, times the values.
    scores = layer.add("matmul", "scan_scores", read, write, gemm=Gemm(count * groups, q, n, q))
    scores = layer.add("decay", "scan_decay", scores, elements=count * heads * q * q)
    within = layer.add("matmul", "scan_within", scores, values, gemm=Gemm(count * heads, q, q, p))
    # Between chunks: each adds its tokens to the state, and reads the state of all earlier ones.
    states = layer.add("matmul", "scan_states", write, values, gemm=Gemm(count * heads, n, q, p))
    states = layer.add("recur", "scan_recur", states)
    across = layer.add("matmul", "scan_across", read, states, gemm=Gemm(count * heads, q, n, p))
    return layer.add("add", "scan_add", within, across)


def delta_net(layer: LayerBuilder, part: ModelSlice, mixer: DeltaNet, x: Tensor) -> Tensor:
    """Append a gated delta net with its output projection: projections, convolution, scan, gated norm."""
    tp, cp, tokens = part.layout.tp, part.layout.cp, part.tokens
    x = part.enter(layer, "scan", x)
    y = layer.dense("scan_in", x, tokens, mixer.projected // tp, bias=False)
    pieces = layer.add("split", "scan_split", part.exchange(layer, "scan_in", y))
    first = layer.count
    # As in `mamba`: all tokens for 1/cp of the heads.
    total, values, keys = tokens * cp, mixer.value_heads // (tp * cp), mixer.key_heads // (tp * cp)
    channels = 2 * keys * mixer.key_size + values * mixer.value_size
    z = replace(pieces, elements=total * values * mixer.value_size)
    steps = layer.add("sigmoid", "step", replace(pieces, elements=2 * total * values, piece=2))
    mixed = replace(pieces, elements=total * channels, piece=1)
    mixed = _convolved(layer, mixed, channels, mixer.conv, bias=False)
    y = _delta_rule(layer, part, mixer, values, mixed, steps)
    layer.mark("scan", first)
    first = layer.count
    y = layer.add("rms_norm", "scan_norm", y, parameters=mixer.value_size)
    y = layer.add("mul", "scan_gate", y, layer.add("silu", "scan_silu", z))
    layer.mark("gate", first)
    return _scan_out(layer, part, y)


def _delta_rule(
    layer: LayerBuilder, part: ModelSlice, mixer: DeltaNet, heads: int, mixed: Tensor, steps: Tensor
) -> Tensor:
    """Append the delta-rule scan: solve each chunk's updates, then combine them with states and queries."""
    q, count = _chunks(part, mixer.chunk)
    batch, k, v = count * heads, mixer.key_size, mixer.value_size
    mixed = layer.add("split", "state_split", mixed)
    keys_width = (mixed.elements - batch * q * v) // 2
    # Value heads that share a query and key head get a copy of it each.
    pieces = [replace(mixed, elements=keys_width, piece=i) for i in range(2)]
    query = layer.add("rearrange", "query_heads", pieces[0], elements=batch * q * k)
    key = layer.add("rearrange", "key_heads", pieces[1], elements=batch * q * k)
    values = replace(mixed, elements=batch * q * v, piece=2)
    values = layer.add("mul", "scan_values", values, steps, parameters=2 * heads)  # decay and its bias
    # Each token overwrites what the state holds for its key, so updates in a chunk depend on one another by
    # the overlaps of their keys: a triangular system.
    overlaps = layer.add("matmul", "scan_keys", key, key, gemm=Gemm(batch, q, k, q))
    overlaps = layer.add("decay", "scan_keys_decay", overlaps)
    solved = layer.add("solve", "scan_solve", overlaps, times=max(min(SOLVE_BLOCK, q) // 2, 1))
    moved = layer.add("matmul", "scan_moved", solved, key, gemm=Gemm(batch, q, q, k))
    fresh = layer.add("matmul", "scan_fresh", solved, values, gemm=Gemm(batch, q, q, v))
    states = layer.add("matmul", "scan_states", key, fresh, gemm=Gemm(batch, k, q, v))
    states = layer.add("recur", "scan_recur", states)
    # The update is the new value minus what the state holds for the key at the chunk's start.
    recalled = layer.add("matmul", "scan_known", moved, states, gemm=Gemm(batch, q, k, v))
    fresh = layer.add("add", "scan_update", fresh, recalled)
    scores = layer.add("matmul", "scan_scores", query, key, gemm=Gemm(batch, q, k, q))
    scores = layer.add("decay", "scan_decay", scores)
    within = layer.add("matmul", "scan_within", scores, fresh, gemm=Gemm(batch, q, q, v))
    across = layer.add("matmul", "scan_across", query, states, gemm=Gemm(batch, q, k, v))
    return layer.add("add", "scan_add", within, across)


def _chunks(part: ModelSlice, chunk: int) -> tuple[int, int]:
    """Tokens per chunk, and number of chunks in a microbatch; the last chunk of a sequence is padded."""
    size = min(chunk, part.sequence)
    return size, part.microbatch * -(-part.sequence // size)
