"""Study with its files resolved: every file that it names is read before any job is planned.

`python -m phaze.spec.config --write` writes the schema and the reference pages of the configuration.
`--check` fails if they are out of date.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.layout import Layout, layouts_of
from phaze.spec.architecture import (
    AREA_ONLY,
    Architecture,
    ArchitectureSpace,
    Technology,
    load_technology,
)
from phaze.spec.chip_study import ChipPoint
from phaze.spec.files import FOLDER, is_path, named_path, read_mapping, stack_path
from phaze.spec.map_study import Maps
from phaze.spec.models import AnyModel, load_model_named, load_transformer, parse_model
from phaze.spec.settings import VARIED
from phaze.spec.study import OWN_READING, ScenarioChoice, Study, WorkloadChoice
from phaze.spec.system import Scenario
from phaze.spec.systems import (
    STACKS,
    chip_path,
    cluster_files,
    flat_scenario,
    load_cluster,
    load_device_as_architecture,
    load_tiled_systems,
    tiled_flops,
)
from phaze.spec.tiled_study import check_tiled

GRID_SHARDS = ("small-buffer", "large-buffer")
"""Shards of the grid, by size of the global buffer, so that no core design is estimated twice."""
NAMED_SHARD = "named-"
"""Prefix of the shard of a named architecture in a study without a grid."""
SMALLER_SHARD = "smaller"
"""Shard of the architectures that only smaller area limits admit, as these also lower the minimum area."""

OWN_SPEEDS = ("clock_hz", "hbm_bandwidth_bytes_per_s")
"""Properties of a scenario that an architecture may have itself."""
NETWORK_SPEEDS = ("network_bandwidth_bytes_per_s", "all_reduce_factor")

TEMPLATE = "__use_yte__"
"""Key that marks a Snakemake template, whose expressions Snakemake would evaluate."""


@dataclass(frozen=True)
class Settings:
    """Study, with the contents of all files that it names."""

    study: Study
    models: dict[str, AnyModel]
    """Model specs by workload, including those that replace an input of a plan."""
    architectures: dict[str, Architecture]
    """Named architectures."""
    technology: Technology
    scenarios: dict[str, Scenario]
    tiled_models: dict[str, AnyModel] = field(default_factory=dict)
    """Model specs of cases on tiles, by name."""
    tiled_systems: dict[str, dict[str, object]] = field(default_factory=dict)
    """Systems of tiles and their chips by name, as plain values."""
    tiled_flops: float = 0.0
    """Peak FLOP/s to which published results are scaled: the first tiled system of the first case."""
    map_models: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    """Model, system and device of each graph in `maps`, as plain values."""
    layout_models: dict[str, dict[str, object]] = field(default_factory=dict)
    """Specs of the models to plan, by name, as plain values."""
    layout_inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Files on which a training plan depends, by system."""
    chip_models: dict[str, dict[str, object]] = field(default_factory=dict)
    """Specs of the models for which chips are chosen, by search, as plain values."""
    chip_inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Files on which the choice of a chip depends, by search."""
    reading_scenarios: dict[str, Scenario] = field(default_factory=dict)
    """First scenario under the study's own settings and each interpretation; empty if there are none."""

    def workload(self, model: str) -> WorkloadChoice:
        """Workload with the given name."""
        return self.study.workloads[model]

    def layouts(self, model: str, microbatches: Sequence[int] = ()) -> list[Layout]:
        """Single-stage, single-replica layouts that the study considers for a model.

        `microbatches` default to the study's.
        """
        return layouts_of(self.workload(model).tensor, microbatches or self.study.training.microbatches)

    def flops_per_token(self, model: str) -> dict[str, float]:
        """FLOPs to train a model on one token, as the fields of `TokenFlops`."""
        flops = self.models[model].flops_per_token(self.workload(model).sequence)
        return flops.model_dump(mode="json")

    def expert(self, model: str) -> dict[str, int] | None:
        """Hand-designed (expert) placement of a model; None if there is none."""
        expert = self.workload(model).expert
        return None if expert is None else expert.model_dump(mode="json")

    def reading_changes(self, model: str) -> dict[str, dict[str, dict[str, object]]]:
        """Settings of a model's `Problem` that differ under an interpretation, by interpretation and section.

        Section `model` has the changed keys of the model spec.
        """
        readings = {reading: self._readable(reading, model) for reading in self.study.shown_readings}
        base = readings.get(OWN_READING, {})
        return {
            reading: {
                section: changes
                for section, values in sections.items()
                if (changes := {key: value for key, value in values.items() if value != base[section][key]})
            }
            for reading, sections in readings.items()
        }

    def _readable(self, reading: str, model: str) -> dict[str, dict[str, object]]:
        """Sections that interpretations may change, with the settings of one interpretation applied."""
        included = {"training", "extract", "estimate"}
        study = self.study.under(reading, model).model_dump(mode="json", include=included)
        spec = self.reading_model(reading, model).model_dump(mode="json")
        return {"scenario": self.reading_scenarios[reading].model_dump(mode="json"), "model": spec, **study}

    def reading_model(self, reading: str, model: str) -> AnyModel:
        """Model spec of a workload under an interpretation; PhazeError if its changes are invalid."""
        changed = self.study.shown_readings[reading].workloads.get(model)
        if changed is None or not changed.model:
            return self.models[model]
        spec = self.models[model].model_dump(mode="json") | changed.model
        return parse_model(spec, f"readings.{reading}.workloads.{model}.model")

    def read_architectures(self, model: str, families: Mapping[str, Mapping[str, str]]) -> list[str]:
        """Names of the architectures to place under interpretations, without designs for other models."""
        designs = {name for family in families.values() for name in family.values()}
        model_chips = {family[model] for family in families.values() if model in family}
        return [
            chip.name
            for name, chip in self.architectures.items()
            if name in model_chips or name not in designs or name == self.study.architectures.baseline
        ]

    @property
    def grid_shards(self) -> tuple[str, ...]:
        """Non-empty shards of the grid."""
        grid = self.study.architectures.grid
        return () if grid is None else tuple(s for s in GRID_SHARDS if grid.restricted_to(s).glb_mib)

    @property
    def shards(self) -> tuple[str, ...]:
        """Non-empty shards of the grid or, without one, a shard for each named architecture."""
        return self.grid_shards or self.named_shards

    @property
    def named_shards(self) -> tuple[str, ...]:
        """Shards with a single named architecture, whose jobs depend on no other; none next to a grid.

        There, named architectures are in the first shard of the grid. Shards of their own would double the
        number of jobs, for a few architectures.
        """
        return () if self.grid_shards else tuple(map(self.shard_of, self.architectures))

    def shard_of(self, architecture: str) -> str:
        """Shard of a named architecture."""
        return next(iter(self.grid_shards), f"{NAMED_SHARD}{architecture}")

    def _only_in(self, shard: str) -> tuple[Architecture, ...]:
        """Architecture that is the only one of a shard; none in a shard of a grid."""
        return tuple(
            chip
            for name, chip in self.architectures.items()
            if not self.grid_shards and self.shard_of(name) == shard
        )

    def sizes_of(self, shard: str) -> tuple[float, ...]:
        """HBM capacities in GiB to consider for a shard: those of its only architecture, or of the study."""
        own_gib = tuple(chip.hbm_gib for chip in self._only_in(shard) if chip.hbm_gib)
        return own_gib or self.study.training.hbm_gib

    @property
    def front_shards(self) -> tuple[str, ...]:
        """Shards for the Pareto fronts: the grid's shards, and one for smaller area limits if needed."""
        grid = self.study.architectures.grid
        # With a minimum area as a share of the limit, a smaller limit also admits smaller chips than the grid
        # has.
        bounded = grid is not None and grid.minimum_area_share and self.study.report.area_limits_mm2
        return (*self.grid_shards, SMALLER_SHARD) if bounded else self.grid_shards

    def front_space(self, scenario: str) -> dict[str, object]:
        """Area limits of the Pareto fronts, and the minimum area as a fraction of the limit."""
        grid = self.study.architectures.grid
        assert grid is not None
        return {
            "area_limits": [self.area_limit(scenario), *self.study.report.area_limits_mm2],
            "minimum_area_share": grid.minimum_area_share,
        }

    def members(self, shard: str) -> dict[str, object]:
        """Architectures of a shard: a part of the grid and, in one of the shards, the named architectures."""
        grid = self.study.architectures.grid
        if shard == SMALLER_SHARD:
            assert grid is not None
            return {"grid": grid.model_dump(mode="json"), "smaller": [*self.study.report.area_limits_mm2]}
        part = {} if grid is None else {"grid": grid.restricted_to(shard).model_dump(mode="json")}
        named = {
            name: chip.model_dump(mode="json")
            for name, chip in self.architectures.items()
            if self.shard_of(name) == shard
        }
        return part | {"named": named}

    def variations(self, scenario: str) -> dict[str, dict[str, float]]:
        """Changed bandwidths under every variation of a scenario, by name of the variation."""
        bandwidths = self.scenarios[scenario].model_dump(include={f"{part}_bytes_per_s" for part in VARIED})
        variations = self.study.report.sensitivity.items()
        return {name: variation.values(bandwidths) for name, variation in variations}

    def area_limit(self, scenario: str) -> float | dict[str, object]:
        """Maximum area in mm2, or the architecture whose area is the limit."""
        limit = self.scenarios[scenario].area_limit_mm2
        return self.architectures[limit].model_dump(mode="json") if isinstance(limit, str) else limit

    def chip_of(self, shard: str) -> dict[str, object] | None:
        """Specification of the only architecture of a shard, without fields that affect only its area or HBM.

        None of it affects estimates and schedules. The result is None for a shard of a grid.
        """
        chips = [chip.model_dump(mode="json", exclude=AREA_ONLY) for chip in self._only_in(shard)]
        return next(iter(chips), None)

    def hardware(self, scenario: str, shard: str = "", *, collectives: bool = True) -> dict[str, float]:
        """Properties of a scenario that affect the estimates of a shard: clock, bandwidths and element size.

        Clock and HBM bandwidth do not matter to a shard whose architecture has its own, nor the network to
        layers without collectives.
        """
        s, chips = self.scenarios[scenario], self._only_in(shard)
        speeds = {key: getattr(s, key) for key in OWN_SPEEDS if not any(getattr(chip, key) for chip in chips)}
        network = {key: getattr(s, key) for key in NETWORK_SPEEDS if collectives}
        return {**speeds, **network, "bytes_per_element": self.study.extract.bytes_per_element}

    def estimates_of(self, scenario: str) -> str:
        """First scenario that shares a scenario's estimates: equal bandwidths, clock and area limit."""
        return next(name for name in self.scenarios if self._hardware(name) == self._hardware(scenario))

    def _hardware(self, scenario: str) -> tuple[float | str, ...]:
        return *self.hardware(scenario).values(), self.scenarios[scenario].area_limit_mm2


