"""The command line answers single questions, and a mistake is one message and exit status 1."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from phaze.__main__ import app, main
from phaze.errors import PhazeError

MODEL = """
layers: 4
hidden: 64
heads: 4
feed_forward: 256
vocabulary: 512
position_count: 64
"""
VERBS = ("space", "extract", "estimate", "schedule", "place", "export")


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(name="model")
def tiny_model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(MODEL)
    return str(path)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_what_it_does(verb: str) -> None:
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_the_space_is_the_papers() -> None:
    found = json.loads(run("space", "--json").output)
    assert found["architectures"] == 29360
    assert found["area_limit_mm2"] == pytest.approx(278.82667631216, rel=1e-9)
    assert found["largest"]["architecture"] == "tc8-vc2-128x128-glb128"
    assert "29,360 architectures" in run("space").output


def test_without_the_share_rule_the_space_is_larger() -> None:
    assert json.loads(run("space", "--json", "--no-minimum-share").output)["architectures"] == 51943


def test_place_answers_the_main_question_in_one_line(model: str) -> None:
    output = run("place", "--model", model, "--devices", "8", "--global-batch", "32").output
    assert output.count("\n") == 1
    for part in (
        "t=",
        "d=",
        "s=",
        "layers",
        "microbatch",
        "HBM",
        "tokens/s",
        "MFU",
        "days to train",
        "bound by",
    ):
        assert part in output


def test_place_in_json_says_what_the_line_says(model: str) -> None:
    arguments = (
        "--model",
        model,
        "--devices",
        "8",
        "--global-batch",
        "32",
        "--tensor",
        "2",
        "--microbatch",
        "4",
    )
    found = json.loads(run("place", *arguments, "--json").output)
    assert (found["status"], found["tensor"], found["microbatch"]) == ("placed", 2, 4)
    assert found["tensor"] * found["data"] * found["stages"] <= 8
    assert [stage["stage"] for stage in found["memory"]] == list(range(found["stages"]))
    assert found["samples_per_s"] == pytest.approx(32 / found["time_per_batch_s"])


def test_a_model_that_does_not_fit_says_by_how_much(model: str) -> None:
    arguments = ("--model", model, "--devices", "1", "--global-batch", "32", "--hbm-gib", "0.0001")
    assert "infeasible: memory" in run("place", *arguments).output


def test_an_instance_of_the_authors_program_is_read_and_written(tmp_path: Path, shared_data: Path) -> None:
    out = tmp_path / "out.json"
    run("place", str(shared_data / "placement" / "gpt3.json"), "-o", str(out))
    found = json.loads(out.read_text())
    assert found["finalTimePerBatch"] == pytest.approx(43.04326080322271, rel=1e-9)
    assert (found["tensorParallelDegree"], found["dataParallelDegree"], len(found["stages"])) == (4, 32, 8)


def test_extract_estimate_and_schedule_print_their_tables(model: str) -> None:
    operators = json.loads(run("extract", "--model", model, "--json").output)
    estimates = json.loads(run("estimate", "--model", model, "--json").output)
    solves = json.loads(run("schedule", "--model", model, "--json").output)
    assert {row["layer"] for row in operators} == {"embedding", "block", "head"}
    assert all(row["latency_all_s"] <= row["latency_s"] for row in estimates)
    assert len(solves) == 6
    assert "all_reduce" in run("extract", "--model", model, "--tensor", "2").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("place",), "give either an instance file or --model"),
        (("place", "--model", "gpt9"), r"there is no model 'gpt9'"),
        (("place", "--model", "gpt2", "--architecture", "tpu-v9"), "there is no architecture 'tpu-v9'"),
        (("place", "--model", "gpt2", "--system", "moon"), "there is no system 'moon'"),
        (("place", "--model", "gpt2", "--tensor", "5"), "tensor: 5 must be > 0 and divide heads"),
        (
            ("place", "--model", "gpt2", "--microbatch", "3"),
            "--microbatch: 3 does not divide --global-batch 4096",
        ),
        (("place", "--model", "gpt2", "--sequence", "4096"), "sequence: 4096 must be"),
        (("place", "--model", "gpt2", "--optimizer", "lion"), "optimizer: should be"),
        (("export", "none.parquet"), "none.parquet"),
    ],
)
def test_a_mistake_is_one_message(
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(PhazeError, match=message):
        run(*arguments)
    monkeypatch.setattr("sys.argv", ["phaze", *arguments])
    assert main() == 1
    assert capsys.readouterr().err.startswith("phaze: ")
