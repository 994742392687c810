"""Model families with experts instead of dense networks, and standard attention."""

from phaze.spec.huggingface.keys import Config, Family, Key, no_default
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
    parts_by_layer,
    periodic_mixers,
    qwen_mixers,
    with_kinds,
    with_window,
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
    Key("mlp_layer_types", "words", no_default),
)
GROUPS = {
    "experts.groups": Key("n_group", "size", 1),
    "experts.top_groups": Key("topk_group", "size", 1),
}
BALANCED_BY_BIASES: Config = {"experts.balancing": "biases"}
"""Published code has a bias of each expert's score, `e_score_correction_bias` (Transformers)."""
MTP = {"mtp": Key("num_nextn_predict_layers", "count", 0)}


def experts(count: str, width: str = "moe_intermediate_size", per_token: int | None = None) -> dict[str, Key]:
    """Rules that read the sizes of experts, given a family's keys and default of experts per token."""
    return {
        "experts.count": Key(count, "size"),
        "experts.per_token": Key("num_experts_per_tok", "size", per_token),
        "experts.width": Key(width, "size"),
    }


def first_dense(fields: Config, extras: Config) -> list[str]:
    """Network of each layer (dense or experts): as published; by default dense only in the first layers."""
    layers, dense = number(fields["layers"]), number(extras["first_k_dense_replace"])
    default = ["dense" if i < dense else "experts" for i in range(layers)]
    return parts_by_layer(fields, extras, "mlp_layer_types", default, NETWORKS)


def sparse(fields: Config, extras: Config) -> list[str]:
    """Network of each layer, with experts in every `decoder_sparse_step`-th layer (Qwen)."""
    step, dense = number(extras["decoder_sparse_step"]), extras["mlp_only_layers"]
    assert isinstance(dense, list)
    # Layers are counted from 1 by the step, and from 0 in the list of dense ones.
    return ["dense" if i in dense or (i + 1) % step else "experts" for i in range(number(fields["layers"]))]


def without_unused(fields: Config) -> Config:
    """Remove the dense FFN width from the fields if every layer is MoE."""
    uses_dense = "dense" in str(fields.get("pattern", "" if fields.get("experts") else "dense"))
    return fields if uses_dense else fields | {"feed_forward": None}


def _mixtral(fields: Config, extras: Config) -> Config:
    """Spec fields of Mixtral, with a sliding window in all layers if one is given."""
    fields, mixers = with_window(fields, extras, ["window"] * number(fields["layers"]))
    return with_kinds(fields, mixers, ["experts"] * len(mixers))


def _qwen_moe(fields: Config, extras: Config) -> Config:
    mixers = qwen_mixers(fields, extras)
    if "window" in mixers:
        fields = fields | {"window": {"size": extras["sliding_window"]}}
    return without_unused(with_kinds(fields, mixers, sparse(fields, extras)))


def _glm(fields: Config, extras: Config) -> Config:
    """Model fields of the GLM family: leading dense layers, and query and key norms if `use_qk_norm`."""
    fields = fields | {"qk_norm": "heads" if extras["use_qk_norm"] else "none"}
    return with_shared(fields, extras, ["attention"] * number(fields["layers"]))


def shared_experts(fields: Config, count: int = 1) -> Config:
    """Fields of experts, with `count` shared ones, each as wide as a routed expert."""
    experts = fields["experts"]
    assert isinstance(experts, dict)
    return experts | {"shared_width": number(experts["width"]) * count}


def with_shared(fields: Config, extras: Config, mixers: list[str]) -> Config:
    """Add shared experts and leading dense layers to the spec fields."""
    fields = fields | {"experts": shared_experts(fields, number(extras["n_shared_experts"]))}
    return without_unused(with_kinds(fields, mixers, first_dense(fields, extras)))


def _gpt_oss(fields: Config, extras: Config) -> Config:
    """Spec fields of GPT-OSS, with a sliding window in every other layer."""
    mixers = periodic_mixers(fields, extras, 2)
    window: Config = {"window": {"size": extras["sliding_window"]}}
    return with_kinds(fields | window, mixers, ["experts"] * len(mixers))


def _llama4(fields: Config, extras: Config) -> Config:
    """Spec fields of Llama 4: chunked attention in rotary layers, full in others, one shared expert."""
    layers, step = number(fields["layers"]), number(extras["interleave_moe_layer_step"])
    expert_layers = extras["moe_layers"] or list(range(step - 1, layers, step))
    interval = number(extras["no_rope_layer_interval"])
    rotary = extras["no_rope_layers"] or [(i + 1) % interval for i in range(layers)]
    assert isinstance(expert_layers, list)
    assert isinstance(rotary, list)
    default = ["chunk" if is_rotary else "attention" for is_rotary in rotary]
    mixers = parts_by_layer(fields, extras, "layer_types", default, ("attention", "chunk"))
    chunk = extras["attention_chunk_size"] if "chunk" in mixers else None
    fields = fields | {"experts": shared_experts(fields), "chunk": chunk}
    networks = ["experts" if i in expert_layers else "dense" for i in range(layers)]
    return without_unused(with_kinds(fields, mixers, networks))


def _minimax(fields: Config, extras: Config) -> Config:
    """Spec fields of MiniMax: query and key norms, and multi-token prediction layers, if enabled."""
    mtp_layers = number(extras["num_mtp_modules"]) * number(extras["mtp_transformer_layers"])
    norm = ("all" if extras["qk_norm_type"] == "per_layer" else "heads") if extras["use_qk_norm"] else "none"
    return fields | {"qk_norm": norm, "mtp": mtp_layers if extras["use_mtp"] else 0}


MIXTRAL = Family(
    keys={**WITHOUT_DENSE, **experts("num_local_experts", "intermediate_size", 2)},
    constants=WITHOUT_BIAS,
    fixed=DECODER,
    extra_keys=(WINDOW,),
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
    extra_keys=(*QWEN, *SPARSE),
    arrange=_qwen_moe,
)
QWEN3_MOE = Family(
    keys={**KEYS, **BIAS, **experts("num_experts")},
    constants={**ROTARY, "qk_norm": "heads"},
    fixed=DECODER,
    extra_keys=(*QWEN, *SPARSE),
    arrange=_qwen_moe,
)
GLM4_MOE = Family(
    keys={
        **KEYS,
        **BIAS,
        **experts("n_routed_experts"),
        **GROUPS,
        **MTP,
    },
    constants={**ROTARY, **BALANCED_BY_BIASES, "output_bias": False},
    fixed=DECODER,
    extra_keys=(Key("use_qk_norm", "flag", False), *FIRST),
    arrange=_glm,
)
MINIMAX = Family(
    keys={
        **WITHOUT_DENSE,
        "head_size": Key("head_dim", "size", 128),
        **experts("num_local_experts", "intermediate_size", 8),
    },
    constants={**WITHOUT_BIAS, **BALANCED_BY_BIASES},
    costless=frozenset({"use_routing_bias"}),
    fixed=(*DECODER, ("shared_intermediate_size", 0)),
    extra_keys=(
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
    extra_keys=(Key("sliding_window", "size", 128), LAYER_TYPES),
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
    extra_keys=(
        Key("interleave_moe_layer_step", "size", 1),
        Key("moe_layers", "sizes", no_default),
        Key("no_rope_layers", "sizes", no_default),
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
