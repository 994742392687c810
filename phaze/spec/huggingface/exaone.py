"""EXAONE 4, with norms on the outputs of attention and network, and K-EXAONE with experts."""

from phaze.spec.huggingface.experts import FIRST, experts, with_shared
from phaze.spec.huggingface.keys import Config, Family, Key
from phaze.spec.huggingface.llama import (
    DECODER,
    KEYS,
    LAYER_TYPES,
    WITHOUT_BIAS,
    every,
    number,
    windows,
    with_window,
    words,
)

_NORMS: Config = {**WITHOUT_BIAS, "qk_norm": "heads"}
_WINDOWS = (
    Key("sliding_window", "size", lambda config: None if "sliding_window" in config else 4096),
    LAYER_TYPES,
    Key("sliding_window_pattern", "turns", 4),
)


def _mixers(found: Config, said: Config) -> list[str]:
    """Mixer of each layer: sliding-window and full attention alternate, by a pattern such as LLLG."""
    step, layers = said["sliding_window_pattern"], number(found["layers"])
    if not isinstance(step, str):
        return every(found, said, step)
    if set(step) - {"L", "G"}:
        raise ValueError(
            f"sliding_window_pattern: must be a number or a string of the letters L and G, got {step!r}"
        )
    usual = ["window" if step[i % len(step)] == "L" else "attention" for i in range(layers)]
    return words(found, said, "layer_types", usual)


def _dense(found: Config, said: Config) -> Config:
    return windows(found, said, _mixers(found, said))


def _sparse(found: Config, said: Config) -> Config:
    return with_shared(*_with_window(found, said))


def _with_window(found: Config, said: Config) -> tuple[Config, Config, list[str]]:
    found, mixers = with_window(found, said, _mixers(found, said))
    return found, said, mixers


FAMILIES = {
    "exaone4": Family(
        keys=KEYS,
        constants={**_NORMS, "norm_position": "output"},
        fixed=DECODER,
        also=_WINDOWS,
        arrange=_dense,
    ),
    "exaone_moe": Family(
        keys={
            **KEYS,
            **experts("num_experts", per_token=8),
            "experts.groups": Key("n_group", "size", 1),
            "experts.top_groups": Key("topk_group", "size", 1),
            "mtp": Key("num_nextn_predict_layers", "count", 0),
        },
        constants=_NORMS,
        fixed=DECODER,
        also=(*_WINDOWS, *FIRST),
        arrange=_sparse,
    ),
}
