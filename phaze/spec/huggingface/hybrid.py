"""Families whose layers differ in more than attention windows: Nemotron-H, Qwen3-Next, Qwen3.5, Gemma 4."""

from phaze.spec.huggingface.experts import (
    BALANCED_BY_BIASES,
    MTP,
    SPARSE,
    WITHOUT_DENSE,
    experts,
    sparse,
    without_unused,
)
from phaze.spec.huggingface.keys import OVERRIDES, Config, Family, Key, no_default
from phaze.spec.huggingface.llama import (
    BIAS,
    DECODER,
    GEMMA3,
    KEYS,
    LAYER_TYPES,
    MIXERS,
    ROTARY,
    number,
    parts_by_layer,
    periodic_mixers,
    with_kinds,
)
from phaze.spec.pattern import pattern_of, words_of
from phaze.spec.plain import Plain

_NEMOTRON = {"M": "mamba", "E": "experts", "*": "attention", "-": "dense"}
_NEMOTRON |= {"mamba": "mamba", "moe": "experts", "attention": "attention", "mlp": "dense"}
_NEMOTRON |= {"linear_attention": "mamba", "full_attention": "attention"}

_GRANITE = {"linear_attention": "mamba", "full_attention": "attention"}
"""Mixers of Granite 4 as newer configurations name them."""

_DELTA = {
    "delta.key_heads": Key("linear_num_key_heads", "size"),
    "delta.value_heads": Key("linear_num_value_heads", "size"),
    "delta.key_size": Key("linear_key_head_dim", "size"),
    "delta.value_size": Key("linear_value_head_dim", "size"),
    "delta.conv": Key("linear_conv_kernel_dim", "size", 4),
}
_INTERVAL = (LAYER_TYPES, Key("full_attention_interval", "size", 4))
_QWEN: Config = {**ROTARY, "qk_norm": "heads"}
_QWEN_COSTLESS = frozenset({"mamba_ssm_dtype", "mtp_use_dedicated_embeddings"})
_HEADS = {
    **KEYS,
    **BIAS,
    "attention_gate": Key("attn_output_gate", "flag", True),
    "head_size": Key("head_dim", "size", 256),
    **_DELTA,
}
_QWEN_MTP = {"mtp": Key("mtp_num_hidden_layers", "count", 0)}
_SHARED = {**experts("num_experts"), "experts.shared_width": Key("shared_expert_intermediate_size", "size")}


def _nemotron(fields: Config, extras: Config) -> Config:
    """Spec fields of Nemotron-H, whose layers have one part each; parts that no layer uses are dropped."""
    blocks, mtp_signs = _layer_parts(extras, "layers_block_type", "hybrid_override_pattern")
    if blocks is None:
        raise ValueError("hybrid_override_pattern: must be given: one symbol or word per layer")
    if fields["layers"] not in (None, len(blocks)):
        raise ValueError(
            f"num_hidden_layers: must be {len(blocks)}, the number of layers in the pattern, got "
            f"{fields['layers']}"
        )
    fields = fields | {"layers": len(blocks), "pattern": pattern_of(blocks)}
    if mtp_signs is not None:
        # A slash precedes the part of each prediction layer.
        fields = fields | {"mtp": mtp_signs.count("/") + 1}
    if fields["mtp"]:
        fields = fields | {"mtp_pattern": _mtp_kind(extras, mtp_signs)}
    parts = {*blocks, *str(fields.get("mtp_pattern")).split("-")}
    unused = {"mamba": "mamba", "experts": "experts", "dense": "feed_forward"}
    return fields | {field: None for part, field in unused.items() if part not in parts}


