"""Settings of every stage of a study, separate from `study` so that they can be imported alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Literal, Self

from pydantic import Field, model_validator

from phaze.layout import Layout, Optimizer
from phaze.spec.names import Backward, Mean
from phaze.spec.noun import Noun
from phaze.spec.values import Flag, Label, Name, Positive, PositiveInt, Seed, Share

VARIED = ("hbm_bandwidth", "network_bandwidth")
"""Cluster properties that variations change."""


class Triple(Noun):
    """Layout given by its pipeline, data-parallel and tensor-parallel widths {p, d, t}."""

    pipeline: PositiveInt
    """Pipeline depth p."""
    data: PositiveInt
    """Data-parallel width d."""
    tensor: PositiveInt
    """Tensor-parallel width t."""

    @property
    def layout(self) -> Layout:
        """Convert the three widths to a layout."""
        return Layout(tp=self.tensor, pp=self.pipeline, dp=self.data)


class Training(Noun):
    """Training setup of the models; all values in a list are considered."""

    microbatches: tuple[PositiveInt, ...] = Field((1, 2, 4, 8), min_length=1)
    """Microbatch sizes to consider, in samples."""
    hbm_gib: tuple[Positive, ...] = Field((32, 64, 80), min_length=1)
    """HBM capacities in GiB to consider for architectures without their own, such as those of the grid."""
    recompute: tuple[Flag, ...] = Field((False, True), min_length=1)
    """Activation recomputation to consider: `false` stores activations, `true` recomputes them."""
    optimizer: Optimizer = "sgd"
    """Optimizer, which determines the memory of its states."""
    precision: Literal["half", "mixed", "single"] = "half"
    """Bytes per parameter: `half` (weights and gradients in 2 bytes), `mixed` (also master weights), or
    `single` (4 bytes)."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """Pipeline schedule, which determines the stored activations."""
    gradients: Literal["every-stage", "first-stage"] = "every-stage"
    """Gradient synchronisation that a batch waits for after its last backward pass: the longest of all stages
    (`every-stage`), or that of the first stage alone (`first-stage`), as in Phaze (equation 18)."""

    def with_sizes(self, own_gib: Iterable[float]) -> Training:
        """Settings that also consider the own HBM capacities of architectures; 0: it has none of its own."""
        sizes = {*self.hbm_gib, *(size for size in own_gib if size)}
        return self.model_copy(update={"hbm_gib": tuple(sorted(sizes))})

    @property
    def memory_grid(self) -> list[tuple[float, bool]]:
        """All considered combinations of HBM capacity and recomputation."""
        return list(product(sorted(self.hbm_gib), sorted(self.recompute)))


class ExtractSettings(Noun):
    """Settings for extracting operators from a model."""

    backward: Backward = "paired"
    """Backward operators: one per forward operator (`paired`), or data and weight gradients separately
    (`split`)."""
    fusion: Flag = True
    """Fuse elementwise operators into the operator that produces their input."""
    after_reductions: Flag = True
    """Also fuse into a softmax or norm, so that attention dropout needs no round trip through HBM; not in the
    paper."""
    bytes_per_element: Literal[1, 2, 4] = 2
    """Bytes per element of activations and weights."""
    head: Flag | Literal["in-layers"] = True
    """Train transformers with logits and loss; false: as base models that end with their norm and pooler.
    `in-layers`: every block also has the operators after the last block, with the embedding's matrix, as in a
    trace of one layer whose end belongs to that layer and is repeated with it."""
    whole_microbatch: Flag = True
    """Products with weights run on all samples of a microbatch; false: on one sample, as in a program that
    drops the batch dimension of linear layers."""
    weight_gradients: Flag = True
    """Include weight gradients in the backward pass; false: input gradients only."""
    scores: Literal["in-memory", "on-chip"] = "in-memory"
    """Attention scores: `in-memory` writes them to HBM between operators; `on-chip` makes attention one
    operator, which keeps them in the global buffer block by block and stores one value per row."""
    activation_factor: Positive = 1.0
    """Factor on the memory of activations stored for the backward pass."""


class EstimateSettings(Noun):
    """Settings for estimating the time and energy of operators."""

    fusion: Literal["best", "paired"] = "best"
    """Cores of a fused operator: all of both types, as a compiler would assign them, taking the faster of
    fused and unfused (`best`); or only pairs of a tensor and a vector core, as in the paper (`paired`)."""
    preload: Flag = True
    """Tensor cores load the next weights while the current fold streams, as in a TPU; false: they fill before
    every fold."""
    words_per_cycle: Positive | None = None
    """Global buffer bandwidth of all architectures in elements per cycle; default: each architecture's
    own."""
    array_axes: Literal["one-loop", "several-loops"] = "one-loop"
    """Loops of a product that an axis of an array takes: one, or several. With several, an array of x by y
    also works as any array of as many units whose sides are x and y times powers of two."""
    vector_traffic: Flag = True
    """Include the HBM traffic of vector operations; false: their arithmetic only."""
    all_reduce_factor: Positive | None = None
    """Factor f of tensor-parallel all-reduce time, f · (t − 1)/t · bytes / bandwidth; default: the
    system's."""
    vector_cycles: dict[Label, Positive] = Field(default_factory=dict)
    """Cycles per element that override the technology's, with keys such as `forward.gelu` or
    `backward.softmax`."""


