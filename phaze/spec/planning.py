"""Cases for the Piper planner: inputs, clusters, planners and presentation."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from phaze.base.errors import PhazeError
from phaze.spec.files import is_there, within
from phaze.spec.names import PLANNERS, Planner
from phaze.spec.noun import Noun
from phaze.spec.values import Count, Label, Location, Name, Positive, PositiveInt, refuse_unknown

Mode = Literal["program", "table-1"]
"""Behaviour of the planner: the authors' default, or the one that reproduces the paper's Table 1."""


class OwnInput(Noun):
    """Planner input made from one of our models on one of our accelerators."""

    workload: Name
    """Workload with model, sequence length, and TMP widths."""
    microbatch: PositiveInt
    """Samples in a microbatch."""
    architecture: Name
    """Accelerator, one of `architectures.named`."""


class PlanInput(Noun):
    """Planner input: an instance file, or one of our own models if no file is named."""

    label: Label
    """Display name."""
    file: Location | None = None
    """File in `plans.folder`, in the format of the authors' program."""
    own: OwnInput | None = None
    """Our own model, used if there is no folder or no file."""
    unit: Literal["s", "ms"] = "s"
    """Unit of the times in the file."""

    @model_validator(mode="after")
    def _some_source(self) -> Self:
        if self.file is None and self.own is None:
            raise ValueError("give a file, or a model of the study (own)")
        return self


class Clusters(Noun):
    """Clusters, one for every combination of device count and memory."""

    devices: tuple[Count, ...] = Field(min_length=1)
    """Devices K."""
    memory_gib: tuple[Positive, ...] = Field(min_length=1)
    """Memory M of a device."""


class PlanSettings(Noun):
    """Settings and presentation of plans."""

    show: Literal["throughput", "curve", "table"]
    """Presentation: throughput, curve, or table.

    throughput: relative to the best (Figure 1); curve: times by devices (Figure 2); table: our times
    and printed ones (Table 1). A curve has all numbers of devices up to a single given one, planned in one
    run; if several are given, each is planned.
    """
    bandwidth_gib: Positive = 25.0
    """Bandwidth B of a device, in GiB/s."""
    planners: tuple[Planner, ...] = Field(PLANNERS, min_length=1)
    """Planners: Piper and its baselines."""
    modes: tuple[Mode, ...] = Field(("program",), min_length=1)
    """Modes of the planner.

    program: all downsets, gradients synchronised once per N microbatches, d divides N; table-1: prefixes of
    one linear order, synchronised once per d microbatches, any d, as in the printed Table 1.
    """


class PlanPoint(PlanSettings):
    """Planning job of a case: one model size, one memory size and one number of microbatches N."""

    blocks: int
    """Number of repeated layers; 0: as in the input."""
    memory_gib: float
    """Memory M of a device."""
    microbatches: int
    """Microbatches N."""
    devices: tuple[int, ...]
    """Devices K."""


class PlanCase(PlanSettings):
    """Figure or table of plans: one input, planned by several planners on several clusters."""

    input: Name
    """One of `plans.inputs`."""
    clusters: tuple[Clusters, ...] = Field(min_length=1)
    """Clusters by number of devices and memory."""
    microbatches: tuple[PositiveInt, ...] = Field(min_length=1)
    """N: upper limit of the sum of the data-parallel degrees of all stages."""
    repeat: tuple[PositiveInt, ...] = ()
    """Numbers of layers with the most frequent name, one model size for each; default: as in the input."""

    def points(self) -> dict[str, PlanPoint]:
        """Planning jobs of the case, by a name that can also be a file name."""
        devices: dict[float, set[int]] = {}
        for clusters in self.clusters:
            for memory in clusters.memory_gib:
                # One job plans all numbers of devices with the same memory.
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
    """Plans by Piper, independent of the study's models."""

    folder: Location | None = None
    """Folder with the authors' inputs; default: `own` of every input is used."""
    published: Name | None = None
    """Published plans to compare with, a file in config/published."""
    inputs: dict[Name, PlanInput] = Field(default_factory=dict)
    """Inputs by name."""
    cases: dict[Name, PlanCase] = Field(default_factory=dict)
    """Figures and tables by name."""

    @model_validator(mode="after")
    def _known_inputs(self) -> Self:
        for name, case in self.cases.items():
            refuse_unknown(f"cases.{name}.input", [case.input], self.inputs)
        return self

    @property
    def made(self) -> dict[str, PlanCase]:
        """Cases that have an input (a file or one of our models), by name."""
        return {name: case for name, case in self.cases.items() if self.file_of(case) or self.own_of(case)}

    @property
    def stand_ins(self) -> dict[str, OwnInput]:
        """Inputs made from our own models in place of the authors' files, by name."""
        models = {case.input: self.own_of(case) for case in self.cases.values()}
        return {name: model for name, model in models.items() if model is not None}

    def file_of(self, case: PlanCase) -> Path | None:
        """Input file of a case; None if the case plans one of our models or has no input."""
        file = self.inputs[case.input].file
        return None if file is None or self.folder is None else Path(self.folder) / file

    def own_of(self, case: PlanCase) -> OwnInput | None:
        """Our own model that a case plans; None if its input is a file or missing."""
        return None if self.file_of(case) else self.inputs[case.input].own

    def check_files(self, source: str) -> None:
        """Raise PhazeError if the input file of a case is missing; `source` starts the message."""
        for case in self.cases.values():
            file = self.file_of(case)
            if file is not None and self.folder is not None:
                within(Path(self.folder), file)
            if file is not None and not is_there(file):
                raise PhazeError(
                    f"{source}: plans.folder: file {file} is missing, the input {case.input!r}; "
                    "name the folder that contains it, or null to plan models of the study"
                )
