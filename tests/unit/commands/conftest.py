"""Plan for tests of commands that read plans."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from phaze.__main__ import app

FIXED = "tp=2,cp=1,pp=2,vp=1,zero=1,recompute=none,microbatch=1,sequence_parallel=true"


@pytest.fixture(scope="session")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of a plan for Llama 3.1 8B on eight devices."""
    out = tmp_path_factory.mktemp("planned") / "plan.json"
    asked = ["plan", "llama-3.1-8b", "--system", "h100", "--devices", "8", "--global-batch", "8"]
    asked += ["--sequence", "2048", "--fix", FIXED, "--top", "1", "--rank", "expected", "-o", str(out)]
    assert CliRunner().invoke(app, asked, catch_exceptions=False).exit_code == 0
    return out
