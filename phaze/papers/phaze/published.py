"""Published results of Phaze: accelerators, placements and utilisations of workloads."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from phaze.papers.publication import Publication
from phaze.spec.architecture import Architecture
from phaze.spec.noun import Noun
from phaze.spec.values import Chip

Positive = Annotated[float, Field(gt=0)]
PositiveInt = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Size = Literal[
    "layers", "operators", "parameter_bytes", "activation_bytes", "tensor_flops", "vector_flops"
]  # fmt: skip
"""Printed size of a model: layers, operators and weights of a layer, and activations and FLOPs of all."""


class PublishedArchitecture(Architecture):
    """Printed accelerator: cores, buffers, memory."""

    name: Chip = "printed"
    """Printed accelerators have no name of their own."""
    pe_vc: PositiveInt
    """Lanes of a vector core."""
    hbm_gib: Positive
    """HBM capacity."""


class PublishedPlacement(Noun):
    """Printed placement."""

    pipeline: PositiveInt
    """Pipeline depth p."""
    data: PositiveInt
    """Data parallel width d."""
    tensor: PositiveInt
    """Tensor model parallel width t."""
    microbatch: PositiveInt
    """Samples in a microbatch."""
    recompute: bool
    """True if activations are recomputed."""


class PublishedMfu(Noun):
    """Printed model FLOPs utilisation, as a fraction."""

    baseline_expert: Share
    """Baseline accelerator with the experts' placement."""
    baseline: Share
    """Baseline accelerator with the searched placement."""
    common: Share
    """Common accelerator with the searched placement."""


class PublishedWorkload(Noun):
    """Printed results of one workload."""

    label: str
    """Name of the workload in the publication."""
    architecture: PublishedArchitecture | None = None
    """Best accelerator for this workload."""
    placement: PublishedPlacement | None = None
    """Placement on the best accelerator."""
    mfu: PublishedMfu | None = None
    """Model FLOPs utilisation."""
    complexity: (
        Annotated[dict[Size, PositiveInt | Positive], Field(min_length=len(get_args(Size)))] | None
    ) = None
    """Sizes of the model."""


class PublishedHeadline(Noun):
    """Geometric means of the speed-ups over the workloads."""

    per_model: Positive
    """Per-model accelerators over the baseline with the experts' placement."""
    common: Positive
    """Common accelerator over the baseline with the experts' placement."""
    common_over_baseline: Positive
    """Common accelerator over the baseline with the searched placement."""
    common_over_family: Positive
    """Common accelerator over the accelerators of `compared_family` with the searched placement."""
    compared_family: str
    """Family of named accelerators that `common_over_family` compares with."""


class Published(Publication):
    """Published results of Phaze, or of another publication about accelerators for models."""

    families: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Families of named accelerators: the accelerator designed for each workload, by workload."""
    workloads: dict[str, PublishedWorkload] = Field(default_factory=dict)
    """Printed results by workload."""
    baseline: str | None = None
    """Named architecture that printed speed-ups and utilisations refer to; default: any.

    They are not compared with a study that has another baseline.
    """
    common: PublishedArchitecture | None = None
    """Common accelerator."""
    headline: PublishedHeadline | None = None
    """Geometric means."""
    walks: dict[str, dict[PositiveInt, str]] = Field(default_factory=dict)
    """Accelerator chosen by the walk down the areas, by workload and hysteresis level."""
