"""The Python API asks what the commands ask, with their defaults, and its results suit notebooks."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import get_type_hints

import pandas as pd
import pytest

import phaze
from phaze import api
from phaze.commands.chip_options import ChipOptions
from phaze.commands.emit import ReadOptions
from phaze.commands.place_options import PlaceOptions
from phaze.commands.plan_options import PlannersOptions, PlanOptions
from phaze.formulas.piper.choices import PiperChoices
from phaze.spec.documents import read_as
from phaze.spec.training_plan import TrainingPlan
from tests.commands import invoke

QUESTIONS = (
    (
        "--gpus 8xH100 --gbs 16 --seq-length 32 --top 2",
        {"gpus": "8xH100", "global_batch": 16, "sequence": 32, "top": 2},
    ),
    (
        "--system h100 --nodes 1,2 --gbs 16 --fix pp=1,cp=1,tp=1 --tokens 1G --price 2USD --mtbf 50000",
        {
            "system": "h100", "nodes": [1, 2], "global_batch": "16", "fix": "pp=1,cp=1,tp=1",
            "tokens": "1G", "price": "2USD", "mtbf_hours": 50000,
        },
    ),
    (
        "--gpus 8xa100 --runtime torchtitan --rank expected --batch-tokens 64k --fix pp=1,cp=1",
        {
            "gpus": "8xa100", "runtime": "torchtitan", "rank": "expected", "batch_tokens": "64k",
            "fix": "pp=1,cp=1",
        },
    ),
)  # fmt: skip


@pytest.mark.parametrize(("command", "options"), QUESTIONS, ids=[command for command, _ in QUESTIONS])
def test_a_plan_from_python_is_that_of_the_command(
    model: str, command: str, options: dict[str, object]
) -> None:
    answer = phaze.plan(model, **options)
    assert json.loads(answer.to_json()) == json.loads(
        invoke("plan", model, *command.split(), "--json").stdout
    )


@pytest.fixture(scope="module", name="answer")
def planned(model: str) -> phaze.PlanAnswer:
    return phaze.plan(model, gpus="8xH100", global_batch=16, sequence=64)


def test_results_are_tables_pages_flags_and_files(answer: phaze.PlanAnswer, tmp_path: Path) -> None:
    table = answer.table()
    assert table["time_s"].iloc[0] == answer.best.time_s
    assert {"tp", "pp", "dp", "devices", "memory_gib"} <= {*table.columns}
    assert answer.flags("megatron").count("--num-layers ") == 1
    assert "<table>" in answer._repr_html_()
    assert str(answer).startswith("tiny on 8 h100")
    (tmp_path / "plan.json").write_text(answer.to_json())
    assert read_as(TrainingPlan, tmp_path / "plan.json") == answer.best
    answer.page(tmp_path / "plan.html")
    assert "<!doctype html" in (tmp_path / "plan.html").read_text().lower()


def test_a_run_is_read_and_compared_as_by_the_commands(tmp_path: Path) -> None:
    answer = phaze.plan("gpt2", gpus="8xH100", global_batch=16, sequence=256, fix="pp=1,cp=1,tp=1", top=1)
    flags, planned = tmp_path / "flags.txt", tmp_path / "plan.json"
    flags.write_text(answer.flags())
    planned.write_text(answer.to_json())
    run = phaze.read(answer.flags(), gpus="8xH100")
    (row,) = run.table().to_dict("records")
    command = json.loads(invoke("read", flags, "--for", "megatron", "--gpus", "8xH100", "--json").stdout)
    assert json.loads(phaze.read(flags, gpus="8xH100").to_json()) == command
    assert row["time_s"] == command["time_s"]
    told = invoke("compare", flags, planned, "--json").stdout
    for compared in (phaze.compare(flags, planned), phaze.compare(flags, answer)):
        assert json.loads(compared.to_json()) == json.loads(told)
    assert "the run takes" in str(phaze.compare(flags, answer.best))


def test_a_model_is_placed_as_by_the_command(model: str) -> None:
    fixed = "tp=2,pp=1,cp=1,zero=1"
    command = ("place", "-m", model, "--devices", "8", "--gbs", "32", "--fix", fixed, "-a", "tpu-v4")
    placed = phaze.place(model, architecture="tpu-v4", devices=8, global_batch=32, fix=fixed)
    assert json.loads(placed.to_json()) == json.loads(invoke(*command, "--json").stdout)
    assert placed.best.planners
    with pytest.raises(phaze.PhazeError, match="architecture: must be one"):
        phaze.place(model, architecture="tpu-v4,tpu-v4-as-built", devices=8)


def test_runs_of_a_frame_are_predicted_and_validated(tmp_path: Path) -> None:
    runs = pd.DataFrame({
        "hidden": [4096], "heads": [32], "layers": [32], "seq": [4096], "vocab": [32000], "gpus": [8],
        "global_batch": [16], "tp": [8], "microbatch": [1], "measured_s": [2.0],
    })  # fmt: skip
    runs.to_csv(tmp_path / "runs.csv", index=False)
    predicted = phaze.simulate(runs, system="H100")
    invoke("simulate --runs", tmp_path / "runs.csv", "--system", "h100", "-o", tmp_path / "out.csv")
    assert predicted["time_s"].iloc[0] == pytest.approx(pd.read_csv(tmp_path / "out.csv")["time_s"].iloc[0])
    checked = phaze.validate([tmp_path / "runs.csv"], system="h100")
    told = invoke("validate", tmp_path / "runs.csv", "--system", "h100", "--json").stdout
    assert json.loads(checked.to_json()) == json.loads(told)
    assert len(checked.runs) == 1


def names_of(noun: type) -> set[str]:
    return {field.name for field in fields(noun)}


OF_PLACEMENTS = {
    "model",
    "gpus",
    "as_json",
    "out",
    "page",
    "evidence",
    "sweep",
    "context",
    "instance",
    "planner",
}
OF_PLACEMENTS |= names_of(PiperChoices)


@pytest.mark.parametrize(
    ("typed", "noun", "elsewhere"),
    [
        (
            api.PlanFields,
            PlanOptions,
            {"model", "gpus", "as_json", "out", "page", "evidence"} | names_of(PlannersOptions),
        ),
        (api.ReadFields, ReadOptions, {"flags", "runtime", "gpus", "as_json", "out"}),
        (api.PlaceFields, PlaceOptions, OF_PLACEMENTS),
        (api.ChipFields, ChipOptions, {"models", "as_json", "out", "page"}),
    ],
)
def test_functions_have_exactly_the_options_of_their_commands(
    typed: type, noun: type, elsewhere: set[str]
) -> None:
    # Arguments are parameters, results are returned and not written, and instances are no models.
    assert {*get_type_hints(typed)} == names_of(noun) - elsewhere
    assert elsewhere < names_of(noun)


def test_misspelt_options_and_values_are_answered_with_similar_ones(model: str) -> None:
    with pytest.raises(TypeError, match="plan: no option global_bach; did you mean global_batch"):
        phaze.plan(model, gpus="8xH100", global_bach=8)  # type: ignore[call-arg]
    with pytest.raises(phaze.PhazeError, match=r"rank: must be one of .* did you mean robust"):
        phaze.plan(model, gpus="8xH100", rank="robst")  # type: ignore[arg-type]
    with pytest.raises(phaze.PhazeError, match=r"plan: must be a number, .*got 4X"):
        phaze.plan(model, gpus="8xH100", tokens="4X")
    with pytest.raises(phaze.PhazeError, match="top: must be >= 1"):
        phaze.plan(model, gpus="8xH100", top=0)


def test_without_a_plan_there_are_no_flags(model: str) -> None:
    answer = phaze.plan(model, gpus="8xH100", global_batch=1, fix="dp=1,tp=1,cp=1")
    assert answer.answers[0].format == "phaze-no-plan"
    assert str(answer)
    with pytest.raises(phaze.PhazeError, match="there is no plan"):
        answer.flags()


def test_public_names_are_listed_and_light_and_packages_stay_callable() -> None:
    code = """
