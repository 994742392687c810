"""Solar Open: experts in all layers, with additional shared ones."""

from dataclasses import replace

from phaze.spec.huggingface.experts import GLM4_MOE
from phaze.spec.huggingface.keys import Key, none

SOLAR = replace(
    GLM4_MOE,
    keys={
        **GLM4_MOE.keys,
        "head_size": Key("head_dim", "size", 128),
        "feed_forward": Key("intermediate_size", "size", none),
    },
)
FAMILIES = {"solar_open": SOLAR}
