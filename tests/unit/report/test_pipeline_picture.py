"""The picture of a plan shows every pass once, states omissions, and shows the memory of stages."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from phaze.pages.pipeline_picture import MOST_ROWS, PipelinePicture, picture
from phaze.pages.vega import save
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.timeline import Timeline
from phaze.pipeline.trace import job_rows, stage_memory, transfer_rows

STAGE = StageCost(
    1.0, 2.0, send_activation_s=0.5, send_gradient_s=0.5, sync_s=3.0, stash_bytes=1e9, fixed_bytes=1e9
)


def shown(timeline: Timeline) -> PipelinePicture:
    jobs = pd.DataFrame([*job_rows(timeline), *transfer_rows(timeline)])
    held = {stage: (of.time_s, of.bytes_) for stage, of in stage_memory(timeline).items()}
    return PipelinePicture("toy", jobs, held, timeline.pipeline.lanes, timeline.pipeline.batches)


def drawn(tmp_path: Path, pipeline: Pipeline) -> str:
    what = shown(simulate(pipeline))
    save(tmp_path / "p.svg", picture(what))
    return (tmp_path / "p.svg").read_text(encoding="utf-8")


def test_a_short_pipeline_is_drawn_whole(tmp_path: Path) -> None:
    """Numbers 1 to 4 are in the forward and backward passes of both stages, reproducibly."""
    text = drawn(tmp_path, Pipeline((STAGE, STAGE), 4))
    assert drawn(tmp_path, Pipeline((STAGE, STAGE), 4)) == text
    for number in range(1, 5):
        assert text.count(f">{number}</text>") >= 4
    for words in ("toy", "forward", "backward", "transfer", "synchronise", "GiB a device"):
        assert words in text
    assert "Takes no time: update" in text
    assert "Left out" not in text


def test_every_tensor_is_on_its_way_once() -> None:
    """An activation and a gradient of each microbatch cross the border of two stages, for 0.5 s."""
    rows = pd.DataFrame(transfer_rows(simulate(Pipeline((STAGE, STAGE), 4))))
    assert (rows["end_s"] - rows["start_s"]).tolist() == pytest.approx([0.5] * 8)
    assert sorted(zip(rows["stage"], rows["microbatch"], strict=True)) == [
        (stage, microbatch) for stage in range(2) for microbatch in range(4)
    ]


def test_no_two_passes_of_a_row_overlap() -> None:
    pipeline = Pipeline((STAGE,) * 3, 8, "2bw", data=(1, 2, 1), batches=2, overlap_sync=True)
    what = shown(simulate(pipeline))
    assert what.workers.values.tolist() == [[0, 0], [1, 0], [1, 1], [2, 0]]
    for _, row in what.cells[~what.cells["beside"]].groupby("row"):
        ordered = row.sort_values(["start_s", "end_s"])
        assert (ordered["start_s"].to_numpy()[1:] >= ordered["end_s"].to_numpy()[:-1] - 1e-9).all()


def test_synchronisation_is_in_the_row_of_every_replica() -> None:
    pipeline = Pipeline((STAGE,) * 3, 8, "2bw", data=(1, 2, 1), overlap_sync=True)
    cells = shown(simulate(pipeline)).cells
    rows = cells[(cells["kind"] == "synchronise") & cells["beside"]]
    assert set(rows["row"]) == {0, 1, 2, 3}


def test_of_a_long_pipeline_the_first_and_last_part_are_drawn(tmp_path: Path) -> None:
    pipeline = Pipeline((STAGE,) * 4, 400, data=(2,) * 4)
    what = shown(simulate(pipeline))
    (start, until), (since, end) = what.windows
    assert start == 0 < until < since < end == what.time_s
    text = drawn(tmp_path, pipeline)
    assert "of 200 microbatches have no pass in what is drawn" in text
    assert "2 equal pipelines run beside each other" in text


def test_of_many_stages_the_first_and_last_are_drawn(tmp_path: Path) -> None:
    stages = MOST_ROWS + 6
    pipeline = Pipeline((STAGE,) * stages, 4)
    what = shown(simulate(pipeline))
    assert list(what.rows) == [*range(12), *range(18, 30)]
    assert set(what.lines) >= {0, stages - 1}
    text = drawn(tmp_path, pipeline)
    assert f"6 of {stages} rows in the middle, of stages 12 to 17" in text
    assert f"of {stages} stages, the fullest among them" in text


def test_inference_has_forward_passes_only(tmp_path: Path) -> None:
    text = drawn(tmp_path, Pipeline((StageCost(1.0), StageCost(2.0)), 4, "inference"))
    assert "forward" in text
    assert "backward" not in text


def test_memory_is_drawn_to_the_end_and_without_moments() -> None:
    """The last stage stores one microbatch at a time: 2 GB while it works, otherwise 1 GB."""
    what = shown(simulate(Pipeline((STAGE, STAGE), 4)))
    time_s, held_bytes = what.lines[1]
    assert time_s[-1] == what.time_s
    assert (time_s[1:-1] > time_s[:-2]).all()
    assert set(held_bytes) == {1e9, 2e9}
    assert held_bytes[-1] == 1e9
