"""Tables of runs by the library and by the command line."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.validate.table import predict, predict_table
from tests.commands import assert_refused, invoke
from tests.unit.validate.examples import SMALL, machine

ROWS = """hidden,heads,layers,seq,vocab,gpus,tp,pp,dp,microbatch,global_batch,note,measured_s
1024,16,8,512,50304,16,2,2,4,2,64,right,0.5
1024,16,8,512,50304,16,2,2,3,2,64,wrong widths,0.5
1024,16,8,512,50304,16,x,2,4,2,64,no number,
12288,96,96,2048,50304,8,8,1,1,1,8,too large,100
1024,16,8,512,50304,16,2,2,,,64,open,1
"""


@pytest.fixture(name="runs")
def table_of_runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text(ROWS)
    return path


def test_a_row_that_cannot_be_right_has_a_status_and_the_others_go_on(runs: Path) -> None:
    table, _ = predict_table(runs, machine())
    assert table["status"].tolist()[:3] == [
        "ok",
        "invalid: tp * pp * dp must be gpus 16, got 12",
        f"invalid: tp must be a whole number from 1 to {2**31}, got 'x'",
    ]
    assert table["status"][3].startswith("does not fit: needs ")
    assert table["status"][3].endswith(" GiB or more of 80 GiB")
    assert table["time_s"].notna().tolist() == [True, False, False, True, True]
    assert table["note"][0] == "right"


def test_a_row_is_what_the_library_predicts(runs: Path) -> None:
    table, _ = predict_table(runs, machine())
    assert table["time_s"][0] == predict(SMALL, machine()).time_s


def test_a_predicted_time_lies_in_its_interval(runs: Path) -> None:
    table, _ = predict_table(runs, machine())
    timed = table[table["time_s"].notna()]
    assert (timed["time_low_s"] < timed["time_s"]).all()
    assert (timed["time_s"] < timed["time_high_s"]).all()
    assert table["time_low_s"].notna().equals(table["time_s"].notna())


def test_a_system_grows_to_the_devices_of_a_row(tmp_path: Path) -> None:
    """As for `plan`: h100 grows to 6,144 devices, a torus cannot grow."""
    row = "hidden,heads,layers,seq,vocab,gpus,tp,pp,dp,microbatch,global_batch,system\n"
    path = tmp_path / "runs.csv"
    path.write_text(f"{row}1024,16,8,512,50304,8192,2,1,4096,1,4096,h100\n")
    assert predict_table(path, None)[0]["status"][0].startswith("ok")
    path.write_text(f"{row}1024,16,8,512,50304,8192,2,1,4096,1,4096,tpu-v4\n")
    assert "at most 4096, as it is a torus, got 8192" in predict_table(path, None)[0]["status"][0]


PUBLISHED = {
    "deepseek-v3": "deepseek-v3.json", "gpt-oss-120b": "gpt-oss-120b.json",
    "llama-3.1-405b": "meta-llama-3.1-405b.json", "llama-3.1-70b": "meta-llama-3.1-70b.json",
    "llama-3.1-8b": "meta-llama-3.1-8b.json", "qwen3-30b-a3b": "qwen3-30b-a3b.json",
    "nemotron-3-nano-30b-a3b": "nvidia-nemotron-3-nano-30b-a3b-bf16.json",
}  # fmt: skip
"""Published configuration of each model with recipes."""


def released(tmp_path: Path, columns: str, *values: str) -> pd.DataFrame:
    """Predictions of Megatron-Bridge's Llama 3 405B on GB200 with additional columns."""
    head = (
        f"model,seq,gpus,global_batch,tp,pp,vp,microbatch,system,compute,zero,sequence_parallel,{columns}\n"
    )
    path = tmp_path / "runs.csv"
    own = "llama-3.1-405b,8192,256,64,4,16,4,1,gb200,fp8-cs,1,true"
    path.write_text(head + "".join(f"{own},{one}\n" for one in values))
    return predict_table(path, None)[0]


def test_a_release_sets_what_its_recipe_says(tmp_path: Path) -> None:
    table = released(tmp_path, "release,overlap", "26.04,", "26.04,none")
    assert (table["stack_used"] == "megatron-bridge").all()
    assert table["status"].str.startswith(("ok", "may fit")).all(), table["status"].tolist()
    assert table["time_s"][0] < table["time_s"][1]


def test_the_overlap_of_a_row_is_added_to_that_of_its_recipe(tmp_path: Path) -> None:
    """And a release without a recipe leaves the stack as it is; the status says what was taken."""
    table = released(tmp_path, "release,overlap", "26.04,", "26.04,dp", "26.04,none")
    times_s = table["time_s"].tolist()
    assert times_s[0] == times_s[1] < times_s[2]
    assert table["status"].str.endswith("; recipe of 26.04 for 256 devices").all(), table["status"].tolist()
    path = tmp_path / "runs.csv"
    text = path.read_text().splitlines()[0] + "\ngpt2-xl,1024,8,64,1,1,,1,gb200,fp8-cs,1,,26.04,\n"
    path.write_text(text)
    status = predict_table(path, None)[0]["status"][0]
    assert status.endswith("; no recipe for this model, device and precision: stack megatron-bridge as it is")


