"""Jobs that a change of the study of `make quick` runs again; its architectures share no job."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from phaze.commands.study import read_counts
from tests.workflow.conftest import Prepare
from tests.workflow.folders import ROOT, Folder

pytestmark = pytest.mark.workflow

POD, MODEL = "tpu-v4-pod", "bert-large.yaml"
CHAIN = {"estimate": 4, "schedule": 4, "screen": 4, "place": 4}
"""Jobs of an architecture, with one for each of four microbatches."""
POINTS = {"screen": 12, "place": 12}
"""Jobs of three architectures that depend on the whole model and cluster."""
TIMED = dict.fromkeys(
    ("choose_common", "place_common", "certify", "certify_common", "vary", "audit", "simulate", "read",
     "report", "report_papers"), 1,
)  # fmt: skip
"""Jobs that join all microbatches and architectures, and what follows from them."""
JOINS = {"find_common": 1, **TIMED}
CHOICE = {"choose_chip": 1, "report_chips": 1}
"""Jobs that join the searches of all models for a chip."""
MICROBATCH = {"extract": 1, "estimate": 3, "schedule": 3, "screen": 3, "place": 3}
"""Jobs of a microbatch on three architectures."""


def put(path: str, value: object) -> Callable[[dict], None]:
    """Return a change of a value of the study, by its keys."""

    def change(study: dict) -> None:
        *sections, key = path.split("/")
        for name in sections:
            study = study.setdefault(name, {})
        study[key] = value

    return change


def add_architecture(study: dict) -> None:
    study["architectures"]["named"].append("spotlight-bert-large")


def add_model(study: dict) -> None:
    study["models"].append("gpt2-xl")
    study["workloads"]["gpt2-xl"] = {"model": "gpt2-xl", "sequence": 1024}


def add_chip_model(study: dict) -> None:
    study["chips"]["models"].append("bert")
    study["chips"]["workloads"]["bert"] = study["chips"]["workloads"]["gpt2"] | {"model": "bert-large"}


def put_note(study: dict) -> None:
    study["chips"]["ladder"][0]["note"] = "another sentence"


CHANGES = {
    "one more named architecture": (
        add_architecture,
        {"enumerate_architectures": 1} | CHAIN | JOINS,
    ),
    "another HBM size": (put("training/hbm_gib", [32, 64, 80, 96]), TIMED),
    "another network bandwidth": (
        put(f"scenarios/{POD}/network_bandwidth_bytes_per_s", 3e11),
        POINTS | JOINS,
    ),
    "another global batch": (put(f"scenarios/{POD}/global_batch", 2048), POINTS | JOINS),
    "another area limit": (put(f"scenarios/{POD}/area_limit_mm2", 900), JOINS),
    "one more microbatch": (put("training/microbatches", [1, 2, 4, 8, 16]), MICROBATCH | JOINS),
    "another limit of the solver": (
        put("schedule/node_limit", 12345),
        {"schedule": 12, "place": 12} | TIMED,
    ),
    "a chip for one more model": (add_chip_model, {"search_chips": 1, "plan_on_chip": 2} | CHOICE),
    "one more architecture to compare with": (
        put("chips/compared", ["tpu-v4-as-built", "tpu-v4"]),
        {"plan_on_chip": 1} | CHOICE,
    ),
    "a note of the ladder": (put_note, {"report_chips": 1}),
}
"""Changes of the study, each with its jobs by rule."""


def shrink_chips(study: dict) -> None:
    """Search one chip for two devices and short samples: the sizes of a search change no job."""
    chips = study["chips"]
    slow, fast = (rung["changes"] for rung in chips["ladder"])
    model, network = chips["workloads"]["gpt2"], chips["scenarios"]["eight"]
    for sizes in (model, slow):
        sizes |= {"devices": 2, "sequence": 128, "global_batch": 4, "gap": 0.05}
    for space in (network, slow):
        space |= {
            "hbm_gib": [16],
            "designs": space["designs"] | {"grid": {"num_tc": [16], "pe_x": [128], "pe_y": [128]}},
        }
    for levels in (network, slow, fast):
        levels["levels"][0]["devices"] = 2


@pytest.fixture(scope="session", name="quick")
def folder_of_the_quick_study(prepare: Prepare) -> Folder:
    """Return a folder in which the study of `make quick` has run, with a model file of its own."""
    study = yaml.safe_load((ROOT / "config/studies/quick.yaml").read_text())
    shrink_chips(study)
    default = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    kept = {name: default[name] for name in ("scenarios", "training")}
    workload = default["workloads"]["bert-large"] | {"model": f"./{MODEL}"}
    files = {MODEL: (ROOT / "config/models" / MODEL).read_text()}
    changes = kept | study | {"workloads": {"bert-large": workload}, "schedule": {}}
    return prepare("quick", files=files, **changes)


@pytest.fixture(name="changed")
def copy_of_the_quick_study(quick: Folder, tmp_path: Path) -> Folder:
    """Return a folder of its own in which the study has run."""
    return quick.copy(tmp_path / "study")


def jobs_of(folder: Folder) -> dict[str, int]:
    """Return the number of jobs that would run, by rule, without the target."""
    counts = read_counts(folder.snakemake("--dry-run", "--quiet", "rules").output)
    return {rule: number for rule, number in counts.items() if rule not in ("all", "total")}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_runs_the_jobs_that_depend_on_it_and_no_others(name: str, changed: Folder) -> None:
    change, jobs = CHANGES[name]
    changed.edit(change)
    assert jobs_of(changed) == jobs
    # The target itself is among the jobs that the page counts.
    assert f"| {name} | {sum(jobs.values()) + 1} |" in (ROOT / "config/running.md").read_text()


def test_another_number_of_layers_runs_nothing_that_is_per_layer(changed: Folder) -> None:
    changed.edit(put("layers", 20), MODEL)
    jobs = {"extract_graph": 1} | POINTS | JOINS
    assert jobs_of(changed) == jobs
    row = f"| another number of layers | {sum(jobs.values()) + 1} |"
    assert row in (ROOT / "config/running.md").read_text()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (
            "schedule/node_limit",
            12345,
            "before: 'schedule.node_limit: 20000' now: 'schedule.node_limit: 12345'",
        ),
        (
            "training/microbatches",
            [1, 2, 4, 8, 16],
            "before: <nothing exclusive> now: 'training.microbatches: 16'",
        ),
    ],
)
def test_the_reason_of_a_job_names_the_setting_that_changed(
    key: str, value: object, reason: str, changed: Folder
) -> None:
    changed.edit(put(key, value))
    output = changed.snakemake("--dry-run").output
    reasons = re.findall(
        r"Params have changed since last execution: .*: (before: .*?) *(?:;|$)", output, re.M
    )
    assert set(reasons) == {reason}


def evaluated(folder: Folder, log: str) -> tuple[int, int]:
    """Return the number of architectures that a job evaluated, and of those that it looked up, by its log."""
    text = (folder.path / f"results/logs/{log}.log").read_text()
    counts = re.findall(r"(\d+) of (\d+) architectures are evaluated", text)
    misses, total = (sum(map(int, column)) for column in zip(*counts, strict=True))
    return misses, total - misses


def test_one_more_architecture_is_all_that_joining_jobs_evaluate(changed: Folder) -> None:
    """Misses and hits of the store: the new architecture, and those that are known, for four microbatches."""
    common = f"placements/{POD}/bert-large/common"
    known, hits = evaluated(changed, common)
    assert (known, hits) == (12, 0)
    changed.edit(add_architecture)
    changed.run(f"results/{common}.parquet")
    assert evaluated(changed, common) == (4, known)
