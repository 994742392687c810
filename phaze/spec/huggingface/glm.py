"""GLM-4 dense, and GLM-4.7-Flash with latent attention and experts."""

from phaze.spec.huggingface.keys import Family, Key
from phaze.spec.huggingface.latent import DEEPSEEK
from phaze.spec.huggingface.llama import DECODER, KEYS, ROTARY

FAMILIES = {
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
}
