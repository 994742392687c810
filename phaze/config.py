"""The study of a run, resolved: every file that it names is read before any job is planned.

`python -m phaze.config --write` writes the schema and the reference page of the configuration; `--check`
fails if they are out of step with the code.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from phaze.errors import PhazeError
from phaze.spec.architecture import Architecture, Technology
from phaze.spec.model import Model, load_model
from phaze.spec.noun import Noun, read_yaml
from phaze.spec.study import ScenarioChoice, Study, Workload
from phaze.spec.system import Scenario, System

FOLDER = Path("config")
GRID_SHARDS = ("small-buffer", "large-buffer")
"""Shards of the grid, by size of the global buffer: designs of a core are then never estimated twice."""
NAMED_SHARD = "named"


@dataclass(frozen=True)
class Settings:
    """A study with everything that it names."""

    study: Study
    models: dict[str, Model]
    """Specs of the models that run, by workload."""
    architectures: dict[str, Architecture]
    """Named architectures."""
    technology: Technology
    scenarios: dict[str, Scenario]

    def workload(self, model: str) -> Workload:
        """Return the workload of that name."""
        return self.study.workloads[model]

    def points(self, model: str) -> list[tuple[int, int]]:
        """Return every TMP width and microbatch of a model."""
        return [(t, b) for t in self.workload(model).tensor for b in self.study.training.microbatches]

    def flops_per_token(self, model: str) -> float:
        """Return the FLOPs that training a model needs for a token (PaLM, Appendix B)."""
        return self.models[model].flops_per_token(self.workload(model).sequence)

    def expert(self, model: str) -> dict[str, int] | None:
        """Return the experts' placement of a model."""
        expert = self.workload(model).expert
        return None if expert is None else expert.model_dump(mode="json")

    @property
    def shards(self) -> tuple[str, ...]:
        """Return the shards that have members."""
        grid = GRID_SHARDS if self.study.architectures.grid is not None else ()
        return (*grid, NAMED_SHARD) if self.architectures else grid

    def members(self, shard: str) -> dict[str, object]:
        """Return what a shard is made of: its part of the grid, or the named architectures."""
        if shard == NAMED_SHARD:
            return {"named": [a.model_dump(mode="json") for a in self.architectures.values()]}
        grid = self.study.architectures.grid
        assert grid is not None, shard
        return {"grid": grid.restricted_to(shard).model_dump(mode="json")}

    def area_limit(self, scenario: str) -> float | dict[str, object]:
        """Return the largest area in mm2, or the architecture whose area is the limit."""
        limit = self.scenarios[scenario].area_limit_mm2
        return self.architectures[limit].model_dump(mode="json") if isinstance(limit, str) else limit

    def hardware(self, scenario: str) -> dict[str, float]:
        """Return what of a scenario the estimates depend on."""
        s = self.scenarios[scenario]
        return {
            "clock_hz": s.clock_hz,
            "hbm_bandwidth_bytes_per_s": s.hbm_bandwidth_bytes_per_s,
            "network_bandwidth_bytes_per_s": s.network_bandwidth_bytes_per_s,
            "bytes_per_element": self.study.extract.bytes_per_element,
        }

    def estimates_of(self, scenario: str) -> str:
        """Return the first scenario with the same estimates: equal bandwidths, clock and area limit."""
        return next(name for name in self.scenarios if self._hardware(name) == self._hardware(scenario))

    def _hardware(self, scenario: str) -> tuple[float | str, ...]:
        s = self.scenarios[scenario]
        return s.network_bandwidth_bytes_per_s, s.hbm_bandwidth_bytes_per_s, s.clock_hz, s.area_limit_mm2


def load_settings(config: object, folder: Path = FOLDER, source: str = "config") -> Settings:
    """Return the settings of a study as Snakemake or a YAML file gives it, or raise PhazeError."""
    study = Study.parse(config, source)
    architectures = {name: load_architecture(name, folder) for name in study.architectures.named}
    settings = Settings(
        study=study,
        models={
            name: load_workload_model(study.workloads[name], name, folder, source) for name in study.models
        },
        architectures=architectures,
        technology=load_technology(study.architectures.technology, folder),
        scenarios={name: load_scenario(choice, folder) for name, choice in study.scenarios.items()},
    )
    _check_area_limits(settings, source)
    return settings


def load_workload_model(workload: Workload, name: str, folder: Path, source: str) -> Model:
    """Return the model of a workload, checked against its TMP widths and sequence length."""
    model = load_model(_model_path(workload.model, folder))
    where = f"{source}: workloads.{name}"
    for width in workload.tensor:
        model.check_tensor_width(width, where)
    model.check_sequence(workload.sequence, where)
    return model


def _model_path(model: str, folder: Path) -> Path:
    """Return the file of a model given by name or by path."""
    if "/" in model or model.endswith((".yaml", ".yml", ".json")):
        return Path(model)
    return _named_file("model", model, folder / "models")


def load_architecture(name: str, folder: Path = FOLDER) -> Architecture:
    """Return an architecture of config/architectures by name, or of a YAML file by path."""
    path = (
        Path(name)
        if name.endswith((".yaml", ".yml"))
        else _named_file("architecture", name, folder / "architectures")
    )
    return Architecture.parse({"name": path.stem, **_mapping(path)}, str(path))


def load_technology(name: str, folder: Path = FOLDER) -> Technology:
    """Return a technology of config/technologies by name."""
    path = _named_file("technology", name, folder / "technologies")
    return Technology.parse(_mapping(path), str(path))


