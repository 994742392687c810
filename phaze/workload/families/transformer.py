"""The distinct layers of a transformer as primitive operators: embedding, block, head."""

from __future__ import annotations

from dataclasses import replace

from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.primitives import (
    INDEX_BYTES,
    Gemm,
    LayerBuilder,
    LayerGraph,
    LayerRun,
    ModelGraph,
    ParameterGroup,
    Tensor,
)


def transformer_graph(part: ModelSlice) -> ModelGraph:
    """Embedding, blocks and head; a model without head may end with its blocks."""
    layers = (embedding_layer(part), block_layer(part), head_layer(part))
    kept = tuple(layer for layer in layers if layer.primitives)
    counts = {"block": part.model.layers}
    return ModelGraph(kept, tuple(LayerRun(layer.name, counts.get(layer.name, 1)) for layer in kept))


def embedding_layer(part: ModelSlice) -> LayerGraph:
    """Layer that turns token ids into the first residual stream."""
    model, layer = part.model, LayerBuilder()
    x = _lookup(layer, "word", part.tokens, model.word_width, part.vocabulary)
    x = part.leave(layer, "word", x)
    if model.projected:
        x = layer.dense("project_in", x, part.tokens, model.hidden, bias=False)
    if model.positions == "learned":
        x = layer.add(
            "add",
            "position_add",
            x,
            _lookup(layer, "position", part.own_tokens, model.hidden, model.position_rows),
        )
    if model.positions == "sinusoidal":
        table = part.own_sequence * model.hidden * part.bytes_per_element
        x = layer.add("add", "position_add", x, constant_bytes=table)
    if model.token_types:
        x = layer.add(
            "add", "type_add", x, _lookup(layer, "type", part.own_tokens, model.hidden, model.token_types)
        )
    if model.embedding_norm:
        x = _norm(layer, "embedding_norm", part, x)
    layer.dropout("embedding", x, model.embedding_dropout)
    return layer.finish("embedding", part.hidden_elements)


def _lookup(layer: LayerBuilder, name: str, tokens: int, width: int, rows: int) -> Tensor:
    """Append an embedding lookup for every token; every slice of a word embedding makes the whole tensor."""
    return layer.add(
        "lookup",
        f"{name}_lookup",
        elements=tokens * width,
        parameters=rows * width,
        constant_bytes=tokens * INDEX_BYTES,
        group="embedding",
    )


def block_layer(part: ModelSlice) -> LayerGraph:
    """Transformer block: attention and feed-forward network, each with norm and residual sum."""
    layer = LayerBuilder(part.hidden_elements)
    x = _residual(layer, "attention", part, layer.input)
    _residual(layer, "feed_forward", part, x)
    return layer.finish("block", part.hidden_elements)


def _residual(layer: LayerBuilder, name: str, part: ModelSlice, x: Tensor) -> Tensor:
    """Append x + f(norm(x)) or norm(x + f(x)); a row-cut matrix has bias and dropout after the sum."""
    model = part.model
    inner = _attention if name == "attention" else _feed_forward
    bias = model.attention_bias if name == "attention" else model.feed_forward_bias
    pre = model.norm_position == "pre"
    y = _norm(layer, f"{name}_norm", part, x) if pre else x
    y = part.enter(layer, name, y)
    y = inner(layer, part, y)
    y = part.leave(layer, f"{name}_out", y)
    if bias:
        y = layer.bias(f"{name}_out", y, model.hidden)
    y = layer.dropout(name, y, model.residual_dropout)
    y = layer.add("add", f"{name}_add", y, x)
    return y if pre else _norm(layer, f"{name}_norm", part, y)


def _norm(layer: LayerBuilder, name: str, part: ModelSlice, x: Tensor, width: int = 0) -> Tensor:
    return layer.add(
        part.model.norm, name, x, parameters=part.model.norm_parameters(width or part.model.hidden)
    )


