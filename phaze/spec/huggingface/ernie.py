"""ERNIE 4.5, dense and with experts."""

from phaze.spec.huggingface.experts import experts, without_unused
from phaze.spec.huggingface.keys import Config, Family, Key
from phaze.spec.huggingface.llama import DECODER, KEYS, ROTARY, number, with_kinds


def _head_size(config: Config) -> int | None:
    return 128 if config["model_type"] == "ernie4_5" and "head_dim" not in config else None


_KEYS = {
    **KEYS,
    "head_size": Key("head_dim", "size", _head_size),
    "tied_embeddings": Key("tie_word_embeddings", "flag", True),
}


def _sparse(found: Config, said: Config) -> Config:
    """Fields with experts in every `moe_layer_interval`-th layer of a range, and shared experts."""
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


FAMILIES = {
    "ernie4_5": Family(
        keys={
            **_KEYS,
            "attention_bias": Key("use_bias", "flag", False),
            "feed_forward_bias": Key("use_bias", "flag", False),
        },
        constants={"positions": "rotary", "gated": True, "norm": "rms_norm"},
    ),
    "ernie4_5_moe": Family(
        keys={**_KEYS, **experts("moe_num_experts", per_token=6)},
        constants={**ROTARY, "attention_bias": False, "experts.choice_bias": True},
        costless=frozenset({"moe_norm_min"}),
        fixed=(*DECODER, ("use_bias", False)),
        also=(
            Key("n_shared_experts", "count", 2),
            Key("moe_layer_interval", "size", 1),
            Key("moe_layer_start_index", "count", 1),
            Key("moe_layer_end_index", "end", 27),
        ),
        arrange=_sparse,
    ),
}
