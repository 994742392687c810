"""Plan for tests of commands that read plans."""

from pathlib import Path

import pytest

from tests.commands import invoke

FIXED = "cp=1,pp=2,vp=1,zero=1,recompute=none,sequence_parallel=true"


def write_plan(folder: Path, devices: int, fixed: str) -> Path:
    """File of a plan for Llama 3.1 8B with some fields fixed, and as large a batch as there are devices."""
    out = folder / "plan.json"
    machine = f"--system h100 --devices {devices} --global-batch {devices} --sequence 2048"
    command = f"plan llama-3.1-8b {machine} --fix {fixed} --top 1 --rank expected -o {out}"
    assert invoke(command).exit_code == 0
    return out


@pytest.fixture(scope="session")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of a plan on eight devices."""
    return write_plan(tmp_path_factory.mktemp("planned"), 8, f"tp=2,{FIXED},microbatch=1")
