"""What kernels of a device reach in the products of experts, fitted on measured kernels."""

from typing import Literal

from phaze.layout import BALANCED
from phaze.spec.noun import Noun
from phaze.spec.values import ExpertLoad, Part, Size

ExpertKernel = Literal["each", "grouped", "masked"]
"""How the experts of a rank are multiplied: `each`, a product of its own for every expert (Transformer
Engine, `GroupedLinear`); `grouped`, one kernel for all of them (CUTLASS); `masked`, one kernel whose experts
have equal room for their rows (DeepGEMM, masked layout)."""
Experts = Literal["each", "grouped", "fused"]
"""The kernel that a software stack has; `fused` is `grouped` with the activation in the same kernel."""


class ExpertSpeed(Noun):
    """What one kind of kernel reaches in one precision."""

    reached: Part
    """Share of the arrays' rate in this precision that full tiles reach."""
    hbm: Part
    """Share of the HBM bandwidth at which products read weights and rows and write results."""
    expert_s: Size = 0.0
    """Time to start the product of each expert."""
    passes: Part | None = None
    """Share of the HBM bandwidth that the passes around the products reach: gather, activation with cast,
    weighted sum."""
    start_s: Size = 0.0
    """Time to start all kernels of a feed-forward network of experts, router choice included."""
    row_s: Size = 0.0
    """Time in which the blocks of one expert pass a row, where each expert has a fixed number of blocks: then
    passes are as slow as the expert with most rows."""


class ExpertLoads(Noun):
    """Load of experts in training runs of a software stack."""

    expected: ExpertLoad = BALANCED
    """What a question assumes."""
    prudent: ExpertLoad = BALANCED
    """What a question that must not be too fast assumes."""
