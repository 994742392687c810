"""Model families with latent attention: DeepSeek, Kimi K2, GLM-5."""

from phaze.spec.huggingface.experts import BALANCED_BY_BIASES, FIRST, GROUPS, MTP, experts, with_shared
from phaze.spec.huggingface.keys import Config, Family, Key, no_default
from phaze.spec.huggingface.llama import BIAS, DECODER, KEYS, LAYER_TYPES, ROTARY, number, parts_by_layer
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
    Key("indexer_types", "words", no_default),
    Key("index_topk_pattern", "pattern", no_default),
    Key("index_topk_freq", "size", 1),
    Key("index_skip_topk_offset", "count", 2),
)
_COSTLESS = frozenset({"head_dim", "num_key_value_heads", "qk_head_dim"})
_FIXED = (*DECODER, ("moe_layer_freq", 1))


def _query_rank(config: Config) -> int | None:
    """Default width of the compressed queries; None (no compression) for an explicit null."""
    ranks: dict[Plain, int | None] = {"glm4_moe_lite": 768, "glm_moe_dsa": 2048, "sarvam_mla": None}
    return None if "q_lora_rank" in config else ranks.get(config["model_type"], 1536)


def arrange_sparse(fields: Config, extras: Config) -> Config:
    """Spec fields of leading dense layers, and of shared experts in addition to routed ones."""
    return with_shared(fields, extras, ["attention"] * number(fields["layers"]))


def _sparse(fields: Config, extras: Config) -> Config:
    """Spec fields of sparse attention: each layer has an indexer or reuses an earlier layer's selection."""
    layers = number(fields["layers"])
    # Only a check: a published list must have full attention in all layers.
    parts_by_layer(fields, extras, "layer_types", ["attention"] * layers, ("attention",))
    pattern = extras["index_topk_pattern"]
    if pattern and not extras["indexer_types"]:
        extras = extras | {"indexer_types": list(pattern) if isinstance(pattern, str) else pattern}
    step, first = number(extras["index_topk_freq"]), number(extras["index_skip_topk_offset"])
    # The first layers choose tokens themselves; after them the last layer of every `step` does.
    default = ["reuse" if max(i - first + 1, 0) % step else "attention" for i in range(layers)]
    return with_shared(
        fields,
        extras,
        parts_by_layer(fields, extras, "indexer_types", default, ("attention", "reuse"), _CHOICE),
    )


_DEEPSEEK = {
    **_HEADS,
    **BIAS,
    **experts("n_routed_experts"),
    **GROUPS,
    "latent.query_rank": Key("q_lora_rank", "size", _query_rank),
    "latent.kv_rank": Key("kv_lora_rank", "size"),
    "latent.nope_size": Key("qk_nope_head_dim", "size"),
    "latent.rope_size": Key("qk_rope_head_dim", "size"),
    "latent.value_size": Key("v_head_dim", "size"),
    **MTP,
}

_BIASED = {**ROTARY, **BALANCED_BY_BIASES}
DEEPSEEK_V2 = Family(_DEEPSEEK, ROTARY, _COSTLESS, _FIXED, FIRST, arrange_sparse)
DEEPSEEK = Family(_DEEPSEEK, _BIASED, _COSTLESS, _FIXED, FIRST, arrange_sparse)
DEEPSEEK_SPARSE = Family(
    {**_DEEPSEEK, **_INDEX}, _BIASED, _COSTLESS, _FIXED, (*FIRST, LAYER_TYPES, *_CHOICES), _sparse
)
FAMILIES = {
    "deepseek_v2": DEEPSEEK_V2,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK_SPARSE,
    "glm_moe_dsa": DEEPSEEK_SPARSE,
    "kimi_k2": DEEPSEEK,
}