def test_fp8_of_a_release_is_current_scaling_and_experts_have_etp_1(tmp_path: Path) -> None:
    head = "model,seq,gpus,global_batch,tp,ep,pp,vp,microbatch,system,compute,release,etp,sequence_parallel\n"
    row = "qwen3-30b-a3b,4096,64,512,2,8,1,,1,h100"
    path = tmp_path / "runs.csv"
    path.write_text(f"{head}{row},fp8,26.02,,\n{row},FP8-CS,26.02 NeMo,1,true\n")
    table = predict_table(path, None)[0]
    assert table["status"].str.contains("recipe of 26.02").all(), table["status"].tolist()
    assert table["time_s"][0] == table["time_s"][1]


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_the_name_of_a_model_file_changes_no_time(project_root: Path, tmp_path: Path, suffix: str) -> None:
    """Rows of a release, their models copied to files of any name."""
    path = project_root / "config/measured/megatron-bridge-26.04.csv"
    rows = pd.read_csv(path, dtype=str, keep_default_na=False).drop_duplicates("model")
    if suffix == ".json":
        files = {model: PUBLISHED.get(model, "") for model in rows["model"]}
        shared = project_root.parent / "shared/data/huggingface"
        if not shared.is_dir():
            pytest.skip("the published configurations are not there")
        rows = rows[[files[model] != "" for model in rows["model"]]]
    renamed = rows.copy()
    for number, model in enumerate(rows["model"]):
        copy = tmp_path / f"file-{number}{suffix}"
        own = project_root / f"config/models/{model}.yaml"
        copy.write_bytes((shared / PUBLISHED[model] if suffix == ".json" else own).read_bytes())
    renamed["model"] = [f"file-{number}{suffix}" for number in range(len(rows))]
    tables = []
    for name, table in (("named.csv", rows), ("renamed.csv", renamed)):
        table.to_csv(tmp_path / name, index=False)
        tables.append(predict_table(tmp_path / name, None)[0])
    assert tables[0]["time_s"].notna().all(), tables[0]["status"].tolist()
    assert tables[0]["time_s"].tolist() == tables[1]["time_s"].tolist()
    assert tables[0]["status"].tolist() == tables[1]["status"].tolist()


def test_a_release_needs_a_stack_and_a_model_with_recipes(tmp_path: Path) -> None:
    found = released(tmp_path, "release,stack", "26.04,primus")["status"][0]
    assert found.startswith("invalid: release: stack primus has no recipes by release; stacks with recipes: ")
    path = tmp_path / "runs.csv"
    row = "hidden,heads,layers,seq,vocab,gpus,tp,pp,dp,microbatch,global_batch,system,release\n"
    path.write_text(f"{row}1024,16,8,512,50304,16,2,2,4,2,64,h100,26.04\n")
    assert predict_table(path, None)[0]["status"][0].startswith("invalid: release: needs model")


def test_an_open_microbatch_is_the_fastest_that_fits(runs: Path) -> None:
    table, _ = predict_table(runs, machine())
    assert table["time_s"][4] <= table["time_s"][0] <= table["slowest_s"][4]
    assert table["microbatch_used"][4] in (1, 2, 4, 8)


def test_measured_rows_are_compared_where_they_are_predicted(runs: Path) -> None:
    table, accuracy = predict_table(runs, machine())
    assert accuracy is not None
    assert len(accuracy.errors) == 3
    errors = table["time_s"][[0, 3, 4]] / [0.5, 100, 1] - 1
    assert accuracy.errors.mean() == pytest.approx(errors.mean())
    assert accuracy.mean_error == pytest.approx(errors.abs().mean())


def test_columns_of_predictions_may_not_be_given(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("hidden,heads,layers,seq,vocab,gpus,global_batch,time_s\n")
    with pytest.raises(PhazeError, match="columns time_s are reserved for predictions"):
        predict_table(path, machine())


def test_a_table_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("hidden,heads,layers,seq,vocab,gpus,global_batch\n")
    table, accuracy = predict_table(path, machine())
    assert len(table) == 0
    assert accuracy is None


def test_the_command_writes_the_table_and_ends_with_the_errors(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "predicted.csv"
    result = invoke("simulate --runs", runs, "--system", "a100-selene", "-o", out)
    assert result.exit_code == 0, result.output
    assert "5 runs, 3 predicted, of which 2 fit: " in result.output
    assert "3 measured rows: mean absolute error" in result.output
    assert "rank correlation" in result.output
    written = pd.read_csv(out)
    assert ",2,1," in out.read_text().splitlines()[1]
    names = ["time_s", "memory_gib", "weights_gib", "optimizer_gib", "activation_gib", "model_flops_per_gpu"]
    assert not (written[names] <= 0).any(axis=None)
    assert written[names].notna().any().all()


def test_what_is_wrong_before_the_runs_are_read_is_one_message(runs: Path, tmp_path: Path) -> None:
    for source, system, out, message in (
        (runs, "wafer", "out.csv", "is a mesh of tiles"),
        ("none.csv", "a100-selene", "none/a", "is not a folder"),
    ):
        assert_refused(message, "simulate --runs", source, "--system", system, "-o", tmp_path / out)
