"""Families of experts that differ from GLM-4.5 in a few keys."""

from __future__ import annotations

from dataclasses import replace

from phaze.spec.huggingface.experts import FIRST, GLM4_MOE, with_shared
from phaze.spec.huggingface.keys import Config, Family, Key, none
from phaze.spec.huggingface.latent import DEEPSEEK
from phaze.spec.huggingface.llama import BIAS, DECODER, LAYER_TYPES, ROTARY, number, with_window, words


def _dots(found: Config, said: Config) -> Config:
    """Fields with leading dense layers, and windows from layer `max_window_layers` on."""
    layers, full = number(found["layers"]), number(said["max_window_layers"])
    usual = ["attention" if i < full else "window" for i in range(layers)]
    found, mixers = with_window(found, said, words(found, said, "layer_types", usual))
    return with_shared(found, said, mixers)


FAMILIES = {
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
}
