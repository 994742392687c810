"""Networks that work on every token alone: dense ones, and mixtures of experts.

A mixture is cut as Megatron-Core has it (`MoELayer`): every rank routes its own tokens, sends a row of each
to its k experts (all-to-all over ep, and gathered over etp where an expert is cut), and gets the results
back. Where ranks of tensor parallelism hold the same tokens, each has a slice of every expert instead, as of
a dense network. Rows are those of the busiest rank under the load of the layout.
"""

from __future__ import annotations

from math import ceil

from phaze.base.errors import PhazeError
from phaze.spec.blocks import Experts, FeedForward
from phaze.workload.expert_loads import load_factor
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.primitives import Gemm, LayerBuilder, Tensor

SCORE_BYTES = 4
"""A router's scores are in single precision."""
CHOICE_BYTES = 26
"""Kept of each expert of a token: its number and its row's place (8 each), score and normalised score in
single precision, and the weight in half precision."""


def dense_network(layer: LayerBuilder, part: ModelSlice, own: FeedForward, x: Tensor) -> Tensor:
    """Append the feed-forward network with its second matrix (whose bias comes after the sum of slices)."""
    first = layer.count
    x = part.enter(layer, "feed_forward", x)
    y = _network(layer, part, x, "feed_forward", own.width // part.layout.tp, gated=own.gated, bias=own.bias)
    y = part.leave(layer, "feed_forward_out", y)
    layer.mark("mlp", first)
    return y


def _network(
    layer: LayerBuilder, part: ModelSlice, x: Tensor, name: str, width: int, *, gated: bool, bias: bool
) -> Tensor:
    """Append a slice of a network that all tokens of the slice pass."""
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

    Raises PhazeError where ep or etp does not divide the experts.
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
    """Append the scores of all experts and the choice of k; the weights of a token's experts."""
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
    """Append the way of rows to their experts, the experts, and the sum of a token's rows."""
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
    """Append the experts of a rank as products in a batch, whose results are weighed before the second."""
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
    """Append a product for each expert of the rank, of its rows with its matrix, and a bias."""
    count = own.count // part.layout.ep
    rows = x.elements // k
    gemm, weights = Gemm(count, -(-rows // count), k, n), count * k * n
    y = layer.add(
        "matmul", f"experts_{name}", x, elements=rows * n, gemm=gemm, parameters=weights, group="expert"
    )
    return layer.bias(f"experts_{name}", y, count * n, group="expert") if own.bias else y


def _shared(layer: LayerBuilder, part: ModelSlice, own: Experts, x: Tensor) -> Tensor:
    """Append the experts that all tokens meet, cut as a dense network, and their gate."""
    first = layer.count
    y = part.enter(layer, "shared", x)
    y = _network(layer, part, y, "shared", own.shared_width // part.layout.tp, gated=own.gated, bias=False)
    y = part.leave(layer, "shared", y)
    if own.shared_gate:
        scale = layer.dense("shared_scale", x, part.own_tokens, 1, bias=False)
        y = layer.add("mul", "shared_scaled", y, layer.add("sigmoid", "shared_sigmoid", scale))
    layer.mark("shared_experts", first)
    return y
