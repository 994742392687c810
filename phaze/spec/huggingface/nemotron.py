"""Nemotron-4 and Minitron: dense, without gated networks."""

from phaze.spec.huggingface.keys import Family, Key
from phaze.spec.huggingface.llama import LLAMA

NEMOTRON = Family(
    keys={**LLAMA.keys, "activation": Key("hidden_act", "activation", "relu2")},
    constants={"positions": "rotary", "gated": False, "norm": "layer_norm"},
    costless=frozenset({"norm_eps"}),
)
FAMILIES = {"nemotron": NEMOTRON}
