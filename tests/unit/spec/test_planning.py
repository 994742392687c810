"""Plans of a study: its cases, their jobs, and messages for invalid values."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from phaze.base.errors import PhazeError
from phaze.papers.publications import PublishedPlans
from phaze.spec.config import load_settings
from phaze.spec.files import FOLDER
from phaze.spec.planning import PlanCase, PlanStudy
from tests.unit.spec.test_config import Change, Config, merged, put

STUDY = FOLDER / "studies" / "piper.yaml"


@pytest.fixture(name="config")
def piper_study() -> Config:
    base = yaml.safe_load((FOLDER / "config.yaml").read_text())
    return merged(base, yaml.safe_load(STUDY.read_text()))


def inputs_in(folder: Path) -> Change:
    for name in ("bert32a100.json", "gnmt.json", "resnet.json"):
        (folder / name).write_text("{}")
    return put("plans/folder", str(folder))


def test_without_the_folder_bert_is_our_own_and_the_table_is_missing(config: Config) -> None:
    settings = load_settings(config)
    assert list(settings.study.plans.made) == ["figure-1", "figure-2", "figure-2-table-1"]
    assert settings.models["bert-32"].parameters == pytest.approx(5.9e9, rel=0.005)
    bert = settings.models["bert-32"]
    block = bert.blocks[bert.runs[0][0]]
    assert block.parameters(bert.hidden, bert.norm_parameters(bert.hidden)).total() == 176_997_120


def test_with_the_folder_every_case_plans_its_file(config: Config, tmp_path: Path) -> None:
    inputs_in(tmp_path)(config)
    settings = load_settings(config)
    plans = settings.study.plans
    assert list(plans.made) == list(plans.cases)
    assert plans.file_of(plans.cases["table-1-gnmt"]) == tmp_path / "gnmt.json"
    assert not plans.stand_ins
    assert not settings.models


def test_a_file_that_the_folder_lacks_is_named(config: Config, tmp_path: Path) -> None:
    inputs_in(tmp_path)(config)
    (tmp_path / "gnmt.json").unlink()
    with pytest.raises(PhazeError, match=r"s\.yaml: plans\.folder: file .*gnmt\.json is missing"):
        load_settings(config, source="s.yaml")


def test_the_table_asks_for_every_printed_cluster_and_no_other(config: Config) -> None:
    printed = PublishedPlans.from_file(FOLDER / "published/piper-neurips-2021.yaml")
    cases = load_settings(config).study.plans.cases
    for name, rows in printed.table.items():
        points = cases[f"table-1-{name}"].points().values()
        clusters = {(k, point.memory_gib) for point in points for k in point.devices}
        assert clusters == {(row.devices, row.memory_gib) for row in rows}


def test_a_job_plans_all_devices_of_one_size_memory_and_batch() -> None:
    clusters = [{"devices": [2, 4], "memory_gib": [1, 1.5]}, {"devices": [4, 8], "memory_gib": [1]}]
    fields = {"input": "x", "show": "throughput", "repeat": [4, 6], "microbatches": [8, 16]}
    case = PlanCase.parse({**fields, "clusters": clusters}, "case")
    points = case.points()
    assert list(points) == [f"l{n}-m{m}-n{b}" for n in (4, 6) for b in (8, 16) for m in ("1", "1.5")]
    assert points["l4-m1-n8"].devices == (2, 4, 8)
    assert points["l6-m1.5-n16"].devices == (2, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("plans/cases", {}), "models: list at least one model; alternatively plans"),
        (
            put("plans/cases/figure-1/input", "bert-33"),
            r"plans: cases\.figure-1\.input: 'bert-33' is not among",
        ),
        (put("plans/cases/figure-1/planners", ["best"]), r"figure-1\.planners\.0: should be 'piper'"),
        (put("plans/cases/figure-1/microbatches", [0]), r"microbatches\.0: should be greater than 0, got 0"),
        (put("plans/cases/figure-1/clusters", []), r"figure-1\.clusters: .*at least 1 item"),
        (put("plans/inputs/x", {"label": "X"}), r"plans\.inputs\.x: give a file, or a model of the study"),
        (put("plans/inputs/bert-32/own/workload", "x"), r"inputs\.bert-32\.own\.workload: 'x' is not among"),
        (put("plans/inputs/bert-32/own/architecture", "x"), r"own\.architecture: 'x' is not among archit"),
    ],
)
def test_a_mistake_is_one_clear_message(config: Config, change: Change, message: str) -> None:
    change(config)
    with pytest.raises(PhazeError, match=message):
        load_settings(config, source="study.yaml")


CLAIM = {"statement": "S", "published": "P", "ours": "O"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"claims": [{"table": "cases", "claims": [CLAIM]}]},
            r"claims\.0\.claims\.0\.source: Field required",
        ),
        (
            {"claims": [{"table": "cases", "claims": [{**CLAIM, "source": "T", "holds": "f(ours)"}]}]},
            r"holds: must be made of columns, numbers, texts, comparisons and abs",
        ),
        (
            {"table": {"x": [{"devices": 1, "memory_gib": 1, "piper": "1e3", "equi": "OOM"}]}},
            r"table\.x\.0\.piper: must be a number as printed, or OOM, got '1e3'",
        ),
    ],
)
def test_printed_figures_have_their_digits_and_a_source(changes: Config, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        PublishedPlans.parse({"title": "T", "citation": "C", **changes}, "p.yaml")


def test_a_study_without_plans_plans_nothing() -> None:
    assert not PlanStudy().made
