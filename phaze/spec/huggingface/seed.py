"""Seed-OSS."""

from phaze.spec.huggingface.keys import Family, Key
from phaze.spec.huggingface.llama import LLAMA

SEED = Family(
    keys={
        **LLAMA.keys,
        "head_size": Key("head_dim", "size", lambda config: None if "head_dim" in config else 128),
        "attention_bias": Key("attention_bias", "flag", True),
        "output_bias": Key("attention_out_bias", "flag", False),
        "attention_dropout": Key("attention_dropout", "share", 0.1),
        "residual_dropout": Key("residual_dropout", "share", 0.1),
    },
    constants=LLAMA.constants,
)
FAMILIES = {"seed_oss": SEED}
