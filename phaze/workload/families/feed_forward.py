"""Feed-forward networks, dense or as mixtures of experts.

A mixture is sharded as in Megatron-Core (`MoELayer`). Every rank routes its own tokens and dispatches each to
its k experts: an all-to-all over ep, plus a gather over etp if an expert is sharded. It then receives the
results. If tensor-parallel ranks have the same tokens, each has a shard of every expert instead, as in a
dense network. Sizes are those of the busiest rank under the layout's expert load.
"""

from __future__ import annotations

from math import ceil

from phaze.base.errors import PhazeError
from phaze.spec.blocks import Experts, FeedForward
from phaze.spec.rows import Gemm
from phaze.workload.expert_loads import load_factor
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.primitives import LayerBuilder, Tensor

SCORE_BYTES = 4
"""Bytes of a router score, in single precision."""
CHOICE_BYTES = 26
"""Bytes stored per expert of a token: expert index and row position (8 each), score and normalised score in
single precision, and the weight in half precision.
"""


def dense_network(layer: LayerBuilder, part: ModelSlice, own: FeedForward, x: Tensor) -> Tensor:
    """Append a feed-forward network including its second matrix; its bias follows the sum over ranks."""
    first = layer.count
    x = part.enter(layer, "feed_forward", x)
    y = _network(layer, part, x, "feed_forward", own.width // part.layout.tp, gated=own.gated, bias=own.bias)
    y = part.leave(layer, "feed_forward_out", y)
    layer.mark("mlp", first)
    return y


def _network(
    layer: LayerBuilder, part: ModelSlice, x: Tensor, name: str, width: int, *, gated: bool, bias: bool
) -> Tensor:
    """Append a shard of a network applied to all tokens of the shard."""
    model, tokens = part.model, part.tokens
    prefix = "" if name == "feed_forward" else f"{name}_"
    y = layer.dense(f"{name}_in", x, tokens, width, bias=bias)
    y = layer.add(model.activation, f"{prefix}{model.activation}", y)
    if gated:
        up = layer.dense(f"{name}_up", x, tokens, width, bias=bias)
        y = layer.add("mul", f"{name}_gate", y, up)
    return layer.dense(f"{name}_out", y, tokens, model.hidden, bias=False)


def mixture(layer: LayerBuilder, part: ModelSlice, own: Experts, x: Tensor) -> Tensor:
    """Append router, experts and shared experts, from and to a rank's own tokens.

    Raises PhazeError if ep or etp does not divide the experts.
    """
    _check(part, own)
    first = layer.count
    weights = _routed(layer, part, own, x)
    sent = x
    if own.latent_width:
        sent = layer.dense("latent_in", x, part.own_tokens, own.latent_width, bias=False)
    if part.repeats_tokens:
        sent = part.enter(layer, "experts", sent)
    y = _combined(layer, part, own, sent, weights)
    if part.repeats_tokens:
        y = part.leave(layer, "experts", y)
    if own.latent_width:
        y = layer.dense("latent_out", y, part.own_tokens, part.model.hidden, bias=False)
    if own.shared_width:
        y = layer.add("add", "shared_add", y, _shared(layer, part, own, x))
    layer.mark("moe", first)
    return y


def _check(part: ModelSlice, own: Experts) -> None:
    layout, where = part.layout, f"model {part.model.name}"
    if own.count % layout.ep:
        raise PhazeError(f"{where}: ep must divide experts.count {own.count}, got {layout.ep}")
    if own.width % layout.expert_slices:
        raise PhazeError(f"{where}: etp must divide experts.width {own.width}, got {layout.expert_slices}")
    if own.shared_width % layout.tp:
        raise PhazeError(f"{where}: tp must divide experts.shared_width {own.shared_width}, got {layout.tp}")
    if part.repeats_tokens and layout.etp not in (1, layout.tp):
        raise PhazeError(
            f"{where}: etp must be tp {layout.tp} without sequence parallelism, got {layout.etp}"
        )


def _routed(layer: LayerBuilder, part: ModelSlice, own: Experts, x: Tensor) -> Tensor:
    """Append the scores of all experts and the choice of k; return the weights of a token's experts."""
    tokens, width = part.own_tokens, part.bytes_per_element
    if own.scales:
        x = layer.add("rms_norm", "router_norm", x, parameters=part.model.hidden)
    first = layer.count
    y = layer.dense("router", x, tokens, own.count, bias=own.bias)
    layer.mark("router", first)
    wider = max(SCORE_BYTES - width, 0) * y.elements
    y = layer.add("softmax", "router_scores", y, kept_bytes=wider)
    chosen = tokens * own.per_token
    y = layer.add("top_k", "router_choice", y, elements=chosen, kept_bytes=CHOICE_BYTES * chosen)
    return layer.add("scale", "router_scale", y, parameters=own.count) if own.scales else y


def _combined(layer: LayerBuilder, part: ModelSlice, own: Experts, x: Tensor, weights: Tensor) -> Tensor:
    """Append token dispatch, the experts, and the weighted sum of a token's results."""
    layout, wide = part.layout, own.sent_width(part.model.hidden)
    load = load_factor(layout.load, part.own_tokens * layout.ep, own.count, own.per_token, layout.ep)
    rows = ceil(part.own_tokens * own.per_token * load)
    gathers = layout.etp > 1 and not part.repeats_tokens
    y = layer.add("dispatch", "experts_dispatch", x, elements=rows * wide)
    if layout.ep > 1:
        y = layer.add("all_to_all", "experts_dispatch_all_to_all", y, axis="ep")
    if gathers:
        total = y.elements * layout.etp
        y = layer.add("all_gather", "experts_all_gather", y, elements=total, axis="etp")
    if layout.ep > 1 or gathers:
        y = layer.add("rearrange", "experts_sort", y)
    y = _experts(layer, part, own, y, weights)
    if layout.ep > 1 or gathers:
        y = layer.add("rearrange", "experts_unsort", y)
    if gathers:
        y = layer.add("reduce_scatter", "experts_reduce_scatter", y, elements=rows * wide, axis="etp")
    if layout.ep > 1:
        y = layer.add("all_to_all", "experts_combine_all_to_all", y, axis="ep")
    return layer.add("combine", "experts_combine", y, elements=part.own_tokens * wide)


def _experts(layer: LayerBuilder, part: ModelSlice, own: Experts, x: Tensor, weights: Tensor) -> Tensor:
    """Append a rank's experts as batched products; activations are weighted before the second product."""
    model, wide = part.model, own.sent_width(part.model.hidden)
    inner = own.width // part.layout.expert_slices
    first = layer.count
    y = gate = _grouped(layer, part, own, x, "in", wide, inner)
    up = _grouped(layer, part, own, x, "up", wide, inner) if own.gated else None
    layer.mark("expert_fc1", first)
    first = layer.count
    if own.clamped:
        gate = layer.add("clamp", "experts_in_clamp", gate)
        up = None if up is None else layer.add("clamp", "experts_up_clamp", up)
    y = layer.add(model.activation, f"experts_{model.activation}", gate)
    if up is not None:
        y = layer.add("mul", "experts_gate", y, up)
    y = layer.add("weigh", "experts_weigh", y, weights)
    layer.mark("moe_act", first)
    return _grouped(layer, part, own, y, "out", inner, wide)


def _grouped(
    layer: LayerBuilder, part: ModelSlice, own: Experts, x: Tensor, name: str, k: int, n: int
) -> Tensor:
    """Append a batched product, one per expert of the rank, with optional biases."""
    count = own.count // part.layout.ep
    rows = x.elements // k
    gemm, weights = Gemm(count, -(-rows // count), k, n), count * k * n
    y = layer.add(
        "matmul", f"experts_{name}", x, elements=rows * n, gemm=gemm, parameters=weights, group="expert"
    )
    return layer.bias(f"experts_{name}", y, count * n, group="expert") if own.bias else y


def _shared(layer: LayerBuilder, part: ModelSlice, own: Experts, x: Tensor) -> Tensor:
    """Append the shared experts, sharded as a dense network, and their gate."""
    first = layer.count
    y = part.enter(layer, "shared", x)
    y = _network(layer, part, y, "shared", own.shared_width // part.layout.tp, gated=own.gated, bias=False)
    y = part.leave(layer, "shared", y)
    if own.shared_gate:
        scale = layer.dense("shared_scale", x, part.own_tokens, 1, bias=False)
        y = layer.add("mul", "shared_scaled", y, layer.add("sigmoid", "shared_sigmoid", scale))
    layer.mark("shared_experts", first)
    return y
