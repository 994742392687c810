"""A configuration is accepted and gives valid tables, or is refused with one message."""

from __future__ import annotations

import copy
import json
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.config import FOLDER, load_settings
from phaze.spec.models import AnyModel, load_model
from phaze.spec.settings import ExtractSettings
from phaze.workload.models import extract_graph, extract_workload
from tests.effort import DRAWS
from tests.fuzz import TROUBLES, fuzz, table
from tests.workflow.folders import STUDY, TINY

PUBLISHED = sorted((Path(__file__).parents[1] / "data" / "huggingface").glob("*/config.json"))
ACCEPTED = 0.3
"""Minimum share of accepted ones, so that the test does not only cover refusals."""

Config = dict[str, object]
ODD = (
    None, True, False, 0, -1, 1, 1.5, 1e300, float("inf"), float("nan"), 2**31, 2**63, 10**40, "", "x", "64",
    "inf", "../x", "/etc/passwd", "tpu-v4", "gelu", "a" * 500, "\u0000", "ä\n", [], {}, [1], [[]], ["tiny"],
    [1, 1], [None], {"x": 1}, {"": {}}, {"tiny": None},
)  # fmt: skip
"""Unexpected values."""
KEYS = ("x", "", "models", "layers", "n_experts", "__class__", "../x", "ä")


def places(config: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Return the paths of all that is in a configuration."""
    found = [path] if path else []
    if isinstance(config, dict):
        for key, value in config.items():
            found += places(value, (*path, key))
    elif isinstance(config, list):
        for i, value in enumerate(config):
            found += places(value, (*path, i))
    return found


def put(config: object, path: tuple[object, ...], value: object) -> None:
    for key in path[:-1]:
        config = config[key]  # type: ignore[index]
    config[path[-1]] = value  # type: ignore[index]


def at(config: object, path: tuple[object, ...]) -> object:
    for key in path:
        config = config[key]  # type: ignore[index]
    return config


def likely(value: object) -> tuple[object, ...]:
    """Return plausible replacements of a value."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return tuple(max(1, n) for n in (value * 2, value // 2, value * 3, 1, 2, 8, 64))
    if isinstance(value, float):
        return (value / 2, value * 2, 0.0, 0.5)
    return (value,)


@st.composite
def changed(draw: st.DrawFn, bases: list[Config]) -> Config:
    """Draw a configuration with up to three changes, plausible ones twice as often as unexpected ones."""
    config = copy.deepcopy(draw(st.sampled_from(bases)))
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(places(config)))
        kind = draw(st.sampled_from(("likely", "likely", "likely", "likely", "odd", "delete", "add")))
        if kind == "likely":
            put(config, path, draw(st.sampled_from(likely(at(config, path)))))
        elif kind == "odd":
            put(config, path, copy.deepcopy(draw(st.sampled_from(ODD))))
        elif kind == "delete" and isinstance(path[-1], str):
            del at(config, path[:-1])[path[-1]]  # type: ignore[attr-defined]
        else:
            section = at(config, path)
            if isinstance(section, dict):
                section[draw(st.sampled_from(KEYS))] = copy.deepcopy(draw(st.sampled_from(ODD)))
        if not places(config):
            break
    return config


def make_tables(model: AnyModel, sequence: int, layout: Layout, how: ExtractSettings) -> None:
    """Make the tables of a model, which extraction validates; none is empty."""
    found = extract_workload(model, sequence, layout, how)
    for name in ("operators", "parts", "edges", "layers"):
        assert len(found.tables[name]), name
    assert len(extract_graph(model))


def kept(given: object, found: object) -> bool:
    """Return whether all given values are unchanged: none was dropped, replaced or converted."""
    if isinstance(given, dict):
        if not isinstance(found, dict):
            return False
        return all(str(key) in found and kept(value, found[str(key)]) for key, value in given.items())
    if isinstance(given, list):
        return isinstance(found, list) and len(given) == len(found) and all(map(kept, given, found))
    if isinstance(given, bool) or isinstance(found, bool):
        return given is found
    if isinstance(given, (int, float)):
        return isinstance(found, (int, float)) and given == found
    return given == found