def load_settings(config: object, folder: Path = FOLDER, source: str = "config") -> Settings:
    """Load the settings of a study from Snakemake or a YAML file; PhazeError if invalid."""
    study = Study.parse(config, source)
    map_models = {graph.model: load_model_named(graph.model, folder) for graph in study.maps.graphs.values()}
    # Names of jobs contain K, so it is filled in before anything uses the cases.
    study = study.model_copy(update={"maps": _with_clusters(study.maps, map_models, source)})
    study.plans.check_files(source)
    stand_ins = [stand_in.workload for stand_in in study.plans.stand_ins.values()]
    architectures = {name: load_architecture(name, folder) for name in study.architectures.named}
    _refuse_namesakes(architectures, source)
    scenarios = {name: load_scenario(choice, folder) for name, choice in study.scenarios.items()}
    settings = Settings(
        study=study,
        models={
            name: load_workload_model(study.workloads[name], name, folder, source)
            for name in dict.fromkeys((*study.models, *stand_ins))
        },
        architectures=architectures,
        technology=load_technology(study.architectures.technology, folder),
        scenarios=scenarios,
        tiled_systems=load_tiled_systems(study.tiled, folder),
        tiled_flops=tiled_flops(study.tiled, folder),
        tiled_models={
            name: _load_tiled(name, case.operators, f"tiled: cases: {key}: batches", folder)
            for key, case in study.tiled.cases.items()
            for name in case.batches
        },
        layout_models={
            name: load_transformer(name, "layouts: models", folder).model_dump(mode="json")
            for name in study.layouts.models
        },
        layout_inputs=_layout_inputs(study, folder),
        chip_models={
            search: load_transformer(point.model, f"chips: {search}: model", folder).model_dump(mode="json")
            | {"name": study.chips.model_of(search)}
            for search, point in study.chips.points.items()
        },
        chip_inputs={
            search: tuple(map(str, _files_of_designs(point, folder)))
            for search, point in study.chips.points.items()
        },
        map_models={
            name: [
                map_models[graph.model].model_dump(mode="json"),
                *(part.model_dump(mode="json") for part in load_cluster(graph.system, folder)),
            ]
            for name, graph in study.maps.graphs.items()
        },
        reading_scenarios={
            name: load_scenario(next(iter(study.under(name).scenarios.values())), folder)
            for name in study.shown_readings
        },
    )
    _check_area_limits(settings, source)
    for reading, choice in study.readings.items():
        for name in choice.workloads.keys() & settings.models.keys():
            settings.reading_model(reading, name)
    return settings


