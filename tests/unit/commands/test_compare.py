"""Runs compared with a plan: every step towards it is a valid run with the stated time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from click.testing import Result

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.plan.machines import load_machine
from phaze.runtimes.megatron_flags import NAMES
from phaze.runtimes.recipe import Recipe
from phaze.spec.models import load_transformer
from phaze.validate.rows import read_row
from phaze.validate.table import predict_rows
from tests.commands import assert_refused, invoke, invoke_json
from tests.unit.commands.conftest import FIXED, write_plan

OWN = {
    "model": "llama-3.1-8b", "seq": "2048", "gpus": "16", "global_batch": "16", "tp": "8", "pp": "2",
    "dp": "1", "microbatch": "1", "zero": "0", "sequence_parallel": "true", "recompute": "full",
    "flash_attention": "true", "schedule": "1f1b",
}  # fmt: skip


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plan(tmp_path_factory.mktemp("plan"), 16, f"tp=4,{FIXED},microbatch=2")


def _compared(folder: Path, plan: Path, **said: str) -> dict[str, object]:
    file = folder / "run.csv"
    pd.DataFrame([OWN | said]).to_csv(file, index=False)
    answer: dict[str, object] = invoke_json("compare", file, plan)
    return answer


def _seconds(**said: str) -> float:
    predicted = predict_rows([read_row(OWN | said)], load_machine("h100"))
    return float(predicted["time_s"].iloc[0])


def test_every_step_is_the_best_single_change_and_the_last_one_is_the_plan(
    plan: Path, tmp_path: Path
) -> None:
    answer = _compared(tmp_path, plan)
    planned = json.loads(plan.read_text())
    stages = planned["layout"]["pipeline_layout"]
    assert answer["run_s"] == pytest.approx(_seconds(), rel=1e-9)
    assert answer["plan_s"] == pytest.approx(planned["time_s"], rel=1e-9)
    steps = answer["steps"]
    assert isinstance(steps, list)
    assert sum(step["saved"] for step in steps) == pytest.approx(answer["saved"], abs=1e-9)

    left = {
        "tp": {"tp": "4", "dp": "2"}, "microbatch": {"microbatch": "2"}, "zero": {"zero": "1"},
        "recompute": {"recompute": "none"}, "stages": {"pipeline_layout": stages},
    }  # fmt: skip
    taken: dict[str, str] = {}
    for step in steps:
        name = step["changes"][0]["field"]
        alone_s = {other: _seconds(**taken, **said) for other, said in left.items()}
        assert step["time_s"] == pytest.approx(alone_s[name], rel=1e-9)
        assert step["time_s"] == pytest.approx(min(alone_s.values()), rel=1e-9)
        taken |= left.pop(name)
    assert not left


def test_what_the_runtime_cannot_run_alone_is_changed_with_what_it_needs(plan: Path, tmp_path: Path) -> None:
    answer = _compared(tmp_path, plan, schedule="interleaved", vp="2")
    steps = answer["steps"]
    assert isinstance(steps, list)
    together = next(step for step in steps if step["because"])
    assert {one["field"] for one in together["changes"]} >= {"vp", "schedule"}
    assert "vp must be" in together["because"]
    times = [answer["run_s"], *(step["time_s"] for step in steps)]
    for step, (before, after) in zip(steps, pairwise(times), strict=True):
        assert step["saved"] * times[0] == pytest.approx(before - after, rel=1e-9)


def test_flags_of_the_plan_itself_need_no_change(plan: Path, tmp_path: Path) -> None:
    flags = tmp_path / "flags.txt"
    invoke("emit", plan, "--for", "megatron", "-o", flags)
    answer = invoke_json("compare", flags, plan)
    assert answer["steps"] == []
    assert answer["saved"] == 0
    planned = json.loads(plan.read_text())
    assert answer["run_fullest_gib"] == max(planned["memory_gib"])
    head, run = invoke("compare", flags, plan).stdout.splitlines()[1:3]
    assert head.split()[-2:] == ["GiB", "change"]
    assert run.split()[-1] == f"{planned['in_use_gib']['expected']:.1f}"


ONE = OWN | {"tp": "1", "pp": "1", "dp": "16", "recompute": "none", "sequence_parallel": "false"}
"""Run without tensor and pipeline parallelism."""


def _said(folder: Path, plan: Path, row: dict[str, str]) -> str:
    file = folder / "run.csv"
    pd.DataFrame([row]).to_csv(file, index=False)
    return " ".join(invoke("compare", file, plan).stdout.split())


def test_a_run_that_does_not_fit_says_so_as_simulate_does(plan: Path, tmp_path: Path) -> None:
    status = str(predict_rows([read_row(ONE)], load_machine("h100"))["status"].iloc[0])
    assert status.startswith("does not fit: needs ")
    said = _said(tmp_path, plan, ONE)
    assert said.count("fit") == 1
    assert f"run: {status}" in said


def test_fewer_changes_that_may_not_fit_say_so(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without tensor and pipeline parallelism the run is faster than the plan."""
    fewer = r"fewer changes are better: after \d the run takes"
    assert re.search(rf"{fewer} [\d.]+ s$", _said(tmp_path, plan, ONE | {"zero": "1"}))
    monkeypatch.setattr("phaze.plan.answer.priced.status_of", lambda *_: "may fit: needs more")
    said = _said(tmp_path, plan, ONE | {"zero": "1"})
    assert re.search(rf"{fewer} [\d.]+ s; it may fit: needs more$", said)


