"""A study: which models, which architectures, which cluster, and the settings of every stage."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from phaze.spec.architecture import Grid
from phaze.spec.map_study import Maps
from phaze.spec.noun import Noun
from phaze.spec.planning import Plans
from phaze.spec.settings import (
    CertifySettings,
    EstimateSettings,
    ExtractSettings,
    Name,
    PlaceSettings,
    PositiveFloat,
    PositiveInt,
    ReportSettings,
    ScheduleSettings,
    ScreenSettings,
    Training,
    Triple,
)
from phaze.spec.tiled_study import TiledStudy


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


class Study(Noun):
    """Everything that a run depends on besides the files that it names."""

    workloads: dict[Name, Workload] = Field(min_length=1)
    """Workloads by name."""
    models: tuple[Name, ...]
    """Workloads that this study runs; may be empty where there are cases in `plans` or `tiled`."""
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
    certify: CertifySettings = CertifySettings()
    """Settings of certify."""
    report: ReportSettings = ReportSettings()
    """Settings of report."""
    plans: Plans = Plans()
    """What is planned with Piper apart from the models: the figures and tables of its paper."""
    tiled: TiledStudy = TiledStudy()
    """What is simulated on tiled accelerators apart from the models: the figures and tables of PALM."""
    maps: Maps = Maps()
    """What is partitioned and mapped apart from the models: the figures and tables of Parmesan's paper."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not (self.models or self.plans.made or self.tiled.cases or self.maps.cases):
            raise ValueError(
                "models: at least 1 item is needed, or a case in plans whose input there is, in tiled or maps"
            )
        _refuse_repeats("models", self.models)
        _refuse_repeats("architectures.named", self.architectures.named)
        for name in (*self.models, *self.report.strategies.models):
            if name not in self.workloads:
                raise ValueError(f"model {name!r} is not among the workloads {sorted(self.workloads)}")
        baseline = self.architectures.baseline
        if baseline is not None and baseline not in self.architectures.named:
            raise ValueError(f"architectures.baseline {baseline!r} must be one of architectures.named")
        if self.architectures.grid is None and not self.architectures.named:
            raise ValueError("architectures: a grid or at least one named architecture is needed")
        if self.architectures.grid is None and self.screen.strategy == "hysteresis":
            raise ValueError("screen.strategy: hysteresis walks over a grid, but architectures.grid is null")
        self._check_stand_ins()
        for name, scenario in self.scenarios.items():
            for microbatch in self.training.microbatches:
                if scenario.global_batch % microbatch:
                    raise ValueError(
                        f"training.microbatches: {microbatch} does not divide "
                        f"scenarios.{name}.global_batch {scenario.global_batch}"
                    )
        return self

    def _check_stand_ins(self) -> None:
        for name, own in self.plans.stand_ins.items():
            where = f"plans.inputs.{name}.own"
            if own.workload not in self.workloads:
                raise ValueError(
                    f"{where}.workload: {own.workload!r} is not among the workloads {sorted(self.workloads)}"
                )
            if own.architecture not in self.architectures.named:
                raise ValueError(
                    f"{where}.architecture: {own.architecture!r} must be one of architectures.named "
                    f"{sorted(self.architectures.named)}"
                )


def _refuse_repeats(key: str, names: tuple[str, ...]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{key}: {name!r} is given twice; names must be unique")
