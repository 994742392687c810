"""Generate the reference pages and the JSON Schema of the configuration from its types."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, get_args, get_origin

from phaze.spec import topology
from phaze.spec.architecture import Architecture, Technology
from phaze.spec.layout_study import LayoutStudy
from phaze.spec.map_study import Maps
from phaze.spec.mapping import StoredMapping
from phaze.spec.measured import PublishedRuns
from phaze.spec.model import Model
from phaze.spec.network import Matrix
from phaze.spec.noun import Noun
from phaze.spec.operators import StoredOperators
from phaze.spec.planning import PlanStudy
from phaze.spec.speeds.collectives import NcclSpeeds
from phaze.spec.stages import StoredStages
from phaze.spec.study import Study
from phaze.spec.system import Cluster, Device, DeviceFigures, Stack, System
from phaze.spec.tiled import TiledDevice, TiledSystem
from phaze.spec.tiled_study import TiledStudy
from phaze.spec.torch_module import TorchModule
from phaze.spec.traced import Traced
from phaze.spec.training_plan import TrainingPlan
from phaze.spec.vision import ResNet, SemanticFpn, Swin


class Entry(NamedTuple):
    """Type on a reference page, described together with the types nested in it."""

    title: str
    noun: type[Noun]
    files: str
    """Files that contain the type, as Markdown."""
    example: str
    """File in config, text of a file, or command (`phaze …`) that writes a file."""
    key: str = ""
    """Top-level key that contains the type; default: the type is the whole file."""


class ReferencePage(NamedTuple):
    """Reference page, with its title and entries."""

    title: str
    entries: tuple[Entry, ...]


_STUDY = "`config.yaml`, `studies/*.yaml`"

PAGES: dict[str, ReferencePage] = {
    "study": ReferencePage("The study", (Entry("A study", Study, _STUDY, "studies/quick.yaml"),)),
    "study-layouts": ReferencePage(
        "Training plans in a study",
        (Entry("`layouts`", LayoutStudy, _STUDY, "studies/llama-3.1.yaml", "layouts"),),
    ),
    "study-plans": ReferencePage(
        "Piper's plans in a study", (Entry("`plans`", PlanStudy, _STUDY, "studies/piper.yaml", "plans"),)
    ),
    "study-tiled": ReferencePage(
        "Tiled accelerators in a study", (Entry("`tiled`", TiledStudy, _STUDY, "studies/palm.yaml", "tiled"),)
    ),
    "study-maps": ReferencePage(
        "Partitions and mappings in a study",
        (Entry("`maps`", Maps, _STUDY, "studies/parmesan.yaml", "maps"),),
    ),
    "models": ReferencePage(
        "Models",
        (
            Entry("A transformer", Model, "`models/*.yaml`", "models/llama-3.1-8b.yaml"),
            Entry("A residual network", ResNet, "`models/*.yaml`", "models/resnet-50.yaml"),
            Entry("A segmentation network", SemanticFpn, "`models/*.yaml`", "models/semantic-fpn.yaml"),
            Entry("A Swin transformer", Swin, "`models/*.yaml`", "models/swin-l.yaml"),
            Entry("A PyTorch module to trace", TorchModule, "`torch/*.yaml`", "torch/resnet-50.yaml"),
            Entry(
                "A traced model",
                Traced,
                "JSON",
                "phaze trace config/torch/gpt2.yaml --run-code --layers -o traced.json",
            ),
        ),
    ),
    "architectures": ReferencePage(
        "Architectures",
        (
            Entry("An architecture", Architecture, "`architectures/*.yaml`", "architectures/tpu-v4.yaml"),
            Entry("A technology", Technology, "`technologies/*.yaml`", "technologies/22nm.yaml"),
        ),
    ),
    "systems": ReferencePage(
        "Systems",
        (
            Entry("A system of devices on levels", Cluster, "`systems/*.yaml`", "templates/system.yaml"),
            Entry("A system with a flat network", System, "`systems/*.yaml`", "systems/paper.yaml"),
            Entry(
                "A system given by a matrix of bandwidths",
                Matrix,
                "`systems/*.yaml`",
                "bandwidths_bytes_per_s: [[0, 25.0e+9], [25.0e+9, 0]]  # two devices\nlatency_s: 5.0e-6",
            ),
            Entry("A system of tiles", TiledSystem, "`systems/*.yaml`", "systems/wafer.yaml"),
            Entry("Measured collectives of NCCL", NcclSpeeds, "`networks/*.yaml`", "networks/nvlink-4.yaml"),
        ),
    ),
    "devices": ReferencePage(
        "Devices",
        (
            Entry(
                "A device of three figures",
                DeviceFigures,
                "`devices/*.yaml`",
                "templates/device.yaml",
            ),
            Entry("A device", Device, "`devices/*.yaml`", "devices/v100-32gb.yaml"),
            Entry("A chip of tiles", TiledDevice, "`devices/*.yaml`", "devices/wafer-tile.yaml"),
        ),
    ),
    "stacks": ReferencePage(
        "Software stacks", (Entry("A software stack", Stack, "`stacks/*.yaml`", "stacks/megatron-core.yaml"),)
    ),
    "topologies": ReferencePage(
        "Topologies",
        (
            Entry(
                "A topology with levels",
                topology.LevelTopology,
                "`topologies/*.yaml`",
                "topologies/two-level.yaml",
            ),
            Entry(
                "A topology of nodes with links of their own",
                topology.Nodes,
                "`topologies/*.yaml`",
                "topologies/dgx-1.yaml",
            ),
            Entry(
                "A mesh or a torus",
                topology.MeshOrTorus,
                "`topologies/*.yaml`",
                "topologies/torus-2d.yaml",
            ),
            Entry(
                "Random nodes",
                topology.RandomBlocks,
                "`topologies/*.yaml`",
                "topologies/random-blk-1.yaml",
            ),
            Entry(
                "Random pairs",
                topology.UniformDist,
                "`topologies/*.yaml`",
                "topologies/uniform-dist.yaml",
            ),
            Entry(
                "A topology from a file",
                topology.MatrixFile,
                "`topologies/*.yaml`",
                "kind: file\npath: measured.csv  # next to this file\nunit_bytes_per_s: 1.0e+9",
            ),
        ),
    ),
    "measured": ReferencePage(
        "Measured runs", (Entry("Measured runs", PublishedRuns, "`measured.yaml`", "measured.yaml"),)
    ),
    "partitions": ReferencePage(
        "Operators, stages and mappings",
        (
            Entry(
                "A graph of operators",
                StoredOperators,
                "JSON",
                "phaze partition bert-large --stages 8 --graph-out graph.json",
            ),
            Entry("Stages", StoredStages, "JSON", "phaze partition bert-large --stages 8 -o stages.json"),
            Entry(
                "A mapping",
                StoredMapping,
                "JSON",
                "phaze map stages.json --topology two-level -o map.json",
            ),
        ),
    ),
    "training-plan": ReferencePage(
        "Training plans",
        (
            Entry(
                "A training plan",
                TrainingPlan,
                "JSON",
                "phaze plan llama-3.1-8b --gpus 64xH100 -o PLAN.json",
            ),
        ),
    ),
}


LONGEST_EXAMPLE = 24
"""Maximum lines of an example file on a page."""

_INDEX = """# Configuration

