"""Intervals of predicted times from the errors of published runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.plan.machines import load_machine
from phaze.spec.files import FOLDER
from phaze.spec.system import Stack
from phaze.validate.intervals import (
    COVERED,
    ERRORS,
    KEYS,
    PublishedErrors,
    RunKind,
    interval,
    parallelism_of,
    published,
    with_intervals,
)

A100 = RunKind("megatron", "a100-80gb", "tp+dp", "no", "bf16", 0.4)
H100 = RunKind("torchtitan", "h100-80gb", "dp+fsdp", "no", "bf16", 0.4)
TPU = RunKind("maxtext", "tpu-v9", "dp", "yes", "fp8", 0.4)


def errors(*groups: tuple[str, RunKind, list[float]]) -> PublishedErrors:
    """Return errors of sources, each of runs of one kind."""
    rows = [
        {"source": source, "label": str(k), **vars(kind), "ratio": ratio}
        for source, kind, ratios in groups
        for k, ratio in enumerate(ratios)
    ]
    return PublishedErrors(pd.DataFrame(rows))


def test_the_runs_most_like_it_decide() -> None:
    rng = np.random.default_rng(0)
    slow, fast = (np.exp(rng.normal(np.log(middle), 0.02, 60)).tolist() for middle in (1.3, 0.9))
    known = errors(("one", A100, slow), ("two", H100, fast))
    found = known.most_similar(A100)
    assert found is not None
    assert 1.2 < found.low < 1.3 < found.high < 1.4
    assert {one.source for one in found.nearest} == {"one"}
    assert found.nearest[0].distance == 0.0


def test_an_interval_widens_with_the_distance_until_nothing_is_like_a_run() -> None:
    rng = np.random.default_rng(1)
    sources = [
        (f"source-{n}", A100, np.exp(rng.normal(rng.normal(0, 0.1), 0.03, 30)).tolist()) for n in range(8)
    ]
    other = [
        (f"other-{n}", H100, np.exp(rng.normal(rng.normal(0, 0.1), 0.03, 30)).tolist()) for n in range(8)
    ]
    known = errors(*sources, *other)
    near, far = (
        known.most_similar(A100),
        known.most_similar(replace(A100, precision="fp8", parallelism="tp+pp+dp")),
    )
    assert near is not None
    assert far is not None
    assert far.high / far.low > near.high / near.low
    assert known.most_similar(TPU) is None


def test_published_runs_lie_in_intervals_as_often_as_is_said() -> None:
    """With the intervals of all sources, and with those of the other sources."""
    table = PublishedErrors.load().table.assign(time_s=1.0)
    sources = table["source"].value_counts()
    inside = _held(with_intervals(table)).groupby(table["source"]).mean()
    for source in sources[sources >= 25].index:
        assert inside[source] == pytest.approx(COVERED, abs=0.18), source
    parts = [with_intervals(mine, but=str(source)) for source, mine in table.groupby("source")]
    held = pd.concat([_held(part)[part["time_low_s"].notna()] for part in parts])
    assert held.groupby(table["source"]).mean().mean() >= 0.65


def _held(runs: pd.DataFrame) -> pd.Series:
    return runs["ratio"].between(runs["time_low_s"], runs["time_high_s"])


def test_an_interval_of_a_plan_is_that_of_its_stack_device_and_layout() -> None:
    machine, layout = load_machine("a100-vtrain"), Layout(tp=8, pp=2, dp=4)
    kind = RunKind("megatron-deepspeed", "a100-80gb", "tp+pp+dp", "no", "bf16", 0.4)
    most_similar = published().most_similar(kind)
    assert most_similar is not None
    assert interval(machine, layout, 2.0, 0.4) == (2 * most_similar.low, 2 * most_similar.high)
    unknown = replace(machine, stack=Stack(name="none"))
    assert interval(unknown, layout, 2.0, 0.4) != interval(machine, layout, 2.0, 0.4)
    assert interval(load_machine("tpu-v5p"), layout, 2.0, 0.4) is None  # no run of it is measured
    assert parallelism_of(Layout(cp=2, zero=3, dp=2)) == "cp+dp+fsdp"
    assert parallelism_of(Layout()) == "one"


def test_rows_without_a_time_have_no_interval_and_a_missing_file_is_said() -> None:
    table = PublishedErrors.load().table.head(2).assign(time_s=[1.0, np.nan])
    assert with_intervals(table)["time_low_s"].notna().tolist() == [True, False]
    alien = table.assign(device="of my own", stack="mine", experts="yes", precision="int8")
    assert with_intervals(alien)["time_low_s"].isna().all()
    with pytest.raises(PhazeError, match=rf"{ERRORS}: contains no errors of runs .* validate --errors"):
        PublishedErrors.load(FOLDER / "none")
    assert set(KEYS) < set(PublishedErrors.load().table.columns)
