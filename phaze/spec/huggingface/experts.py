"""Model families with experts instead of dense networks, and standard attention."""

from phaze.spec.huggingface.keys import Config, Family, Key, none
from phaze.spec.huggingface.llama import (
    BIAS,
    DECODER,
    KEYS,
    LAYER_TYPES,
    NETWORKS,
    QWEN,
    ROTARY,
    WINDOW,
    WITHOUT_BIAS,
    number,
    windowed,
    with_kinds,
    words,
)
from phaze.spec.plain import Plain

WITHOUT_DENSE = {name: key for name, key in KEYS.items() if name != "feed_forward"}
"""Keys for families whose `intermediate_size` is the width of an expert."""
SPARSE = (Key("decoder_sparse_step", "size", 1), Key("mlp_only_layers", "sizes", lambda _: []))
FIRST_DENSE: dict[Plain, int] = {
    "bailing_moe": 0, "bailing_moe_v2": 0,
    "deepseek_v2": 0, "dots1": 0, "exaone_moe": 1, "glm4_moe": 1, "glm4_moe_lite": 1, "hy_v3": 1,
    "sarvam_mla": 1, "sarvam_moe": 1, "solar_open": 0,
}  # fmt: skip
"""Default number of leading dense layers by family; 3 in families after DeepSeek-V3."""
SHARED: dict[Plain, int] = {"bailing_moe": 0, "bailing_moe_v2": 0, "deepseek_v2": 2}
"""Default number of shared experts by family, where it is not 1."""
FIRST = (
    Key("first_k_dense_replace", "count", lambda config: FIRST_DENSE.get(config["model_type"], 3)),
    Key("n_shared_experts", "count", lambda config: SHARED.get(config["model_type"], 1)),
    Key("mlp_layer_types", "words", none),
)


def experts(count: str, width: str = "moe_intermediate_size", per_token: int | None = None) -> dict[str, Key]:
    """Rules that read the sizes of experts, given a family's keys and default of experts per token."""
    return {
        "experts.count": Key(count, "size"),
        "experts.per_token": Key("num_experts_per_tok", "size", per_token),
        "experts.width": Key(width, "size"),
    }


def first_dense(found: Config, said: Config) -> list[str]:
    """Network of each layer (dense or experts): as published; by default dense only in the first layers."""
    layers, dense = number(found["layers"]), number(said["first_k_dense_replace"])
    usual = ["dense" if i < dense else "experts" for i in range(layers)]
    return words(found, said, "mlp_layer_types", usual, NETWORKS)


def sparse(found: Config, said: Config) -> list[str]:
    """Network of each layer, with experts in every `decoder_sparse_step`-th layer (Qwen)."""
    step, dense = number(said["decoder_sparse_step"]), said["mlp_only_layers"]
    assert isinstance(dense, list)
    return ["dense" if i in dense or (i + 1) % step else "experts" for i in range(number(found["layers"]))]


def without_unused(found: Config) -> Config:
    """Remove the dense FFN width from the fields if every layer is MoE."""
    used = "dense" in str(found.get("pattern", "" if found.get("experts") else "dense"))
    return found if used else found | {"feed_forward": None}


def _mixtral(found: Config, said: Config) -> Config:
    """Spec fields of Mixtral, with a sliding window in all layers if one is given."""
    if said["sliding_window"] is None:
        return found
    layers = number(found["layers"])
    return with_kinds(
        found | {"window": {"size": said["sliding_window"]}}, ["window"] * layers, ["experts"] * layers
    )


def _qwen_moe(found: Config, said: Config) -> Config:
    layers = number(found["layers"])
    full = number(said["max_window_layers"]) if windowed(said) else layers
    usual = ["attention" if i < full else "window" for i in range(layers)]
    mixers = words(found, said, "layer_types", usual)
    if "window" in mixers:
        found = found | {"window": {"size": said["sliding_window"]}}
    return without_unused(with_kinds(found, mixers, sparse(found, said)))


def _glm(found: Config, said: Config) -> Config:
    """Model fields of the GLM family: leading dense layers, and query and key norms if `use_qk_norm`."""
    found = found | {"qk_norm": "heads" if said["use_qk_norm"] else "none"}
    return with_shared(found, said, ["attention"] * number(found["layers"]))


def with_shared(found: Config, said: Config, mixers: list[str]) -> Config:
    """Add shared experts, each as wide as a routed expert, and leading dense layers to the spec fields."""
    parts = found["experts"]
    assert isinstance(parts, dict)
    width = number(parts["width"]) * number(said["n_shared_experts"])
    found = found | {"experts": parts | {"shared_width": width}}
    return without_unused(with_kinds(found, mixers, first_dense(found, said)))


def _gpt_oss(found: Config, said: Config) -> Config:
    """Spec fields of GPT-OSS, with a sliding window in every other layer."""
    layers = number(found["layers"])
    mixers = words(found, said, "layer_types", ["attention" if i % 2 else "window" for i in range(layers)])
    return with_kinds(found | {"window": {"size": said["sliding_window"]}}, mixers, ["experts"] * layers)


