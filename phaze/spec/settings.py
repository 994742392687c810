"""The settings of every stage, apart from the study, so that their readers depend on nothing else."""

from collections.abc import Mapping
from itertools import product
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phaze.layout import Layout
from phaze.spec.names import ModelPlanner
from phaze.spec.noun import Noun
from phaze.spec.values import Flag, Location, Name, Once, Positive, PositiveInt, Seed, Share

VARIED = ("hbm_bandwidth", "network_bandwidth")
"""What variations change of a cluster."""


class Triple(Noun):
    """A placement given by its three widths, {p, d, t}."""

    pipeline: PositiveInt
    """Pipeline depth p."""
    data: PositiveInt
    """Data parallel width d."""
    tensor: PositiveInt
    """Tensor model parallel width t."""

    @property
    def layout(self) -> Layout:
        """Widths as a layout."""
        return Layout(tp=self.tensor, pp=self.pipeline, dp=self.data)


class Training(Noun):
    """How the models are trained, and what of it is searched."""

    microbatches: tuple[PositiveInt, ...] = Field((1, 2, 4, 8), min_length=1)
    """Samples in a microbatch to consider."""
    hbm_gib: tuple[Positive, ...] = Field((32, 64, 80), min_length=1)
    """HBM capacities to consider."""
    recompute: tuple[Flag, ...] = Field((False, True), min_length=1)
    """Stash activations, recompute them, or consider both."""
    optimizer: Literal["sgd", "sgd-momentum", "adam"] = "sgd"
    """Optimizer, for its memory."""
    precision: Literal["half", "mixed", "single"] = "half"
    """Bytes per parameter: half (weights and gradients in 2 bytes), mixed (with master weights), single."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """Order of the microbatches in the pipeline, for the stashes that it keeps."""
    gradients: Literal["every-stage", "first-stage"] = "every-stage"
    """Whose exchange of gradients a batch waits for after its last backward pass: the longest of any stage,
    or that of the first stage alone, as Phaze has it (equation 18)."""

    @property
    def memory_grid(self) -> list[tuple[float, bool]]:
        """Every HBM size with and without recomputation, as far as they are considered."""
        return list(product(sorted(self.hbm_gib), sorted(self.recompute)))


class ExtractSettings(Noun):
    """How operators are made from a model."""

    backward: Literal["paired", "split"] = "paired"
    """One backward operator per forward operator, or data and weight gradients apart."""
    fusion: Flag = True
    """Fuse elementwise operators into what produces their input."""
    after_reductions: Flag = True
    """Also into a softmax or norm, so that the dropout of attention is no round trip through HBM; not in the
    paper."""
    bytes_per_element: Literal[1, 2, 4] = 2
    """Size of an activation or weight."""
    head: Flag = True
    """Train a transformer with logits and loss, or as a base model that ends with its norm and pooler."""
    weight_gradients: Flag = True
    """Count the gradients of weights in the backward pass, or those of inputs only."""
    activation_factor: Positive = 1.0
    """How many times the activations that are kept for the backward pass fill memory."""


class EstimateSettings(Noun):
    """How operators are estimated."""

    fusion: Literal["best", "paired"] = "best"
    """Fused operators on all cores take all of both types, as a compiler has them (the better of fused and
    unfused), or only pairs of a tensor and a vector core, as in the paper."""
    preload: Flag = True
    """Arrays load the next weights while this fold streams, as those of a TPU, or fill for every fold."""
    words_per_cycle: Positive | None = None
    """Words that the global buffer of any architecture moves in a cycle; its own unless given."""
    vector_traffic: Flag = True
    """Count what vector operations read from and write to HBM, or their arithmetic alone."""
    all_reduce_factor: Positive | None = None
    """What an all-reduce of tensor parallelism takes, times (t - 1)/t of its tensor over the bandwidth; the
    system's unless given."""
    vector_cycles: dict[str, Positive] = Field(default_factory=dict)
    """Cycles per element that replace those of the table, keys as `forward.gelu` or `backward.softmax`."""


class ScreenSettings(Noun):
    """How the architectures to evaluate are chosen."""

    strategy: Literal["certified", "hysteresis"] = "certified"
    """Keep all that could be the best, or walk down the areas as the paper does (Algorithm 1)."""
    hysteresis: PositiveInt = 6
    """Areas in a row that must be worse before the walk ends."""
    area_band_um2: Positive = 10000.0
    """Architectures within a band count as one area in the walk."""
    best: PositiveInt = 10
    """How many of the best architectures are reported."""
    tolerance: Share = 0.01
    """The smallest area and HBM are looked for within this distance of the best throughput."""
    common: Literal["mean", "normalised", "geometric"] = "mean"
    """Mean of the models' throughputs that the common architecture maximises."""