def _layout_inputs(study: Study, folder: Path) -> dict[str, tuple[str, ...]]:
    """Files of each system whose layouts a study plans, with those of the chip in place of its devices."""
    planned = study.layouts.architecture
    named = [] if planned is None else [*_files_of_chips(planned, folder)]
    chips = (*named, stack_path(STACKS["chip"], folder)) if named else ()
    systems = study.layouts.systems if study.layouts.models else ()
    return {name: tuple(map(str, (*cluster_files(name, folder), *chips))) for name in systems}


def _with_clusters(maps: Maps, models: dict[str, AnyModel], source: str) -> Maps:
    """Fill in a graph's missing number of clusters, K, from its model; PhazeError if the model has none."""
    graphs = {}
    for name, graph in maps.graphs.items():
        clusters = graph.hyper_operators or models[graph.model].hyper_operators
        if clusters is None:
            raise PhazeError(
                f"{source}: maps.graphs.{name}.hyper_operators: must be given: model {graph.model} "
                "has no value of its own"
            )
        graphs[name] = graph.model_copy(update={"hyper_operators": clusters})
    return maps.model_copy(update={"graphs": graphs})


def check_config_files(paths: Iterable[str | Path]) -> list[Path]:
    """Select the configuration files that the user wrote, not Snakemake; PhazeError if one is invalid.

    Snakemake silently keeps the last of two equal keys, and a template could run any code.
    """
    user_files = [Path(path) for path in paths if "snakemake-runtime-cache" not in str(path)]
    for path in user_files:
        if TEMPLATE in read_mapping(path):
            raise PhazeError(
                f"{path}: {TEMPLATE}: is not allowed: a study is data, and phaze runs no code from it"
            )
    return user_files


