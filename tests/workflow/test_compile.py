"""After `make setup`, neither commands nor jobs of studies compile anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phaze.spec.files import FOLDER
from tests.workflow.folders import ROOT


@pytest.mark.workflow
@pytest.mark.long
def test_one_compilation_serves_all_commands_and_stages(tmp_path: Path) -> None:
    environment = os.environ | {"PHAZE_COMPILED": str(tmp_path / "compiled")}
    subprocess.run([ROOT / ".ci" / "compile", "2"], env=environment, check=True)

    def kernels() -> set[str]:
        return {path.name for path in (tmp_path / "compiled").rglob("*.nbc")}

    compiled = kernels()
    for arguments in (
        ("plan", "llama-3.1-8b", "--gpus", "8xH100", "--top", "1", "-o", "plan.json"),
        ("map", "plan.json"),
        ("estimate", "-m", "gpt2", "--microbatch", "1"),
        ("validate", str(FOLDER.resolve() / "measured" / "primus-mi300x-llama2.csv")),
        ("partition", "bert-base", "--devices", "4"),
    ):
        command = [sys.executable, "-m", "phaze", *arguments]
        subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True)
        assert kernels() == compiled, arguments
