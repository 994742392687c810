"""Families that differ in a few keys from Llama, or from another family with experts."""

from __future__ import annotations

from dataclasses import replace

from phaze.spec.huggingface.experts import (
    FIRST,
    GLM4_MOE,
    WITHOUT_DENSE,
    experts,
    with_shared,
    without_unused,
)
from phaze.spec.huggingface.keys import Config, Family, Key, none
from phaze.spec.huggingface.latent import DEEPSEEK, leading_dense
from phaze.spec.huggingface.llama import (
    BIAS,
    DECODER,
    KEYS,
    LAYER_TYPES,
    LLAMA,
    ROTARY,
    WINDOW,
    WITHOUT_BIAS,
    all_windows,
    every,
    number,
    windowed,
    windows,
    with_kinds,
    with_window,
    words,
)

_MULTIPLIERS = frozenset({
    "attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"
})  # fmt: skip
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


def _olmo3(found: Config, said: Config) -> Config:
    """Spec fields of OLMo 3, with full attention in every fourth layer."""
    return windows(found, said, every(found, said, 4))


def _smollm(found: Config, said: Config) -> Config:
    """Spec fields of SmolLM3; layers without rotary positions use sliding windows, if enabled."""
    layers, step = number(found["layers"]), number(said["no_rope_layer_interval"])
    rotary = said["no_rope_layers"] or [(i + 1) % step for i in range(layers)]
    assert isinstance(rotary, list)
    usual = ["attention" if one or not windowed(said) else "window" for one in rotary]
    return windows(found, said, words(found, said, "layer_types", usual))


def _ernie(found: Config, said: Config) -> Config:
    """Spec fields of ERNIE: experts in every `moe_layer_interval`-th layer of a range, and shared experts."""
    layers, step = number(found["layers"]), number(said["moe_layer_interval"])
    first, last = number(said["moe_layer_start_index"]), said["moe_layer_end_index"]
    end = layers - 1 if last in (None, -1) else number(last)
    has = [first <= i <= end and (i + 1) % step == 0 for i in range(layers)]
    parts = found["experts"]
    assert isinstance(parts, dict)
    shared = number(parts["width"]) * number(said["n_shared_experts"])
    found = found | {"experts": parts | {"shared_width": shared}}
    networks = ["experts" if one else "dense" for one in has]
    return without_unused(with_kinds(found, ["attention"] * layers, networks))


def _exaone_mixers(found: Config, said: Config) -> list[str]:
    """Mixer of each layer: sliding-window and full attention alternate by a pattern such as LLLG."""
    step, layers = said["sliding_window_pattern"], number(found["layers"])
    if not isinstance(step, str):
        return every(found, said, step)
    if set(step) - {"L", "G"}:
        raise ValueError(
            f"sliding_window_pattern: must be a number or a string of the letters L and G, got {step!r}"
        )
    usual = ["window" if step[i % len(step)] == "L" else "attention" for i in range(layers)]
    return words(found, said, "layer_types", usual)


def _exaone(found: Config, said: Config) -> Config:
    return windows(found, said, _exaone_mixers(found, said))


def _exaone_experts(found: Config, said: Config) -> Config:
    found, mixers = with_window(found, said, _exaone_mixers(found, said))
    return with_shared(found, said, mixers)


def _dots(found: Config, said: Config) -> Config:
    """Spec fields of dots.llm1: leading dense layers; sliding windows from layer `max_window_layers` on."""
    layers, full = number(found["layers"]), number(said["max_window_layers"])
    usual = ["attention" if i < full else "window" for i in range(layers)]
    found, mixers = with_window(found, said, words(found, said, "layer_types", usual))
    return with_shared(found, said, mixers)


def _hunyuan(found: Config, said: Config) -> Config:
    """Spec fields of Hunyuan, with one shared expert as wide as the routed ones."""
    parts = found["experts"]
    assert isinstance(parts, dict)
    width = said["moe_intermediate_size"]
    if width not in (None, parts["width"]):
        raise ValueError(f"moe_intermediate_size: must be intermediate_size {parts['width']}, got {width}")
    return found | {"experts": parts | {"shared_width": parts["width"]}}


_BAILING = {
    **KEYS,
    **experts("num_experts", per_token=8),
    "experts.groups": Key("n_group", "size", 1),
    "experts.top_groups": Key("topk_group", "size", 1),
    "attention_bias": Key("use_qkv_bias", "flag", False),
    "feed_forward_bias": Key("use_bias", "flag", False),
    "output_bias": Key("use_bias", "flag", False),
    "mtp": Key("num_nextn_predict_layers", "count", 0),
}
_BAILING_COSTLESS = frozenset({
    "moe_router_enable_expert_bias", "moe_router_enable_routed_scaling", "norm_head", "norm_softmax",
    "router_dtype", "score_function", "use_rmsnorm",
})  # fmt: skip

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
        also=(WINDOW,),
        arrange=all_windows,
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
        also=(Key("sliding_window", "size", 4096), LAYER_TYPES),
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
        also=(WINDOW,),
        arrange=all_windows,
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
        also=(
            WINDOW,
            LAYER_TYPES,
            Key("use_sliding_window", "flag", False),
            Key("no_rope_layers", "sizes", none),
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
        constants={**ROTARY, "attention_bias": False, "experts.choice_bias": True},
        costless=frozenset({"moe_norm_min"}),
        fixed=(*DECODER, ("use_bias", False)),
        also=(
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
        also=_EXAONE_WINDOWS,
        arrange=_exaone,
    ),
    "exaone_moe": Family(
        keys={
            **KEYS,
            **experts("num_experts", per_token=8),
            "experts.groups": Key("n_group", "size", 1),
            "experts.top_groups": Key("topk_group", "size", 1),
            "mtp": Key("num_nextn_predict_layers", "count", 0),
        },
        constants=_HEAD_NORMS,
        fixed=DECODER,
        also=(*_EXAONE_WINDOWS, *FIRST),
        arrange=_exaone_experts,
    ),
    # dots.llm1
    "dots1": Family(
        keys={**GLM4_MOE.keys, **BIAS},
        constants={**ROTARY, "qk_norm": "heads"},
        fixed=DECODER,
        also=(
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
        also=(Key("use_qk_norm", "flag", True), *FIRST),
    ),
    # Solar Open: experts in all layers, with additional shared ones
    "solar_open": replace(
        GLM4_MOE,
        keys={
            **GLM4_MOE.keys,
            "head_size": Key("head_dim", "size", 128),
            "feed_forward": Key("intermediate_size", "size", none),
        },
    ),
    "hunyuan_v1_dense": Family(keys={**KEYS, **BIAS}, constants=_HUNYUAN, costless=_IDS, fixed=DECODER),
    "hunyuan_v1_moe": Family(
        keys={**WITHOUT_DENSE, **BIAS, **experts("num_experts", "intermediate_size", 1)},
        constants=_HUNYUAN,
        costless=_IDS,
        fixed=DECODER,
        also=(Key("moe_intermediate_size", "size", none),),
        arrange=_hunyuan,
    ),
    "hy_v3": Family(
        keys={
            **KEYS,
            **BIAS,
            "head_size": Key("head_dim", "size", 128),
            **experts("num_experts", per_token=8),
            "mtp": Key("num_nextn_predict_layers", "count", 0),
        },
        constants=_HUNYUAN,
        costless=frozenset({"enable_moe_fp32_combine", "router_scaling_factor"}),
        fixed=DECODER,
        also=FIRST,
        arrange=leading_dense,
    ),
}
