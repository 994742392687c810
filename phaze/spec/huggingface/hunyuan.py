"""Hunyuan: dense, with experts, and version 3."""

from phaze.spec.huggingface.experts import FIRST, WITHOUT_DENSE, experts, with_shared
from phaze.spec.huggingface.keys import Config, Family, Key, none
from phaze.spec.huggingface.llama import BIAS, DECODER, KEYS, ROTARY, number

_NORMS: Config = {**ROTARY, "qk_norm": "heads"}
_IDS = frozenset({"eod_token_id", "im_end_id", "im_newline_id", "im_start_id", "pad_id", "norm_type"})


def _shared(found: Config, said: Config) -> Config:
    """Fields with one shared expert, as wide as the routed ones."""
    parts = found["experts"]
    assert isinstance(parts, dict)
    width = said["moe_intermediate_size"]
    if width not in (None, parts["width"]):
        raise ValueError(f"moe_intermediate_size: must be intermediate_size {parts['width']}, got {width}")
    return found | {"experts": parts | {"shared_width": parts["width"]}}


def _third(found: Config, said: Config) -> Config:
    """Fields with leading dense layers, and shared in addition to routed experts."""
    return with_shared(found, said, ["attention"] * number(found["layers"]))


FAMILIES = {
    "hunyuan_v1_dense": Family(keys={**KEYS, **BIAS}, constants=_NORMS, costless=_IDS, fixed=DECODER),
    "hunyuan_v1_moe": Family(
        keys={**WITHOUT_DENSE, **BIAS, **experts("num_experts", "intermediate_size", 1)},
        constants=_NORMS,
        costless=_IDS,
        fixed=DECODER,
        also=(Key("moe_intermediate_size", "size", none),),
        arrange=_shared,
    ),
    "hy_v3": Family(
        keys={
            **KEYS,
            **BIAS,
            "head_size": Key("head_dim", "size", 128),
            **experts("num_experts", per_token=8),
            "mtp": Key("num_nextn_predict_layers", "count", 0),
        },
        constants=_NORMS,
        costless=frozenset({"enable_moe_fp32_combine", "router_scaling_factor"}),
        fixed=DECODER,
        also=FIRST,
        arrange=_third,
    ),
}