def _layer_parts(extras: Config, *names: str) -> tuple[list[str] | None, str | None]:
    """Part of each layer, from the first field that is set: a string of symbols (bars ignored) or a list.

    Also returns the signs behind a slash, for multi-token prediction layers. Raises ValueError.
    """
    name = next((name for name in names if extras[name]), None)
    if name is None:
        return None, None
    signs, mtp_signs = extras[name], None
    if isinstance(signs, str):
        signs, stroke, behind = signs.replace("|", "").partition("/")
        mtp_signs = behind if stroke else None
    assert isinstance(signs, list | str)
    unknown = next((sign for sign in signs if sign not in _NEMOTRON), None)
    if unknown is not None:
        raise ValueError(f"{name}: must consist of {', '.join(_NEMOTRON)}, got {unknown!r}")
    return [_NEMOTRON[str(sign)] for sign in signs], mtp_signs


def _mtp_kind(extras: Config, signs: str | None) -> str:
    """Kind of block in the multi-token prediction layers; attention with experts by default."""
    name = "hybrid_override_pattern"
    pattern: Config = {name: (signs or "").partition("/")[0]}
    if signs is None:
        name, pattern = "mtp_layers_block_type", extras
    names = (name,) if signs is not None else (name, "mtp_hybrid_override_pattern")
    parts, _ = _layer_parts(pattern, *names)
    kind = "-".join(parts or ("attention", "experts"))
    try:
        words_of(kind)
    except ValueError as error:
        raise ValueError(
            f"{name}: must have one token mixer and one feed-forward network per block, got {kind}"
        ) from error
    return kind


def _global_heads(fields: Config, extras: Config, mixers: list[str]) -> tuple[Plain, Plain]:
    """Head dimension and number of key-value heads in the layers with full attention (no window).

    They come from separate fields, or from overrides for single layers (since `transformers` 5.24). Raises
    ValueError.
    """
    overrides = extras[OVERRIDES]
    if overrides is None:
        full = extras["num_global_key_value_heads"] if extras["attention_k_eq_v"] else None
        return extras["global_head_dim"] or fields["head_size"], full or fields["key_value_heads"]
    default = {"head_dim": fields["head_size"], "num_key_value_heads": fields["key_value_heads"]}
    assert isinstance(overrides, dict)
    by_layer = {int(layer): override for layer, override in overrides.items() if isinstance(override, dict)}
    kinds = {
        kind: [default | by_layer.get(i, {}) for i, mixer in enumerate(mixers) if mixer == kind]
        for kind in MIXERS
    }
    same = all(override == kind[0] for kind in kinds.values() for override in kind)
    if (
        not same
        or any(override != default for override in kinds["window"])
        or set(kinds["attention"][0]) != set(default)
    ):
        raise ValueError(
            f"{OVERRIDES}: must be head_dim and num_key_value_heads, with the same values in all "
            "layers without a window"
        )
    full = kinds["attention"][0]
    return full["head_dim"], full["num_key_value_heads"]


def _qwen(fields: Config, extras: Config) -> Config:
    """Spec fields of Qwen: attention in every `full_attention_interval`-th layer, delta rule in others."""
    layers, step = number(fields["layers"]), number(extras["full_attention_interval"])
    default = ["delta" if (i + 1) % step else "attention" for i in range(layers)]
    mixers = parts_by_layer(fields, extras, "layer_types", default, ("attention", "delta"))
    networks = sparse(fields, extras) if fields.get("experts") else ["dense"] * layers
    return without_unused(with_kinds(fields, mixers, networks))


def _gemma4(fields: Config, extras: Config) -> Config:
    """Spec fields of Gemma 4: separate head sizes in window layers, experts in addition to a dense network.

    The last layer never has a window.
    """
    if extras["hidden_size_per_layer_input"]:
        raise ValueError(
            "hidden_size_per_layer_input: must be 0: other values are not modelled, and the "
            f"family's default is {extras['hidden_size_per_layer_input']}"
        )
    # Without a list every sixth layer has full attention, as in the family's code.
    mixers = [*periodic_mixers(fields, extras, 6)[:-1], "attention"]
    # Sizes in the configuration are those of layers with windows; layers without one have separate fields.
    window = {
        "size": extras["sliding_window"],
        "key_value_heads": fields["key_value_heads"],
        "head_size": fields["head_size"],
        "shared_kv": False,
    }
    full, heads = _global_heads(fields, extras, mixers)
    fields = fields | {
        "window": window if "window" in mixers else None,
        "head_size": full,
        "key_value_heads": heads,
        "shared_kv": extras["attention_k_eq_v"],
        "experts": fields["experts"] if extras["enable_moe_block"] else None,
    }
    network = "dense-experts" if extras["enable_moe_block"] else "dense"
    return with_kinds(fields, mixers, [network] * len(mixers))


