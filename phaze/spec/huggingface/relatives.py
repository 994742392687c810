"""Families that differ in a few keys from Llama, or from another family with experts."""

from __future__ import annotations

from dataclasses import replace

from phaze.spec.huggingface.experts import (
    BALANCED_BY_BIASES,
    FIRST,
    GLM4_MOE,
    GROUPS,
    MTP,
    WITHOUT_DENSE,
    experts,
    shared_experts,
    with_shared,
    without_unused,
)
from phaze.spec.huggingface.keys import Config, Family, Key, no_default
from phaze.spec.huggingface.latent import DEEPSEEK, arrange_sparse
from phaze.spec.huggingface.llama import (
    BIAS,
    DECODER,
    KEYS,
    LAYER_TYPES,
    LLAMA,
    ROTARY,
    WINDOW,
    WITHOUT_BIAS,
    arrange_dense,
    arrange_windowed,
    number,
    parts_by_layer,
    periodic_mixers,
    windowed,
    with_kinds,
    with_window,
)

_MULTIPLIERS = frozenset(
    {"attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"}
)
_NORMS: Config = {**ROTARY, "qk_norm": "all", "norm_position": "output"}
_ERNIE_HEAD = {"ernie4_5": 128}
"""Default head dimension by model type."""
_ERNIE = {
    **KEYS,
    "head_size": Key(
        "head_dim",
        "size",
        lambda config: None if "head_dim" in config else _ERNIE_HEAD.get(str(config["model_type"])),
    ),
    "tied_embeddings": Key("tie_word_embeddings", "flag", True),
}
_HEAD_NORMS: Config = {**WITHOUT_BIAS, "qk_norm": "heads"}
_EXAONE_WINDOWS = (
    Key("sliding_window", "size", lambda config: None if "sliding_window" in config else 4096),
    LAYER_TYPES,
    Key("sliding_window_pattern", "turns", 4),
)
_HUNYUAN: Config = {**ROTARY, "qk_norm": "heads"}
_IDS = frozenset({"eod_token_id", "im_end_id", "im_newline_id", "im_start_id", "pad_id", "norm_type"})
_BAILING = {
    **KEYS,
    **experts("num_experts", per_token=8),
    **GROUPS,
    "attention_bias": Key("use_qkv_bias", "flag", False),
    "feed_forward_bias": Key("use_bias", "flag", False),
    "output_bias": Key("use_bias", "flag", False),
    **MTP,
}
_BAILING_COSTLESS = frozenset({
    "moe_router_enable_expert_bias", "moe_router_enable_routed_scaling", "norm_head", "norm_softmax",
    "router_dtype", "score_function", "use_rmsnorm",
})  # fmt: skip


def _olmo3(fields: Config, extras: Config) -> Config:
    """Spec fields of OLMo 3, with full attention in every fourth layer."""
    return arrange_dense(fields, extras, periodic_mixers(fields, extras, 4))


def _smollm(fields: Config, extras: Config) -> Config:
    """Spec fields of SmolLM3; layers without rotary positions use sliding windows, if enabled."""
    layers, step = number(fields["layers"]), number(extras["no_rope_layer_interval"])
    rotary = extras["no_rope_layers"] or [(i + 1) % step for i in range(layers)]
    assert isinstance(rotary, list)
    default = ["attention" if is_rotary or not windowed(extras) else "window" for is_rotary in rotary]
    return arrange_dense(fields, extras, parts_by_layer(fields, extras, "layer_types", default))


def _ernie(fields: Config, extras: Config) -> Config:
    """Spec fields of ERNIE: experts in every `moe_layer_interval`-th layer of a range, and shared experts."""
    layers, step = number(fields["layers"]), number(extras["moe_layer_interval"])
    first, last = number(extras["moe_layer_start_index"]), extras["moe_layer_end_index"]
    end = layers - 1 if last in (None, -1) else number(last)
    sparse = [first <= i <= end and (i + 1) % step == 0 for i in range(layers)]
    fields = fields | {"experts": shared_experts(fields, number(extras["n_shared_experts"]))}
    networks = ["experts" if is_sparse else "dense" for is_sparse in sparse]
    return without_unused(with_kinds(fields, ["attention"] * layers, networks))


def _exaone_mixers(fields: Config, extras: Config) -> list[str]:
    """Mixer of each layer: sliding-window and full attention alternate by a pattern such as LLLG."""
    step, layers = extras["sliding_window_pattern"], number(fields["layers"])
    if not isinstance(step, str):
        return periodic_mixers(fields, extras, step)
    if set(step) - {"L", "G"}:
        raise ValueError(
            f"sliding_window_pattern: must be a number or a string of the letters L and G, got {step!r}"
        )
    default = ["window" if step[i % len(step)] == "L" else "attention" for i in range(layers)]
    return parts_by_layer(fields, extras, "layer_types", default)


