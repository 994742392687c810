"""A study: which models, which architectures, which cluster, and the settings of every stage."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from phaze.spec.architecture import Grid
from pydantic import Field, StringConstraints, model_validator

from phaze.spec.noun import Noun
from phaze.spec.system import System

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=60)]
"""Lower-case letters, digits, hyphens and dots: a name that is also a file name."""
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Triple(Noun):
    """A placement given by its three widths, {p, d, t}."""

    pipeline: PositiveInt
    """Pipeline depth p."""
    data: PositiveInt
    """Data parallel width d."""
    tensor: PositiveInt
    """Tensor model parallel width t."""


class Workload(Noun):
    """A model as it is trained in the study."""

    model: str
    """Name of a spec in config/models, or path of a YAML spec or of a Hugging Face config.json."""
    sequence: PositiveInt
    """Tokens of a sample."""
    tensor: tuple[PositiveInt, ...] = Field((1,), min_length=1)
    """Tensor model parallel widths to consider."""
    expert: Triple | None = None
    """Placement by experts, evaluated on the named architectures."""
    weight: PositiveFloat = 1.0
    """Weight of the model's throughput in the choice of a common architecture."""


class ArchitectureChoice(Noun):
    """The architectures of the study: a grid, and single ones by name."""

    grid: Grid | None = Grid()
    """The grid to search, or null for none."""
    named: tuple[Name, ...] = ("tpu-v4",)
    """Architectures in config/architectures; always evaluated, whatever the bounds say."""
    baseline: Name | None = "tpu-v4"
    """The named architecture that results are compared with."""
    technology: Name = "22nm"
    """Areas and energies, a file in config/technologies."""


class Scenario(System):
    """A cluster with the batch that it trains and the area that a chip may have."""

    global_batch: PositiveInt = 4096
    """Samples in a batch."""
    area_limit_mm2: PositiveFloat | Name = "tpu-v4"
    """Largest area of a chip, or the name of an architecture whose area is the limit."""


class ScenarioChoice(Noun):
    """A system with what this study changes of it; an omitted key keeps the system's value."""

    system: str = "paper"
    """Name of a file in config/systems."""
    devices: PositiveInt | None = None
    """Accelerators in the cluster."""
    network_bandwidth_bytes_per_s: PositiveFloat | None = None
    """Bandwidth between any two devices."""
    hbm_bandwidth_bytes_per_s: PositiveFloat | None = None
    """Bandwidth between HBM and global buffer."""
    clock_hz: PositiveFloat | None = None
    """Clock of all cores."""
    global_batch: PositiveInt = 4096
    """Samples in a batch."""
    area_limit_mm2: PositiveFloat | Name = "tpu-v4"
    """Largest area of a chip, or the name of an architecture whose area is the limit."""


class Training(Noun):
    """How the models are trained, and what of it is searched."""

    microbatches: tuple[PositiveInt, ...] = Field((1, 2, 4, 8), min_length=1)
    """Samples in a microbatch to consider."""
    hbm_gib: tuple[PositiveFloat, ...] = Field((32, 64, 80), min_length=1)
    """HBM capacities to consider."""
    recompute: tuple[bool, ...] = Field((False, True), min_length=1)
    """Stash activations, recompute them, or consider both."""
    optimizer: Literal["sgd", "sgd-momentum", "adam"] = "sgd"
    """Optimizer, for its memory."""
    precision: Literal["half", "mixed", "single"] = "half"
    """Bytes per parameter: half (weights and gradients in 2 bytes), mixed (with master weights), single."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """Order of the microbatches in the pipeline, for the stashes that it keeps."""
    tokens: PositiveFloat = 300e9
    """Tokens to train on, for the time to train."""


class ExtractSettings(Noun):
    """How operators are made from a model."""

    backward: Literal["paired", "split"] = "paired"
    """One backward operator per forward operator, or data and weight gradients apart."""
    fusion: bool = True
    """Fuse elementwise operators into what produces their input."""
    bytes_per_element: Literal[1, 2, 4] = 2
    """Size of an activation or weight."""


class EstimateSettings(Noun):
    """How operators are estimated."""

    vector_cycles: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Cycles per element that replace those of the table, keys as `forward.gelu` or `backward.softmax`."""


