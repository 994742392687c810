"""Stages of a planner's plan are modules of torchtitan's stages; what no runtime can run is one message."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from phaze.base.errors import PhazeError
from phaze.runtimes.torchtitan_split import emit_split
from phaze.spec.planner_rows import PlannerRow, PlannerStage


def row(*stages: tuple[int, int, int, str], schedule: str = "2bw") -> PlannerRow:
    """Return a plan with stages of so many layers, tp, dp and configurations."""
    planned, first = [], 0
    for layers, tp, dp, text in stages:
        planned.append(
            PlannerStage(
                first_layer=first,
                layers=layers,
                tp=tp,
                dp=dp,
                recompute="recompute" in text,
                configurations=text,
            )
        )
        first += layers
    return PlannerRow(planner="piper", schedule=schedule, microbatch=2, stages=tuple(planned))


def settings(text: str) -> dict[str, object]:
    """Return the settings that the written function makes."""
    config, names = SimpleNamespace(parallelism=SimpleNamespace()), dict[str, object]()
    exec(text, names)
    return vars(names["planned"](config).parallelism)  # type: ignore[operator]


def test_stages_of_different_widths_keep_their_modules_and_lose_their_widths() -> None:
    emitted = emit_split(
        row((1, 1, 2, "1 × whole"), (3, 2, 4, "2 × tensor; 1 × sequence"), (2, 1, 2, "2 × whole")), "m"
    )
    written = settings(emitted.files["plan.py"])
    assert written == {
        "pipeline_parallel_degree": 3,
        "pipeline_parallel_microbatch_size": 2,
        "pipeline_parallel_schedule": "1F1B",
        "module_fqns_per_model_part": [
            ["tok_embeddings"],
            ["layers.0", "layers.1", "layers.2"],
            ["layers.3", "norm", "lm_head"],
        ],
    }
    widths, schedule, layers = emitted.differences
    assert widths.startswith("no runtime has widths by stage (tp 1 dp 2, tp 2 dp 4, tp 1 dp 2)")
    assert schedule.startswith("no runtime has schedule 2bw")
    assert layers.startswith(
        "no runtime has splits and recomputation by layer (1 × whole | 2 × tensor; 1 × sequence"
    )


def test_equal_stages_keep_their_widths_and_lose_nothing_under_a_schedule_of_the_runtime() -> None:
    emitted = emit_split(row((2, 2, 4, "2 × tensor"), (2, 2, 4, "2 × tensor"), schedule="1f1b"), "m")
    written = settings(emitted.files["plan.py"])
    assert written["tensor_parallel_degree"] == 2
    assert (written["data_parallel_replicate_degree"], written["data_parallel_shard_degree"]) == (4, 1)
    assert emitted.differences == ()


def test_a_planner_without_stages_to_split_is_refused() -> None:
    with pytest.raises(PhazeError, match="planner piper has no plan: nothing fits; leave out --planner"):
        emit_split(PlannerRow(planner="piper", reason="nothing fits"), "m")
    with pytest.raises(PhazeError, match="planner piper has one stage, and no split to write"):
        emit_split(row((4, 1, 8, "4 × whole")), "m")
