"""Distinct layers of a transformer as primitive operators: embedding, kinds of blocks, and head.

Frozen matrices may have low-rank adapters, y = W x + B A x; A and B are trained (Hu et al., ICLR 2022). If W
is column-parallel, every rank has all of A and computes A x; if W is row-parallel, every rank has all of B.
Partial B A x is added to partial W x before ranks are summed. A runtime may also shard A and gather, but r is
small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from phaze.spec.blocks import Attention, Block
from phaze.spec.names import ParameterGroup
from phaze.spec.rows import Gemm
from phaze.spec.scans import Mamba
from phaze.workload.families.attention import attention
from phaze.workload.families.block_parts import delta_net, dense_network, mamba, mixture
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.primitives import (
    INDEX_BYTES,
    LayerBuilder,
    LayerGraph,
    LayerRun,
    ModelGraph,
    Primitive,
    Tensor,
    with_forks,
)

UNADAPTED = ("embedding", "head")
"""Layers that get no adapters."""


def transformer_graph(part: ModelSlice) -> ModelGraph:
    """Build the layers of a transformer: embedding, blocks, multi-token prediction layers, and head.

    A model without a head may end with its blocks.
    """
    model = part.model
    blocks = (block_layer(part, kind, block) for kind, block in model.blocks.items())
    further = [further_layer(part)] if model.mtp and model.head != "none" else []
    layers = (embedding_layer(part), *blocks, *further, head_layer(part))
    filled = tuple(layer for layer in layers if layer.primitives)
    runs = (("embedding", 1), *model.runs, ("mtp", model.mtp), ("head", 1))
    names = {layer.name for layer in filled}
    graph = ModelGraph(filled, tuple(LayerRun(name, count) for name, count in runs if name in names))
    return with_adapters(graph, model.lora) if model.lora else graph


def embedding_layer(part: ModelSlice) -> LayerGraph:
    """Layer that turns token ids into the first residual stream."""
    model, layer = part.model, LayerBuilder()
    x = _lookup(layer, "word", part.tokens, model.word_width, part.vocabulary)
    x = part.leave(layer, "word", x)
    if model.projected:
        x = layer.dense("project_in", x, part.tokens, model.hidden, bias=False)
    if model.positions == "learned":
        rows = _lookup(layer, "position", part.own_tokens, model.hidden, model.position_rows)
        x = layer.add("add", "position_add", x, rows)
    if model.positions == "sinusoidal":
        table = part.own_sequence * model.hidden * part.bytes_per_element
        x = layer.add("add", "position_add", x, constant_bytes=table)
    if model.token_types:
        rows = _lookup(layer, "type", part.own_tokens, model.hidden, model.token_types)
        x = layer.add("add", "type_add", x, rows)
    if model.embedding_norm:
        x = _norm(layer, "embedding_norm", part, x)
    layer.dropout("embedding", x, model.embedding_dropout)
    return layer.finish("embedding", part.hidden_elements)


def _lookup(
    layer: LayerBuilder, name: str, tokens: int, width: int, rows: int, group: ParameterGroup = "embedding"
) -> Tensor:
    """Append an embedding lookup for every token; each shard of a word embedding writes the full tensor."""
    return layer.add(
        "lookup",
        f"{name}_lookup",
        elements=tokens * width,
        parameters=rows * width,
        constant_bytes=tokens * INDEX_BYTES,
        group=group,
    )


def block_layer(part: ModelSlice, kind: str, block: Block) -> LayerGraph:
    """Block of a token mixer and a feed-forward network, each with a norm and a residual sum."""
    layer = LayerBuilder(part.hidden_elements)
    _block(layer, part, block, layer.input)
    return layer.finish(kind, part.hidden_elements)


def _block(layer: LayerBuilder, part: ModelSlice, block: Block, x: Tensor) -> Tensor:
    mixer = block.mixer
    if isinstance(mixer, Attention):
        apart = mixer.latent is not None
        x = _residual(
            layer, "attention", part, x, partial(attention, mixer=mixer), bias=mixer.output_bias, apart=apart
        )
    elif mixer is not None:
        scan = partial(mamba, mixer=mixer) if isinstance(mixer, Mamba) else partial(delta_net, mixer=mixer)
        x = _residual(layer, "scan", part, x, scan, bias=isinstance(mixer, Mamba) and mixer.bias)
    if block.feed_forward and block.experts:
        return _residual(layer, "feed_forward", part, x, partial(_parallel_networks, block=block, stream=x))
    if block.feed_forward:
        network = partial(dense_network, network=block.feed_forward)
        return _residual(layer, "feed_forward", part, x, network, bias=block.feed_forward.bias)
    if block.experts:
        return _residual(layer, "experts", part, x, partial(mixture, experts=block.experts), apart=True)
    return x


def _parallel_networks(
    layer: LayerBuilder, part: ModelSlice, x: Tensor, block: Block, stream: Tensor
) -> Tensor:
    """Append a dense network in parallel with a mixture of experts, each with its own norms (Gemma 4)."""
    assert block.feed_forward is not None
    assert block.experts is not None
    y = dense_network(layer, part, network=block.feed_forward, x=x)
    y = _norm(layer, "dense_out_norm", part, y)
    rows = _norm(layer, "experts_norm", part, stream)
    rows = mixture(layer, part, experts=block.experts, x=rows)
    return layer.add("add", "networks_add", y, _norm(layer, "experts_out_norm", part, rows))


def _residual(
    layer: LayerBuilder,
    name: str,
    part: ModelSlice,
    x: Tensor,
    inner: Callable[..., Tensor],
    *,
    bias: bool = False,
    apart: bool = False,
) -> Tensor:
    """Append x + f(norm(x)) or norm(x + f(x)); bias and dropout are applied to f after the sum over ranks.

    If `apart`, the norm is a kernel of its own and can be recomputed alone. Otherwise it is fused with the
    single product that reads it (Transformer Engine).
    """
    model, y, first = part.model, x, layer.count
    if model.norm_position in ("pre", "both"):
        y = _norm(layer, f"{name}_norm", part, x)
        if apart:
            layer.mark("layernorm", first)
        # Offloading moves a module's input: that of the norm's kernel, or of the GEMM with the norm.
        if name == "attention":
            layer.mark("attn_norm" if apart else "qkv_linear", first)
        elif apart:
            layer.mark("mlp_norm", first)
    y = inner(layer, part, x=y)
    if bias:
        y = layer.bias(f"{name}_out", y, model.hidden)
    if model.norm_position in ("both", "output"):
        y = _norm(layer, f"{name}_out_norm", part, y)
    y = layer.dropout(name, y, model.residual_dropout)
    y = layer.add("add", f"{name}_add", y, x)
    return _norm(layer, f"{name}_norm", part, y) if model.norm_position == "post" else y


def _norm(layer: LayerBuilder, name: str, part: ModelSlice, x: Tensor, width: int = 0) -> Tensor:
    parameters = part.model.norm_parameters(width or part.model.hidden)
    return layer.add(part.model.norm, name, x, parameters=parameters)


def further_layer(part: ModelSlice) -> LayerGraph:
    """Multi-token prediction layer (DeepSeek-AI 2024, V3, Section 2.2).

    It joins the residual stream with the embedding of the next token by a matrix, applies a block, and
    computes logits with the head. It passes the incoming stream on. These layers share one copy of the
    embedding, unless the head has a copy; each counts its part of it. The head's matrix is on the same stage
    (Megatron-Core, `MultiTokenPredictionLayer`).
    """
    model, layer = part.model, LayerBuilder(part.hidden_elements)
    # The layers share one copy of the embedding, of which each counts an equal part.
    rows = 0 if model.tied_embeddings else -(-part.vocabulary // model.mtp)
    word = _lookup(layer, "word", part.tokens, model.word_width, rows, "tied")
    word = part.leave(layer, "word", word)
    # Both inputs are normalised before a matrix joins them, as DeepSeek-V3 defines it.
    pair = (_norm(layer, "word_norm", part, word), _norm(layer, "stream_norm", part, layer.input))
    x = layer.add("rearrange", "join", *pair, elements=2 * part.hidden_elements)
    x = part.enter(layer, "join", x)
    x = layer.dense("join_matrix", x, part.tokens, model.hidden // part.layout.tp, bias=False)
    x = part.gather_width(layer, "join", x)
    x = _block(layer, part, model.mtp_block, x)
    x = _norm(layer, "final_norm", part, x)
    loss = _cross_entropy(layer, part, _logits(layer, part, part.enter(layer, "logits", x), shared=True))
    layer.add("select", "further_loss", layer.input, loss, elements=part.hidden_elements)
    return layer.finish("mtp", part.hidden_elements)


def head_layer(part: ModelSlice) -> LayerGraph:
    """Layer after the last block: final norm, pooler, logits and loss, where the model has them.

    It has its own copy of a tied embedding matrix, because it may be on a different pipeline stage from the
    embedding; Megatron-LM stores it in the same way. (Megatron's sum of the two gradients over those stages
    is not modelled.)
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
        first = layer.add("select", "first_token", x, elements=part.microbatch * model.hidden)
        pooled = layer.dense("pooler", first, part.microbatch, model.hidden, bias=True)
        pooled = layer.add("tanh", "pooler_tanh", pooled)
        if model.head == "masked-lm":
            losses.append(_sentence_loss(layer, part, pooled))
    if len(losses) == 2:
        layer.add("add", "loss_add", *losses, elements=1)
    return layer.finish("head", 0)


