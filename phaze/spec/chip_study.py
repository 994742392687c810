"""Studies that choose a chip to build: the best design per network and model, and one for all models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, JsonValue, ValidationError, model_validator

from phaze.spec.architecture import ArchitectureSpace, Grid
from phaze.spec.noun import Noun, describe
from phaze.spec.system import Level
from phaze.spec.values import (
    Count,
    Label,
    Location,
    Name,
    Once,
    Positive,
    PositiveInt,
    Share,
    Text,
    refuse_unknown,
    without_nulls,
)

LADDER = "ladder"
"""Scenario name of the searches that belong to rungs of the ladder."""


class ChipWorkload(Noun):
    """Training of a model for which a chip is chosen, and the effort of its search."""

    model: Location
    """Name of a transformer in config/models."""
    devices: Count = 1024
    """Number of chips that train the model. A number above the network's extends its outermost level."""
    sequence: PositiveInt = 4096
    """Tokens per sample."""
    global_batch: PositiveInt = 1024
    """Samples per training step."""
    fix: dict[Label, int | Text] = Field(default_factory=dict)
    """Layout fields that all plans share, such as cp: 1; default: every layout is searched."""
    gap: Share = 0.01
    """Gap to the fastest step at which the search ends."""
    seconds: Positive | None = None
    """Time limit of the search on each chip or space in seconds; the table has the bound until then, and the
    reason. Default: until the gap is closed."""


class ChipScenario(Noun):
    """Network of the chips, and the designs to choose from."""

    system: Location = "tpu-v4"
    """System with the clock and the HBM bandwidth of the chips, and their network unless `levels` has it."""
    levels: tuple[Level, ...] | None = Field(None, min_length=1)
    """Levels of the network, innermost first; default: those of the system."""
    designs: ArchitectureSpace = ArchitectureSpace(grid=Grid())
    """Grid of designs within an area limit."""
    hbm_gib: Annotated[tuple[Positive, ...], Once] = ()
    """HBM capacities of each design in GiB; default: that of the system's device."""

    @model_validator(mode="after")
    def _grid_alone(self) -> Self:
        if self.designs.grid is None or self.designs.named:
            raise ValueError("designs: needs a grid, such as grid: {}, and no named architectures")
        return self


class ChipPoint(ChipWorkload, ChipScenario):
    """One search: a model, its training and network, and the designs."""


class Rung(Noun):
    """Step of the ladder: settings that differ from those of the step before."""

    name: Name
    """Name of the step."""
    note: Text = Field(min_length=1)
    """Assumption that changes, for the report."""
    changes: dict[Label, JsonValue] = Field(default_factory=dict)
    """Changed keys of a workload or scenario; for the first step, relative to their defaults."""


class ChipStudy(Noun):
    """Chips to build: a search per scenario and model, and one chip for all models of a scenario."""

    models: Annotated[tuple[Name, ...], Once] = ()
    """Names of the `workloads` for which chips are chosen; empty: no chip is chosen."""
    workloads: dict[Name, ChipWorkload] = Field(default_factory=dict)
    """Training of each model, by name."""
    scenarios: Annotated[dict[Name, ChipScenario], BeforeValidator(without_nulls)] = Field(
        default_factory=dict
    )
    """Networks and designs, by name; the page begins with the first one. A null entry is dropped."""
    compared: Annotated[tuple[Name, ...], Once] = ("tpu-v4-as-built",)
    """Architectures with which the chosen chip is compared, as they are; gains are over the first one."""
    templates: Annotated[tuple[Name, ...], Once] = ("h100-80gb",)
    """Architectures of which the nearest design is compared as well."""
    seconds: Positive | None = None
    """Time limit of the choice for all models of a scenario, whose searches have their own; default: none."""
    ladder: tuple[Rung, ...] = ()
    """Steps from a paper's setting to today's: the gain of the best chip under each."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse_unknown("chips.models", self.models, self.workloads, "chips.workloads")
        if self.models and not self.scenarios:
            raise ValueError("chips.scenarios: at least one is needed for chips.models")
        if LADDER in self.scenarios:
            raise ValueError(f"chips.scenarios: {LADDER!r} is reserved for the ladder; rename the scenario")
        if self.ladder and not self.compared:
            raise ValueError("chips.ladder: needs an architecture in chips.compared, over which it gains")
        self.rungs()
        return self

    def rungs(self) -> dict[str, ChipPoint]:
        """Search of every rung, by its name; ValueError if its changes are invalid."""
        fields, points = dict[str, JsonValue](), dict[str, ChipPoint]()
        for rung in self.ladder:
            fields |= rung.changes
            try:
                points[rung.name] = ChipPoint.model_validate(fields)
            except ValidationError as error:
                raise ValueError(describe(error, f"chips.ladder.{rung.name}.changes")) from None
        return points

    @property
    def points(self) -> dict[str, ChipPoint]:
        """All searches, by a name that can also be a file name; empty without models."""
        if not self.models:
            return {}
        points = {
            search_name(scenario, model): ChipPoint(**dict(network), **dict(self.workloads[model]))
            for scenario, network in self.scenarios.items()
            for model in self.models
        }
        for name, point in self.rungs().items():
            # A step whose settings are those of another search is not searched again.
            if point not in points.values():
                points[search_name(LADDER, name)] = point
        return points

    def model_of(self, search: str) -> str:
        """Name of a search's model: that of its workload, or of the model's file on the ladder."""
        named = {search_name(scenario, model): model for scenario in self.scenarios for model in self.models}
        return named.get(search) or Path(self.points[search].model).stem

    @property
    def steps(self) -> dict[str, str]:
        """Search of every rung, by its name."""
        searches = [*self.points.items()]
        return {
            name: next(search for search, other in searches if other == point)
            for name, point in (self.rungs() if self.models else {}).items()
        }

    def comparisons(self, search: str) -> tuple[str, ...]:
        """Architectures that are compared with the best chip of a search."""
        return self.compared[:1] if search.startswith(f"{LADDER}.") else (*self.compared, *self.templates)


def search_name(scenario: str, model: str) -> str:
    """Name of the search for a model's best chip in a scenario."""
    return f"{scenario}.{model}"
