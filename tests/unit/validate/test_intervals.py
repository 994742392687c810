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
    interval,
    parallelism_of,
    with_intervals,
)

A100, H100 = ("megatron", "a100", "tp+dp", "no"), ("torchtitan", "h100", "dp", "no")


def errors(*groups: tuple[str, tuple[str, ...], list[float]]) -> PublishedErrors:
    """Return errors of sources, each of runs of one kind."""
    rows = [(source, *kind, ratio) for source, kind, ratios in groups for ratio in ratios]
    return PublishedErrors(pd.DataFrame(rows, columns=["source", *KEYS, "ratio"]))


def test_the_runs_most_like_it_decide_and_broader_groups_where_they_are_few_or_of_one_source() -> None:
    slow, fast = [1.3] * 15, [0.9] * 15
    found = errors(("one", A100, slow), ("two", A100, slow), ("three", H100, fast)).likest(A100)
    assert (found.alike, found.runs, found.sources) == (KEYS, 30, 2)
    assert (found.low, found.high) == pytest.approx((1.3, 1.3))
    other = (*A100[:2], "pp", "no")
    broader = errors(("one", A100, slow), ("two", A100, slow), ("three", H100, fast)).likest(other)
    assert broader.alike == ("stack", "device", "experts")
    alone = errors(("one", A100, slow * 2), ("three", H100, fast)).likest(A100)
    assert (alone.alike, alone.runs, alone.sources) == (("experts",), 45, 2)


def test_sources_count_alike_and_few_of_them_widen_the_interval() -> None:
    """A source of many runs without error, one of few that take half longer: each has half of the weight."""
    two = errors(("many", A100, [1.0] * 90), ("few", A100, [1.5] * 10)).likest(A100)
    assert two.low < 1.0
    assert two.high > 1.5
    rng = np.random.default_rng(0)
    ratios = np.exp(rng.normal(0, 0.1, (20, 50)))
    many = errors(*((f"source-{n}", A100, row.tolist()) for n, row in enumerate(ratios))).likest(A100)
    tails = np.quantile(ratios, [0.1, 0.9])
    assert (many.low, many.high) == pytest.approx(tails, rel=0.03)
    few = errors(*((f"source-{n}", A100, row.tolist()) for n, row in enumerate(ratios[:2]))).likest(A100)
    assert few.high - few.low > 1.15 * (many.high - many.low)


def test_published_runs_lie_in_the_intervals_of_other_sources_as_often_as_is_said() -> None:
    """Leave one source out: of all runs, and as a mean over sources."""
    table = PublishedErrors.load().table.assign(time_s=1.0)
    parts = [with_intervals(mine, but=str(source)) for source, mine in table.groupby("source")]
    held = [part["ratio"].between(part["time_low_s"], part["time_high_s"]) for part in parts]
    assert pd.concat(held).mean() == pytest.approx(COVERED, abs=0.08)
    assert np.mean([one.mean() for one in held]) == pytest.approx(COVERED, abs=0.1)
    factors = pd.concat(parts)["time_high_s"] / pd.concat(parts)["time_low_s"]
    assert factors.median() < 1.45  # they say something
    assert factors.max() < 2.5


def test_runs_of_a_source_that_shares_an_error_lie_in_its_interval_at_least_as_often_as_is_said() -> None:
    """Sources with errors of their own in size and direction, the next one like them."""
    held = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        spreads = np.exp(rng.normal(np.log(0.05), 0.5, 10))
        logs = [rng.normal(rng.normal(0, 0.05), spread, 30) for spread in spreads]
        known = errors(*((f"source-{n}", A100, np.exp(one).tolist()) for n, one in enumerate(logs)))
        mine = known.likest(A100, but="source-0")
        ratios = np.exp(logs[0])
        held.append(np.mean((mine.low <= ratios) & (ratios <= mine.high)))
    assert COVERED <= np.mean(held) <= COVERED + 0.12


def test_an_interval_of_a_plan_is_that_of_its_stack_device_and_layout() -> None:
    machine, layout = load_machine("a100-vtrain"), Layout(tp=8, pp=2, dp=4)
    likest = PublishedErrors.load().likest(("megatron-deepspeed", "a100-80gb", "tp+pp+dp", "no"))
    assert interval(machine, layout, 2.0) == (2 * likest.low, 2 * likest.high)
    unknown = replace(machine, stack=Stack(name="none"))
    assert interval(unknown, layout, 2.0) != interval(machine, layout, 2.0)
    assert interval(load_machine("tpu-v5p"), layout, 2.0) is None  # no run of it is measured
    assert parallelism_of(Layout(cp=2)) == "dp"
    assert parallelism_of(Layout()) == "one"


def test_rows_without_a_time_have_no_interval_and_a_missing_file_is_said() -> None:
    table = PublishedErrors.load().table.head(2).assign(time_s=[1.0, np.nan])
    assert with_intervals(table)["time_low_s"].notna().tolist() == [True, False]
    assert with_intervals(table.assign(device="of my own"))["time_low_s"].isna().all()
    with pytest.raises(PhazeError, match=rf"{ERRORS}: holds no errors of runs .* validate --errors"):
        PublishedErrors.load(FOLDER / "none")
