"""SmolLM3, in which some layers have no rotary positions."""

from phaze.spec.huggingface.keys import Config, Family, Key, none
from phaze.spec.huggingface.llama import LAYER_TYPES, LLAMA, WINDOW, number, windowed, windows, words


def _smollm(found: Config, said: Config) -> Config:
    """Fields with the window in layers without rotary positions, if enabled."""
    layers, step = number(found["layers"]), number(said["no_rope_layer_interval"])
    rotary = said["no_rope_layers"] or [(i + 1) % step for i in range(layers)]
    assert isinstance(rotary, list)
    usual = ["attention" if one or not windowed(said) else "window" for one in rotary]
    return windows(found, said, words(found, said, "layer_types", usual))


SMOLLM3 = Family(
    keys={**LLAMA.keys, "tied_embeddings": Key("tie_word_embeddings", "flag", True)},
    constants=LLAMA.constants,
    also=(
        WINDOW,
        LAYER_TYPES,
        Key("use_sliding_window", "flag", False),
        Key("no_rope_layers", "sizes", none),
        Key("no_rope_layer_interval", "size", 4),
    ),
    arrange=_smollm,
)
FAMILIES = {"smollm3": SMOLLM3}
