"""Parameters of a model by the parts that they belong to."""

from collections import Counter
from typing import Literal, TypeAlias

from phaze.spec.noun import Noun

ModuleGroup = Literal[
    "embedding",
    "attention",
    "scan",
    "feed_forward",
    "experts",
    "shared_experts",
    "router",
    "norm",
    "head",
]
Counts: TypeAlias = Counter[ModuleGroup]


class TokenFlops(Noun):
    """FLOPs that training a model needs for a token, without recomputation, as two definitions count them."""

    needed: float
    """Two for each multiply-accumulate, forward and twice backward; of causal attention half. For `mfu`."""
    paper: float
    """6 N + 12 L H Q T as in PaLM, Appendix B, which papers' tables are made with. For `mfu_paper`."""
