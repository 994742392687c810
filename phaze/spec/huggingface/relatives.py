"""Model families that differ from Llama in a few keys."""

from __future__ import annotations

from phaze.spec.huggingface.experts import WITHOUT_DENSE, experts
from phaze.spec.huggingface.keys import Config, Family, Key, none
from phaze.spec.huggingface.latent import DEEPSEEK
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
    words,
)

_MULTIPLIERS = frozenset({
    "attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"
})  # fmt: skip
_NORMS: Config = {**ROTARY, "qk_norm": "all", "norm_position": "output"}


def _olmo3(found: Config, said: Config) -> Config:
    """Spec fields of OLMo 3, with full attention in every fourth layer."""
    return windows(found, said, every(found, said, 4))


def _smollm(found: Config, said: Config) -> Config:
    """Spec fields of SmolLM3, with the window in layers without rotary positions, if enabled."""
    layers, step = number(found["layers"]), number(said["no_rope_layer_interval"])
    rotary = said["no_rope_layers"] or [(i + 1) % step for i in range(layers)]
    assert isinstance(rotary, list)
    usual = ["attention" if one or not windowed(said) else "window" for one in rotary]
    return windows(found, said, words(found, said, "layer_types", usual))


FAMILIES = {
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
}