def load_system(name: str, folder: Path = FOLDER) -> System:
    """Return a system of config/systems by name, or of a YAML file by path."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else _named_file("system", name, folder / "systems")
    return System.parse(_mapping(path), str(path))


def load_scenario(choice: ScenarioChoice, folder: Path = FOLDER) -> Scenario:
    """Return the system of a scenario with what the scenario changes of it."""
    changes = choice.model_dump(exclude={"system"}, exclude_none=True)
    return Scenario.model_validate({**load_system(choice.system, folder).model_dump(), **changes})


def _named_file(noun: str, name: str, folder: Path) -> Path:
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in folder.glob("*.yaml"))
        raise PhazeError(f"{path}: there is no {noun} {name!r}; there are {', '.join(known) or 'none'}")
    return path


def _mapping(path: Path) -> dict[str, object]:
    loaded = read_yaml(path)
    if not isinstance(loaded, dict):
        raise PhazeError(f"{path}: must hold keys and values, got {type(loaded).__name__}")
    return dict(loaded)


def _check_area_limits(settings: Settings, source: str) -> None:
    for name, scenario in settings.scenarios.items():
        limit = scenario.area_limit_mm2
        if isinstance(limit, str) and limit not in settings.architectures:
            raise PhazeError(
                f"{source}: scenarios.{name}.area_limit_mm2: {limit!r} is not among architectures.named "
                f"{sorted(settings.architectures)}; give a number in mm2 or one of them"
            )


def generated_files(folder: Path = FOLDER) -> dict[Path, str]:
    """Return the generated files of the configuration with their contents."""
    schema = json.dumps(Study.model_json_schema(), indent=2, sort_keys=True) + "\n"
    return {folder / "schema.json": schema, folder / "README.md": _reference()}


def _reference() -> str:
    """Return the reference page of the configuration."""
    nouns: list[tuple[str, type[Noun]]] = [
        ("The study (`config.yaml`, `studies/*.yaml`)", Study),
        *((f"`{name}`", noun) for name, noun in _sections()),
        ("A model (`models/*.yaml`)", Model),
        ("An architecture (`architectures/*.yaml`)", Architecture),
        ("A system (`systems/*.yaml`)", System),
    ]
    return _HEAD + "".join(_table(title, noun) for title, noun in nouns)


def _sections() -> list[tuple[str, type[Noun]]]:
    """Return the sections of a study with their nouns."""
    from phaze.spec import study as s

    return [
        ("workloads.NAME", s.Workload),
        ("workloads.NAME.expert", s.Triple),
        ("architectures", s.ArchitectureChoice),
        ("architectures.grid", s.Grid),
        ("scenarios.NAME", s.ScenarioChoice),
        ("training", s.Training),
        ("extract", s.ExtractSettings),
        ("estimate", s.EstimateSettings),
        ("screen", s.ScreenSettings),
        ("schedule", s.ScheduleSettings),
        ("place", s.PlaceSettings),
        ("report", s.ReportSettings),
    ]


def _table(title: str, noun: type[Noun]) -> str:
    about = (noun.__doc__ or "").strip().splitlines()[0]
    lines = [f"\n## {title}\n\n{about}\n\n| key | default | allowed | meaning |\n|---|---|---|---|\n"]
    properties = noun.model_json_schema().get("properties", {})
    for name, field in noun.model_fields.items():
        default = (
            "required"
            if field.is_required()
            else f"`{_default(field.get_default(call_default_factory=True))}`"
        )
        meaning = " ".join((field.description or "").split())
        lines.append(f"| `{name}` | {default} | {_allowed(properties[name])} | {meaning} |\n")
    return "".join(lines)


def _default(value: object) -> str:
    if isinstance(value, Noun):
        return "see below"
    if isinstance(value, dict):
        return json.dumps(dict.fromkeys(value, "…"))
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _allowed(schema: dict[str, object]) -> str:
    """Return a field's JSON schema in words."""
    if "enum" in schema:
        return " \\| ".join(f"`{v}`" for v in schema["enum"])  # type: ignore[attr-defined]
    if "anyOf" in schema:
        return " or ".join(_allowed(s) for s in schema["anyOf"])  # type: ignore[attr-defined]
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if schema.get("type") == "array":
        return f"list of {_allowed(schema.get('items', {}))}"  # type: ignore[arg-type]
    limits = [f"{sign} {schema[key]:g}" for key, sign in _LIMITS.items() if key in schema]
    return " ".join([str(schema.get("type", schema.get("const", "any"))), *limits])


_HEAD = """# Configuration

Generated by `python -m phaze.config --write`; `schema.json` holds the same for editors.
"""
_LIMITS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}


def main(arguments: list[str] | None = None) -> int:
    """Write or check the generated files; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m phaze.config", description=main.__doc__)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--write", action="store_true", help="write config/schema.json and config/README.md")
    group.add_argument("--check", action="store_true", help="fail if they are out of step")
    write = parser.parse_args(arguments).write
    stale = [p for p, text in generated_files().items() if not p.is_file() or p.read_text() != text]
    for path in stale:
        if write:
            path.write_text(generated_files()[path])
        sys.stderr.write(f"{path} {'written' if write else 'is stale: run python -m phaze.config --write'}\n")
    return 0 if write or not stale else 1


if __name__ == "__main__":
    sys.exit(main())
