"""Families whose layers differ in more than windows: Nemotron-H, Qwen3-Next, Qwen3.5, Gemma 4."""

from phaze.spec.huggingface.experts import SPARSE, experts, sparse, without_unused
from phaze.spec.huggingface.keys import Config, Family, Key, none
from phaze.spec.huggingface.llama import (
    BIAS,
    DECODER,
    GEMMA3,
    KEYS,
    LAYER_TYPES,
    ROTARY,
    number,
    with_kinds,
    words,
)
from phaze.spec.pattern import pattern_of

_NEMOTRON = {"M": "mamba", "E": "experts", "*": "attention", "-": "dense"}
_NEMOTRON |= {"mamba": "mamba", "moe": "experts", "attention": "attention", "mlp": "dense"}


def _nemotron(found: Config, said: Config) -> Config:
    """Layers of one part each, by a string of signs or a list of words; parts of no layer are left out."""
    signs = said["layers_block_type"] or list(str(said["hybrid_override_pattern"]))
    assert isinstance(signs, list)
    kinds = [_NEMOTRON.get(str(sign), str(sign)) for sign in signs]
    unused = {"mamba": "mamba", "experts": "experts", "dense": "feed_forward"}
    kept = {field: None for word, field in unused.items() if word not in kinds}
    return found | {"pattern": pattern_of(kinds)} | kept


def _qwen(found: Config, said: Config) -> Config:
    """Every so many layers one has attention, others the delta rule."""
    layers, step = number(found["layers"]), number(said["full_attention_interval"])
    usual = ["delta" if (i + 1) % step else "attention" for i in range(layers)]
    mixers = words(said, "layer_types", usual)
    networks = sparse(found, said) if found.get("experts") else ["dense"] * layers
    return without_unused(with_kinds(found, mixers, networks))


def _gemma4(found: Config, said: Config) -> Config:
    """Layers with a window have heads of their own, and experts stand beside the dense network; the last
    layer has no window, whatever is said.
    """
    layers, full = number(found["layers"]), said["global_head_dim"] or found["head_size"]
    mixers = words(said, "layer_types", ["attention" if i % 6 == 5 else "window" for i in range(layers)])
    mixers = [*mixers[:-1], "attention"]
    window = {
        "size": said["sliding_window"],
        "key_value_heads": found["key_value_heads"],
        "head_size": found["head_size"],
        "shared_kv": False,
    }
    heads = (said["num_global_key_value_heads"] if said["attention_k_eq_v"] else None) or found[
        "key_value_heads"
    ]
    found = found | {
        "window": window if "window" in mixers else None,
        "head_size": full,
        "key_value_heads": heads,
        "shared_kv": said["attention_k_eq_v"],
        "experts": found["experts"] if said["enable_moe_block"] else None,
    }
    network = "dense-experts" if said["enable_moe_block"] else "dense"
    return with_kinds(found, mixers, [network] * layers)


