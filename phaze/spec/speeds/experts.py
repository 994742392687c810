"""Speed of a device's expert kernels, fitted to measured kernels."""

from typing import Literal

from phaze.layout import NATURAL
from phaze.spec.noun import Noun
from phaze.spec.values import ExpertLoad, Part, PositiveInt, Size

ExpertKernel = Literal["each", "grouped", "masked"]
"""Kernels for the experts on a rank: `each`, one GEMM per expert (Transformer Engine, `GroupedLinear`);
`grouped`, one kernel for all (CUTLASS); `masked`, one kernel with equal room for the rows of each expert
(DeepGEMM, masked layout)."""
Experts = Literal["each", "grouped", "fused"]
"""Expert kernel of a software stack; `fused` is `grouped` with the activation in the same kernel."""


class ExpertSpeed(Noun):
    """Speed of one expert kernel in one precision."""

    reached: Part
    """Share of the arrays' rate in this precision that full tiles reach."""
    hbm: Part
    """Share of the HBM bandwidth at which GEMMs read weights and rows and write results."""
    expert_s: Size = 0.0
    """Start-up time in seconds of the GEMM of each expert."""
    passes: Part | None = None
    """Share of the HBM bandwidth reached by the kernels around the GEMMs: gather, activation with cast,
    weighted sum. Default: `hbm`."""
    start_s: Size = 0.0
    """Start-up time in seconds of all kernels of an expert layer, including the router's choice of
    experts."""
    block: PositiveInt = 128
    """Number of rows to a multiple of which the rows of each expert are padded."""
    row_s: Size = 0.0
    """Time in seconds for the blocks of one expert to process a row, if each expert has a fixed number of
    blocks; kernels are then bound by the expert with the most rows."""


class ExpertLoads(Noun):
    """Expert loads assumed for runs of a software stack, for expected and for conservative (prudent) time."""

    expected: ExpertLoad = NATURAL
    """Expert load assumed for expected step times."""
    prudent: ExpertLoad = NATURAL
    """Expert load assumed for prudent step times, which must not be too optimistic."""
