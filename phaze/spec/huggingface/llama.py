"""Llama, and families that differ in attention: Mistral, Qwen2, Qwen3, Gemma 3."""

from collections.abc import Mapping

from phaze.spec.huggingface.keys import Config, Family, Key, count_listed_layers, no_default
from phaze.spec.pattern import pattern_of
from phaze.spec.plain import Plain

_GROUPS: dict[Plain, int] = {
    "dots1": 32, "ernie4_5": 2, "ernie4_5_moe": 4, "exaone4": 32, "exaone_moe": 32, "gemma3_text": 4,
    "gemma4_text": 4,
    "glm4": 2, "glm4_moe": 8, "gpt_oss": 8, "hy_v3": 8, "llama4_text": 8, "minimax_m2": 8, "ministral3": 8,
    "mistral": 8, "mixtral": 8, "nemotron_h": 8, "olmoe": 16, "qwen2": 32, "qwen2_moe": 16, "qwen3": 32,
    "qwen3_moe": 4, "qwen3_5_moe_text": 2, "qwen3_5_text": 4, "qwen3_next": 2, "sarvam_moe": 4,
    "seed_oss": 8, "smollm3": 4, "solar_open": 8,
}  # fmt: skip
"""Default number of key and value heads, for families whose code has one. Other families, and an explicit
null, have as many as query heads."""
BIAS = {"attention_bias": Key("attention_bias", "flag", False)}
ROTARY: Config = {"positions": "rotary", "gated": True, "norm": "rms_norm", "feed_forward_bias": False}
WITHOUT_BIAS: Config = {**ROTARY, "attention_bias": False}
DECODER = (("mlp_bias", False),)
PARTS = {
    "sparse": "experts",
    "moe": "experts",
    "full_attention": "attention",
    "indexed_attention": "attention",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "linear_attention": "delta",
}
"""Mixer or network of a block, by its published name."""
MIXERS = ("attention", "window")
"""Mixers allowed in most families that publish a list of mixers."""
NETWORKS = ("dense", "experts")
WINDOW = Key("sliding_window", "size", no_default)
LAYER_TYPES = Key("layer_types", "words", no_default)
QWEN = (WINDOW, LAYER_TYPES, Key("use_sliding_window", "flag", False), Key("max_window_layers", "count", 0))


def _groups(config: Config) -> Plain:
    default = None if "num_key_value_heads" in config else _GROUPS.get(config["model_type"])
    return default or config.get("num_attention_heads")


KEYS = {
    "layers": Key("num_hidden_layers", "size", count_listed_layers),
    "hidden": Key("hidden_size", "size"),
    "heads": Key("num_attention_heads", "size"),
    "key_value_heads": Key("num_key_value_heads", "size", _groups),
    "head_size": Key("head_dim", "size", no_default),
    "feed_forward": Key("intermediate_size", "size"),
    "vocabulary": Key("vocab_size", "size"),
    "position_count": Key("max_position_embeddings", "size", 2048),
    "activation": Key("hidden_act", "activation", "silu"),
    "attention_dropout": Key("attention_dropout", "share", 0.0),
    "tied_embeddings": Key("tie_word_embeddings", "flag", False),
}
"""Keys that all families after Llama have in common."""


def with_kinds(fields: Config, mixers: list[str], networks: list[str]) -> Config:
    """Add the pattern of blocks with these mixers and networks, unless all are of the default kind."""
    kinds = ["-".join(filter(None, pair)) for pair in zip(mixers, networks, strict=True)]
    default = "attention-experts" if fields.get("experts") else "attention-dense"
    return fields if set(kinds) == {default} else fields | {"pattern": pattern_of(kinds)}