class ScheduleSettings(Noun):
    """How layers are scheduled."""

    solver: tuple[Literal["glpk", "highs"], ...] = Field(("glpk", "highs"), min_length=1)
    """Solvers in order of preference; one that is missing is passed over."""
    formulation: Literal["sparse", "paper"] = "sparse"
    """The reduced program, or all constraints as printed."""
    programs: Literal["open", "all"] = "open"
    """Solve programs where bounds leave a gap, or everywhere, so that one proof checks the other."""
    overlap_communication: Flag = False
    """Let collectives run beside computation."""
    node_limit: PositiveInt = 20000
    """Branch-and-bound nodes after which a solve ends with its gap."""
    wall_limit_s: Positive = 60.0
    """Seconds after which a solve ends as timed out."""


class PlaceSettings(Noun):
    """How models are placed."""

    planner: ModelPlanner = "phaze"
    """Whose plan the answer gives: that of another planner than Phaze's is the best of the architectures that
    Phaze ranks among its best, the common and the named ones; the certificate covers Phaze's planner only."""


class StrategySettings(Noun):
    """The search strategies that the report compares: certified, hysteresis 1 to 8, random, Bayesian."""

    models: tuple[Name, ...] = ()
    """Models of the study for which they are compared (Figures 8 and 9 among it)."""
    seeds: PositiveInt = 10
    """Runs of a strategy that depends on chance."""
    evaluations: PositiveInt = 1000
    """Architectures that a run of random or Bayesian search evaluates at most."""
    suggestions: PositiveInt = 400
    """Suggestions after which a Bayesian run ends, with repeated ones and those outside the area rules."""


class CertifySettings(Noun):
    """How the certificate of the best architectures is verified."""

    points: Seed = 500
    """Excluded points to solve again by independent code, shared out between the models."""
    seed: Seed = 0
    """Seed by which they are drawn."""


class PlanMapSettings(Noun):
    """The networks on which the report maps each model's best plans, and how far it searches."""

    systems: Annotated[tuple[Location, ...], Once] = ()
    """Systems whose networks plans are mapped to: files in config/systems, or paths of some, with levels, a
    torus or a matrix of bandwidths; of a larger one the part that has the devices of the first scenario."""
    planners: Annotated[tuple[ModelPlanner, ...], Once] = ("phaze", "piper")
    """Whose plans are mapped."""
    steps: PositiveInt = 5000
    """Changes of places tried by each of the two chains of the local search."""
    seed: Seed = 0
    """Of their random numbers."""


class Variation(Noun):
    """What a variation changes of the cluster: factors of the study's own values, or other values."""

    hbm_bandwidth_factor: Positive | None = None
    """The HBM bandwidth, as a factor of the scenario's."""
    network_bandwidth_factor: Positive | None = None
    """The bandwidth between devices, as a factor of the scenario's."""
    hbm_bandwidth_bytes_per_s: Positive | None = None
    """The HBM bandwidth, whatever the scenario's is."""
    network_bandwidth_bytes_per_s: Positive | None = None
    """The bandwidth between devices, whatever the scenario's is."""

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for part in VARIED:
            factor, value = f"{part}_factor", f"{part}_bytes_per_s"
            if None not in (getattr(self, factor), getattr(self, value)):
                raise ValueError(f"{factor} or {value} may be given, not both")
        if not self.model_dump(exclude_none=True):
            raise ValueError("a factor or a bandwidth is needed")
        return self

    def values(self, own: Mapping[str, float]) -> dict[str, float]:
        """Bandwidths that it changes, with what a scenario's own values make of factors."""
        found = {}
        for key in (f"{part}_bytes_per_s" for part in VARIED):
            value, factor = getattr(self, key), getattr(self, key.replace("_bytes_per_s", "_factor"))
            if value is not None or factor is not None:
                found[key] = value if factor is None else factor * own[key]
        return found


class ReportSettings(Noun):
    """What the report shows besides the tables."""

    published: Name | None = "phaze-icml-2024"
    """Published results to show beside ours, a file in config/published."""
    strategies: StrategySettings = StrategySettings()
    """Search strategies to compare."""
    maps: PlanMapSettings = PlanMapSettings()
    """Networks to map plans to."""
    area_limits_mm2: tuple[Positive, ...] = ()
    """Area limits below the scenario's whose best architectures are looked for as well."""
    sensitivity: dict[Name, Variation] = Field(default_factory=dict)
    """Variations under which the winners are evaluated again, by name."""
