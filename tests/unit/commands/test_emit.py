"""Plans written for runtimes, and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from phaze.__main__ import app

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
