"""Cases of the Piper planner: which input, on which clusters, by which planners, and how it is shown."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from phaze.base.errors import PhazeError
from phaze.spec.files import is_there, within
from phaze.spec.names import PLANNERS, Planner
from phaze.spec.noun import Noun
from phaze.spec.values import Count, Label, Location, Name, Positive, PositiveInt, refuse_unknown

Mode = Literal["program", "table-1"]
"""What the authors' program does by default, or what gives the digits of the paper's Table 1."""


class OwnInput(Noun):
    """An input made from a model of ours, as an accelerator of ours runs it."""

    workload: Name
    """Workload: its model, its sequence length, and its TMP widths."""
    microbatch: PositiveInt
    """Samples in a microbatch."""
    architecture: Name
    """The accelerator, one of `architectures.named`."""


class PlanInput(Noun):
    """What is planned: a file of the folder, or what stands in for it."""

    label: Label
    """Name for readers."""
    file: Location | None = None
    """File in `plans.folder`, in the format of the authors' program."""
    own: OwnInput | None = None
    """Made from a model of ours where there is no folder or no file."""
    unit: Literal["s", "ms"] = "s"
    """Unit of the times in the file, which does not say it."""

    @model_validator(mode="after")
    def _some_source(self) -> Self:
        if self.file is None and self.own is None:
            raise ValueError("a file or a model of ours (own) is needed")
        return self


class Clusters(Noun):
    """Every number of devices with every memory."""

    devices: tuple[Count, ...] = Field(min_length=1)
    """Devices K."""
    memory_gib: tuple[Positive, ...] = Field(min_length=1)
    """Memory M of a device."""


class PlanSettings(Noun):
    """How an input is planned, and how that is shown."""

    show: Literal["throughput", "curve", "table"]
    """Throughput over the best (Figure 1); times for every number of devices up to the one given, in a single
    run, or for several given (Figure 2); times beside printed ones (Table 1)."""
    bandwidth_gib: Positive = 25.0
    """Bandwidth B of a device, in GiB/s."""
    planners: tuple[Planner, ...] = Field(PLANNERS, min_length=1)
    """Piper, and what it is compared with."""
    modes: tuple[Mode, ...] = Field(("program",), min_length=1)
    """All downsets, gradients synchronised once for N microbatches, d dividing N; or prefixes of one linear
    order, once for d microbatches, any d, as in the printed Table 1."""


class PlanPoint(PlanSettings):
    """One job: a case with one size, one memory and one N."""

    blocks: int
    """How often the repeated layer occurs, 0 for as often as in the input."""
    memory_gib: float
    """Memory M of a device."""
    microbatches: int
    """N."""
    devices: tuple[int, ...]
    """Devices K."""


class PlanCase(PlanSettings):
    """A figure or a table: an input on clusters, by planners."""

    input: Name
    """One of `plans.inputs`."""
    clusters: tuple[Clusters, ...] = Field(min_length=1)
    """Devices and memories."""
    microbatches: tuple[PositiveInt, ...] = Field(min_length=1)
    """N: what the data parallel degrees of all stages may sum up to."""
    repeat: tuple[PositiveInt, ...] = ()
    """How often the layer of the most frequent name occurs, for every size; as in the input unless given."""

    def points(self) -> dict[str, PlanPoint]:
        """Jobs of the case by a name that is also a file name."""
        devices: dict[float, set[int]] = {}
        for clusters in self.clusters:
            for memory in clusters.memory_gib:
                devices.setdefault(memory, set()).update(clusters.devices)
        shared = self.model_dump(include=set(PlanSettings.model_fields))
        return {
            f"{f'l{blocks}-' if blocks else ''}m{memory:g}-n{n}": PlanPoint(
                blocks=blocks, memory_gib=memory, microbatches=n, devices=tuple(sorted(counts)), **shared
            )
            for blocks in self.repeat or (0,)
            for n in self.microbatches
            for memory, counts in devices.items()
        }


class PlanStudy(Noun):
    """What is planned with Piper, apart from the models of the study."""

    folder: Location | None = None
    """Folder with the authors' inputs; without it `own` of every input is taken."""
    published: Name | None = None
    """Published plans to show beside ours, a file in config/published."""
    inputs: dict[Name, PlanInput] = Field(default_factory=dict)
    """What is planned, by name."""
    cases: dict[Name, PlanCase] = Field(default_factory=dict)
    """Figures and tables, by name."""

    @model_validator(mode="after")
    def _known_inputs(self) -> Self:
        for name, case in self.cases.items():
            refuse_unknown(f"cases.{name}.input", [case.input], self.inputs)
        return self

    @property
    def made(self) -> dict[str, PlanCase]:
        """Cases whose input there is."""
        return {name: case for name, case in self.cases.items() if self.file_of(case) or self.own_of(case)}

    @property
    def stand_ins(self) -> dict[str, OwnInput]:
        """Inputs of cases that are made from models of ours."""
        found = {case.input: self.own_of(case) for case in self.cases.values()}
        return {name: own for name, own in found.items() if own is not None}

    def file_of(self, case: PlanCase) -> Path | None:
        """File that a case plans, None if it plans a model of ours or nothing."""
        file = self.inputs[case.input].file
        return None if file is None or self.folder is None else Path(self.folder) / file

    def own_of(self, case: PlanCase) -> OwnInput | None:
        """Model of ours that a case plans, None if it plans a file or nothing."""
        return None if self.file_of(case) else self.inputs[case.input].own

    def check_files(self, source: str) -> None:
        """Raise PhazeError unless every file that a case plans is there; `source` says who asked."""
        for case in self.cases.values():
            file = self.file_of(case)
            if file is not None and self.folder is not None:
                within(Path(self.folder), file)
            if file is not None and not is_there(file):
                raise PhazeError(
                    f"{source}: plans.folder: there is no file {file}, the input {case.input!r}; "
                    "give the folder that holds it, or null to plan our own models"
                )
