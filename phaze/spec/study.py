"""A study: which models, which architectures, which cluster, and the settings of every stage."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, JsonValue, ValidationError, model_validator

from phaze.spec.architecture import Grid
from phaze.spec.layout_study import LayoutStudy
from phaze.spec.map_study import Maps
from phaze.spec.measured import MeasuredStudy
from phaze.spec.noun import Noun, describe
from phaze.spec.planning import PlanStudy
from phaze.spec.settings import (
    CertifySettings,
    EstimateSettings,
    ExtractSettings,
    PlaceSettings,
    ReportSettings,
    ScheduleSettings,
    ScreenSettings,
    Training,
    Triple,
)
from phaze.spec.tiled_study import TiledStudy
from phaze.spec.values import Count, Location, Name, Once, Positive, PositiveInt, refuse_unknown

Changes = dict[str, JsonValue]
"""Settings of a section that differ, by their key there."""


class Reading(Noun):
    """Settings that differ from the study's, under which every model is placed again on the named
    architectures.
    """

    note: str = Field(min_length=1)
    """What the reading assumes, in a sentence."""
    baseline: Name | None = None
    """The named architecture that gains under this reading are over, if not `architectures.baseline`."""
    scenario: Changes = Field(default_factory=dict)
    """Keys of the first of `scenarios` that differ."""
    training: Changes = Field(default_factory=dict)
    """Keys of `training` that differ."""
    extract: Changes = Field(default_factory=dict)
    """Keys of `extract` that differ."""
    estimate: Changes = Field(default_factory=dict)
    """Keys of `estimate` that differ."""


OWN_READING = "study"
"""Name of what the study's own settings give, beside its readings."""


class WorkloadChoice(Noun):
    """A model as it is trained in the study."""

    model: Location
    """Name of a spec in config/models, or path of a YAML spec or of a Hugging Face config.json."""
    sequence: PositiveInt
    """Tokens of a sample."""
    tensor: tuple[PositiveInt, ...] = Field((1,), min_length=1)
    """Tensor model parallel widths to consider."""
    expert: Triple | None = None
    """Placement by experts, evaluated on the named architectures."""
    weight: Positive = 1.0
    """Weight of the model's throughput in the choice of a common architecture."""


class ArchitectureChoice(Noun):
    """The architectures of the study: a grid, and single ones by name."""

    grid: Grid | None = Grid()
    """The grid to search, or null for none."""
    named: Annotated[tuple[Name, ...], Once] = ("tpu-v4",)
    """Architectures in config/architectures; always evaluated, whatever the bounds say."""
    baseline: Name | None = "tpu-v4"
    """The named architecture that results are compared with."""
    technology: Name = "22nm"
    """Areas and energies, a file in config/technologies."""


class ScenarioChoice(Noun):
    """A system with what this study changes of it; an omitted key keeps the system's value."""

    system: Location = "paper"
    """Name of a file in config/systems."""
    devices: Count | None = None
    """Accelerators in the cluster."""
    network_bandwidth_bytes_per_s: Positive | None = None
    """Bandwidth between any two devices."""
    hbm_bandwidth_bytes_per_s: Positive | None = None
    """Bandwidth between HBM and global buffer."""
    clock_hz: Positive | None = None
    """Clock of all cores."""
    all_reduce_factor: Positive | None = None
    """What an all-reduce takes, times (n - 1)/n of its tensor over the bandwidth."""
    global_batch: PositiveInt = 4096
    """Samples in a batch."""
    area_limit_mm2: Positive | Name = "tpu-v4"
    """Largest area of a chip, or the name of an architecture whose area is the limit."""


