"""Scores of measured runs, and other content of rows."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from phaze.spec.measured import PublishedRuns
from phaze.validate.rows import read_row
from phaze.validate.scoreboard import groups_of, joined, score, scoreboard
from phaze.validate.table import predict_rows
from tests.commands import invoke, invoke_json

RUN = {
    "hidden": "1024", "heads": "16", "layers": "4", "seq": "512", "vocab": "51200", "gpus": "8",
    "global_batch": "32", "microbatch": "4", "recompute": "full",
}  # fmt: skip
RUNS = pd.DataFrame(
    {
        "source": ["some"] * 5,
        "group": ["a", "a", "a", "b", "b"],
        "layout": [0, 1, 2, 3, 4],
        "release": [""] * 5,
        "predicted_s": [1.0, 2.0, 4.0, 3.0, np.nan],
        "prudent_s": [2.5, 2.0, 4.0, 3.0, np.nan],
        "measured_s": [1.25, 1.0, 4.0, 2.0, 9.0],
        "time_low_s": [0.9, 1.8, 3.6, 2.7, np.nan],
        "time_high_s": [1.3, 2.6, 5.2, 3.9, np.nan],
        "predicted_gib": [10.0, 20.0, 90.0, 70.0, np.nan],
        "measured_gib": [20.0, 20.0, np.nan, np.nan, np.nan],
        "memory_low_gib": [9.0, 18.0, 80.0, 60.0, np.nan],
        "memory_high_gib": [12.0, 22.0, 99.0, 75.0, np.nan],
        "outcome": ["ok", "ok", "oom", "ok", "ok"],
        "status": ["ok", "ok", "does not fit: 90", "ok", "invalid: dp must be given"],
    }
)


def scored(runs: pd.DataFrame) -> dict[str, object]:
    """Scores of runs of one source."""
    return score("some", runs, groups_of(runs))


def test_a_score_says_errors_rankings_and_what_the_choice_costs() -> None:
    """In group a the first is predicted as the fastest, and takes a quarter longer than the second."""
    found = pd.Series(scored(RUNS))
    assert (found.rows, found.answered, found.groups) == (5, 4, 1)
    assert found.mean_error == pytest.approx((0.2 + 1.0 + 0.0 + 0.5) / 4)
    assert found.bias == pytest.approx((-0.2 + 1.0 + 0.0 + 0.5) / 4)
    assert (found.intervals, found.covered, found.interval_width) == pytest.approx((4, 0.5, 0.4))
    assert (found.median_error, found.worst_error, found.within_10) == pytest.approx((0.35, 1.0, 0.25))
    assert found.memory_error == pytest.approx(0.25)
    assert found.memory_covered == pytest.approx(0.5)
    assert found.verdicts == 1.0
    assert found.regret == found.worst_regret == pytest.approx(0.25)
    assert found.group_correlation == pytest.approx(0.5)
    assert (found.within_prudent, found.prudent_over_expected, found.prudent_regret) == (1.0, 1.0, 0.0)
    assert (found.within_high, found.high_over_expected) == pytest.approx((1.0, 1.3))
    assert found.refused == "1 × dp must be given"


def test_a_run_without_an_interval_is_no_miss() -> None:
    without = RUNS.assign(time_low_s=[0.9, np.nan, 3.6, np.nan, np.nan])
    found = scored(without.assign(time_high_s=[1.3, np.nan, 5.2, np.nan, np.nan]))
    assert (found["intervals"], found["covered"]) == (2, 1.0)
    none = scored(RUNS.assign(time_low_s=np.nan, time_high_s=np.nan))
    assert none["intervals"] == 0
    assert np.isnan(none["covered"])


def test_regret_joins_no_groups_of_one_release_and_of_several() -> None:
    """Of group a the layouts were measured with two releases, in c they are repeats of one layout."""
    several = RUNS.assign(release=["1", "2", "2", "", ""])
    repeats = RUNS.assign(group=["c", "c", "c", "d", "d"], layout=0)
    pair = RUNS.head(2).assign(group="e", release=["1", "2"])
    small = RUNS.head(2).assign(group="f")
    found = scored(pd.concat([several, repeats, pair, small], ignore_index=True))
    assert (found["groups"], found["release_groups"]) == (0, 2)
    assert np.isnan(found["regret"])
    assert (found["release_regret"], found["worst_release_regret"]) == pytest.approx((0.25, 0.25))


def test_layouts_with_and_without_multi_token_prediction_are_no_group() -> None:
    text = (
        "model,seq,gpus,global_batch,ep,tp,system,release,compute,sequence_parallel,mtp,measured_s\n"
        "deepseek-v3,4096,256,4096,32,1,gb300,26.02,mxfp8,false,1,14.2\n"
        "deepseek-v3,4096,256,4096,32,1,gb300,26.02,mxfp8,false,0,13.1\n"
    )
    table = pd.read_csv(StringIO(text), dtype=str)
    rows = [read_row(cells) for cells in table.to_dict("records")]
    groups = joined("runs", table, rows, predict_rows(rows, None, prudent=True))["group"]
    assert groups.nunique() == 2


def test_a_repeated_layout_has_its_least_time_in_a_group() -> None:
    repeated = pd.concat([RUNS, RUNS.head(1).assign(measured_s=1.1)], ignore_index=True)
    assert scored(repeated)["regret"] == pytest.approx(0.1)


def test_prudent_times_hide_no_more_than_is_proven() -> None:
    """`nanotron` has no proven overlap: its prudent time is that of a run without overlap."""
    row = {**RUN, "system": "h100", "stack": "nanotron", "gpus": "64", "global_batch": "64"}
    row |= {"microbatch": "1", "dp": "64"}
    rows = [read_row({**row, "overlap": name}) for name in ("dp", "none")]
    found = predict_rows(rows, None, prudent=True)
    assert found["time_s"][0] < found["prudent_s"][0] == pytest.approx(found["time_s"][1])
    assert found["prudent_s"][1] == found["time_s"][1]


def test_rows_may_name_their_own_system_and_stack() -> None:
    rows = [read_row({**RUN, **own}) for own in ({"system": "a100-selene"}, {"system": "h100"}, {})]
    found = predict_rows(rows, None)
    assert found["time_s"][1] < found["time_s"][0]
    assert found["status"][2] == "invalid: system must be given, in the row or with --system"
    stacks = [read_row({**RUN, "system": "a100-selene", "stack": name}) for name in ("llm-foundry", "nope")]
    slow = predict_rows(stacks, None)
    assert slow["time_s"][0] != found["time_s"][0]
    assert "there is no stack 'nope'" in slow["status"][1]


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"overlap": "tp+cp"}, "overlap must be none, or of tp, dp, pp, ep joined by +, got 'cp'"),
        ({"gradients": "fp8"}, "gradients must be one of bf16, fp32, got 'fp8'"),
        ({"outcome": "maybe"}, "outcome must be one of ok, oom, got 'maybe'"),
        ({"measured_gib": "-1"}, "measured_gib must be a number > 0, got '-1'"),
    ],
)
def test_what_a_row_cannot_mean_is_said(own: dict[str, str], problem: str) -> None:
    assert read_row({**RUN, **own}).problem == problem


def test_an_older_name_of_overlap_still_says_it() -> None:
    runs = [read_row({**RUN, **own}).runs[0] for own in ({"overlap_dp": "true"}, {"overlap": "dp"}, {})]
    assert [run.overlap for run in runs] == [("dp",), ("dp",), None]


def test_a_gated_network_has_a_third_matrix() -> None:
    plain, gated = (read_row({**RUN, "ffn": "4096", "gated": flag}).runs[0] for flag in ("false", "true"))
    assert gated.model_flops - plain.model_flops == 6 * 32 * 512 * 4 * 1024 * 4096
    assert gated.model.gated
    assert not gated.model.tied_embeddings


def test_the_command_prints_a_table_or_json_and_writes_the_runs(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    rows = [{**RUN, "system": "a100-selene", "microbatch": b, "measured_s": "0.5"} for b in ("1", "2", "4")]
    pd.DataFrame(rows).to_csv(table, index=False)
    out = tmp_path / "out.csv"
    errors = tmp_path / "errors.csv"
    shown = invoke("validate", table, "-o", out, "--errors", errors)
    assert shown.exit_code == 0
    assert "mine" in shown.stdout
    assert "worst regret" not in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 100
    assert "worst regret" in invoke("validate", table, "--all").stdout
    runs, ratios = pd.read_csv(out), pd.read_csv(errors)
    assert len(runs) == 3
    assert ratios["ratio"].to_numpy() == pytest.approx(runs["measured_s"] / runs["predicted_s"], abs=1e-4)
    assert ratios["stack"].tolist() == ["megatron-lm"] * 3
    (found,) = invoke_json("validate", table)
    assert (found["rows"], found["groups"], found["memory_error"]) == (3, 1, None)
    (group,) = found["by_group"]
    assert group["group"].endswith("system a100-selene, stack megatron-lm, precision bf16, mtp 0")
    assert (group["layouts"], group["fastest_s"], group["regret"]) == (3, 0.5, 0.0)
    assert group["group"].startswith("mine: hidden 1024, heads 16")


def test_runs_without_times_that_look_simulated_have_a_line_of_their_own() -> None:
    """If there are several sources of both kinds."""
    published, likely = RUNS, RUNS.assign(source="likely", predicted_s=3.0, measured_s=1.0)
    runs = pd.concat([published, likely], ignore_index=True)
    found = scoreboard(runs, {"likely"}).set_index("source")
    assert list(found.index) == ["some", "likely", "all measured", "all"]
    assert found["mean_error"]["all measured"] == found["mean_error"]["some"] < found["mean_error"]["all"]
    for simulated in (set[str](), {"some", "likely"}, {"other"}):
        assert list(scoreboard(runs, simulated)["source"]) == ["some", "likely", "all"]
    assert list(scoreboard(published, {"some"})["source"]) == ["some"]
    assert PublishedRuns.load().simulated.keys() == {"vtrain-single-node"}


def test_json_has_the_groups_of_each_line(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.csv" for name in ("mine", "vtrain-single-node")]
    rows = [{**RUN, "system": "a100-selene", "microbatch": b, "measured_s": "0.5"} for b in ("1", "2", "4")]
    for path in files:
        pd.DataFrame(rows).to_csv(path, index=False)
    found = invoke_json("validate", *map(str, files))
    sources = {one["source"]: {group["source"] for group in one["by_group"]} for one in found}
    assert sources["all measured"] == {"mine"}
    assert sources["all"] == {"mine", "vtrain-single-node"}
