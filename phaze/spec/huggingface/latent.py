"""Model families with latent attention: DeepSeek, Kimi K2, GLM-5."""

from phaze.spec.huggingface.experts import FIRST, experts, with_shared
from phaze.spec.huggingface.keys import Config, Family, Key, none
from phaze.spec.huggingface.llama import BIAS, DECODER, KEYS, LAYER_TYPES, ROTARY, number, words
from phaze.spec.plain import Plain

_CHOICE = {"full": "attention", "F": "attention", "shared": "reuse", "S": "reuse"}
"""Published names for the origin of a layer's tokens: chosen by its own indexer, or by an earlier layer's."""
_HEADS = {name: key for name, key in KEYS.items() if name not in ("key_value_heads", "head_size")}
_INDEX = {
    "latent.index.heads": Key("index_n_heads", "size"),
    "latent.index.head_size": Key("index_head_dim", "size"),
    "latent.index.top": Key("index_topk", "size"),
}
_CHOICES = (
    Key("indexer_types", "words", none),
    Key("index_topk_pattern", "pattern", none),
    Key("index_topk_freq", "size", 1),
    Key("index_skip_topk_offset", "count", 2),
)
_COSTLESS = frozenset({"head_dim", "num_key_value_heads", "qk_head_dim"})
_FIXED = (*DECODER, ("moe_layer_freq", 1))


def _query_rank(config: Config) -> int | None:
    """Default width of the compressed queries; None (no compression) for an explicit null."""
    own: dict[Plain, int | None] = {"glm4_moe_lite": 768, "glm_moe_dsa": 2048, "sarvam_mla": None}
    return None if "q_lora_rank" in config else own.get(config["model_type"], 1536)


def leading_dense(found: Config, said: Config) -> Config:
    """Spec fields of leading dense layers, and of shared experts in addition to routed ones."""
    return with_shared(found, said, ["attention"] * number(found["layers"]))


def _sparse(found: Config, said: Config) -> Config:
    """Spec fields of sparse attention: each layer has an indexer or reuses an earlier layer's selection."""
    layers = number(found["layers"])
    words(found, said, "layer_types", ["attention"] * layers, ("attention",))
    pattern = said["index_topk_pattern"]
    if pattern and not said["indexer_types"]:
        said = said | {"indexer_types": list(pattern) if isinstance(pattern, str) else pattern}
    step, first = number(said["index_topk_freq"]), number(said["index_skip_topk_offset"])
    usual = ["reuse" if max(i - first + 1, 0) % step else "attention" for i in range(layers)]
    return with_shared(
        found, said, words(found, said, "indexer_types", usual, ("attention", "reuse"), _CHOICE)
    )


_DEEPSEEK = {
    **_HEADS,
    **BIAS,
    **experts("n_routed_experts"),
    "experts.groups": Key("n_group", "size", 1),
    "experts.top_groups": Key("topk_group", "size", 1),
    "latent.query_rank": Key("q_lora_rank", "size", _query_rank),
    "latent.kv_rank": Key("kv_lora_rank", "size"),
    "latent.nope_size": Key("qk_nope_head_dim", "size"),
    "latent.rope_size": Key("qk_rope_head_dim", "size"),
    "latent.value_size": Key("v_head_dim", "size"),
    "mtp": Key("num_nextn_predict_layers", "count", 0),
}

DEEPSEEK = Family(_DEEPSEEK, ROTARY, _COSTLESS, _FIXED, FIRST, leading_dense)
DEEPSEEK_SPARSE = Family(
    {**_DEEPSEEK, **_INDEX}, ROTARY, _COSTLESS, _FIXED, (*FIRST, LAYER_TYPES, *_CHOICES), _sparse
)
FAMILIES = {
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK_SPARSE,
    "glm_moe_dsa": DEEPSEEK_SPARSE,
    "kimi_k2": DEEPSEEK,
}
