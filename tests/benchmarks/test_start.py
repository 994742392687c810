"""Time of whole commands relative to their unavoidable imports, independent of the machine's speed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest

Benchmark = Callable[..., object]


def seconds(*arguments: str) -> float:
    """Fastest of several runs of Python with some arguments."""
    found = []
    for _ in range(7):
        begun = perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
        found.append(perf_counter() - begun)
    return min(found)


@pytest.mark.parametrize(
    ("arguments", "needed", "most"),
    [
        (("--help",), "typer", 3.0),
        (("plan", "gpt2-xxl", "--gpus", "8xh100"), "typer, pydantic, yaml", 3.0),
        (("place", "placement/gpt3.json"), "typer, pydantic, numpy, numba", 3.0),
    ],
)
def test_commands_start_as_fast_as_their_libraries(
    arguments: tuple[str, ...], needed: str, most: float, benchmark: Benchmark, shared_data: Path
) -> None:
    """Ratio of a command's time to the time of importing its libraries."""
    given = [str(shared_data / one) if one.endswith(".json") else one for one in arguments]
    whole = benchmark(seconds, "-m", "phaze", *given)
    assert isinstance(whole, float)
    assert whole < most * seconds("-c", f"import {needed}")