def _token_loss(layer: LayerBuilder, part: ModelSlice, x: Tensor) -> Tensor:
    """Append the logits over the shard's vocabulary, and their cross entropy."""
    model = part.model
    if model.head == "masked-lm" and model.head_transform:
        x = layer.dense("transform", x, part.tokens, model.word_width, bias=True)
        x = layer.add(model.activation, "transform_activation", x)
        x = _norm(layer, "transform_norm", part, x, model.word_width)
    elif model.projected:
        x = layer.dense("project_out", x, part.tokens, model.word_width, bias=False)
    return _cross_entropy(layer, part, _logits(layer, part, part.enter(layer, "logits", x)))


def _logits(layer: LayerBuilder, part: ModelSlice, x: Tensor, *, shared: bool = False) -> Tensor:
    """Append the logits over the shard's vocabulary, with a new matrix, or an existing one if `shared`."""
    model, first = part.model, layer.count
    if shared:
        gemm = Gemm(1, part.tokens, x.elements // part.tokens, part.vocabulary)
        y = layer.add("matmul", "logits", x, gemm=gemm)
    else:
        group: ParameterGroup = "tied" if model.tied_embeddings else "dense"
        bias = model.head == "masked-lm"
        y = layer.dense("logits", x, part.tokens, part.vocabulary, bias=bias, group=group)
    layer.mark("logits", first)
    return y


def _cross_entropy(layer: LayerBuilder, part: ModelSlice, logits: Tensor) -> Tensor:
    """Append the cross entropy of every token from vocabulary-parallel logits.

    Ranks combine the largest logit, the sum of exponentials, and the label's logit. The loss reads one value
    per token, and its gradient is one value per token.
    """
    tokens = part.tokens
    inputs = [logits]
    if part.layout.tp > 1:
        # Softmax subtracts the largest logit for numerical reasons only, so no gradient flows through it.
        local = replace(logits, elements=tokens, gradient=False)
        inputs.append(replace(part.sum_up(layer, "largest_logit", local), gradient=False))
    y = layer.add("log_softmax", "log_softmax", *inputs)
    y = part.sum_up(layer, "exponentials", replace(y, elements=tokens))
    labels = tokens * INDEX_BYTES
    y = layer.add("nll_loss", "nll_loss", y, elements=tokens, constant_bytes=labels)
    return part.sum_up(layer, "label_logit", replace(y, elements=tokens))


def _sentence_loss(layer: LayerBuilder, part: ModelSlice, x: Tensor) -> Tensor:
    """Append the next-sentence prediction and its loss."""
    b = part.microbatch
    y = layer.dense("next_sentence", x, b, 2, bias=True)
    return layer.classify(y, b, "sentence_log_softmax", "sentence_loss")


def with_adapters(graph: ModelGraph, rank: int) -> ModelGraph:
    """Freeze a model's parameters, and add a low-rank adapter to every matrix of its blocks."""
    layers = []
    for layer in graph.layers:
        primitives = tuple(replace(p, frozen=p.parameters > 0) for p in layer.primitives)
        frozen = replace(layer, primitives=primitives)
        layers.append(frozen if layer.name in UNADAPTED else _adapted(frozen, rank))
    return replace(graph, layers=tuple(layers))


def _adapted(layer: LayerGraph, rank: int) -> LayerGraph:
    """Insert adapters after each run of matrices, so that matrices that share an input stay adjacent."""
    adapted: list[Primitive] = []
    place: dict[int, int] = {}
    """New index to read instead of each old one: that of the primitive, or of its sum with the adapter."""
    waiting: list[tuple[int, Primitive]] = []

    def add_adapters() -> None:
        for index, base in waiting:
            adapted.extend(_adapter(base, Tensor(place[index], base.elements), len(adapted), rank))
            place[index] = len(adapted) - 1
        waiting.clear()

    for index, primitive in enumerate(layer.primitives):
        adapts = primitive.kind == "matmul" and primitive.parameters > 0
        if not adapts:
            add_adapters()
        adapted.append(primitive.reading(place))
        place[index] = len(adapted) - 1
        if adapts:
            waiting.append((index, adapted[-1]))
    add_adapters()
    return with_forks(replace(layer, primitives=tuple(adapted)))


def _adapter(base: Primitive, product: Tensor, start: int, rank: int) -> list[Primitive]:
    """The two GEMMs of an adapter, and their sum with the output of the frozen matrix."""
    assert base.gemm is not None
    down = Gemm(base.gemm.batch, base.gemm.m, base.gemm.k, rank)
    up = Gemm(base.gemm.batch, base.gemm.m, rank, base.gemm.n)
    steps = [
        ("down", "matmul", base.inputs, down),
        ("up", "matmul", (Tensor(start, down.result_elements),), up),
        ("sum", "add", (product, Tensor(start + 1, up.result_elements)), None),
    ]
    return [
        Primitive(
            f"{base.name}_adapter_{name}",
            kind,
            inputs,
            base.elements if gemm is None else gemm.result_elements,
            gemm,
            0 if gemm is None else gemm.batch * gemm.k * gemm.n,
            regions=base.regions,
        )
        for name, kind, inputs, gemm in steps
    ]
