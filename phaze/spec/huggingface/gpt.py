"""Model families GPT-2, OPT and BERT."""

from typing import cast

from phaze.spec.huggingface.keys import Config, Family, Key

GPT2 = Family(
    keys={
        "layers": Key("n_layer", "size"),
        "hidden": Key("n_embd", "size"),
        "heads": Key("n_head", "size"),
        "feed_forward": Key("n_inner", "size", lambda c: 4 * cast(int, c["n_embd"])),
        "vocabulary": Key("vocab_size", "size"),
        "position_count": Key("n_positions", "size"),
        "activation": Key("activation_function", "activation", "gelu_new"),
        "residual_dropout": Key("resid_pdrop", "share", 0.1),
        "attention_dropout": Key("attn_pdrop", "share", 0.1),
        "embedding_dropout": Key("embd_pdrop", "share", 0.1),
        "tied_embeddings": Key("tie_word_embeddings", "flag", True),
    },
    constants={"fused_qkv": True},
    costless=frozenset({"scale_attn_weights"}),
)
BERT = Family(
    keys={
        "layers": Key("num_hidden_layers", "size"),
        "hidden": Key("hidden_size", "size"),
        "heads": Key("num_attention_heads", "size"),
        "feed_forward": Key("intermediate_size", "size"),
        "vocabulary": Key("vocab_size", "size"),
        "position_count": Key("max_position_embeddings", "size"),
        "token_types": Key("type_vocab_size", "size", 2),
        "activation": Key("hidden_act", "activation", "gelu"),
        "residual_dropout": Key("hidden_dropout_prob", "share", 0.1),
        "embedding_dropout": Key("hidden_dropout_prob", "share", 0.1),
        "attention_dropout": Key("attention_probs_dropout_prob", "share", 0.1),
        "tied_embeddings": Key("tie_word_embeddings", "flag", True),
    },
    constants={
        "norm_position": "post",
        "embedding_norm": True,
        "final_norm": False,
        "causal": False,
        "head": "masked-lm",
        "pooler": True,
    },
    fixed=(("position_embedding_type", "absolute"), ("is_decoder", False), ("chunk_size_feed_forward", 0)),
)


def _opt_norms(fields: Config, extras: Config) -> Config:
    """Norm positions of OPT; only its pre-norm models have a final norm."""
    before = extras["do_layer_norm_before"]
    final = bool(before and not extras["_remove_final_layer_norm"])
    width = None if fields["embedding_width"] == fields["hidden"] else fields["embedding_width"]
    norms: Config = {"norm_position": "pre" if before else "post", "final_norm": final}
    return fields | norms | {"embedding_width": width}


OPT = Family(
    keys={
        "layers": Key("num_hidden_layers", "size"),
        "hidden": Key("hidden_size", "size"),
        "heads": Key("num_attention_heads", "size"),
        "feed_forward": Key("ffn_dim", "size"),
        "vocabulary": Key("vocab_size", "size"),
        "embedding_width": Key("word_embed_proj_dim", "size", lambda c: c.get("hidden_size")),
        "position_count": Key("max_position_embeddings", "size"),
        "activation": Key("activation_function", "activation", "relu"),
        "residual_dropout": Key("dropout", "share", 0.1),
        "attention_dropout": Key("attention_dropout", "share", 0.0),
        "attention_bias": Key("enable_bias", "flag", True),
        "feed_forward_bias": Key("enable_bias", "flag", True),
        "tied_embeddings": Key("tie_word_embeddings", "flag", True),
    },
    constants={"position_offset": 2},
    costless=frozenset({"activation_dropout"}),
    fixed=(("layer_norm_elementwise_affine", True), ("layerdrop", 0.0)),
    extra_keys=(Key("do_layer_norm_before", "flag", True), Key("_remove_final_layer_norm", "flag", False)),
    arrange=_opt_norms,
)


FAMILIES = {"bert": BERT, "gpt2": GPT2, "opt": OPT}
