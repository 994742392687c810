"""OLMo 2 and OLMo 3, with norms on the outputs of attention and network, and OLMoE."""

from phaze.spec.huggingface.experts import WITHOUT_DENSE, experts
from phaze.spec.huggingface.keys import Config, Family, Key
from phaze.spec.huggingface.llama import BIAS, DECODER, KEYS, LAYER_TYPES, ROTARY, every, windows

_NORMS: Config = {**ROTARY, "qk_norm": "all", "norm_position": "output"}


def _olmo3(found: Config, said: Config) -> Config:
    """Fields with full attention in every fourth layer."""
    return windows(found, said, every(found, said, 4))


FAMILIES = {
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
}