def _granite_head(config: Config) -> Plain:
    """Width of a head of the state space, which together are `mamba_expand` times as wide as the model."""
    expand, heads = config.get("mamba_expand") or 2, config.get("mamba_n_heads") or 128
    return number(expand) * number(config["hidden_size"]) // number(heads)


def _granite(fields: Config, extras: Config) -> Config:
    """Spec fields of Granite 4: state spaces or attention in each layer, and experts beside a shared network.

    Without experts, the shared network is the only one.
    """
    layers, shared = number(fields["layers"]), extras["shared_intermediate_size"]
    mixers = parts_by_layer(
        fields, extras, "layer_types", ["mamba"] * layers, ("attention", "mamba"), _GRANITE
    )
    parts, has_experts = fields["experts"], number(extras["num_local_experts"]) > 0
    assert isinstance(parts, dict)
    rotary = extras["position_embedding_type"] == "rope"
    fields = fields | {
        "experts": parts | {"shared_width": shared} if has_experts else None,
        "feed_forward": None if has_experts else shared,
        "positions": "rotary" if rotary else "none",
        "position_count": fields["position_count"] if rotary else 0,
        "mamba": fields["mamba"] if "mamba" in mixers else None,
    }
    return with_kinds(fields, mixers, ["experts" if has_experts else "dense"] * layers)


