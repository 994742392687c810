"""Time of whole commands relative to their unavoidable imports, independent of the machine's speed."""

from __future__ import annotations

import subprocess
import sys
from math import inf
from pathlib import Path
from time import perf_counter

import pytest
from pytest_benchmark.fixture import BenchmarkFixture


def seconds(*arguments: str) -> float:
    """Time of Python with some arguments."""
    begun = perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    return perf_counter() - begun


def ratio(command: list[str], imports: list[str], enough: float) -> float:
    """Ratio of the fastest of two to seven runs of a command to that of others, once it is small enough."""
    whole_s = needed_s = found = inf
    for run in range(7):
        whole_s, needed_s = min(whole_s, seconds(*command)), min(needed_s, seconds(*imports))
        found = whole_s / needed_s
        if run and found < enough:
            break
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "needed", "most"),
    [
        (("--help",), "typer", 3.0),
        (("plan", "gpt2-xxl", "--gpus", "8xh100"), "typer, pydantic, yaml", 3.0),
        (("place", "placement/gpt3.json"), "typer, pydantic, numpy, numba", 3.0),
    ],
)
def test_commands_start_as_fast_as_their_libraries(
    arguments: tuple[str, ...], needed: str, most: float, benchmark: BenchmarkFixture, shared_data: Path
) -> None:
    """Ratio of a command's time to the time of importing its libraries."""
    given = [str(shared_data / one) if one.endswith(".json") else one for one in arguments]
    found = benchmark.pedantic(ratio, (["-m", "phaze", *given], ["-c", f"import {needed}"], most), rounds=1)
    assert found < most