import sys, time
begun = time.perf_counter()
import phaze
print(time.perf_counter() - begun < 0.15, *{"numpy", "pydantic", "typer", "phaze.api"} & {*sys.modules})
assert {*dir(phaze)} == {*phaze.__all__} == {*__import__("phaze.api").api.__all__}
function = phaze.plan
import phaze.plan.machines, phaze.validate.intervals
assert callable(phaze.plan) and callable(phaze.validate)
for call in (function, phaze.plan):
    try:
        call("gpt2-xxl", gpus="8xH100")
    except phaze.PhazeError as error:
        print(error.wrong.split(": ")[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True", *["there is no model 'gpt2-xxl'"] * 2]
    assert not hasattr(phaze, "planner")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gap": -0.5}, "gap: must be >= 0"),
        ({"gap": "wide"}, "gap: must be a number, got wide"),
        ({"top": 5000}, "top: must be <= 1000"),
        ({"top": 2.5}, "top: must be a whole number"),
    ],
)
def test_numbers_are_checked_as_on_the_command_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(phaze.PhazeError, match=message):
        phaze.plan("gpt2", gpus="8xH100", **options)  # type: ignore[arg-type]


def test_files_of_a_command_are_no_options_of_its_function() -> None:
    with pytest.raises(TypeError, match="plan: no option page"):
        phaze.plan("gpt2", gpus="8xH100", page="x.html")  # type: ignore[call-arg]


def test_flags_are_those_of_the_runtime_that_was_asked_for(answer: phaze.PlanAnswer) -> None:
    bridged = replace(answer, runtime="bridge")
    assert bridged.flags() == answer.flags("bridge") != answer.flags()
    with pytest.raises(phaze.PhazeError, match="flags: must be one of bridge, megatron"):
        answer.flags("torch")  # type: ignore[arg-type]


def test_schemas_of_files_are_printed(answer: phaze.PlanAnswer) -> None:
    for name in invoke("schema").stdout.split():
        assert json.loads(invoke("schema", name).stdout) == phaze.schema(name)
    assert json.loads(answer.to_json()).keys() - phaze.schema("plan")["properties"].keys() <= {"checksum"}
    with pytest.raises(phaze.PhazeError, match="did you mean plan"):
        phaze.schema("plam")


@pytest.mark.slow
def test_types_of_calls_are_checked_also_where_the_package_of_the_name_is_imported(tmp_path: Path) -> None:
    code = """
import phaze
import phaze.plan.machines

reveal_type(phaze.plan("gpt2", gpus="8xH100", tokens="15T"))
phaze.plan("gpt2", gpsu="8xH100")
"""
    (tmp_path / "user.py").write_text(code)
    # With the options of `make lint`, whose cache it then shares.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", tmp_path / "user.py"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert 'Revealed type is "phaze.api.PlanAnswer"' in done.stdout
    assert 'Unexpected keyword argument "gpsu"' in done.stdout
    assert "Found 1 error" in done.stdout
