"""Parameters of a model by the parts that they belong to."""

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
