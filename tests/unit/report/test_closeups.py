"""The pipeline that the report draws is a 1F1B pipeline, and figures survive unusual placements."""

from itertools import pairwise

import matplotlib as mpl
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.report.charts import wrapped
from phaze.report.closeups import gantt, one_forward_one_backward, pipeline, stage_memory
from phaze.report.document import Chart
from phaze.report.style import draw

TIMES = st.lists(st.tuples(st.floats(0.1, 2), st.floats(0.1, 4)), min_size=1, max_size=6)


@pytest.mark.parametrize(("depth", "count"), [(1, 1), (1, 5), (3, 1), (4, 8), (5, 3)])
def test_equal_stages_take_microbatches_plus_depth_minus_one(depth: int, count: int) -> None:
    passes = list(one_forward_one_backward([1.0] * depth, [2.0] * depth, count).itertuples())
    assert max(p.end_s for p in passes) == pytest.approx(3.0 * (count + depth - 1))


@given(TIMES, st.integers(1, 8))
def test_a_stage_does_one_pass_at_a_time_and_every_pass_once(
    times: list[tuple[float, float]], count: int
) -> None:
    passes = list(one_forward_one_backward([f for f, _ in times], [b for _, b in times], count).itertuples())
    assert len({(p.stage, p.microbatch, p.backward) for p in passes}) == len(passes) == 2 * count * len(times)
    for stage in range(len(times)):
        mine = sorted((p for p in passes if p.stage == stage), key=lambda p: p.start_s)
        assert all(a.end_s <= b.start_s for a, b in pairwise(mine))


@given(TIMES, st.integers(1, 8))
def test_a_pass_starts_after_what_it_needs(times: list[tuple[float, float]], count: int) -> None:
    passes = list(one_forward_one_backward([f for f, _ in times], [b for _, b in times], count).itertuples())
    ends = {(p.stage, p.microbatch, p.backward): p.end_s for p in passes}
    for p in passes:
        before = (p.stage + (1 if p.backward else -1), p.microbatch, p.backward)
        assert p.start_s >= ends.get(before, 0.0)
        assert not p.backward or p.start_s >= ends[p.stage, p.microbatch, False]


@given(TIMES, st.integers(1, 8))
def test_a_stage_holds_no_more_microbatches_than_stages_follow_it(
    times: list[tuple[float, float]], count: int
) -> None:
    passes = list(one_forward_one_backward([f for f, _ in times], [b for _, b in times], count).itertuples())
    for stage in range(len(times)):
        held = sorted((p for p in passes if p.stage == stage), key=lambda p: p.start_s)
        most, now = 0, 0
        for p in held:
            now += -1 if p.backward else 1
            most = max(most, now)
        assert most <= len(times) - stage


def stages(depth: int) -> pd.DataFrame:
    parts = ("weight", "gradient", "optimizer", "activation", "stashed")
    return pd.DataFrame(
        {
            "stage": range(depth),
            "forward_s": 1.0,
            "backward_s": 2.0,
            "transfer_s": 0.1,
            **{f"{part}_bytes": 2.0**30 for part in parts},
        }
    )


@pytest.mark.parametrize(("depth", "count"), [(1, 1), (1, 4096), (96, 2), (64, 4096)])
def test_a_pipeline_of_any_size_is_a_small_figure(depth: int, count: int) -> None:
    drawn = draw(Chart("p", "pipeline", "", lambda: pipeline(stages(depth), count)))
    assert 2_000 < len(drawn.svg) < 250_000


def test_the_memory_of_many_stages_fits_its_axis() -> None:
    drawn = draw(Chart("m", "memory", "", lambda: stage_memory(stages(96), 80.0)))
    assert "HBM 80 GiB" in drawn.svg


def test_a_schedule_has_a_lane_for_all_cores_and_for_every_single_core() -> None:
    rows = [
        ("tensor", -1, 0.0, 1.0),
        ("tensor", 3, 1.0, 2.0),
        ("vector", 0, 1.0, 2.0),
        ("network", 0, 2.0, 3.0),
    ]
    operators = pd.DataFrame(rows, columns=["core", "core_index", "start_s", "end_s"])
    operators = operators.assign(name="op", latency_s=1.0)
    both = pd.concat([operators.assign(direction=d) for d in ("forward", "backward")], ignore_index=True)
    labels = [label.get_text() for label in gantt(both, "block").axes[0].get_yticklabels()]
    assert labels == ["all tensor", "tensor 3", "vector 0", "link"]


def test_drawing_leaves_the_settings_of_matplotlib_alone() -> None:
    before = dict(mpl.rcParams)
    draw(Chart("m", "memory", "", lambda: stage_memory(stages(2), 80.0)))
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("bert-large", ["bert-large"]),
        ("megatron-gpt3-175b", ["megatron", "gpt3-175b"]),
        ("geometric mean", ["geometric", "mean"]),
        ("a-b", ["a-b"]),
    ],
)
def test_long_names_are_broken_at_hyphens(name: str, lines: list[str]) -> None:
    assert wrapped(name).split("\n") == lines