GRANITE_HYBRID = Family(
    keys={
        **WITHOUT_DENSE,
        **BIAS,
        **experts("num_local_experts", "intermediate_size", 2),
        "experts.count": Key("num_local_experts", "size", no_default),
        "mamba.heads": Key("mamba_n_heads", "size", 128),
        "mamba.head_size": Key("mamba_d_head", "size", _granite_head),
        "mamba.state": Key("mamba_d_state", "size", 256),
        "mamba.groups": Key("mamba_n_groups", "size", 1),
        "mamba.conv": Key("mamba_d_conv", "size", 4),
        "mamba.conv_bias": Key("mamba_conv_bias", "flag", True),
        "mamba.bias": Key("mamba_proj_bias", "flag", False),
        "mamba.chunk": Key("mamba_chunk_size", "size", 256),
    },
    constants={"gated": True, "norm": "rms_norm", "feed_forward_bias": False},
    costless=frozenset({
        "attention_multiplier", "embedding_multiplier", "logits_scaling", "mamba_expand",
        "residual_multiplier", "time_step_limit", "time_step_max", "time_step_min",
    }),
    fixed=(*DECODER, ("normalization_function", "rmsnorm")),
    extra_keys=(
        Key("num_local_experts", "count", 8),
        Key("shared_intermediate_size", "size", 1024),
        Key("position_embedding_type", "word", "nope"),
        LAYER_TYPES,
    ),
    arrange=_granite,
)  # fmt: skip
NEMOTRON_H = Family(
    keys={
        **KEYS,
        "layers": Key("num_hidden_layers", "size", no_default),
        "activation": Key("mlp_hidden_act", "activation", "relu2"),
        "head_size": Key("head_dim", "size", 128),
        "mamba.heads": Key("mamba_num_heads", "size"),
        "mamba.head_size": Key("mamba_head_dim", "size"),
        "mamba.state": Key("ssm_state_size", "size"),
        "mamba.groups": Key("n_groups", "size", 8),
        "mamba.conv": Key("conv_kernel", "size", 4),
        "mamba.conv_bias": Key("use_conv_bias", "flag", True),
        "mamba.bias": Key("use_bias", "flag", False),
        "mamba.chunk": Key("chunk_size", "size", 128),
        "experts.count": Key("n_routed_experts", "size", no_default),
        "experts.per_token": Key("num_experts_per_tok", "size", no_default),
        "experts.width": Key("moe_intermediate_size", "size", no_default),
        "experts.shared_width": Key("moe_shared_expert_intermediate_size", "count", 7688),
        "experts.latent_width": Key("moe_latent_size", "size", no_default),
        "experts.groups": Key("n_group", "size", no_default),
        "experts.top_groups": Key("topk_group", "size", no_default),
        **MTP,
    },
    constants={
        "positions": "none",
        "position_count": 0,
        "attention_bias": False,
        "feed_forward_bias": False,
        "gated": False,
        "norm": "rms_norm",
        "experts.gated": False,
        **BALANCED_BY_BIASES,
    },
    costless=frozenset({
        "expand", "hidden_dropout", "layer_norm_epsilon", "mamba_hidden_act", "mamba_ssm_cache_dtype",
        "max_position_embeddings", "moe_shared_expert_overlap", "n_shared_experts", "norm_eps",
        "rescale_prenorm_residual", "residual_in_fp32", "sliding_window", "time_step_floor",
        "time_step_limit", "time_step_max", "time_step_min", "time_step_rank", "use_mamba_kernels",
    }),
    fixed=(("attention_bias", False), ("mamba_proj_bias", False), ("mlp_bias", False)),
    extra_keys=tuple(
        Key(name, "pattern", no_default)
        for name in (
            "layers_block_type", "hybrid_override_pattern", "mtp_layers_block_type",
            "mtp_hybrid_override_pattern",
        )
    ),
    arrange=_nemotron,
)  # fmt: skip
QWEN3_NEXT = Family(
    keys={**_HEADS, **_SHARED, "feed_forward": Key("intermediate_size", "size", no_default), **_QWEN_MTP},
    constants={**_QWEN, "experts.shared_gate": True},
    costless=_QWEN_COSTLESS,
    fixed=DECODER,
    extra_keys=(*_INTERVAL, *SPARSE),
    arrange=_qwen,
)
QWEN3_5 = Family({**_HEADS, **_QWEN_MTP}, _QWEN, _QWEN_COSTLESS, DECODER, (*_INTERVAL, *SPARSE), _qwen)
GEMMA4 = Family(
    keys={
        **GEMMA3.keys,
        "experts.count": Key("num_experts", "size", no_default),
        "experts.per_token": Key("top_k_experts", "size", no_default),
        "experts.width": Key("moe_intermediate_size", "size", no_default),
    },
    constants={**GEMMA3.constants, "experts.scales": True},
    costless=frozenset({"use_bidirectional_attention", "vocab_size_per_layer_input"}),
    fixed=(*DECODER, ("num_kv_shared_layers", 0), ("use_double_wide_mlp", False)),
    extra_keys=(
        Key("sliding_window", "size", 512),
        LAYER_TYPES,
        Key(OVERRIDES, "overrides", lambda config: {} if OVERRIDES in config else None),
        Key("hidden_size_per_layer_input", "count", 256),
        Key("global_head_dim", "size", 512),
        Key("num_global_key_value_heads", "size", no_default),
        Key("attention_k_eq_v", "flag", False),
        Key("enable_moe_block", "flag", False),
    ),
    arrange=_gemma4,
)
FAMILIES = {
    "granitemoehybrid": GRANITE_HYBRID,
    "gemma4_text": GEMMA4,
    "nemotron_h": NEMOTRON_H,
    "qwen3_5_moe_text": QWEN3_NEXT,
    "qwen3_5_text": QWEN3_5,
    "qwen3_next": QWEN3_NEXT,
}