def parts_by_layer(
    fields: Config,
    extras: Config,
    key: str,
    default: list[str],
    allowed: tuple[str, ...] = MIXERS,
    published: Mapping[str, str] = PARTS,
) -> list[str]:
    """Translate a published list with one part per layer; return `default` if there is no list.

    The list may continue with multi-token prediction layers. Raises ValueError.
    """
    entries = extras[key]
    if not isinstance(entries, list):
        return default
    layers, mtp_layers = len(default), fields.get("mtp") or 0
    if len(entries) not in (layers, layers + number(mtp_layers)):
        raise ValueError(f"{key}: must have one entry for each of the {layers} layers, got {len(entries)}")
    # A list may also use the words of the spec itself.
    names = {**published, **{word: word for word in allowed}}
    parts = {word: part for word, part in names.items() if part in allowed}
    unknown = next((word for word in entries if word not in parts), None)
    if unknown is not None:
        raise ValueError(f"{key}: entries must be of {', '.join(parts)}, got {unknown!r}")
    return [parts[str(word)] for word in entries[:layers]]


def number(value: Plain) -> int:
    """Return a field that was validated as an integer, with type `int`."""
    assert isinstance(value, int)
    return value


def windowed(extras: Config) -> bool:
    """True if later layers of a Qwen model use sliding-window attention: both its flag and size are set."""
    return bool(extras["use_sliding_window"] and extras["sliding_window"])


def with_window(fields: Config, extras: Config, mixers: list[str]) -> tuple[Config, list[str]]:
    """Spec fields with the window, and mixers by layer; without a size, full attention replaces windows."""
    if extras["sliding_window"] is None:
        return fields, ["attention" if mixer == "window" else mixer for mixer in mixers]
    return fields | ({"window": {"size": extras["sliding_window"]}} if "window" in mixers else {}), mixers


def arrange_dense(fields: Config, extras: Config, mixers: list[str]) -> Config:
    """Spec fields of a model with dense layers, which may use sliding-window attention."""
    fields, mixers = with_window(fields, extras, mixers)
    return with_kinds(fields, mixers, ["dense"] * len(mixers))


def arrange_windowed(fields: Config, extras: Config) -> Config:
    """Spec fields of a model with dense layers, all with sliding-window attention if a size is given."""
    return arrange_dense(fields, extras, ["window"] * number(fields["layers"]))


def periodic_mixers(fields: Config, extras: Config, step: Plain) -> list[str]:
    """Mixers as published; by default full attention in every `step`-th layer, sliding windows in others."""
    default = ["window" if (i + 1) % number(step) else "attention" for i in range(number(fields["layers"]))]
    return parts_by_layer(fields, extras, "layer_types", default)


def qwen_mixers(fields: Config, extras: Config) -> list[str]:
    """Mixers as published; by default sliding windows from layer `max_window_layers` on, if enabled."""
    layers = number(fields["layers"])
    full = number(extras["max_window_layers"]) if windowed(extras) else layers
    default = ["attention" if i < full else "window" for i in range(layers)]
    return parts_by_layer(fields, extras, "layer_types", default)


def _qwen(fields: Config, extras: Config) -> Config:
    return arrange_dense(fields, extras, qwen_mixers(fields, extras))


def _gemma(fields: Config, extras: Config) -> Config:
    """Spec fields of Gemma 3, with full attention in every `sliding_window_pattern`-th layer."""
    return arrange_dense(fields, extras, periodic_mixers(fields, extras, extras["sliding_window_pattern"]))


LLAMA = Family(
    keys={**KEYS, **BIAS, "feed_forward_bias": Key("mlp_bias", "flag", False)},
    constants={"positions": "rotary", "gated": True, "norm": "rms_norm"},
)
MISTRAL = Family(
    keys=KEYS, constants=WITHOUT_BIAS, fixed=DECODER, extra_keys=(WINDOW,), arrange=arrange_windowed
)
QWEN2 = Family(
    keys=KEYS,
    constants={**ROTARY, "attention_bias": True, "output_bias": False},
    fixed=DECODER,
    extra_keys=QWEN,
    arrange=_qwen,
)
QWEN3 = Family(
    keys={**KEYS, **BIAS, "head_size": Key("head_dim", "size", 128)},
    constants={**ROTARY, "qk_norm": "heads"},
    fixed=DECODER,
    extra_keys=QWEN,
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
    extra_keys=(Key("sliding_window", "size", 4096), LAYER_TYPES, Key("sliding_window_pattern", "size", 6)),
    arrange=_gemma,
)
FAMILIES = {"gemma3_text": GEMMA3, "llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN2, "qwen3": QWEN3}