def load_workload_model(workload: WorkloadChoice, name: str, folder: Path, source: str) -> AnyModel:
    """Load the model of a workload, and check it against the TMP widths and sequence length."""
    model = load_model_named(workload.model, folder)
    where = f"{source}: workloads.{name}"
    model.check_chain(where)
    for width in workload.tensor:
        model.check_tensor_width(width, where)
    model.check_sequence(workload.sequence, where)
    return model


def _load_tiled(name: str, operators: str, where: str, folder: Path) -> AnyModel:
    if operators == "all":
        return load_model_named(name, folder)
    model = load_transformer(name, where, folder)
    check_tiled(model, where)
    return model


def space_of(name: str) -> ArchitectureSpace | None:
    """Space of architectures that a file describes; None for the name or file of a single architecture."""
    if not is_path(name) or not Path(name).is_file():
        return None
    keys = read_mapping(Path(name))
    if not {"grid", "named"} & keys.keys():
        return None
    space = ArchitectureSpace.parse(keys, name)
    # Paths in a space are relative to its file.
    named = [str(Path(name).parent / each) if is_path(each) else each for each in space.named]
    return space.model_copy(update={"named": tuple(named)})


def architecture_names(text: str, where: str) -> list[str]:
    """Names of architectures, separated by commas; PhazeError, prefixed with `where`, for an empty one."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise PhazeError(
            f"{where} {text}: must be names separated by commas", "such as -a tpu-v4,phaze-common"
        )
    return names


def _files_of_chips(architecture: str, folder: Path) -> Iterator[Path]:
    """Yield the files that specify the chips of a plan, by the text of its `architecture`."""
    for name in architecture_names(architecture, "layouts: architecture:"):
        space = space_of(name)
        if space is None:
            yield chip_path(name, folder)
            continue
        limit = [space.area_limit_mm2] if isinstance(space.area_limit_mm2, str) else []
        yield Path(name)
        yield from (chip_path(named, folder) for named in (*space.named, *limit))
        yield named_path("technology", space.technology, folder / "technologies")


def _files_of_designs(point: ChipPoint, folder: Path) -> Iterator[Path]:
    """Yield the files on which the designs of a search and their network depend."""
    yield from cluster_files(point.system, folder)
    yield stack_path(STACKS["chip"], folder)
    yield named_path("technology", point.designs.technology, folder / "technologies")
    if isinstance(point.designs.area_limit_mm2, str):
        yield chip_path(point.designs.area_limit_mm2, folder)


def load_architecture(name: str, folder: Path = FOLDER) -> Architecture:
    """Load an architecture by its name in config/architectures, or from a YAML file.

    A device of config/devices is accepted as well if it is derived from an architecture.
    """
    if device := load_device_as_architecture(name, folder):
        return Architecture.parse(device.model_dump(include=set(Architecture.model_fields)), name)
    path = chip_path(name, folder)
    return Architecture.parse({"name": path.stem, **read_mapping(path)}, str(path))


def _refuse_namesakes(architectures: dict[str, Architecture], source: str) -> None:
    """Raise PhazeError if two architecture files have the same name, which tables use as the key."""
    files: dict[str, str] = {}
    for file, architecture in architectures.items():
        other = files.setdefault(architecture.name, file)
        if other != file:
            raise PhazeError(
                f"{source}: architectures.named: {other!r} and {file!r} are both named {architecture.name!r}",
                "names must be unique",
            )


def load_scenario(choice: ScenarioChoice, folder: Path = FOLDER) -> Scenario:
    """Load the system of a scenario, with the scenario's overrides applied."""
    changes = choice.model_dump(exclude={"system"}, exclude_none=True)
    scenario = flat_scenario(choice.system, folder, choice.network_bandwidth_bytes_per_s)
    return Scenario.model_validate({**scenario.model_dump(), **changes})


def _check_area_limits(settings: Settings, source: str) -> None:
    for name, scenario in settings.scenarios.items():
        limit = scenario.area_limit_mm2
        if isinstance(limit, str) and limit not in settings.architectures:
            raise PhazeError(
                f"{source}: scenarios.{name}.area_limit_mm2: {limit!r} is not among architectures.named "
                f"{sorted(settings.architectures)}",
                "give a number in mm2 or one of them",
            )


def main(arguments: list[str] | None = None) -> int:
    """Write or check the generated files; return the exit status."""
    from phaze.spec.reference import (
        generated_files,
    )  # all nouns are imported here only, so that readers of one file need not load them

    parser = argparse.ArgumentParser(prog="python -m phaze.spec.config", description=main.__doc__)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument(
        "--write", action="store_true", help="write config/schema.json, README.md and reference/"
    )
    group.add_argument("--check", action="store_true", help="fail if they are out of date")
    write = parser.parse_args(arguments).write
    files = generated_files(FOLDER)
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        if write:
            path.write_text(files[path])
        advice = "written" if write else "is stale: run python -m phaze.spec.config --write"
        sys.stderr.write(f"{path} {advice}\n")
    return 0 if write or not stale else 1


if __name__ == "__main__":
    sys.exit(main())
