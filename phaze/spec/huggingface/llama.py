"""Llama, and families that differ from it in attention: Mistral, Qwen2, Qwen3, Gemma 3."""

from phaze.spec.huggingface.keys import Config, Family, Key, none
from phaze.spec.pattern import pattern_of
from phaze.spec.plain import Plain

KEYS = {
    "layers": Key("num_hidden_layers", "size"),
    "hidden": Key("hidden_size", "size"),
    "heads": Key("num_attention_heads", "size"),
    "key_value_heads": Key("num_key_value_heads", "size", lambda c: c.get("num_attention_heads")),
    "head_size": Key("head_dim", "size", none),
    "feed_forward": Key("intermediate_size", "size"),
    "vocabulary": Key("vocab_size", "size"),
    "position_count": Key("max_position_embeddings", "size", 2048),
    "activation": Key("hidden_act", "activation", "silu"),
    "attention_dropout": Key("attention_dropout", "share", 0.0),
    "tied_embeddings": Key("tie_word_embeddings", "flag", False),
}
"""Fields that all families after Llama have in common."""
BIAS = {"attention_bias": Key("attention_bias", "flag", False)}
ROTARY: Config = {"positions": "rotary", "gated": True, "norm": "rms_norm", "feed_forward_bias": False}
WITHOUT_BIAS: Config = {**ROTARY, "attention_bias": False}
DECODER = (("is_decoder", False), ("mlp_bias", False))
PARTS = {
    "sparse": "experts",
    "full_attention": "attention",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "linear_attention": "delta",
}
"""Published words for parts of a block."""


def with_kinds(found: Config, mixers: list[str], networks: list[str]) -> Config:
    """Fields with the kinds of blocks that these parts make up, as long as they are not all the usual one."""
    kinds = ["-".join(filter(None, pair)) for pair in zip(mixers, networks, strict=True)]
    usual = "attention-experts" if found.get("experts") else "attention-dense"
    return found if set(kinds) == {usual} else found | {"pattern": pattern_of(kinds)}


def words(said: Config, key: str, otherwise: list[str]) -> list[str]:
    """Words of a list that says the parts of all layers, in those of a pattern; otherwise these."""
    given = said[key]
    return [PARTS.get(str(word), str(word)) for word in given] if isinstance(given, list) else otherwise


def number(value: Plain) -> int:
    """Whole number of a field that was read as one."""
    assert isinstance(value, int)
    return value


def _mistral(found: Config, said: Config) -> Config:
    """All layers have the window, where there is one."""
    if said["sliding_window"] is None:
        return found
    return _windows(found, said, ["window"] * number(found["layers"]))


def _windows(found: Config, said: Config, mixers: list[str]) -> Config:
    if "window" in mixers:
        found = found | {"window": {"size": said["sliding_window"]}}
    return with_kinds(found, mixers, ["dense"] * len(mixers))


def _qwen(found: Config, said: Config) -> Config:
    """Windows, if they are used, from some layer on."""
    full = number(said["max_window_layers"]) if said["use_sliding_window"] else number(found["layers"])
    later = ["attention" if i < full else "window" for i in range(number(found["layers"]))]
    return _windows(found, said, words(said, "layer_types", later))


def _gemma(found: Config, said: Config) -> Config:
    """Every so many layers one attends to all tokens."""
    step = number(said["sliding_window_pattern"])
    usual = ["window" if (i + 1) % step else "attention" for i in range(number(found["layers"]))]
    return _windows(found, said, words(said, "layer_types", usual))


WINDOW = Key("sliding_window", "size", none)
LAYER_TYPES = Key("layer_types", "words", none)
QWEN = (WINDOW, LAYER_TYPES, Key("use_sliding_window", "flag", False), Key("max_window_layers", "count", 0))

LLAMA = Family(
    keys={**KEYS, **BIAS, "feed_forward_bias": Key("mlp_bias", "flag", False)},
    constants={"positions": "rotary", "gated": True, "norm": "rms_norm"},
    fixed=(("is_decoder", False),),
)
MISTRAL = Family(keys=KEYS, constants=WITHOUT_BIAS, fixed=DECODER, also=(WINDOW,), arrange=_mistral)
QWEN2 = Family(
    keys=KEYS,
    constants={**ROTARY, "attention_bias": True, "output_bias": False},
    fixed=DECODER,
    also=QWEN,
    arrange=_qwen,
)
QWEN3 = Family(
    keys={**KEYS, **BIAS, "head_size": Key("head_dim", "size", 128)},
    constants={**ROTARY, "qk_norm": "heads"},
    fixed=DECODER,
    also=QWEN,
    arrange=_qwen,
)
GEMMA3 = Family(
    keys={
        **KEYS,
        **BIAS,
        "head_size": Key("head_dim", "size", 256),
        "activation": Key("hidden_activation", "activation", "gelu_pytorch_tanh"),
        "tied_embeddings": Key("tie_word_embeddings", "flag", True),
        "position_count": Key("max_position_embeddings", "size", 131072),
    },
    constants={**ROTARY, "qk_norm": "heads", "norm_position": "both"},
    fixed=(*DECODER, ("use_bidirectional_attention", False)),
    also=(
        Key("sliding_window", "size", 4096),
        LAYER_TYPES,
        Key("sliding_window_pattern", "size", 6),
    ),
    arrange=_gemma,
)
FAMILIES = {
    "gemma3_text": GEMMA3,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
}
