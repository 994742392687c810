"""dots.llm1."""

from phaze.spec.huggingface.experts import FIRST, GLM4_MOE, with_shared
from phaze.spec.huggingface.keys import Config, Family, Key
from phaze.spec.huggingface.llama import BIAS, DECODER, LAYER_TYPES, ROTARY, number, with_window, words


def _dots(found: Config, said: Config) -> Config:
    """Fields with leading dense layers, and windows from layer `max_window_layers` on."""
    layers, full = number(found["layers"]), number(said["max_window_layers"])
    usual = ["attention" if i < full else "window" for i in range(layers)]
    found, mixers = with_window(found, said, words(found, said, "layer_types", usual))
    return with_shared(found, said, mixers)


DOTS1 = Family(
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
)
FAMILIES = {"dots1": DOTS1}
