"""Phi-3 and Phi-4."""

from phaze.spec.huggingface.keys import Family, Key
from phaze.spec.huggingface.llama import DECODER, KEYS, WINDOW, WITHOUT_BIAS, all_windows

PHI3 = Family(
    keys={
        **KEYS,
        "position_count": Key("max_position_embeddings", "size", 4096),
        "residual_dropout": Key("resid_pdrop", "share", 0.0),
        "embedding_dropout": Key("embd_pdrop", "share", 0.0),
    },
    constants=WITHOUT_BIAS,
    costless=frozenset({"original_max_position_embeddings"}),
    fixed=(*DECODER, ("attention_bias", False)),
    also=(WINDOW,),
    arrange=all_windows,
)
FAMILIES = {"phi3": PHI3}
