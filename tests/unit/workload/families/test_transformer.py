"""The distinct layers of a transformer: their operators, FLOPs and parameters."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from phaze.layout import Layout
from phaze.workload.families.transformer import transformer_graph
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.primitives import INPUT
from tests.oracles.parameters import training_head_parameters
from tests.unit.workload.examples import NAMES, forward_flops, layer_of, model_of, slice_of, slices


def test_a_gpt_block_has_the_operators_of_the_published_model() -> None:
    """The primitives of a GPT-2 block, in order; queries, keys and values are computed from one matrix."""
    found = [p.name for p in layer_of(slice_of("gpt2"), "block").primitives]
    assert found == [
        "input_fork",
        "attention_norm",
        "qkv",
        "qkv_bias",
        "qkv_split",
        "query_reshape",
        "query_transpose",
        "key_reshape",
        "key_transpose",
        "value_reshape",
        "value_transpose",
        "scores",
        "scores_scale",
        "scores_mask",
        "softmax",
        "softmax_dropout",
        "context",
        "context_transpose",
        "context_reshape",
        "attention_out",
        "attention_out_bias",
        "attention_dropout",
        "attention_add",
        "attention_add_fork",
        "feed_forward_norm",
        "feed_forward_in",
        "feed_forward_in_bias",
        "gelu",
        "feed_forward_out",
        "feed_forward_out_bias",
        "feed_forward_dropout",
        "feed_forward_add",
    ]


def test_a_bert_block_has_three_projections_and_35_operators() -> None:
    """BERT projects queries, keys and values separately, and normalises after the sums."""
    primitives = layer_of(slice_of("bert-large"), "block").primitives
    kinds = Counter(p.kind for p in primitives)
    assert len(primitives) == 35
    assert (kinds["matmul"], kinds["bias"], kinds["reshape"], kinds["transpose"]) == (8, 6, 4, 4)
    assert primitives[-1].name == "feed_forward_norm"


def test_a_llama_block_is_rotary_gated_and_without_bias() -> None:
    """Llama rotates queries and keys, multiplies two projections, and has no dropout."""
    kinds = Counter(p.kind for p in layer_of(slice_of("llama2-7b"), "block").primitives)
    assert (kinds["rotary"], kinds["silu"], kinds["mul"], kinds["rms_norm"], kinds["matmul"]) == (
        2,
        1,
        1,
        2,
        9,
    )
    assert kinds["bias"] == kinds["dropout"] == kinds["layer_norm"] == 0


def test_opt_350m_projects_its_word_embedding_in_and_out() -> None:
    """OPT-350m looks up embeddings of width 512, projects them to 1024 and back, and has no final norm."""
    part = slice_of("opt-350m")
    project_in = next(p for p in layer_of(part, "embedding").primitives if p.name == "project_in")
    head = layer_of(part, "head").primitives
    assert project_in.gemm is not None
    assert (project_in.gemm.k, project_in.gemm.n) == (512, 1024)
    assert [p.name for p in head] == ["project_out", "logits", "log_softmax", "nll_loss"]
    assert [p.parameters for p in head[:2]] == [1024 * 512, 512 * 50272]


def test_berts_head_predicts_masked_tokens_and_the_next_sentence() -> None:
    """The masked-lm head has a transform before the decoder; the pooler reads the first token of every
    sample.
    """
    head = {p.name: p for p in layer_of(slice_of("bert-large", microbatch=4), "head").primitives}
    pooler, transform = head["pooler"].gemm, head["transform"].gemm
    assert pooler is not None
    assert transform is not None
    assert (pooler.m, pooler.k, pooler.n) == (4, 1024, 1024)
    assert (transform.m, transform.k, transform.n) == (4 * 512, 1024, 1024)
    assert list(head)[-1] == "loss_add"


def test_matmul_flops_of_a_gpt_block_are_24bsh2_plus_4bs2h() -> None:
    """The matrix multiplications of a GPT block take 24Bsh² + 4Bs²h FLOPs forward."""
    for name in (n for n in NAMES if n.startswith(("gpt", "megatron-gpt"))):
        part = slice_of(name, microbatch=3)
        B, s, h = 3, part.sequence, part.model.hidden
        assert forward_flops(layer_of(part, "block")) == 24 * B * s * h**2 + 4 * B * s**2 * h


@given(slices().filter(lambda part: part.layout.tp == 1))
def test_matmul_flops_of_random_models_equal_the_closed_form(part: ModelSlice) -> None:
    """The closed form holds for any options of a model, including grouped and gated ones."""
    model, tokens = part.model, part.tokens
    matrices = model.hidden * 2 * (model.query_width + model.kv_width)
    matrices += (3 if model.gated else 2) * model.hidden * model.feed_forward
    attention = 2 * model.query_width * part.sequence
    flops = {layer.name: forward_flops(layer) for layer in transformer_graph(part).layers}
    assert flops["block"] == 2 * tokens * (matrices + attention)
    assert flops["embedding"] == 2 * tokens * model.word_width * model.hidden * model.projected
    assert flops.get("head", 0) == _head_flops(part)


def _head_flops(part: ModelSlice) -> int:
    model, logits = part.model, part.model.word_width * part.model.vocabulary
    pooler = 2 * part.microbatch * model.hidden * model.hidden * model.pooler
    if model.head == "none":
        return pooler
    if model.head == "lm":
        return pooler + 2 * part.tokens * (logits + model.hidden * model.word_width * model.projected)
    sentence = 2 * part.microbatch * model.hidden * 2 * (model.pooler or model.sentence_head)
    transform = model.hidden * model.word_width * model.head_transform
    return pooler + sentence + 2 * part.tokens * (logits + transform)


@given(slices().filter(lambda part: part.layout.tp == 1))
def test_parameters_of_random_models_agree(part: ModelSlice) -> None:
    """The count of the spec equals the sum over the operators for any options of a model."""
    model = part.model
    counts = {"embedding": 1, "block": model.layers, "head": 1}
    found = sum(
        counts[x.name] * sum(p.parameters for p in x.primitives) for x in transformer_graph(part).layers
    )
    copied = model.word_width * model.vocabulary if model.tied_embeddings and model.head != "none" else 0
    assert found == model.parameters + training_head_parameters(model) + copied


def test_grouped_heads_share_one_product() -> None:
    """The query heads that share a key head are rows of one product, so that keys are read once."""
    scores = next(p for p in layer_of(slice_of("llama2-70b"), "block").primitives if p.name == "scores")
    assert scores.gemm is not None
    assert (scores.gemm.batch, scores.gemm.m, scores.gemm.k, scores.gemm.n) == (8, 8 * 1024, 128, 1024)


def test_dropout_of_nothing_is_no_operator() -> None:
    """OPT has no dropout of attention probabilities or embeddings."""
    dropped = [
        p.name
        for x in transformer_graph(slice_of("opt-350m")).layers
        for p in x.primitives
        if p.kind == "dropout"
    ]
    assert dropped == ["attention_dropout", "feed_forward_dropout"]


def test_a_model_without_head_norm_and_pooler_ends_with_its_blocks() -> None:
    """Layers without operators are omitted."""
    model = model_of("bert-large").model_copy(update={"head": "none", "pooler": False})
    part = ModelSlice(model, Layout(), 8, 2)
    assert [layer.name for layer in transformer_graph(part).layers] == ["embedding", "block"]


@given(slices())
def test_a_tensor_with_several_readers_is_forked(part: ModelSlice) -> None:
    """Only a fork sends a gradient to several readers; the readers of a split share it without overlap."""
    for layer in transformer_graph(part).layers:
        for primitive, readers in zip(layer.primitives, layer.readers, strict=True):
            sizes = [tensor.elements for _, tensor in readers if tensor.gradient]
            if primitive.kind == "split":
                assert sum(sizes) == primitive.elements
            else:
                assert (len(sizes) > 1) == (primitive.kind == "fork")


@given(slices())
def test_every_primitive_leads_to_the_end_of_its_layer(part: ModelSlice) -> None:
    """Inputs precede their readers, sizes are positive, and only the last primitive has no reader."""
    for layer in transformer_graph(part).layers:
        unread = [index for index, readers in enumerate(layer.readers) if not readers]
        assert unread == [len(layer.primitives) - 1]
        for index, primitive in enumerate(layer.primitives):
            assert primitive.elements > 0
            assert all(INPUT <= tensor.source < index for tensor in primitive.inputs)


@given(slices(), st.integers(2, 50))
def test_layers_do_not_depend_on_how_many_blocks_there_are(part: ModelSlice, layers: int) -> None:
    """Another number of blocks changes no layer."""
    other = replace(part, model=part.model.model_copy(update={"layers": layers}))
    assert transformer_graph(other).layers == transformer_graph(part).layers