NEMOTRON_H = Family(
    keys={
        **KEYS,
        "layers": Key("num_hidden_layers", "size"),
        "activation": Key("mlp_hidden_act", "activation", "relu2"),
        "mamba.heads": Key("mamba_num_heads", "size"),
        "mamba.head_size": Key("mamba_head_dim", "size"),
        "mamba.state": Key("ssm_state_size", "size"),
        "mamba.groups": Key("n_groups", "size", 8),
        "mamba.conv": Key("conv_kernel", "size", 4),
        "mamba.conv_bias": Key("use_conv_bias", "flag", True),
        "mamba.bias": Key("use_bias", "flag", False),
        "mamba.chunk": Key("chunk_size", "size", 128),
        "experts.count": Key("n_routed_experts", "size", none),
        "experts.per_token": Key("num_experts_per_tok", "size", none),
        "experts.width": Key("moe_intermediate_size", "size", none),
        "experts.shared_width": Key("moe_shared_expert_intermediate_size", "count", none),
        "experts.latent_width": Key("moe_latent_size", "size", none),
        "experts.groups": Key("n_group", "size", none),
        "experts.top_groups": Key("topk_group", "size", none),
        "mtp": Key("num_nextn_predict_layers", "count", 0),
    },
    constants={
        "positions": "none",
        "position_count": 0,
        "attention_bias": False,
        "feed_forward_bias": False,
        "gated": False,
        "norm": "rms_norm",
        "experts.gated": False,
    },
    costless=frozenset({
        "expand", "hidden_dropout", "layer_norm_epsilon", "mamba_hidden_act", "mamba_ssm_cache_dtype",
        "max_position_embeddings", "moe_shared_expert_overlap", "n_shared_experts", "norm_eps",
        "rescale_prenorm_residual", "residual_in_fp32", "sliding_window", "time_step_floor",
        "time_step_limit", "time_step_max", "time_step_min", "time_step_rank", "use_mamba_kernels",
    }),
    fixed=(("attention_bias", False), ("mamba_proj_bias", False), ("mlp_bias", False)),
    also=(Key("layers_block_type", "words", none), Key("hybrid_override_pattern", "word", none)),
    arrange=_nemotron,
)  # fmt: skip
_DELTA = {
    "delta.key_heads": Key("linear_num_key_heads", "size"),
    "delta.value_heads": Key("linear_num_value_heads", "size"),
    "delta.key_size": Key("linear_key_head_dim", "size"),
    "delta.value_size": Key("linear_value_head_dim", "size"),
    "delta.conv": Key("linear_conv_kernel_dim", "size", 4),
}
_INTERVAL = (LAYER_TYPES, Key("full_attention_interval", "size", 4))
_QWEN: Config = {**ROTARY, "qk_norm": "heads", "attention_gate": True}
_QWEN_COSTLESS = frozenset({"mamba_ssm_dtype", "mtp_use_dedicated_embeddings"})
_QWEN_FIXED = (*DECODER, ("attn_output_gate", True))
_HEADS = {**KEYS, **BIAS, "head_size": Key("head_dim", "size", 256), **_DELTA}
_MTP = {"mtp": Key("mtp_num_hidden_layers", "count", 0)}
_SHARED = {
    **experts("num_experts"),
    "experts.shared_width": Key("shared_expert_intermediate_size", "size"),
}
QWEN3_NEXT = Family(
    keys={**_HEADS, **_SHARED, "feed_forward": Key("intermediate_size", "size", none), **_MTP},
    constants={**_QWEN, "experts.shared_gate": True},
    costless=_QWEN_COSTLESS,
    fixed=_QWEN_FIXED,
    also=(*_INTERVAL, *SPARSE),
    arrange=_qwen,
)
QWEN3_5 = Family({**_HEADS, **_MTP}, _QWEN, _QWEN_COSTLESS, _QWEN_FIXED, (*_INTERVAL, *SPARSE), _qwen)
GEMMA4 = Family(
    keys={
        **GEMMA3.keys,
        "experts.count": Key("num_experts", "size", none),
        "experts.per_token": Key("top_k_experts", "size", none),
        "experts.width": Key("moe_intermediate_size", "size", none),
    },
    constants={**GEMMA3.constants, "experts.scales": True},
    costless=frozenset({"use_bidirectional_attention", "vocab_size_per_layer_input"}),
    fixed=(
        *DECODER,
        ("hidden_size_per_layer_input", 0),
        ("num_kv_shared_layers", 0),
        ("use_double_wide_mlp", False),
    ),
    also=(
        Key("sliding_window", "size", 512),
        LAYER_TYPES,
        Key("global_head_dim", "size", 512),
        Key("num_global_key_value_heads", "size", none),
        Key("attention_k_eq_v", "flag", False),
        Key("enable_moe_block", "flag", False),
    ),
    arrange=_gemma4,
)
FAMILIES = {
    "gemma4_text": GEMMA4,
    "nemotron_h": NEMOTRON_H,
    "qwen3_5_moe_text": QWEN3_NEXT,
    "qwen3_5_text": QWEN3_5,
    "qwen3_next": QWEN3_NEXT,
}
