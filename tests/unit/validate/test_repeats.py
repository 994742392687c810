"""Noise floor of repeated runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from phaze.validate.repeats import repeats
from tests.commands import assert_refused, invoke_json

HEAD = "hidden,heads,layers,seq,vocab,gpus,global_batch,tp,microbatch,system,date,measured_s\n"


def written(times_s: list[float], *, tp: int = 1, date: str = "2025-01") -> str:
    """Rows of equal runs with these times."""
    return "".join(f"1024,16,2,512,51200,4,16,{tp},1,a100-vtrain,{date},{time_s}\n" for time_s in times_s)


def test_the_deviation_of_repeats_is_the_one_that_their_times_were_drawn_with(tmp_path: Path) -> None:
    path, deviation = tmp_path / "runs.csv", 0.03
    for seed in range(5):
        rng = np.random.default_rng(seed)
        groups = [np.exp(rng.normal(rng.normal(), deviation, 3)).tolist() for _ in range(200)]
        # Each group has a month of its own, so that the means of groups do not count.
        rows = [written(group, date=f"20{10 + k // 12}-{k % 12 + 1:02d}") for k, group in enumerate(groups)]
        path.write_text(HEAD + "".join(rows))
        line, total = repeats([path])
        assert (line.runs, line.groups, total.deviation) == (600, 200, line.deviation)
        # The standard deviation of a standard deviation from 400 degrees of freedom is 1 / sqrt(800) of it.
        assert line.deviation == pytest.approx(deviation, rel=4 / np.sqrt(800))


def test_runs_of_other_layouts_or_dates_are_no_repeats(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEAD + written([1.0]) + written([2.0], tp=2) + written([3.0], date="2025-02"))
    assert repeats([path]) == []
    assert_refused("no run was measured twice", "validate --repeats", path)


def test_published_runs_repeat_within_three_percent() -> None:
    *sources, total = invoke_json("validate --repeats")
    assert total["runs"] == sum(line["runs"] for line in sources)
    assert 0.01 < total["deviation"] < 0.03