def _llama4(found: Config, said: Config) -> Config:
    """Spec fields of Llama 4: chunked attention in rotary layers, full in others, one shared expert."""
    layers, step = number(found["layers"]), number(said["interleave_moe_layer_step"])
    sparse_ones = said["moe_layers"] or list(range(step - 1, layers, step))
    rotary = said["no_rope_layers"] or [
        (i + 1) % number(said["no_rope_layer_interval"]) for i in range(layers)
    ]
    assert isinstance(sparse_ones, list)
    assert isinstance(rotary, list)
    mixers = words(
        found,
        said,
        "layer_types",
        ["chunk" if one else "attention" for one in rotary],
        ("attention", "chunk"),
    )
    parts = found["experts"]
    assert isinstance(parts, dict)
    found = found | {
        "experts": parts | {"shared_width": parts["width"]},
        "chunk": said["attention_chunk_size"] if "chunk" in mixers else None,
    }
    networks = ["experts" if i in sparse_ones else "dense" for i in range(layers)]
    return without_unused(with_kinds(found, mixers, networks))


def _minimax(found: Config, said: Config) -> Config:
    """Spec fields of MiniMax: query and key norms, and multi-token prediction layers, if enabled."""
    further = number(said["num_mtp_modules"]) * number(said["mtp_transformer_layers"])
    norm = ("all" if said["qk_norm_type"] == "per_layer" else "heads") if said["use_qk_norm"] else "none"
    return found | {"qk_norm": norm, "mtp": further if said["use_mtp"] else 0}


MIXTRAL = Family(
    keys={**WITHOUT_DENSE, **experts("num_local_experts", "intermediate_size", 2)},
    constants=WITHOUT_BIAS,
    fixed=DECODER,
    also=(WINDOW,),
    arrange=_mixtral,
)
QWEN2_MOE = Family(
    keys={
        **KEYS,
        **experts("num_experts"),
        "attention_bias": Key("qkv_bias", "flag", True),
        "experts.shared_width": Key("shared_expert_intermediate_size", "size"),
    },
    constants={**ROTARY, "output_bias": False, "experts.shared_gate": True},
    fixed=DECODER,
    also=(*QWEN, *SPARSE),
    arrange=_qwen_moe,
)
QWEN3_MOE = Family(
    keys={**KEYS, **BIAS, **experts("num_experts")},
    constants={**ROTARY, "qk_norm": "heads"},
    fixed=DECODER,
    also=(*QWEN, *SPARSE),
    arrange=_qwen_moe,
)
GLM4_MOE = Family(
    keys={
        **KEYS,
        **BIAS,
        **experts("n_routed_experts"),
        "experts.groups": Key("n_group", "size", 1),
        "experts.top_groups": Key("topk_group", "size", 1),
        "mtp": Key("num_nextn_predict_layers", "count", 0),
    },
    constants={**ROTARY, "output_bias": False},
    fixed=DECODER,
    also=(Key("use_qk_norm", "flag", False), *FIRST),
    arrange=_glm,
)
MINIMAX = Family(
    keys={
        **WITHOUT_DENSE,
        "head_size": Key("head_dim", "size", 128),
        **experts("num_local_experts", "intermediate_size", 8),
    },
    constants=WITHOUT_BIAS,
    costless=frozenset({"use_routing_bias"}),
    fixed=(*DECODER, ("shared_intermediate_size", 0)),
    also=(
        Key("use_qk_norm", "flag", True),
        Key("qk_norm_type", "word", "per_layer"),
        Key("use_mtp", "flag", False),
        Key("num_mtp_modules", "count", 0),
        Key("mtp_transformer_layers", "count", 1),
    ),
    arrange=_minimax,
)
GPT_OSS = Family(
    keys={
        **WITHOUT_DENSE,
        "attention_bias": Key("attention_bias", "flag", True),
        "head_size": Key("head_dim", "size", 64),
        **experts("num_local_experts", "intermediate_size", 4),
    },
    constants={**ROTARY, "sinks": True, "experts.bias": True, "experts.clamped": True},
    costless=frozenset({"experts_per_token"}),
    fixed=DECODER,
    also=(Key("sliding_window", "size", 128), LAYER_TYPES),
    arrange=_gpt_oss,
)
LLAMA4 = Family(
    keys={
        **KEYS,
        **BIAS,
        "feed_forward": Key("intermediate_size_mlp", "size"),
        "head_size": Key("head_dim", "size", 128),
        **experts("num_local_experts", "intermediate_size", 1),
    },
    constants=ROTARY,
    costless=frozenset({"use_qk_norm", "attn_scale", "attn_temperature_tuning", "floor_scale"}),
    fixed=DECODER,
    also=(
        Key("interleave_moe_layer_step", "size", 1),
        Key("moe_layers", "sizes", none),
        Key("no_rope_layers", "sizes", none),
        Key("no_rope_layer_interval", "size", 4),
        Key("attention_chunk_size", "size", 8192),
        LAYER_TYPES,
    ),
    arrange=_llama4,
)
FAMILIES = {
    "glm4_moe": GLM4_MOE,
    "gpt_oss": GPT_OSS,
    "llama4_text": LLAMA4,
    "minimax_m2": MINIMAX,
    "mixtral": MIXTRAL,
    "qwen2_moe": QWEN2_MOE,
    "qwen3_moe": QWEN3_MOE,
}
