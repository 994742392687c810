"""Parameter counts of a model by group of modules."""

from collections import Counter
from typing import Literal, TypeAlias

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