Which page do I open?

- All commands: [commands](commands.md), which says what each does, prints and assumes.
- My cluster, chip or model as a file: [systems](reference/systems.md), [devices](reference/devices.md),
  [models](reference/models.md).
- CSV files of runs or kernels, plan files: [file formats](formats.md).
- How far off predictions of training runs are, and what is modelled: [accuracy](accuracy.md).
- What is modelled of an accelerator: [accelerators](assumptions.md).
- Running a study, reading its report: [running studies](running.md).
- The code: [architecture](architecture.md), [contributing](../CONTRIBUTING.md).
- What there is, with sources: [systems](systems/README.md), [studies](studies/README.md),
  [recipes](recipes/README.md), [measured runs](measured/README.md), [publications](published/README.md).

Other files here: `config.yaml` is the default study, `templates` has a device and a system to copy, and
`profiles` runs studies on clusters. `errors.csv` has the errors of predicted step times, from which intervals
are computed; `other-tools.csv` has predictions of other tools.

## Keys of files

Each page lists all keys of a kind of file, with an example. The file of a study has five pages, one for the
study and one for each large section. Editors complete and check the keys of a study with
[schema.json](schema.json).

| page | sections | files |
|---|---|---|
"""
_OTHERS = """
These pages of keys and this one are generated: `python -m phaze.spec.config --write`.
"""
_HEAD = """# {title}

