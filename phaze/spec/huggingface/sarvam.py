"""Sarvam: experts with standard attention, or with latent attention."""

from dataclasses import replace

from phaze.spec.huggingface.experts import FIRST, GLM4_MOE
from phaze.spec.huggingface.keys import Key
from phaze.spec.huggingface.latent import DEEPSEEK

FAMILIES = {
    "sarvam_mla": DEEPSEEK,
    "sarvam_moe": replace(
        GLM4_MOE,
        keys={**GLM4_MOE.keys, "head_size": Key("head_dim", "size", 64)},
        also=(Key("use_qk_norm", "flag", True), *FIRST),
    ),
}