def _attention(layer: LayerBuilder, part: ModelSlice, x: Tensor) -> Tensor:
    """Append attention up to the output matrix (its bias comes after the all-reduce)."""
    q, k, v = _projections(layer, part, x)
    k, v = (part.gather_context(layer, name, y) for name, y in (("key", k), ("value", v)))
    scores, probabilities = _probabilities(layer, part, q, k)
    group = part.heads // part.kv_heads
    batch = part.microbatch * part.kv_heads
    gemm = Gemm(batch, group * part.own_sequence, part.sequence, part.model.head_width)
    y = layer.add("matmul", "context", probabilities, v, gemm=gemm)
    layer.attend(scores, y)
    y = layer.add("reshape", "context_reshape", layer.add("transpose", "context_transpose", y))
    return layer.dense("attention_out", y, part.tokens, part.model.hidden, bias=False)


def _projections(layer: LayerBuilder, part: ModelSlice, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Append queries, keys and values by heads, from one matrix or three."""
    model = part.model
    heads = {"query": part.heads, "key": part.kv_heads, "value": part.kv_heads}
    widths = {name: number * model.head_width for name, number in heads.items()}
    if part.shares_heads:
        flat = [_gathered(layer, name, part, x, wide) for name, wide in widths.items()]
    elif model.fused_qkv:
        y = layer.dense("qkv", x, part.tokens, sum(widths.values()), bias=model.attention_bias)
        y = layer.add("split", "qkv_split", y)
        flat = [replace(y, elements=part.tokens * wide, piece=i) for i, wide in enumerate(widths.values())]
    else:
        flat = [layer.dense(n, x, part.tokens, wide, bias=model.attention_bias) for n, wide in widths.items()]
    q, k, v = (layer.by_heads(name, y) for name, y in zip(widths, flat, strict=True))
    if model.positions == "rotary":
        q, k = (_rotary(layer, name, part, y) for name, y in (("query", q), ("key", k)))
    return q, k, v


def _gathered(layer: LayerBuilder, name: str, part: ModelSlice, x: Tensor, own: int) -> Tensor:
    """Append a share of the queries, keys or values, gather those of all slices, and take those of own heads.

    So Megatron-Core has it where slices share heads of keys and values (`SelfAttention`, version 0.16.1):
    shares of the matrices are cut evenly, and none has a whole head.
    """
    model, tp = part.model, part.layout.tp
    wide = model.query_width if name == "query" else model.kv_width
    share = layer.dense(name, x, part.tokens, wide // tp, bias=model.attention_bias)
    whole = layer.add(
        "all_gather", f"{name}_heads_all_gather", share, elements=share.elements * tp, axis="tp"
    )
    return layer.add("select", f"{name}_heads", whole, elements=part.tokens * own)


def _rotary(layer: LayerBuilder, name: str, part: ModelSlice, x: Tensor) -> Tensor:
    """Append the rotary embedding, which reads a table of sines and one of cosines."""
    table = 2 * part.own_sequence * part.model.head_width * part.bytes_per_element
    return layer.add("rotary", f"{name}_rotary", x, constant_bytes=table)


def _probabilities(layer: LayerBuilder, part: ModelSlice, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Append scores and probabilities of attention; heads that share a key head are rows of one product."""
    group = part.heads // part.kv_heads
    batch = part.microbatch * part.kv_heads
    gemm = Gemm(batch, group * part.own_sequence, part.model.head_width, part.sequence)
    scores = layer.add("matmul", "scores", q, k, gemm=gemm)
    y = layer.add("scale", "scores_scale", scores)
    mask = part.sequence * (part.own_sequence if part.model.causal else part.microbatch)
    y = layer.add("mask", "scores_mask", y, constant_bytes=mask)
    y = layer.add("softmax", "softmax", y)
    return scores, layer.dropout("softmax", y, part.model.attention_dropout)


def _feed_forward(layer: LayerBuilder, part: ModelSlice, x: Tensor) -> Tensor:
    """Append the feed-forward network up to its second matrix (its bias comes after the all-reduce)."""
    model = part.model
    y = layer.dense("feed_forward_in", x, part.tokens, part.feed_forward, bias=model.feed_forward_bias)
    y = layer.add(model.activation, model.activation, y)
    if model.gated:
        up = layer.dense("feed_forward_up", x, part.tokens, part.feed_forward, bias=model.feed_forward_bias)
        y = layer.add("mul", "feed_forward_gate", y, up)
    return layer.dense("feed_forward_out", y, part.tokens, model.hidden, bias=False)


def head_layer(part: ModelSlice) -> LayerGraph:
    """Layer after the last block: final norm, pooler, logits and loss, as far as the model has them.

    It holds its own copy of a tied embedding matrix, since it may lie on another pipeline stage than the
    embedding; that is how Megatron-LM stores it, too. (Megatron's sum of the two gradients over those
    stages is not modelled.)
    """
    model, layer = part.model, LayerBuilder(part.hidden_elements)
    x = _norm(layer, "final_norm", part, layer.input) if model.final_norm else layer.input
    losses = []
    if model.head != "none":
        losses.append(_token_loss(layer, part, x))
    if model.sentence_head:
        first = layer.add("select", "first_token", x, elements=part.microbatch * model.hidden)
        losses.append(_sentence_loss(layer, part, first))
    if model.pooler:
        pooled = _pool(layer, part, x)
        if model.head == "masked-lm":
            losses.append(_sentence_loss(layer, part, pooled))
    if len(losses) == 2:
        layer.add("add", "loss_add", *losses, elements=1)
    return layer.finish("head", 0)


def _token_loss(layer: LayerBuilder, part: ModelSlice, x: Tensor) -> Tensor:
    """Append logits over the slice's vocabulary and their cross entropy."""
    model = part.model
    if model.head == "masked-lm" and model.head_transform:
        x = layer.dense("transform", x, part.tokens, model.word_width, bias=True)
        x = layer.add(model.activation, "transform_activation", x)
        x = _norm(layer, "transform_norm", part, x, model.word_width)
    elif model.projected:
        x = layer.dense("project_out", x, part.tokens, model.word_width, bias=False)
    x = part.enter(layer, "logits", x)
    group: ParameterGroup = "tied" if model.tied_embeddings else "dense"
    bias = model.head == "masked-lm"
    x = layer.dense("logits", x, part.tokens, part.vocabulary, bias=bias, group=group)
    return _cross_entropy(layer, part, x)


def _cross_entropy(layer: LayerBuilder, part: ModelSlice, logits: Tensor) -> Tensor:
    """Append the loss of every token; slices combine the largest logit, the sum of exponentials, and the
    label's logit.

    The loss reads one value a token, and its gradient goes back as one value a token.
    """
    tokens = part.tokens
    inputs = [logits]
    if part.layout.tp > 1:
        local = replace(logits, elements=tokens, gradient=False)
        inputs.append(replace(part.sum_up(layer, "largest_logit", local), gradient=False))
    y = layer.add("log_softmax", "log_softmax", *inputs)
    y = part.sum_up(layer, "exponentials", replace(y, elements=tokens))
    labels = tokens * INDEX_BYTES
    y = layer.add("nll_loss", "nll_loss", y, elements=tokens, constant_bytes=labels)
    return part.sum_up(layer, "label_logit", replace(y, elements=tokens))


def _pool(layer: LayerBuilder, part: ModelSlice, x: Tensor) -> Tensor:
    """Append the pooler: a dense layer with tanh on the first token of every sample."""
    b, hidden = part.microbatch, part.model.hidden
    y = layer.add("select", "first_token", x, elements=b * hidden)
    return layer.add("tanh", "pooler_tanh", layer.dense("pooler", y, b, hidden, bias=True))


def _sentence_loss(layer: LayerBuilder, part: ModelSlice, x: Tensor) -> Tensor:
    """Append the prediction of whether the second sentence follows the first, and its loss."""
    b = part.microbatch
    y = layer.dense("next_sentence", x, b, 2, bias=True)
    return layer.classify(y, b, "sentence_log_softmax", "sentence_loss")