Generated by `python -m phaze.spec.config --write`; the [index](../README.md) lists all pages. `NAME` in a
heading stands for a name of your choice.
"""
_LIMITS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}


@dataclass
class _Section:
    """Section of a page, with its heading and type."""

    heading: str
    noun: type[Noun]
    entry: Entry | None = None
    """Page entry of the type; None for a type nested in another."""


@dataclass
class _Links:
    """Markdown links from class names to the sections that describe the classes, on any page."""

    targets: dict[str, str] = field(default_factory=dict)
    """Link target by class name."""

    def link(self, name: str) -> str:
        """Class name as Markdown, linked if a section describes the class."""
        return f"[{name}]({self.targets[name]})" if name in self.targets else name


def generated_files(folder: Path) -> dict[Path, str]:
    """Contents of all generated configuration files, by path."""
    schema = json.dumps(Study.model_json_schema(), indent=2, sort_keys=True) + "\n"
    pages = {folder / f"reference/{name}.md": _page(page, folder) for name, page in PAGES.items()}
    return {folder / "schema.json": schema, folder / "README.md": _index(), **pages}


def _index() -> str:
    """Markdown index of the reference pages."""
    rows = [
        f"| [{page.title}](reference/{name}.md) | {'; '.join(entry.title for entry in page.entries)} "
        f"| {', '.join(dict.fromkeys(entry.files for entry in page.entries))} |\n"
        for name, page in PAGES.items()
    ]
    return _INDEX + "".join(rows) + _OTHERS


def _page(page: ReferencePage, folder: Path) -> str:
    sections = list(_page_sections(page))
    links = _Links({e.noun.__name__: f"{other}.md" for other, p in PAGES.items() for e in p.entries})
    anchors: dict[str, int] = {}
    for section in sections:
        links.targets[section.noun.__name__] = f"#{_anchor(section.heading, anchors)}"
    return _HEAD.format(title=page.title) + "".join(_text(section, links, folder) for section in sections)


def _page_sections(page: ReferencePage) -> Iterator[_Section]:
    """Yield the sections of a page: each entry followed by its nested types, without repeats."""
    seen = {entry.noun for other in PAGES.values() for entry in other.entries}
    for entry in page.entries:
        yield _Section(entry.title, entry.noun, entry)
        prefix = f"{entry.key}." if entry.key else ""
        yield from (_Section(*inner) for inner in _sections(entry.noun, prefix, seen))


def _sections(noun: type[Noun], path: str, seen: set[type[Noun]]) -> Iterator[tuple[str, type[Noun]]]:
    """Yield heading and type for each section nested in a type, except those already seen."""
    for name, described in noun.model_fields.items():
        for key, inner in _nouns(described.annotation, path + name):
            if inner not in seen:
                seen.add(inner)
                yield f"`{key}`", inner
                yield from _sections(inner, f"{key}.", seen)


def _nouns(annotation: object, key: str) -> Iterator[tuple[str, type[Noun]]]:
    if isinstance(annotation, type) and issubclass(annotation, Noun):
        yield key, annotation
    for part in get_args(annotation):
        yield from _nouns(part, f"{key}.NAME" if get_origin(annotation) is dict else key)


def _anchor(heading: str, used: dict[str, int]) -> str:
    """Anchor that GitHub gives a heading; repeated headings are numbered."""
    anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    used[anchor] = used.get(anchor, -1) + 1
    return f"{anchor}-{used[anchor]}" if used[anchor] else anchor


def _text(section: _Section, links: _Links, folder: Path) -> str:
    """Markdown of a section: heading, summary, example and table of keys."""
    entry, noun = section.entry, section.noun
    about = " ".join((noun.__doc__ or "").partition("\n\n")[0].split())
    text = f"\n{'##' if entry else '###'} {section.heading}\n\n{about}\n"
    if entry:
        text += f"\n{_example(entry, folder)}"
    return f"{text}\n{_table(noun, links)}"


def _example(entry: Entry, folder: Path) -> str:
    """Location of the type's files, and an example: YAML, or the command that writes such a file."""
    where = f"Files: {entry.files}." if entry.files else ""
    if entry.example.startswith("phaze "):
        return f"{where} Written by:\n\n```sh\n{entry.example}\n```\n"
    if not entry.example.endswith(".yaml"):
        return f"{where} Example:\n\n```yaml\n{entry.example}\n```\n"
    lines = _lines(folder / entry.example, entry.key)
    shown = [*lines[:LONGEST_EXAMPLE], "# …"] if len(lines) > LONGEST_EXAMPLE else lines
    body = "\n".join(shown)
    link = f"[{entry.example}](../{entry.example})"
    return f"{where} Example, {link}:\n\n```yaml\n{body}\n```\n"