def _by_flags(folder: Path, plan: Path, change: Callable[[str], str]) -> Result:
    """Compare the plan with its own flags after a change."""
    flags = folder / "flags.txt"
    invoke("emit", plan, "--for", "megatron", "-o", flags)
    flags.write_text(change(flags.read_text()))
    return invoke("compare", flags, plan, "--json")


def test_dropout_and_positions_beyond_the_sequence_are_remarks(plan: Path, tmp_path: Path) -> None:
    def change(text: str) -> str:
        text = text.replace("--hidden-dropout 0.0", "--hidden-dropout 0.1")
        return text.replace("--max-position-embeddings 131072", "--max-position-embeddings 4096")

    found = _by_flags(tmp_path, plan, change)
    assert json.loads(found.stdout)["steps"] == []
    assert found.stderr == "compare: --hidden-dropout 0.1 is compared as if it were the plan's, 0.0\n"


def test_learned_positions_beyond_the_sequence_are_a_remark() -> None:
    model = load_transformer("gpt2", "test")
    plan = Recipe(model, 512, 8, Layout(), "1f1b", (12,), (0,))
    run = replace(plan, model=model.model_copy(update={"position_count": 2048}))
    run.check_same_task(plan, "flags.txt", NAMES)
    (remark,) = run.unlike(plan, NAMES)
    assert remark == "--max-position-embeddings 2048 is compared as if it were the plan's, 1024"


def test_what_differs_is_named_by_its_flag_and_its_file(plan: Path, tmp_path: Path) -> None:
    with pytest.raises(PhazeError, match=r"flags\.txt: --ffn-hidden-size must be the plan's, 14336, got 7"):
        _by_flags(tmp_path, plan, lambda text: text.replace("14336", "7168"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("--overlap-grad-reduce", ""), ("overlap_dp", "false", "true")),
        (("--grad-reduce-in-bf16", ""), ("gradient_bytes", "4", "2")),
        (("--attention-backend auto", "--attention-backend unfused"), ("flash_attention", "false", "true")),
    ],
)
def test_what_the_software_of_a_run_lacks_is_a_change_of_its_own(
    change: tuple[str, str], said: tuple[str, str, str], plan: Path, tmp_path: Path
) -> None:
    """Missing flags have Megatron-LM's defaults, and the plan's gain over them is shown."""
    answer = json.loads(_by_flags(tmp_path, plan, lambda text: text.replace(*change)).stdout)
    (step,) = answer["steps"]
    assert [(one["field"], one["before"], one["after"]) for one in step["changes"]] == [said]
    assert answer["run_s"] > answer["plan_s"]


def test_settings_of_the_software_come_before_the_layout_one_a_row(plan: Path, tmp_path: Path) -> None:
    def change(text: str) -> str:
        for flag in ("--overlap-grad-reduce", "--tp-comm-overlap", "--grad-reduce-in-bf16"):
            text = text.replace(flag, "")
        return text.replace("--micro-batch-size 2", "--micro-batch-size 1")

    answer = json.loads(_by_flags(tmp_path, plan, change).stdout)
    *software, layout = ([one["field"] for one in step["changes"]] for step in answer["steps"])
    assert sorted(software) == [["gradient_bytes"], ["overlap_dp"], ["overlap_tp"]]
    assert layout == ["microbatch"]
    saved = [step["saved"] for step in answer["steps"][:-1]]
    assert saved == sorted(saved, reverse=True)
    assert sum(step["saved"] for step in answer["steps"]) == pytest.approx(answer["saved"], abs=1e-9)


def test_another_stack_is_one_change_beside_its_settings(plan: Path, tmp_path: Path) -> None:
    answer = _compared(tmp_path, plan, stack="megatron-core-2024")
    steps = answer["steps"]
    assert isinstance(steps, list)
    named = {one["field"]: (one["before"], one["after"]) for step in steps for one in step["changes"]}
    assert named["stack"] == ("megatron-core-2024", "megatron-bridge")
    fields = [step["changes"][0]["field"] for step in steps]
    assert fields.index("tp") > max(i for i, name in enumerate(fields) if name in ("stack", "gradient_bytes"))
    assert answer["plan_s"] == pytest.approx(json.loads(plan.read_text())["time_s"], rel=1e-9)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"global_batch": "32"}, "global_batch must be the plan's, 16, got 32"),
        ({"seq": "4096"}, "sequence must be the plan's, 2048, got 4096"),
        ({"gpus": "32", "dp": "2"}, "devices must be the plan's, 16, got 32"),
        ({"model": "llama-3.1-70b"}, "model.layers must be the plan's, 32, got 80"),
        ({"system": "a100-80gb"}, "system must be h100, as in the plan"),
        ({"tp": "3"}, "must be"),
    ],
)
def test_runs_that_are_no_match_for_the_plan_are_refused(
    said: dict[str, str], message: str, plan: Path, tmp_path: Path
) -> None:
    with pytest.raises(PhazeError, match=message):
        _compared(tmp_path, plan, **said)


def test_one_of_several_rows_is_asked_for(plan: Path, tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    pd.DataFrame([OWN, OWN | {"zero": "1"}]).to_csv(file, index=False)
    assert_refused("--row: must be a number from 1 to 2", "compare", file, plan)
    said = invoke("compare", file, plan, "--row", "2").stdout
    assert "zero" not in said
    assert "recompute full -> none" in said
