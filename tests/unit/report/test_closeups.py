"""Figures survive unusual placements."""

from functools import partial

import matplotlib as mpl
import pandas as pd

from phaze.report.document import Chart
from phaze.report.inside import gantt, pipeline, stage_memory
from phaze.report.style import draw, wrapped


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


def test_a_pipeline_of_any_size_is_a_small_figure() -> None:
    for depth, count in ((1, 1), (64, 4096)):
        drawn = draw(Chart("p", "pipeline", "", partial(pipeline, stages(depth), count)))
        assert 2_000 < len(drawn.svg) < 250_000, (depth, count)


def test_the_memory_of_many_stages_fits_its_axis_and_settings_of_matplotlib_stay() -> None:
    before = dict(mpl.rcParams)
    drawn = draw(Chart("m", "memory", "", lambda: stage_memory(stages(96), 80.0)))
    assert "HBM 80 GiB" in drawn.svg
    assert dict(mpl.rcParams) == before


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


def test_long_names_are_broken_at_hyphens() -> None:
    assert wrapped("bert-large") == "bert-large"
    assert wrapped("megatron-gpt3-175b") == "megatron\ngpt3-175b"
    assert wrapped("geometric mean") == "geometric\nmean"
    assert wrapped("a-b") == "a-b"
