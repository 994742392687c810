"""Figures survive unusual placements."""

from functools import partial

import pandas as pd

from phaze.pages.document import Chart
from phaze.pages.style import wrapped
from phaze.pages.vega import draw, spec_of
from phaze.report.inside import gantt, pipeline, stage_memory


def stages(depth: int) -> pd.DataFrame:
    parts = ("weight", "gradient", "optimizer", "activation", "stashed")
    times = {"stage": range(depth), "forward_s": 1.0, "backward_s": 2.0, "transfer_s": 0.1}
    return pd.DataFrame({**times, **{f"{part}_bytes": 2.0**30 for part in parts}})


def test_a_pipeline_of_any_size_is_a_small_figure() -> None:
    for depth, count in ((1, 1), (64, 4096)):
        drawn = draw(Chart("p", "pipeline", "", partial(pipeline, stages(depth), count)))
        assert 1_000 < len(drawn.spec) < 250_000, (depth, count)


def test_every_part_of_the_memory_of_many_stages_is_drawn_against_hbm() -> None:
    spec = spec_of(stage_memory(stages(96), 80.0))
    parts = spec["datasets"][spec["layer"][0]["data"]["name"]]
    assert len(parts) == 5 * 96
    assert {row["value"] for row in parts} == {1.0}
    assert spec["layer"][1]["encoding"]["x"]["datum"] == 80


def test_a_schedule_has_a_lane_for_all_cores_and_for_every_single_core() -> None:
    rows = [("tensor", -1, 0, 1), ("tensor", 3, 1, 2), ("vector", 0, 1, 2), ("network", 0, 2, 3)]
    operators = pd.DataFrame(rows, columns=["core", "core_index", "start_s", "end_s"])
    operators = operators.assign(name="op", latency_s=1.0)
    both = pd.concat([operators.assign(direction=d) for d in ("forward", "backward")], ignore_index=True)
    domain = spec_of(gantt(both, "block"))["layer"][0]["encoding"]["y"]["scale"]["domain"]
    lanes = ["all tensor", "tensor 3", "vector 0", "link"]
    assert domain == [f"{lane}, {direction}" for direction in ("forward", "backward") for lane in lanes]


def test_long_names_are_broken_at_hyphens() -> None:
    assert wrapped("bert-large") == "bert-large"
    assert wrapped("megatron-gpt3-175b") == "megatron\ngpt3-175b"
    assert wrapped("geometric mean") == "geometric\nmean"
    assert wrapped("a-b") == "a-b"