def _without_nulls(value: object) -> object:
    """Mapping without keys that are null: so a study leaves out what the default study has."""
    given = {} if value is None else value
    return {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else given


class Study(Noun):
    """Everything that a run depends on besides the files that it names."""

    workloads: dict[Name, WorkloadChoice] = Field(min_length=1)
    """Workloads by name."""
    models: Annotated[tuple[Name, ...], Once]
    """Workloads that this study runs; may be empty where there is something in `plans`, `tiled`, `maps` or
    `layouts`."""
    architectures: ArchitectureChoice = ArchitectureChoice()
    """Architectures to consider."""
    scenarios: Annotated[dict[Name, ScenarioChoice], BeforeValidator(_without_nulls)] = Field(
        {"paper": ScenarioChoice()}, min_length=1
    )
    """Clusters to consider; the first is the one that the report is about. One that is null is left out."""
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
    readings: Annotated[dict[Name, Reading], BeforeValidator(_without_nulls)] = Field(default_factory=dict)
    """Other settings by name, under which every model is placed on the named architectures and on its winners
    again, to be shown beside the study's own; without those that the publication of the report found for
    other workloads. One that is null is left out."""
    plans: PlanStudy = PlanStudy()
    """What is planned with Piper apart from the models: the figures and tables of its paper."""
    tiled: TiledStudy = TiledStudy()
    """What is simulated on tiled accelerators apart from the models: the figures and tables of PALM."""
    layouts: LayoutStudy = LayoutStudy()
    """Models whose training is planned over all layouts of a runtime, apart from the models above."""
    maps: Maps = Maps()
    """What is partitioned and mapped apart from the models: the figures and tables of Parmesan's paper."""
    measured: MeasuredStudy = MeasuredStudy()
    """Published training runs that predictions are compared with."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        named = self.architectures.named
        if not (self.models or self.plans.made or self.tiled.cases or self.maps.cases or self.layouts.models):
            raise ValueError(
                "models: at least 1 item is needed, or a case in plans whose input there is, in tiled or "
                "maps, or a model in layouts"
            )
        refuse_unknown("models", (*self.models, *self.report.strategies.models), self.workloads, "workloads")
        baseline = filter(None, [self.architectures.baseline])
        refuse_unknown("architectures.baseline", baseline, named, "architectures.named")
        if self.architectures.grid is None and not named:
            raise ValueError("architectures: a grid or at least one named architecture is needed")
        if self.architectures.grid is None and self.screen.strategy == "hysteresis":
            raise ValueError("screen.strategy: hysteresis walks over a grid, but architectures.grid is null")
        for name, own in self.plans.stand_ins.items():
            where = f"plans.inputs.{name}.own"
            refuse_unknown(f"{where}.workload", [own.workload], self.workloads, "workloads")
            refuse_unknown(f"{where}.architecture", [own.architecture], named, "architectures.named")
        self._check_batches("")
        self._check_readings()
        return self

    def _check_readings(self) -> None:
        if self.readings and not self.architectures.named:
            raise ValueError("readings: are about named architectures, but architectures.named is empty")
        if OWN_READING in self.readings:
            raise ValueError(f"readings: {OWN_READING!r} is the study's own; give the reading another name")
        for name, reading in self.readings.items():
            self.under(name)._check_batches(f"readings.{name}: ")
            baseline = filter(None, [reading.baseline])
            named = self.architectures.named
            refuse_unknown(f"readings.{name}.baseline", baseline, named, "architectures.named")

    def _check_batches(self, where: str) -> None:
        for name, scenario in self.scenarios.items():
            for microbatch in self.training.microbatches:
                if scenario.global_batch % microbatch:
                    raise ValueError(
                        f"{where}training.microbatches: {microbatch} does not divide "
                        f"scenarios.{name}.global_batch {scenario.global_batch}"
                    )

    @property
    def shown_readings(self) -> dict[str, Reading]:
        """Readings with the study's own settings first; none for a study without."""
        own = {OWN_READING: Reading(note="the settings of the study")}
        return own | self.readings if self.readings else {}

    def under(self, reading: str) -> Study:
        """Study with the settings of a reading, in its first scenario; ValueError if they are unfit."""
        if reading == OWN_READING:
            return self
        chosen = self.readings[reading]
        main = next(iter(self.scenarios))
        parts = {name: getattr(self, name) for name in ("training", "extract", "estimate")}
        changed = {
            name: _with(part, getattr(chosen, name), f"readings.{reading}.{name}")
            for name, part in parts.items()
        }
        scenario = _with(self.scenarios[main], chosen.scenario, f"readings.{reading}.scenario")
        return self.model_copy(update={**changed, "scenarios": {main: scenario}, "readings": {}})


def _with(noun: Noun, changes: Changes, where: str) -> Noun:
    """Settings of which some differ; ValueError says where one is unfit."""
    try:
        return type(noun).model_validate({**noun.model_dump(), **changes})
    except ValidationError as error:
        raise ValueError(describe(error, where)) from None
