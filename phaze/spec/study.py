"""Studies: models, architectures, cluster, and the settings of every stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, JsonValue, ValidationError, model_validator

from phaze.spec.architecture import ArchitectureChoice
from phaze.spec.chip_study import ChipStudy
from phaze.spec.layout_study import LayoutStudy
from phaze.spec.map_study import Maps
from phaze.spec.measured import MeasuredStudy
from phaze.spec.noun import Noun, describe
from phaze.spec.planning import PlanStudy
from phaze.spec.settings import (
    CertifySettings,
    EstimateSettings,
    ExtractSettings,
    ReportSettings,
    ScheduleSettings,
    ScreenSettings,
    Training,
    Triple,
)
from phaze.spec.tiled_study import TiledStudy
from phaze.spec.values import (
    Count,
    Label,
    Location,
    Name,
    Once,
    Positive,
    PositiveInt,
    Text,
    refuse_unknown,
    without_nulls,
)

Changes = dict[Label, JsonValue]
"""Changed settings of one section, by key."""
OWN_READING = "study"
"""Name of the study's own settings, listed together with its interpretations."""


REMOVED = {
    "place": "as all models are placed by Phaze's formula: delete it; `phaze place` compares planners on an "
    "architecture",
    "recommend": "as `chips` chooses a chip with its plans over all layouts: list the models there",
}
"""Top-level keys of earlier versions, with what to do instead."""


class WorkloadReading(Noun):
    """Changes of an interpretation that concern one workload."""

    model: Changes = Field(default_factory=dict)
    """Changed keys of the model spec."""
    extract: Changes = Field(default_factory=dict)
    """Changed keys of `extract`, in addition to those of the interpretation."""


class Reading(Noun):
    """Interpretation of a paper: alternative settings with which models are placed on named architectures."""

    note: Text = Field(min_length=1)
    """Sentence on the assumptions of this interpretation, for the report."""
    baseline: Name | None = None
    """Named architecture to which gains are relative here; default: `architectures.baseline`."""
    scenario: Changes = Field(default_factory=dict)
    """Changed keys of the first of `scenarios`."""
    training: Changes = Field(default_factory=dict)
    """Changed keys of `training`."""
    extract: Changes = Field(default_factory=dict)
    """Changed keys of `extract`."""
    estimate: Changes = Field(default_factory=dict)
    """Changed keys of `estimate`."""
    workloads: dict[Name, WorkloadReading] = Field(default_factory=dict)
    """Changes for single workloads, by workload."""


class WorkloadChoice(Noun):
    """Model with its sequence length and the layouts to consider."""

    model: Location
    """Name of a file in config/models, or path of a YAML spec or a Hugging Face config.json."""
    sequence: PositiveInt
    """Tokens per sample."""
    tensor: tuple[PositiveInt, ...] = Field((1,), min_length=1)
    """Tensor-parallel widths to consider."""
    expert: Triple | None = None
    """Layout chosen by human experts, evaluated on the named architectures; default: none."""
    weight: Positive = 1.0
    """Weight of the model's throughput when the common architecture is chosen."""


class ScenarioChoice(Noun):
    """System with this study's changes; omitted keys keep the system's value."""

    system: Location = "paper"
    """Name of a file in config/systems."""
    devices: Count | None = None
    """Number of accelerators."""
    network_bandwidth_bytes_per_s: Positive | None = None
    """Bandwidth between any two devices, in bytes per second."""
    hbm_bandwidth_bytes_per_s: Positive | None = None
    """Bandwidth between HBM and global buffer of a device, in bytes per second."""
    clock_hz: Positive | None = None
    """Clock of all cores in Hz."""
    all_reduce_factor: Positive | None = None
    """Factor f of all-reduce time over n devices, f · (n − 1)/n · bytes / bandwidth."""
    global_batch: PositiveInt = 4096
    """Samples per training step."""
    area_limit_mm2: Positive | Name = "tpu-v4"
    """Maximum chip area in mm², or the name of an architecture whose area is the limit."""


