"""Multi-head, grouped-query, sliding-window, chunked and latent attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phaze.layout import Axis
from phaze.spec.blocks import Attention, Indexer, Latent
from phaze.spec.rows import Gemm
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.primitives import LayerBuilder, Scores, Tensor


@dataclass(frozen=True)
class Heads:
    """Number and dimensions of the attention heads of one shard."""

    heads: int
    kv_heads: int
    size: int
    """Head dimension of queries and keys."""
    value_size: int
    keys: int
    """Keys computed per query, before a causal mask removes half: the whole sequence, about
    2w in windows of w tokens, or a chunk.
    """


def attention(layer: LayerBuilder, part: ModelSlice, mixer: Attention, x: Tensor) -> Tensor:
    """Append attention and its output projection; the projection's bias is added after the sum over ranks."""
    # GEMMs also compute the masked half: twice the mean number of keys under a causal mask.
    tp, keys = part.layout.tp, round(2 * mixer.attended(part.sequence, causal=True))
    # With more ranks than key-value heads, ranks have copies.
    kv_heads = max(mixer.kv_heads // tp, 1)
    heads = Heads(mixer.heads // tp, kv_heads, mixer.query_size, mixer.value_size, keys)
    gate, first = None, layer.count
    if mixer.latent is not None:
        q, k, v = _latent_projections(layer, part, mixer, mixer.latent, x)
    else:
        x = part.enter(layer, "attention", x)
        q, k, v = _projections(layer, part, mixer, heads, x)
        if mixer.gate:
            gate = layer.dense("attention_gate", x, part.tokens, q.elements // part.tokens, bias=mixer.bias)
    layer.mark("qkv_linear", first)
    y = attend(layer, part, mixer, heads, (q, k, v))
    y = layer.add("reshape", "context_reshape", layer.add("transpose", "context_transpose", y))
    if gate is not None:
        y = layer.add("mul", "attention_gated", y, layer.add("sigmoid", "attention_sigmoid", gate))
    y = layer.dense("attention_out", y, part.tokens, part.model.hidden, bias=False)
    layer.mark("attn_proj", y.source)
    return part.leave(layer, "attention_out", y)


def attend(
    layer: LayerBuilder, part: ModelSlice, mixer: Attention, heads: Heads, qkv: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Append attention over per-head queries, keys and values; return the results by head."""
    if part.layout.cp > 1 and part.layout.heads_ranks > 1:
        return _attend_by_all_to_all(layer, part, mixer, heads, qkv)
    q, k, v = qkv
    k, v = (part.gather_context(layer, name, y) for name, y in (("key", k), ("value", v)))
    return _core(layer, part, mixer, heads, (q, k, v), part.own_sequence)


def _attend_by_all_to_all(
    layer: LayerBuilder, part: ModelSlice, mixer: Attention, heads: Heads, qkv: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Append attention over whole sequences for a share of the heads, between two all-to-alls.

    This is DeepSpeed Ulysses (Jacobs et al. 2023). Heads of keys and values are copied if there are too few.
    If only groups of ranks exchange heads, their sequences are still partial and a ring runs among the
    groups.
    """
    layout, cp = part.layout, part.layout.heads_ranks
    axis: Axis = "cp" if cp == layout.cp else "cp-heads"
    copies = max(cp // heads.kv_heads, 1)
    tensors = dict(zip(("query", "key", "value"), qkv, strict=True))
    for name in ("key", "value") if copies > 1 else ():
        x = tensors[name]
        tensors[name] = layer.add("rearrange", f"{name}_copies", x, elements=x.elements * copies)
    q, k, v = (layer.add("all_to_all", f"{name}_all_to_all", x, axis=axis) for name, x in tensors.items())
    if cp < layout.cp:
        k, v = (part.ring(layer, name, y, "cp-ring") for name, y in (("key", k), ("value", v)))
    share = replace(heads, heads=heads.heads // cp, kv_heads=heads.kv_heads * copies // cp)
    y = _core(layer, part, mixer, share, (q, k, v), part.own_sequence * cp)
    # The kernel's backward pass needs its result, which is then sent on.
    stored_bytes = y.elements * part.bytes_per_element
    return layer.add("all_to_all", "context_all_to_all", y, axis=axis, kept_bytes=stored_bytes)


def _core(
    layer: LayerBuilder,
    part: ModelSlice,
    mixer: Attention,
    heads: Heads,
    qkv: tuple[Tensor, Tensor, Tensor],
    queries: int,
) -> Tensor:
    """Append scores, softmax and context; query heads that share a key head form the rows of one GEMM."""
    (q, k, v), model = qkv, part.model
    batch, rows = part.microbatch * heads.kv_heads, heads.heads // heads.kv_heads * queries
    first = layer.count
    gemm = Gemm(batch, rows, heads.size, heads.keys)
    # Query heads of a key head are rows of its GEMM, because they multiply the same keys.
    longest, mean = (mixer.attended(part.sequence, causal=causal) for causal in (False, model.causal))
    sizes = Scores(
        *(part.microbatch, queries, part.sequence, longest, mean),
        *(heads.heads, heads.kv_heads, heads.size, heads.value_size),
    )
    scores = layer.add("matmul", "scores", q, k, gemm=gemm, scores=sizes)
    y = layer.add("scale", "scores_scale", scores)
    # One byte per query and key, which samples share; without a causal mask one per key of each sample.
    mask = heads.keys * (queries if model.causal else part.microbatch)
    y = layer.add("mask", "scores_mask", y, constant_bytes=mask)
    # A sink is one learned score per head.
    y = layer.add("softmax", "softmax", y, parameters=mixer.sinks * heads.heads)
    y = layer.dropout("softmax", y, model.attention_dropout)
    y = layer.add("matmul", "context", y, v, gemm=Gemm(batch, rows, heads.keys, heads.value_size))
    layer.mark("core_attn", first)
    return y


def _projections(
    layer: LayerBuilder, part: ModelSlice, mixer: Attention, heads: Heads, x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Append the projections to queries, keys and values by head, from a fused matrix or separate ones."""
    numbers = {"query": heads.heads, "key": heads.kv_heads, "value": heads.kv_heads}
    widths = {name: number * heads.size for name, number in numbers.items()}
    if mixer.shared_kv:
        del widths["value"]
    # No rank has a whole key-value head, so its heads must be gathered from several ranks.
    if part.layout.tp > mixer.key_value_heads:
        flat = [_gathered_projection(layer, name, part, mixer, x, wide) for name, wide in widths.items()]
    elif part.model.fused_qkv:
        y = layer.dense("qkv", x, part.tokens, sum(widths.values()), bias=mixer.bias)
        y = layer.add("split", "qkv_split", y)
        flat = [replace(y, elements=part.tokens * wide, piece=i) for i, wide in enumerate(widths.values())]
    else:
        flat = [layer.dense(n, x, part.tokens, wide, bias=mixer.bias) for n, wide in widths.items()]
    by_head = [layer.by_heads(name, y) for name, y in zip(widths, flat, strict=True)]
    # Without a projection of their own the values are the keys.
    q, k, v = by_head[0], by_head[1], by_head[-1]
    if mixer.qk_norm != "none":
        scales = (heads.size, heads.size) if mixer.qk_norm == "heads" else (widths["query"], widths["key"])
        q = layer.add("rms_norm", "query_norm", q, parameters=scales[0])
        k = layer.add("rms_norm", "key_norm", k, parameters=scales[1])
    if part.model.positions == "rotary":
        q, k = (rotary(layer, name, part, y, mixer.head_size) for name, y in (("query", q), ("key", k)))
    return q, k, v


def _gathered_projection(
    layer: LayerBuilder, name: str, part: ModelSlice, mixer: Attention, x: Tensor, wide: int
) -> Tensor:
    """Append a rank's projection, all-gather it over tensor-parallel ranks, and select the rank's own heads.

    Megatron-Core does this if ranks share heads of keys and values (`SelfAttention`, version 0.16.1). The
    matrices are sharded evenly, and no shard has a whole head.
    """
    width = mixer.query_width if name == "query" else mixer.kv_width
    share = layer.dense(name, x, part.tokens, width // part.layout.tp, bias=mixer.bias)
    gathered = part.gather(layer, f"{name}_heads", share, "tp")
    return layer.add("select", f"{name}_heads", gathered, elements=part.tokens * wide)


def rotary(layer: LayerBuilder, name: str, part: ModelSlice, x: Tensor, width: int) -> Tensor:
    """Append a rotary embedding of `width` dimensions per head; it reads tables of sines and cosines."""
    table = 2 * part.own_sequence * width * part.bytes_per_element
    scaled = "scaled_" if part.model.scaled_rotary else ""
    return layer.add("rotary", f"{name}_{scaled}rotary", x, constant_bytes=table)


def _latent_projections(
    layer: LayerBuilder, part: ModelSlice, mixer: Attention, latent: Latent, x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Append a shard's queries, keys and values, projected from latent vectors that every rank computes.

    The down-projections are replicated on every rank, which applies them to its own tokens (Megatron-Core,
    `MLASelfAttention`). Kernels of the rotary embedding write whole queries and keys.
    """
    heads, tokens = mixer.heads // part.layout.tp, part.tokens
    ranks = latent.kv_rank + latent.rope_size
    query_latent, query_name = x, "query_up" if latent.query_rank else "query"
    if latent.query_rank:
        query_latent = layer.dense("query_down", x, part.own_tokens, latent.query_rank, bias=mixer.bias)
        query_latent = layer.add("rms_norm", "query_norm", query_latent, parameters=latent.query_rank)
    pair = layer.dense("key_value_down", x, part.own_tokens, ranks, bias=mixer.bias)
    rope_bytes = part.own_tokens * latent.rope_size * part.bytes_per_element
    # The norm's input is a view of the whole tensor, which is stored with the rotary part.
    pair = layer.add("split", "key_value_split", pair, kept_bytes=rope_bytes)
    latent_vector = replace(pair, elements=part.own_tokens * latent.kv_rank)
    latent_vector = layer.add("rms_norm", "key_value_norm", latent_vector, parameters=latent.kv_rank)
    rope_key = replace(pair, elements=part.own_tokens * latent.rope_size, piece=1)
    if mixer.index is not None:
        _index(layer, part, latent, mixer.index, query_latent, x)
    query_latent = part.enter(layer, "query_up" if latent.query_rank else "attention", query_latent)
    latent_vector = part.enter(layer, "key_value_up", latent_vector)
    rope_key = part.enter(layer, "key_rope", rope_key)
    first = layer.count
    q = layer.dense(query_name, query_latent, tokens, heads * mixer.query_size, bias=False)
    q = rotary(layer, "query", part, q, latent.rope_size)
    width = heads * (latent.nope_size + latent.value_size)
    key_values = layer.dense("key_value_up", latent_vector, tokens, width, bias=False)
    key_values = layer.add("split", "heads_split", key_values)
    nope = replace(key_values, elements=tokens * heads * latent.nope_size)
    rope_key = rotary(layer, "key", part, rope_key, latent.rope_size)
    k = layer.add("rearrange", "key_heads", nope, rope_key, elements=tokens * heads * mixer.query_size)
    v = replace(key_values, elements=tokens * heads * latent.value_size, piece=1)
    layer.mark("mla_up_proj", first)
    return q, k, v


def _index(
    layer: LayerBuilder, part: ModelSlice, latent: Latent, indexer: Indexer, query_latent: Tensor, x: Tensor
) -> Tensor:
    """Append the indexer of sparse attention: score earlier tokens, and choose those with the highest scores.

    The indexer is replicated on every rank, for its own tokens (DeepSeek-AI 2025, V3.2, Section 2.1).
    """
    tokens = part.own_tokens
    q = layer.dense("index_query", query_latent, tokens, indexer.heads * indexer.head_size, bias=False)
    q = rotary(layer, "index_query", part, q, latent.rope_size)
    k = layer.dense("index_key", x, tokens, indexer.head_size, bias=False)
    k = layer.add("layer_norm", "index_key_norm", k, parameters=2 * indexer.head_size)
    k = part.enter(layer, "index_key", rotary(layer, "index_key", part, k, latent.rope_size))
    k = part.gather_context(layer, "index_key", k)
    weights = layer.dense("index_weights", x, tokens, indexer.heads, bias=False)
    rows = indexer.heads * tokens // part.microbatch
    gemm = Gemm(part.microbatch, rows, indexer.head_size, part.sequence)
    y = layer.add("matmul", "index_scores", q, k, gemm=gemm)
    y = layer.add("relu", "index_relu", y)
    y = layer.add("weigh", "index_weigh", y, weights)
    y = layer.add("combine", "index_sum", y, elements=tokens * part.sequence)
    return layer.add("top_k", "index_choice", y, elements=tokens * min(indexer.top, part.sequence))
