"""Families with latent attention: DeepSeek, Kimi K2, GLM-5."""

from phaze.spec.huggingface.experts import NETWORKS, experts, with_shared
from phaze.spec.huggingface.keys import Config, Family, Key, none
from phaze.spec.huggingface.llama import BIAS, DECODER, KEYS, LAYER_TYPES, ROTARY, number

_HEADS = {name: key for name, key in KEYS.items() if name not in ("key_value_heads", "head_size")}


def _deepseek(found: Config, said: Config) -> Config:
    """Heads of keys and values as many as of queries, the shared experts, the first layers dense."""
    return with_shared(found, said, ["attention"] * number(found["layers"]))


_DEEPSEEK = {
    **_HEADS,
    **BIAS,
    **experts("n_routed_experts"),
    "experts.groups": Key("n_group", "size", 1),
    "experts.top_groups": Key("topk_group", "size", 1),
    "latent.query_rank": Key("q_lora_rank", "size", none),
    "latent.kv_rank": Key("kv_lora_rank", "size"),
    "latent.nope_size": Key("qk_nope_head_dim", "size"),
    "latent.rope_size": Key("qk_rope_head_dim", "size"),
    "latent.value_size": Key("v_head_dim", "size"),
    "mtp": Key("num_nextn_predict_layers", "count", 0),
}
_INDEX = {
    "latent.index.heads": Key("index_n_heads", "size"),
    "latent.index.head_size": Key("index_head_dim", "size"),
    "latent.index.top": Key("index_topk", "size"),
}
_COSTLESS = frozenset({"head_dim", "num_key_value_heads", "qk_head_dim"})
_FIXED = (*DECODER, ("moe_layer_freq", 1))

DEEPSEEK = Family(_DEEPSEEK, ROTARY, _COSTLESS, _FIXED, NETWORKS, _deepseek)
DEEPSEEK_SPARSE = Family(
    {**_DEEPSEEK, **_INDEX}, ROTARY, _COSTLESS, _FIXED, (*NETWORKS, LAYER_TYPES), _deepseek
)
FAMILIES = {
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK_SPARSE,
    "glm_moe_dsa": DEEPSEEK_SPARSE,
    "kimi_k2": DEEPSEEK,
}
