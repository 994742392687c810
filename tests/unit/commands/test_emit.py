"""Plans written for runtimes, and read back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from phaze.__main__ import app
from phaze.base.errors import PhazeError
from phaze.runtimes.deepspeed_config import OPTIONS
from phaze.spec.files import FOLDER

RUN = CliRunner()
FIXED = "tp=4,pp=2,cp=1,zero=0,recompute=none,microbatch=1"
TOLD = {"megatron": [], "torchtitan": ["--model", "llama-3.1-8b"]}


@pytest.mark.parametrize("runtime", TOLD)
def test_what_a_runtime_is_told_is_read_back_as_the_same_run(runtime: str, tmp_path: Path) -> None:
    plan, told, row = tmp_path / "plan.json", tmp_path / "FLAGS.txt", tmp_path / "run.csv"
    asked = ["plan", "llama-3.1-8b", "--system", "h100", "--devices", "16", "--global-batch", "16"]
    asked += ["--sequence", "2048", "--runtime", runtime, "--fix", FIXED, "--top", "1"]
    made = RUN.invoke(app, [*asked, "-o", str(plan)], catch_exceptions=False)
    assert made.exit_code == 0
    emitted = RUN.invoke(app, ["emit", str(plan), "--for", runtime, "-o", str(told)], catch_exceptions=False)
    assert emitted.exit_code == 0
    back = ["read", str(told), "--for", runtime, "--system", "h100", "--devices", "16", "--json"]
    back += ["-o", str(row)]
    read = RUN.invoke(app, [*back, *TOLD[runtime]], catch_exceptions=False)
    planned, found = json.loads(plan.read_text()), json.loads(read.stdout)
    assert found["time_s"] == planned["time_s"]
    assert found["layout"] == planned["layout"]

    again = ["simulate", "--runs", str(row), "-o", str(tmp_path / "simulated.csv")]
    assert RUN.invoke(app, again, catch_exceptions=False).exit_code == 0
    simulated = pd.read_csv(tmp_path / "simulated.csv").iloc[0]
    assert simulated["time_s"] == pytest.approx(found["time_s"], rel=1e-9)
    workspace_gib = 32 / 1024  # which the allocator counts with the tensors
    assert simulated["memory_gib"] == pytest.approx(max(found["memory_gib"]) + workspace_gib, rel=1e-9)
    compared = RUN.invoke(app, ["compare", str(row), str(plan), "--json"], catch_exceptions=False)
    assert json.loads(compared.stdout)["steps"] == []


def test_a_plan_for_deepspeed_is_read_back_with_what_its_script_sets(tmp_path: Path) -> None:
    plan, told, row = tmp_path / "plan.json", tmp_path / "deepspeed.json", tmp_path / "run.csv"
    asked = ["plan", "llama-3.1-8b", "--gpus", "16xh100", "--global-batch", "16", "--sequence", "2048"]
    asked += ["--runtime", "deepspeed", "--fix", "tp=4,pp=2,zero=1,recompute=none,microbatch=1", "--top", "1"]
    RUN.invoke(app, [*asked, "-o", str(plan)], catch_exceptions=False)
    emitted = RUN.invoke(
        app, ["emit", str(plan), "--for", "deepspeed", "-o", str(told)], catch_exceptions=False
    )
    script = emitted.stderr.partition("set these yourself: ")[2].strip().split(", ")
    pairs = [pair.partition(" ") for pair in script]
    layout = ",".join(f"{name}={value}" for name, _, value in pairs if name in OPTIONS)
    assert layout.startswith("sequence=2048,tp=4,pp=2,")
    back = ["read", str(told), "--for", "deepspeed", "--gpus", "16xh100", "--model", "llama-3.1-8b"]
    read = RUN.invoke(app, [*back, "--layout", layout, "--json", "-o", str(row)], catch_exceptions=False)
    planned, found = json.loads(plan.read_text()), json.loads(read.stdout)
    assert (found["time_s"], found["layout"]) == (planned["time_s"], planned["layout"])
    for run in ([str(told), str(plan), "--layout", layout], [str(row), str(plan)]):
        compared = RUN.invoke(app, ["compare", *run, "--json"], catch_exceptions=False)
        assert json.loads(compared.stdout)["steps"] == []
    with pytest.raises(PhazeError, match=r"compare: --layout: must be FIELD=VALUE pairs .* got 'tpp=4'"):
        RUN.invoke(app, ["compare", str(told), str(plan), "--layout", "tpp=4"], catch_exceptions=False)
    with pytest.raises(PhazeError, match="read: --layout is for deepspeed; files of torchtitan"):
        RUN.invoke(app, [*back, "--for", "torchtitan", "--layout", layout], catch_exceptions=False)


def test_a_plan_needs_no_file_of_its_system(tmp_path: Path) -> None:
    """System, device and stack are stored in full, so that the plan is the same on another machine."""
    plan, flags = tmp_path / "plan.json", tmp_path / "flags.txt"
    files = {
        "sys40.yaml": re.sub(
            "(?m)^device: .*", "device: mine.yaml", (FOLDER / "systems/h100.yaml").read_text()
        ),
        "mine.yaml": (FOLDER / "devices/h100-80gb.yaml").read_text(),
        "soft.yaml": (FOLDER / "stacks/megatron-bridge.yaml").read_text(),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    asked = ["plan", "gpt2", "--system", str(tmp_path / "sys40.yaml"), "--stack", str(tmp_path / "soft.yaml")]
    asked += ["--devices", "4", "--global-batch", "8", "--fix", "tp=2,pp=2", "--top", "1", "-o", str(plan)]
    assert RUN.invoke(app, asked, catch_exceptions=False).exit_code == 0
    commands = {
        "emit": ["emit", str(plan), "--for", "megatron", "-o", str(flags)],
        "simulate": ["simulate", str(plan)],
        "compare": ["compare", str(flags), str(plan)],
        "certify": ["certify", str(plan), "--draws", "2"],
        "map": ["map", str(plan), "--steps", "10", "--tries", "10"],
    }
    before = [RUN.invoke(app, command, catch_exceptions=False).stdout for command in commands.values()]
    for name in files:
        (tmp_path / name).unlink()
    assert before == [
        RUN.invoke(app, command, catch_exceptions=False).stdout for command in commands.values()
    ]


def test_a_plan_of_an_older_version_is_read_by_names_of_files(plan_file: Path, tmp_path: Path) -> None:
    plan = json.loads(plan_file.read_text())
    del plan["sha256"], plan["question"]["machine"]
    (older := tmp_path / "older.json").write_text(json.dumps(plan))
    told, expected = (
        RUN.invoke(app, ["simulate", str(file), "--json"], catch_exceptions=False).stdout
        for file in (older, plan_file)
    )
    assert told == expected