def _lines(file: Path, key: str) -> list[str]:
    """Lines of a YAML file, or only those of one top-level key."""
    lines = file.read_text(encoding="utf-8").rstrip().splitlines()
    if not key:
        return lines
    start = next(k for k, line in enumerate(lines) if line.startswith(f"{key}:"))
    inside = [line.startswith((" ", "#")) or not line for line in lines[start + 1 :]]
    return lines[start : start + 1 + ([*inside, False].index(False))]


def _table(noun: type[Noun], links: _Links) -> str:
    """Markdown table of a type's keys."""
    lines = ["| key | default | allowed | meaning |\n|---|---|---|---|\n"]
    properties, about_fields = noun.model_json_schema().get("properties", {}), noun.documentation()
    for name, described in noun.model_fields.items():
        default = (
            "required"
            if described.is_required()
            else f"`{_default(described.get_default(call_default_factory=True))}`"
        )
        meaning = " ".join(about_fields.get(name, "").split())
        lines.append(f"| `{name}` | {default} | {_allowed(properties[name], links)} | {meaning} |\n")
    return "".join(lines)


def _default(value: object) -> str:
    if isinstance(value, Noun):
        return "see below"
    if isinstance(value, dict):
        return json.dumps(dict.fromkeys(value, "…"), ensure_ascii=False)
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _allowed(schema: dict[str, object], links: _Links) -> str:
    """Allowed values of a field, from its JSON schema."""
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " \\| ".join(f"`{v}`" for v in schema["enum"])  # type: ignore[attr-defined]
    if "anyOf" in schema:
        return " or ".join(_allowed(s, links) for s in schema["anyOf"])  # type: ignore[attr-defined]
    if "$ref" in schema:
        return links.link(str(schema["$ref"]).rsplit("/", 1)[-1])
    if schema.get("type") == "array":
        return f"list of {_allowed(schema.get('items', {}), links)}"  # type: ignore[arg-type]
    if values := _values(schema):
        return f"object of {_allowed(values, links)}"
    limits = [f"{sign} {schema[key]:g}" for key, sign in _LIMITS.items() if key in schema]
    return " ".join([str(schema.get("type", "any")), *limits])


def _values(schema: dict[str, object]) -> dict[str, object]:
    """Schema of the values of a mapping with arbitrary keys; empty if any value is allowed."""
    patterns = schema.get("patternProperties") or {"": schema.get("additionalProperties")}
    (values, *others) = patterns.values()  # type: ignore[attr-defined]
    return values if isinstance(values, dict) and not others else {}