def _exaone(fields: Config, extras: Config) -> Config:
    return arrange_dense(fields, extras, _exaone_mixers(fields, extras))


def _exaone_experts(fields: Config, extras: Config) -> Config:
    fields, mixers = with_window(fields, extras, _exaone_mixers(fields, extras))
    return with_shared(fields, extras, mixers)


def _dots(fields: Config, extras: Config) -> Config:
    """Spec fields of dots.llm1: leading dense layers; sliding windows from layer `max_window_layers` on."""
    layers, full = number(fields["layers"]), number(extras["max_window_layers"])
    default = ["attention" if i < full else "window" for i in range(layers)]
    fields, mixers = with_window(fields, extras, parts_by_layer(fields, extras, "layer_types", default))
    return with_shared(fields, extras, mixers)


def _hunyuan(fields: Config, extras: Config) -> Config:
    """Spec fields of Hunyuan, with one shared expert as wide as the routed ones."""
    experts, width = shared_experts(fields), extras["moe_intermediate_size"]
    if width not in (None, experts["width"]):
        raise ValueError(f"moe_intermediate_size: must be intermediate_size {experts['width']}, got {width}")
    return fields | {"experts": experts}


FAMILIES = {
    # Apertus: two products in each network, and norms of queries and keys
    "apertus": Family(
        keys={**LLAMA.keys, "activation": Key("hidden_act", "activation", "xielu")},
        constants={"positions": "rotary", "gated": False, "norm": "rms_norm", "qk_norm": "heads"},
    ),
    # Ling and Ring, arranged as GLM-4.5; their code is part of their checkpoints
    **dict.fromkeys(
        ("bailing_moe", "bailing_moe_v2"),
        replace(GLM4_MOE, keys=_BAILING, constants=LLAMA.constants, costless=_BAILING_COSTLESS, fixed=()),
    ),
    # GLM-4 dense, and GLM-4.7-Flash with latent attention and experts
    "glm4": Family(
        keys={
            **KEYS,
            "head_size": Key("head_dim", "size", 128),
            "attention_bias": Key("attention_bias", "flag", True),
        },
        constants={**ROTARY, "output_bias": False, "norm_position": "both"},
        fixed=DECODER,
    ),
    "glm4_moe_lite": DEEPSEEK,
    # Granite, dense and mixture-of-experts variants
    "granite": Family(keys=LLAMA.keys, constants=LLAMA.constants, costless=_MULTIPLIERS),
    "granitemoe": Family(
        keys={**WITHOUT_DENSE, **BIAS, **experts("num_local_experts", "intermediate_size", 2)},
        constants=ROTARY,
        costless=_MULTIPLIERS,
        fixed=DECODER,
    ),
    # Ministral 3, and the text model of Mistral Small from 3.1 on
    "ministral3": Family(
        keys={**KEYS, "head_size": Key("head_dim", "size", 128)},
        constants=WITHOUT_BIAS,
        fixed=DECODER,
        extra_keys=(WINDOW,),
        arrange=arrange_windowed,
    ),
    # Nemotron-4 and Minitron: dense, without gated networks
    "nemotron": Family(
        keys={**LLAMA.keys, "activation": Key("hidden_act", "activation", "relu2")},
        constants={"positions": "rotary", "gated": False, "norm": "layer_norm"},
        costless=frozenset({"norm_eps"}),
    ),
    # OLMo 2 and OLMo 3, with norms on the outputs of attention and network, and OLMoE
    "olmo2": Family(keys={**KEYS, **BIAS}, constants=_NORMS, fixed=DECODER),
    "olmo3": Family(
        keys={**KEYS, **BIAS},
        constants=_NORMS,
        fixed=DECODER,
        extra_keys=(Key("sliding_window", "size", 4096), LAYER_TYPES),
        arrange=_olmo3,
    ),
    "olmoe": Family(
        keys={**WITHOUT_DENSE, **BIAS, **experts("num_experts", "intermediate_size", 8)},
        constants={**ROTARY, "qk_norm": "all"},
        costless=frozenset({"clip_qkv"}),
        fixed=DECODER,
    ),
    # Phi-3 and Phi-4
    "phi3": Family(
        keys={
            **KEYS,
            "position_count": Key("max_position_embeddings", "size", 4096),
            "residual_dropout": Key("resid_pdrop", "share", 0.0),
            "embedding_dropout": Key("embd_pdrop", "share", 0.0),
        },
        constants=WITHOUT_BIAS,
        costless=frozenset({"original_max_position_embeddings"}),
        fixed=(*DECODER, ("attention_bias", False)),
        extra_keys=(WINDOW,),
        arrange=arrange_windowed,
    ),
    # Seed-OSS
    "seed_oss": Family(
        keys={
            **LLAMA.keys,
            "head_size": Key("head_dim", "size", lambda config: None if "head_dim" in config else 128),
            "attention_bias": Key("attention_bias", "flag", True),
            "output_bias": Key("attention_out_bias", "flag", False),
            "attention_dropout": Key("attention_dropout", "share", 0.1),
            "residual_dropout": Key("residual_dropout", "share", 0.1),
        },
        constants=LLAMA.constants,
    ),
    # SmolLM3, in which some layers have no rotary positions
    "smollm3": Family(
        keys={**LLAMA.keys, "tied_embeddings": Key("tie_word_embeddings", "flag", True)},
        constants=LLAMA.constants,
        extra_keys=(
            WINDOW,
            LAYER_TYPES,
            Key("use_sliding_window", "flag", False),
            Key("no_rope_layers", "sizes", no_default),
            Key("no_rope_layer_interval", "size", 4),
        ),
        arrange=_smollm,
    ),
    "ernie4_5": Family(
        keys={
            **_ERNIE,
            "attention_bias": Key("use_bias", "flag", False),
            "feed_forward_bias": Key("use_bias", "flag", False),
        },
        constants={"positions": "rotary", "gated": True, "norm": "rms_norm"},
    ),
    "ernie4_5_moe": Family(
        keys={**_ERNIE, **experts("moe_num_experts", per_token=6)},
        constants={**ROTARY, "attention_bias": False, "experts.choice_bias": True, **BALANCED_BY_BIASES},
        costless=frozenset({"moe_norm_min"}),
        fixed=(*DECODER, ("use_bias", False)),
        extra_keys=(
            Key("n_shared_experts", "count", 2),
            Key("moe_layer_interval", "size", 1),
            Key("moe_layer_start_index", "count", 1),
            Key("moe_layer_end_index", "end", 27),
        ),
        arrange=_ernie,
    ),
    "exaone4": Family(
        keys=KEYS,
        constants={**_HEAD_NORMS, "norm_position": "output"},
        fixed=DECODER,
        extra_keys=_EXAONE_WINDOWS,
        arrange=_exaone,
    ),
    "exaone_moe": Family(
        keys={
            **KEYS,
            **experts("num_experts", per_token=8),
            **GROUPS,
            **MTP,
        },
        constants={**_HEAD_NORMS, **BALANCED_BY_BIASES},
        fixed=DECODER,
        extra_keys=(*_EXAONE_WINDOWS, *FIRST),
        arrange=_exaone_experts,
    ),
    # dots.llm1
    "dots1": Family(
        keys={**GLM4_MOE.keys, **BIAS},
        constants={**ROTARY, "qk_norm": "heads", **BALANCED_BY_BIASES},
        fixed=DECODER,
        extra_keys=(
            Key("sliding_window", "size", lambda config: None if "sliding_window" in config else 4096),
            Key("max_window_layers", "count", 62),
            LAYER_TYPES,
            *FIRST,
        ),
        arrange=_dots,
    ),
    # Sarvam: experts with standard attention, or with latent attention
    "sarvam_mla": DEEPSEEK,
    "sarvam_moe": replace(
        GLM4_MOE,
        keys={**GLM4_MOE.keys, "head_size": Key("head_dim", "size", 64)},
        extra_keys=(Key("use_qk_norm", "flag", True), *FIRST),
    ),
    # Solar Open: experts in all layers, with additional shared ones
    "solar_open": replace(
        GLM4_MOE,
        keys={
            **GLM4_MOE.keys,
            "head_size": Key("head_dim", "size", 128),
            "feed_forward": Key("intermediate_size", "size", no_default),
        },
    ),
    "hunyuan_v1_dense": Family(keys={**KEYS, **BIAS}, constants=_HUNYUAN, costless=_IDS, fixed=DECODER),
    "hunyuan_v1_moe": Family(
        keys={**WITHOUT_DENSE, **BIAS, **experts("num_experts", "intermediate_size", 1)},
        constants=_HUNYUAN,
        costless=_IDS,
        fixed=DECODER,
        extra_keys=(Key("moe_intermediate_size", "size", no_default),),
        arrange=_hunyuan,
    ),
    "hy_v3": Family(
        keys={
            **KEYS,
            **BIAS,
            "head_size": Key("head_dim", "size", 128),
            **experts("num_experts", per_token=8),
            **MTP,
        },
        constants=_HUNYUAN,
        costless=frozenset({"enable_moe_fp32_combine", "router_scaling_factor"}),
        fixed=DECODER,
        extra_keys=FIRST,
        arrange=arrange_sparse,
    ),
}
