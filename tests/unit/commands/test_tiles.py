"""`phaze tiles`: options from the settings of a point, the answer, its files, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from phaze.commands.settings import setting_params
from phaze.commands.tiles import DECLARED, RESOURCES
from phaze.spec.tiled_study import TiledPoint
from phaze.tables import TiledRuns
from tests.commands import assert_refused, invoke, invoke_json

RUN = "tiles -m t-18b --microbatches 2 --sequence 128"


def test_every_setting_of_a_point_is_an_option_with_its_text() -> None:
    params = {param.name: param for param in setting_params(TiledPoint, DECLARED)}
    assert {*params} == {*TiledPoint.model_fields} - {*DECLARED}
    assert all(param.help for param in params.values())
    assert params["layouts"].metavar == "line|s-shaped|own"
    assert params["microbatches"].metavar == "N[,N]"
    assert params["stages"].metavar == "N"


def test_the_answer_is_the_row_of_the_table_and_names_the_limit() -> None:
    (row,) = invoke_json(RUN)
    assert {*TiledRuns.columns} <= {*row}
    assert row["batch"] == 4, "a sample for each of two replicas and two microbatches"
    assert row["tokens_per_s"] == pytest.approx(row["samples_per_s"] * 128)
    assert sum(row["parts_by_stage"]) == 40 + 2, "layers, embedding and head"
    assert row["time_s"] >= row["uncontended_s"] >= row["alone_s"]
    text = invoke(RUN).stdout
    assert f"bound by {RESOURCES[row['bound_by']]}" in text
    assert "GiB" in text


def test_combinations_are_ranked_and_the_files_show_the_fastest(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.json", tmp_path / "tables"
    rows = invoke_json(RUN, "--tensor", "4,8", "--layouts", "line", "--trace", trace, "-o", out)
    assert {row["tensor"] for row in rows} == {4, 8}
    per_sample = [row["time_s"] / row["batch"] for row in rows]
    assert per_sample == sorted(per_sample)
    last_us = max(
        event["ts"] + event["dur"]
        for event in json.loads(trace.read_text())["traceEvents"]
        if event["ph"] == "X"
    )
    assert last_us / 1e6 == pytest.approx(rows[0]["time_s"])
    runs = pd.read_csv(out / "tiled_runs.csv")
    assert sorted(runs["time_s"]) == pytest.approx(sorted(row["time_s"] for row in rows))
    assert {file.stem for file in out.iterdir()} >= {"tiled_runs", "tiled_jobs", "tiled_links"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--layouts diagonal", "layouts"),
        ("--stages none", "stages"),
        ("--tensor 3", "tensor must divide the 16 tiles"),
        ("--own [[0,", "--own: must be YAML"),
    ],
)
def test_bad_settings_are_refused_by_name(options: str, message: str) -> None:
    assert_refused(message, f"{RUN} {options}")


@pytest.mark.parametrize("links", ["each", "groups"])
def test_the_page_has_a_map_the_links_the_pipeline_memory_and_ports(links: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert invoke(RUN, "--links", links, "--page", page).exit_code == 0
    text = page.read_text()
    for title in (
        "Stages on the tiles",
        "Traffic of the links",
        "Pipeline of the step",
        "memory ports",
        "Memory of a tile",
    ):
        assert title in text
    assert ("quarters of the groups" in text) == (links == "groups")
