"""Plans written for runtimes, and read back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from phaze.runtimes.deepspeed_config import OPTIONS
from phaze.spec.files import FOLDER
from tests.commands import assert_refused, invoke, invoke_json

MACHINE = "--gpus 16xh100 --global-batch 16 --sequence 2048"
FIXED = "tp=4,pp=2,cp=1,zero=0,recompute=none,microbatch=1"
TOLD = {"megatron": [], "torchtitan": ["--model", "llama-3.1-8b"]}


@pytest.mark.slow
@pytest.mark.parametrize("runtime", TOLD)
def test_what_a_runtime_is_told_is_read_back_as_the_same_run(runtime: str, tmp_path: Path) -> None:
    plan, told, row = tmp_path / "plan.json", tmp_path / "FLAGS.txt", tmp_path / "run.csv"
    command = f"plan llama-3.1-8b {MACHINE} --runtime {runtime} --fix {FIXED} --top 1 -o {plan}"
    assert invoke(command).exit_code == 0
    emitted = invoke(f"emit {plan} --for {runtime} -o {told}").stdout
    assert emitted == f"{told}: llama-3.1-8b on 16 devices for {runtime}\n"
    found = invoke_json(f"read {told} --for {runtime} --gpus 16xh100 -o {row}", *TOLD[runtime])
    planned = json.loads(plan.read_text())
    assert found["time_s"] == planned["time_s"]
    assert found["layout"] == planned["layout"]

    assert invoke(f"simulate --runs {row} -o {tmp_path}/simulated.csv").exit_code == 0
    simulated = pd.read_csv(tmp_path / "simulated.csv").iloc[0]
    assert simulated["time_s"] == pytest.approx(found["time_s"], rel=1e-9)
    workspace_gib = 32 / 1024  # which the allocator counts with the tensors
    assert simulated["memory_gib"] == pytest.approx(max(found["memory_gib"]) + workspace_gib, rel=1e-9)
    assert invoke_json(f"compare {row} {plan}")["steps"] == []


def test_a_plan_for_deepspeed_is_read_back_with_what_its_script_sets(tmp_path: Path) -> None:
    plan, told, row = tmp_path / "plan.json", tmp_path / "deepspeed.json", tmp_path / "run.csv"
    fixed = "tp=4,pp=2,zero=1,recompute=none,microbatch=1"
    invoke(f"plan llama-3.1-8b {MACHINE} --runtime deepspeed --fix {fixed} --top 1 -o {plan}")
    emitted = invoke("emit", plan, "--for", "deepspeed", "-o", told)
    script = emitted.stderr.partition("set these yourself: ")[2].strip().split(", ")
    pairs = [pair.partition(" ") for pair in script]
    layout = ",".join(f"{name}={value}" for name, _, value in pairs if name in OPTIONS)
    assert layout.startswith("sequence=2048,tp=4,pp=2,")
    back = f"read {told} --gpus 16xh100 --model llama-3.1-8b"
    found = invoke_json(f"{back} --for deepspeed -o {row}", "--layout", layout)
    planned = json.loads(plan.read_text())
    assert (found["time_s"], found["layout"]) == (planned["time_s"], planned["layout"])
    for run in ((told, plan, "--layout", layout), (row, plan)):
        assert invoke_json("compare", *run)["steps"] == []
    message = "compare: --layout: must be FIELD=VALUE pairs .* got 'tpp=4'"
    assert_refused(message, f"compare {told} {plan} --layout tpp=4")
    message = "read: --layout is for deepspeed; files of torchtitan"
    assert_refused(message, f"{back} --for torchtitan --layout", layout)


@pytest.mark.slow
def test_a_plan_needs_no_file_of_its_system(tmp_path: Path) -> None:
    """System, device and stack are stored in full, so that the plan is the same on another machine."""
    plan, flags = tmp_path / "plan.json", tmp_path / "flags.txt"
    system = (FOLDER / "systems/h100.yaml").read_text()
    files = {
        "sys40.yaml": re.sub("(?m)^device: .*", "device: mine.yaml", system),
        "mine.yaml": (FOLDER / "devices/h100-80gb.yaml").read_text(),
        "soft.yaml": (FOLDER / "stacks/megatron-bridge.yaml").read_text(),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    own = f"--system {tmp_path}/sys40.yaml --stack {tmp_path}/soft.yaml --devices 4"
    command = f"plan gpt2 {own} --global-batch 8 --fix tp=2,pp=2 --top 1 -o {plan}"
    assert invoke(command).exit_code == 0
    commands = (
        f"emit {plan} --for megatron -o {flags}", f"simulate {plan}", f"compare {flags} {plan}",
        f"certify {plan} --draws 2", f"map {plan} --steps 10 --tries 10",
    )  # fmt: skip
    before = [invoke(command).stdout for command in commands]
    for name in files:
        (tmp_path / name).unlink()
    assert before == [invoke(command).stdout for command in commands]


def test_a_layout_that_another_runtime_lacks_is_planned_for_it(plan_file: Path) -> None:
    plan = json.loads(plan_file.read_text())
    assert plan["layout"]["zero"] == 1
    assert_refused("zero must be.*; plan with --runtime torchtitan", "emit", plan_file, "--for", "torchtitan")


def test_a_plan_of_an_older_version_is_read_by_names_of_files(plan_file: Path, tmp_path: Path) -> None:
    plan = json.loads(plan_file.read_text())
    del plan["sha256"], plan["question"]["machine"]
    (older := tmp_path / "older.json").write_text(json.dumps(plan))
    told, expected = (invoke("simulate", file, "--json").stdout for file in (older, plan_file))
    assert told == expected