class ScreenSettings(Noun):
    """Settings for choosing the architectures to evaluate."""

    strategy: Literal["certified", "hysteresis"] = "certified"
    """Keep every architecture that could be the best (`certified`), or descend through the areas as in the
    paper's Algorithm 1 (`hysteresis`)."""
    hysteresis: PositiveInt = 6
    """Number of consecutive worse areas after which the descent stops."""
    area_band_um2: Positive = 10000.0
    """Width in µm² of the bands of architectures that the descent treats as one area."""
    best: PositiveInt = 10
    """Number of best architectures to report."""
    tolerance: Share = 0.01
    """Allowed loss of throughput when looking for the smallest area and HBM, as a share of the best."""
    common: Mean = "mean"
    """Mean of the models' throughputs that the common architecture maximises."""


class ScheduleSettings(Noun):
    """Settings for scheduling layers."""

    solver: tuple[Literal["glpk", "highs"], ...] = Field(("glpk", "highs"), min_length=1)
    """Solvers in order of preference; missing ones are skipped."""
    formulation: Literal["sparse", "paper"] = "sparse"
    """Integer program: reduced (`sparse`), or with all constraints as published in the paper (`paper`)."""
    programs: Literal["open", "all"] = "open"
    """Solve programs only where bounds leave a gap (`open`), or everywhere, as a cross-check (`all`)."""
    overlap_communication: Flag = False
    """Overlap collectives with compute."""
    node_limit: PositiveInt = 20000
    """Maximum number of branch-and-bound nodes; a solve that reaches it reports its gap."""
    wall_limit_s: Positive = 60.0
    """Time limit of a solve in seconds; a solve that reaches it is reported as timed out."""


class StrategySettings(Noun):
    """Search strategies to compare in the report: certified, and hysteresis 1 to 8."""

    models: tuple[Name, ...] = ()
    """Models of the study to compare strategies on (including Figures 8 and 9); empty: no comparison."""


class CertifySettings(Noun):
    """Settings for verifying the certificate of the best architectures."""

    points: Seed = 500
    """Excluded design points to solve again with independent code, distributed over the models."""
    seed: Seed = 0
    """Seed of the random draw of the excluded points."""


class Variation(Noun):
    """Changed bandwidths of the cluster, as factors of the study's values or as absolute values."""

    hbm_bandwidth_factor: Positive | None = None
    """HBM bandwidth as a factor of the scenario's."""
    network_bandwidth_factor: Positive | None = None
    """Bandwidth between devices as a factor of the scenario's."""
    hbm_bandwidth_bytes_per_s: Positive | None = None
    """HBM bandwidth in bytes per second, replacing the scenario's."""
    network_bandwidth_bytes_per_s: Positive | None = None
    """Bandwidth between devices in bytes per second, replacing the scenario's."""

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for part in VARIED:
            factor, value = f"{part}_factor", f"{part}_bytes_per_s"
            if None not in (getattr(self, factor), getattr(self, value)):
                raise ValueError(f"give {factor} or {value}, not both")
        if not self.model_dump(exclude_none=True):
            raise ValueError("give a factor or a bandwidth")
        return self

    def values(self, bandwidths: Mapping[str, float]) -> dict[str, float]:
        """Changed bandwidths by key, with factors applied to the scenario's own values."""
        changed = {}
        for key in (f"{part}_bytes_per_s" for part in VARIED):
            value, factor = getattr(self, key), getattr(self, key.replace("_bytes_per_s", "_factor"))
            if value is not None or factor is not None:
                changed[key] = value if factor is None else factor * bandwidths[key]
        return changed


class ReportSettings(Noun):
    """Settings for optional parts of the report."""

    published: Name | None = "phaze-icml-2024"
    """Published results to compare with, a file in config/published; null: none."""
    strategies: StrategySettings = StrategySettings()
    """Search strategies to compare."""
    area_limits_mm2: tuple[Positive, ...] = ()
    """Additional area limits in mm², below the scenario's, for which the best architectures are reported."""
    sensitivity: dict[Name, Variation] = Field(default_factory=dict)
    """Variations, by name, under which the winners are evaluated again."""

    @model_validator(mode="before")
    @classmethod
    def _without_maps(cls, fields: object) -> object:
        if isinstance(fields, Mapping) and "maps" in fields:
            raise ValueError(
                "maps: was removed: write a plan with `phaze place -o PLAN.json` and map it with `phaze map`"
            )
        return fields