class Study(Noun):
    """Everything that a study's results depend on, apart from the contents of the files that it names."""

    workloads: dict[Name, WorkloadChoice] = Field(min_length=1)
    """Workloads by name."""
    models: Annotated[tuple[Name, ...], Once]
    """Names of the workloads that this study runs; may be empty if `plans`, `tiled`, `maps`, `layouts` or
    `chips` has content."""
    architectures: ArchitectureChoice = ArchitectureChoice()
    """Architectures to consider."""
    scenarios: Annotated[dict[Name, ScenarioChoice], BeforeValidator(without_nulls)] = Field(
        {"paper": ScenarioChoice()}, min_length=1
    )
    """Clusters to consider, by name; the report covers the first one. A null entry is dropped."""
    training: Training = Training()
    """Training setup of the models."""
    extract: ExtractSettings = ExtractSettings()
    """Extraction of operators from models."""
    estimate: EstimateSettings = EstimateSettings()
    """Estimates of operators."""
    screen: ScreenSettings = ScreenSettings()
    """Choice of the architectures to evaluate."""
    schedule: ScheduleSettings = ScheduleSettings()
    """Scheduling of layers."""
    certify: CertifySettings = CertifySettings()
    """Verification of certificates."""
    report: ReportSettings = ReportSettings()
    """Contents of the report."""
    readings: Annotated[dict[Name, Reading], BeforeValidator(without_nulls)] = Field(default_factory=dict)
    """Alternative settings by name. For each reading, every model is placed again on the named architectures
    and on its winners, and the results are shown next to those of the study's own settings. Architectures
    that the report's publication found for other workloads are left out. A null entry is dropped."""
    plans: PlanStudy = PlanStudy()
    """Plans by Piper, independent of the models above: figures and tables of its paper."""
    tiled: TiledStudy = TiledStudy()
    """Simulations of tiled accelerators, independent of the models above: figures and tables of PALM."""
    layouts: LayoutStudy = LayoutStudy()
    """Training plans over all layouts of a runtime, independent of the models above."""
    chips: ChipStudy = ChipStudy()
    """Chips to build for models over all layouts, independent of the models above."""
    maps: Maps = Maps()
    """Partitions and mappings, independent of the models above: figures and tables of Parmesan's paper."""
    measured: MeasuredStudy = MeasuredStudy()
    """Published training runs that predictions are compared with."""

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, fields: object) -> object:
        for key, fix in REMOVED.items():
            if isinstance(fields, Mapping) and key in fields:
                raise ValueError(f"{key}: was removed, {fix}")
        return fields

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        named = self.architectures.named
        parts = (self.plans.made, self.tiled.cases, self.maps.cases, self.layouts.models, self.chips.models)
        if not self.models and not any(parts):
            raise ValueError(
                "models: list at least one model; alternatively plans with an input, tiled or "
                "maps with cases, or layouts or chips with models"
            )
        refuse_unknown("models", (*self.models, *self.report.strategies.models), self.workloads, "workloads")
        baseline = filter(None, [self.architectures.baseline])
        refuse_unknown("architectures.baseline", baseline, named, "architectures.named")
        if self.architectures.grid is None and not named:
            raise ValueError("architectures: a grid or at least one named architecture is needed")
        if self.architectures.grid is None and self.screen.strategy == "hysteresis":
            raise ValueError("screen.strategy: hysteresis needs a grid, but architectures.grid is null")
        for name, stand_in in self.plans.stand_ins.items():
            where = f"plans.inputs.{name}.own"
            refuse_unknown(f"{where}.workload", [stand_in.workload], self.workloads, "workloads")
            refuse_unknown(f"{where}.architecture", [stand_in.architecture], named, "architectures.named")
        self._check_batches("")
        self._check_readings()
        return self

    def _check_readings(self) -> None:
        if self.readings and not self.architectures.named:
            raise ValueError("readings: need named architectures, but architectures.named is empty")
        if OWN_READING in self.readings:
            raise ValueError(
                f"readings: {OWN_READING!r} is reserved for the study's own settings; rename the reading"
            )
        for name, reading in self.readings.items():
            # A reading may change microbatches or the batch, which belong to different sections.
            self.under(name)._check_batches(f"readings.{name}: ")
            refuse_unknown(f"readings.{name}.workloads", reading.workloads, self.workloads, "workloads")
            for workload in reading.workloads:
                self.under(name, workload)
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

    @classmethod
    def of(cls, params: Mapping[str, object]) -> Study:
        """Build the study from a job's params, one per section; missing sections have their default."""
        sections = {name: params[key] for name in cls.model_fields if (key := f"study_{name}") in params}
        return cls.parse(sections, "study")

    @property
    def shown_readings(self) -> dict[str, Reading]:
        """Interpretations to show, the study's own settings first; empty if there are no interpretations."""
        study_reading = {OWN_READING: Reading(note="the settings of the study")}
        return study_reading | self.readings if self.readings else {}

    def under(self, reading: str, workload: str = "") -> Study:
        """Study in its first scenario, with an interpretation's settings; ValueError if they are invalid.

        They include the changes for `workload`, if one is given.
        """
        if reading == OWN_READING:
            return self
        chosen = self.readings[reading]
        main = next(iter(self.scenarios))
        parts = {name: getattr(self, name) for name in ("training", "extract", "estimate")}
        changed = {
            name: _with_changes(part, getattr(chosen, name), f"readings.{reading}.{name}")
            for name, part in parts.items()
        }
        if workload in chosen.workloads:
            where = f"readings.{reading}.workloads.{workload}.extract"
            changed["extract"] = _with_changes(changed["extract"], chosen.workloads[workload].extract, where)
        scenario = _with_changes(self.scenarios[main], chosen.scenario, f"readings.{reading}.scenario")
        return self.model_copy(update={**changed, "scenarios": {main: scenario}, "readings": {}})


def _with_changes(noun: Noun, changes: Changes, where: str) -> Noun:
    """Copy of settings with some values changed; ValueError says where an invalid value is."""
    try:
        return type(noun).model_validate({**noun.model_dump(), **changes})
    except ValidationError as error:
        raise ValueError(describe(error, where)) from None
