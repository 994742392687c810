"""The wheel works in any folder, without a checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

Phaze = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def phaze(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Phaze:
    """Return a function that runs the installed package in a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(project_root)], check=True, timeout=300)
    with zipfile.ZipFile(next(folder.glob("phaze-*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    environment = os.environ | {"PYTHONPATH": str(folder / "site")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "phaze", *words]
        return subprocess.run(
            command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=600, check=False
        )

    return run


def test_a_plan_and_a_comparison_with_measured_runs_need_no_checkout(phaze: Phaze) -> None:
    asked = ["llama-3.1-8b", "--system", "h100", "--devices", "8", "--global-batch", "16"]
    planned = phaze("plan", *asked, "--sequence", "2048", "--top", "1", "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["format"] == "phaze-plan"
    compared = phaze("validate", "--json")
    assert compared.returncode == 0, compared.stderr
    assert len(json.loads(compared.stdout)) > 1


def test_a_folder_of_configuration_of_ones_own_comes_first(phaze: Phaze, tmp_path: Path) -> None:
    (tmp_path / "systems").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "models/mine.yaml").write_text("{}")
    asked = ["plan", "gpt2", "--system", "h100", "--global-batch", "8"]
    refused = phaze("--config", str(tmp_path), *asked)
    assert refused.returncode == 1
    assert f"{tmp_path}/models/gpt2.yaml: there is no model 'gpt2'; there are mine" in refused.stderr
    wrong = phaze("--config", str(tmp_path / "none"), *asked)
    assert wrong.returncode == 1
    assert "must be a folder with systems, models and devices" in wrong.stderr