class ScreenSettings(Noun):
    """How the architectures to evaluate are chosen."""

    strategy: Literal["certified", "hysteresis"] = "certified"
    """Keep all that could be the best, or walk down the areas as the paper does (Algorithm 1)."""
    hysteresis: PositiveInt = 6
    """Areas in a row that must be worse before the walk ends."""
    area_band_um2: PositiveFloat = 10000.0
    """Architectures within a band count as one area in the walk."""
    best: PositiveInt = 10
    """How many of the best architectures are reported."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """The smallest area and HBM are looked for within this distance of the best throughput."""
    common: Literal["mean", "normalised", "geometric"] = "mean"
    """Mean of the models' throughputs that the common architecture maximises."""


class ScheduleSettings(Noun):
    """How layers are scheduled."""

    solver: tuple[Literal["glpk", "highs"], ...] = Field(("glpk", "highs"), min_length=1)
    """Solvers in order of preference; one that is missing is passed over."""
    formulation: Literal["sparse", "paper"] = "sparse"
    """The reduced program, or all constraints as printed."""
    overlap_communication: bool = False
    """Let collectives run beside computation."""
    node_limit: PositiveInt = 20000
    """Branch-and-bound nodes after which a solve ends with its gap."""
    wall_limit_s: PositiveFloat = 60.0
    """Seconds after which a solve ends as timed out."""


class PlaceSettings(Noun):
    """How models are placed."""

    planner: Literal["phaze"] = "phaze"
    """The placement algorithm."""


class ReportSettings(Noun):
    """What the report shows besides the tables."""

    published: Name | None = "phaze-icml-2024"
    """Published results to show beside ours, a file in config/published."""
    hysteresis: tuple[Name, ...] = ()
    """Models whose walk down the areas is shown for hysteresis 1 to 8 (Figure 9)."""
    sensitivity: dict[
        Name, dict[Literal["hbm_bandwidth_bytes_per_s", "network_bandwidth_bytes_per_s"], PositiveFloat]
    ] = Field(default_factory=dict)
    """Variations under which the winners are evaluated again, by name."""


class Study(Noun):
    """Everything that a run depends on besides the files that it names."""

    workloads: dict[Name, Workload] = Field(min_length=1)
    """Workloads by name."""
    models: tuple[Name, ...] = Field(min_length=1)
    """Workloads that this study runs."""
    architectures: ArchitectureChoice = ArchitectureChoice()
    """Architectures to consider."""
    scenarios: dict[Name, ScenarioChoice] = Field({"paper": ScenarioChoice()}, min_length=1)
    """Clusters to consider; the first is the one that the report is about."""
    training: Training = Training()
    """How the models are trained."""
    extract: ExtractSettings = ExtractSettings()
    """Settings of extract."""
    estimate: EstimateSettings = EstimateSettings()
    """Settings of estimate."""
    screen: ScreenSettings = ScreenSettings()
    """Settings of screen."""
    schedule: ScheduleSettings = ScheduleSettings()
    """Settings of schedule."""
    place: PlaceSettings = PlaceSettings()
    """Settings of place."""
    report: ReportSettings = ReportSettings()
    """Settings of report."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _refuse_repeats("models", self.models)
        _refuse_repeats("architectures.named", self.architectures.named)
        for name in (*self.models, *self.report.hysteresis):
            if name not in self.workloads:
                raise ValueError(f"model {name!r} is not among the workloads {sorted(self.workloads)}")
        baseline = self.architectures.baseline
        if baseline is not None and baseline not in self.architectures.named:
            raise ValueError(f"architectures.baseline {baseline!r} must be one of architectures.named")
        if self.architectures.grid is None and not self.architectures.named:
            raise ValueError("architectures: a grid or at least one named architecture is needed")
        for name, scenario in self.scenarios.items():
            for microbatch in self.training.microbatches:
                if scenario.global_batch % microbatch:
                    raise ValueError(
                        f"training.microbatches: {microbatch} does not divide "
                        f"scenarios.{name}.global_batch {scenario.global_batch}"
                    )
        return self


def _refuse_repeats(key: str, names: tuple[str, ...]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{key}: {name!r} is given twice; names must be unique")
