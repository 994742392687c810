"""Parameters of a model by group of modules, and its training FLOPs per token."""

from collections import Counter
from typing import Literal, TypeAlias

from phaze.spec.noun import Noun

ModuleGroup = Literal[
    "embedding", "attention", "scan", "feed_forward", "experts", "shared_experts", "router", "norm", "head"
]
Counts: TypeAlias = Counter[ModuleGroup]


class TokenFlops(Noun):
    """FLOPs to train a model on one token, without recomputation: for `mfu` and for `mfu_paper`."""

    needed: float
    """Forward 2 FLOPs per multiply-accumulate, backward 4; half of the scores of causal attention. For
    `mfu`."""
    paper: float
    """6 N + 12 L H Q T (PaLM, Appendix B), as in most papers' tables. For `mfu_paper`."""