class Tally:
    """Outcomes of the configurations of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.counts: Counter[str] = Counter()

    def of(self, work: Callable[[], object], *files: str) -> None:
        """Run a configuration; a refusal names one of the files in every line."""
        try:
            work()
        except PhazeError as error:
            lines = str(error).splitlines() or [""]
        else:
            lines = []
        for line in lines:
            assert line.startswith(files), line
            assert len(line) < 1000, line
        self.counts["refused" if lines else "accepted"] += 1

    def close(self) -> None:
        """Assert that enough configurations were tried and accepted."""
        total = self.counts.total()
        print(f"{self.kind}: {total} configurations, {dict(self.counts)}")  # noqa: T201
        assert total >= DRAWS
        assert self.counts["accepted"] >= ACCEPTED * total, self.counts


MANY = settings(suppress_health_check=list(HealthCheck))


def test_hugging_face_configurations(tmp_path: Path) -> None:
    tally = Tally("Hugging Face")
    path = tmp_path / "config.json"

    @MANY
    @given(changed([json.loads(file.read_text()) for file in PUBLISHED]))
    def try_one(config: Config) -> None:
        path.write_text(json.dumps(config))
        tally.of(
            lambda: make_tables(load_model(path, "m"), 16, Layout(), ExtractSettings()), str(path), "model m"
        )

    try_one()
    tally.close()


@pytest.mark.slow
def test_model_specs(tmp_path: Path) -> None:
    tally = Tally("model specs")
    path = tmp_path / "m.yaml"

    def run(config: Config) -> None:
        model = load_model(path)
        assert kept(config, model.model_dump(mode="json")), config
        make_tables(model, 16, Layout(microbatch=2), ExtractSettings())

    bases = [yaml.safe_load(file.read_text()) for file in sorted((FOLDER / "models").glob("*.yaml"))]

    @MANY
    @given(changed([dict(TINY), *bases]))
    def try_one(config: Config) -> None:
        path.write_text(yaml.safe_dump(config))
        tally.of(lambda: run(config), str(path), "model ")

    try_one()
    tally.close()


@pytest.mark.slow
def test_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally("studies")
    folder = FOLDER.resolve()
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY))

    def run(config: Config) -> None:
        found = load_settings(config, folder, "study.yaml")
        assert kept(config, found.study.model_dump(mode="json")), config
        for name in found.study.models[:1]:
            layout = found.layouts(name)[-1]
            sequence = found.workload(name).sequence
            make_tables(found.models[name], sequence, layout, found.study.extract)

    @MANY
    @given(changed([json.loads(json.dumps(STUDY))]))
    def try_one(config: Config) -> None:
        tally.of(lambda: run(config), "study.yaml", "tiny.yaml", str(folder))

    try_one()
    tally.close()


OUTSIDE = {
    "a path for a name": ("scenarios", {"paper": {"system": "../secret"}}),
    "an absolute path for a name": ("scenarios", {"paper": {"system": "/etc/passwd"}}),
    "a device beside": ("scenarios", {"paper": {"system": "up.yaml"}}),
    "a device by its full path": ("scenarios", {"paper": {"system": "full.yaml"}}),
    "a device by a link": ("scenarios", {"paper": {"system": "link.yaml"}}),
    "an input above its folder": ("plans", "../secret.yaml"),
    "an input by its full path": ("plans", "/etc/passwd"),
    "an input by a link": ("plans", "linked.json"),
}


@pytest.mark.parametrize(("key", "value"), OUTSIDE.values(), ids=OUTSIDE)
def test_no_file_reaches_outside_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: object
) -> None:
    folder = FOLDER.resolve()
    mine = tmp_path / "mine"
    (mine / "inputs").mkdir(parents=True)
    monkeypatch.chdir(mine)
    (tmp_path / "secret.yaml").write_text((folder / "devices/a100-80gb.yaml").read_text())
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY))
    Path("linked.yaml").symlink_to(tmp_path / "secret.yaml")
    Path("inputs/linked.json").symlink_to(tmp_path / "secret.yaml")
    levels = [{"devices": 8, "bandwidth_bytes_per_s": 1.0e9}]
    for name, device in {"up": "../secret.yaml", "full": "/etc/x.yaml", "link": "linked.yaml"}.items():
        Path(f"{name}.yaml").write_text(yaml.safe_dump({"device": device, "levels": levels}))
    case = {
        "input": "i",
        "show": "table",
        "microbatches": [2],
        "clusters": [{"devices": [2], "memory_gib": [1]}],
    }
    plans = {"folder": "inputs", "inputs": {"i": {"label": "I", "file": value}}, "cases": {"c": case}}
    config = {**STUDY, key: plans if key == "plans" else value}
    with pytest.raises(PhazeError, match=r"is outside|there is no system"):
        load_settings(config, folder, "study.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "layers: !!python/object/apply:os.system ['touch ran']",
        "layers: !!python/name:os.system",
        "!!python/object/new:subprocess.Popen [[touch, ran]]",
    ],
)
def test_yaml_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.yaml").write_text(text)
    with pytest.raises(PhazeError, match=r"m\.yaml: is not valid YAML: could not determine a constructor"):
        load_model("m.yaml")
    assert not Path("ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numbers", "least", "verbs"), [(2 * DRAWS, 0, ()), (0, DRAWS, ("emit", "read", "compare"))]
)
def test_verbs_answer_or_refuse_anything(numbers: int, least: int, verbs: tuple[str], tmp_path: Path) -> None:
    """Cases of `python -m tests.fuzz`, which draws thousands, and more of changed plans and flags."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as a user's Python has it
        found = fuzz(tmp_path, range(numbers), least, verbs)
    total = sum(found.values(), Counter())
    assert total["cases"] == numbers + least * len(verbs)
    assert total["answered"] > total["cases"] / 20
    assert not any(total[trouble] for trouble in TROUBLES), table(found)


def test_aliases_of_aliases_neither_fill_the_memory_nor_hang(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    (tmp_path / "m.yaml").write_text("\n".join([*lines, "layers: *a29"]))
    with pytest.raises(PhazeError, match=r"m\.yaml: layers: must be a whole number"):
        load_model(tmp_path / "m.yaml")
