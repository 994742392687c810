"""Ministral 3, and the text model of Mistral Small from 3.1 on."""

from phaze.spec.huggingface.keys import Family, Key
from phaze.spec.huggingface.llama import DECODER, KEYS, WINDOW, WITHOUT_BIAS, all_windows

MINISTRAL3 = Family(
    keys={**KEYS, "head_size": Key("head_dim", "size", 128)},
    constants=WITHOUT_BIAS,
    fixed=DECODER,
    also=(WINDOW,),
    arrange=all_windows,
)
FAMILIES = {"ministral3": MINISTRAL3}
