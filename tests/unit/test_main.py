"""The command line answers single questions; a mistake gives one message and exit status 1."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer import BadParameter

from phaze.base.errors import PhazeError
from phaze.commands.options import amount, count
from tests.commands import assert_refused, documented, invoke, invoke_json

RESNET = """
kind: resnet
image: 32
classes: 10
backbone: {stem: 8, blocks: [1, 3], widths: [4, 8]}
"""


@pytest.mark.parametrize(
    "command",
    ["validate", "model gpt2", "status", "place -m gpt2", "plan gpt2 --gpus 8xh100"],
    ids=lambda command: command.split()[0],
)
def test_a_configuration_that_is_nowhere_is_named(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_CONFIG", "/nowhere")
    assert_refused("^PHAZE_CONFIG /nowhere: must be a folder that contains systems", command)


def test_the_space_is_the_papers() -> None:
    found = invoke_json("space")
    assert found["architectures"] == 29360
    assert found["area_limit_mm2"] == pytest.approx(278.82667631216, rel=1e-9)
    assert found["largest"]["architecture"] == "tc8-vc2-128x128-glb128"
    assert "29,360 architectures" in invoke("space").stdout


def test_without_the_share_rule_the_space_is_larger() -> None:
    assert invoke_json("space --no-minimum-share")["architectures"] == 51943


def test_a_model_of_images_is_extracted_as_a_chain_of_layers(tmp_path: Path) -> None:
    """Stem, blocks and head are layers."""
    path = tmp_path / "small.yaml"
    path.write_text(RESNET)
    printed = invoke_json("extract --model", path)
    assert {row["layer"] for row in printed} == {"stem", "stage-1-first", "stage-2-first", "stage-2", "head"}


def test_a_feature_pyramid_is_extracted() -> None:
    printed = invoke_json("extract --model semantic-fpn")
    assert "decoder" in {row["layer"] for row in printed}


def test_an_instance_in_the_format_of_the_authors_program_is_read_and_written(tmp_path: Path) -> None:
    """Two layers that fit a device only separately: two stages of 3 ms, and four microbatches."""
    layer = {
        "parameterSize": 1e9, "activationSize": 0, "optimalLatencyFw": 1e-3, "optimalLatencyBw": 2e-3,
        "isTensorParallelized": False,
    }  # fmt: skip
    instance = {
        "maxMemoryPerDevice": 3e9, "maxDevices": 2, "bandwidth": 1e12, "mbsInBatch": 4,
        "nodes": {"1": [{"id": i, **layer} for i in (0, 1)]},
        "edges": {"1": [{"sourceId": 0, "destId": 1, "communicationCost": 0}]},
        "activationRecomputation": False, "optimizerAlgorithm": "SGD",
    }  # fmt: skip
    given, out = tmp_path / "instance.json", tmp_path / "out.json"
    given.write_text(json.dumps(instance))
    invoke("place", given, "-o", out)
    found = json.loads(out.read_text())
    assert (found["tensorParallelDegree"], found["dataParallelDegree"], len(found["stages"])) == (1, 1, 2)
    assert found["finalTimePerBatch"] == pytest.approx((4 + 2 - 1) * 3e-3)


@pytest.fixture(name="graph")
def documented_graph(tmp_path: Path) -> Path:
    """Return a file with the input that config/formats.md shows."""
    return documented(0, tmp_path)


def piper(graph: Path, options: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(invoke(f"place --planner piper {graph} {options}").stdout)
    return answer


def test_piper_plans_the_graph_of_the_readme(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert invoke("place --planner piper", graph, "-o", out).stdout == ""
    found = json.loads(out.read_text())
    assert sorted(layer for stage in found["stages"] for layer in stage["layers"]) == [0, 1]
    assert found["devices"] == sum(stage["d"] * stage["t"] for stage in found["stages"]) <= 4
    assert all(stage["memory_bytes"] <= 3e9 for stage in found["stages"])
    assert piper(graph) == found


def test_options_of_piper_replace_what_its_input_says(graph: Path) -> None:
    base = piper(graph)["time_per_sample"]
    one = piper(graph, "--devices 1")
    assert (one["devices"], one["time_per_sample"]) == (1, 0.01 + 0.03)
    exact = piper(graph, "--exactly --microbatches 2")
    assert exact["degree"] == 2
    slow = piper(graph, "--bandwidth-gib 0.5")
    assert slow["time_per_sample"] > base
    none = piper(graph, "--memory-gib 0.1")
    assert none["time_per_sample"] is None
    assert none["reason"].startswith("memory: ")
    others = piper(graph, "--baselines --exact-knapsack")["baselines"]
    assert all(other["time_per_sample"] >= base for other in others.values() if other["stages"])


def test_piper_plans_for_levels(graph: Path) -> None:
    """Levels of one device have no effect; compared with --exact-knapsack, as levels choose exactly."""
    flat = piper(graph, "--devices 4 --bandwidth-gib 25 --exact-knapsack")
    one = piper(graph, "--levels 4@25,1@1")
    assert one["time_per_sample"] == pytest.approx(flat["time_per_sample"], rel=1e-9)
    assert [stage["level"] for stage in one["stages"]] == [2]
    assert sorted(v for stage in one["stages"][0]["stages"] for v in stage["layers"]) == [0, 1]
    none = piper(graph, "--levels 4@25,2@1 --memory-gib 0.1")
    assert none["time_per_sample"] is None
    assert none["reason"].startswith("memory: ")


@pytest.mark.parity
def test_piper_gives_the_optima_of_the_authors_and_their_table(tmp_path: Path, shared_data: Path) -> None:
    """GNMT on two devices of 3.5 GiB: the table prints 260.268, the program finds 260.2268."""
    inputs, out = shared_data / "piper", tmp_path / "out.json"
    machine = "--devices 2 --memory-gib 3.5 --bandwidth-gib 25"
    command = f"place --planner piper {inputs}/gnmt.json {machine} -o {out}"
    invoke(command, "--paper-table1", "--baselines")
    found = json.loads(out.read_text())
    assert f"{found['time_per_sample']:.6g}" == "260.268"
    assert f"{found['baselines']['equi']['time_per_sample']:.6g}" == "260.268"
    invoke(command)
    assert f"{json.loads(out.read_text())['time_per_sample']:.7g}" == "260.2268"


def test_too_many_downsets_are_one_message_and_nothing_is_written(graph: Path, tmp_path: Path) -> None:
    """Forty layers without edges have 2^40 downsets, four have sixteen."""
    content, out = json.loads(graph.read_text()), tmp_path / "out.json"
    layer = content["nodes"][0]
    layer["TMPCs"]["1"][0]["syncTimeBw"] = {}
    for layers, allowed in ((40, ()), (4, ("--max-downsets", "15"))):
        content["nodes"], content["edges"] = [{**layer, "id": i} for i in range(layers)], []
        graph.write_text(json.dumps(content))
        message = r"example-0\.json: .* downsets .*; see --max-downsets and --paper-table1"
        assert_refused(message, f"place --planner piper {graph} -o {out}", *allowed)
        assert not out.exists()
    invoke(f"place --planner piper {graph} -o {out} --max-downsets 16")
    assert len(json.loads(out.read_text())["stages"]) > 0


def test_a_bad_graph_is_one_message_and_nothing_is_written(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    graph.write_text(graph.read_text().replace('"destId": 1', '"destId": 7'))
    message = r"example-0\.json: edges: edge 0 -> 7: destId 7 is not the id of a node"
    assert_refused(message, f"place --planner piper {graph} -o {out}")
    assert not out.exists()


def test_extract_estimate_and_schedule_print_their_tables(model: str) -> None:
    operators = invoke_json("extract --model", model)
    estimates = invoke_json("estimate --model", model)
    solves = invoke_json("schedule --model", model)
    assert {row["layer"] for row in operators} == {"embedding", "block", "head"}
    assert all(row["latency_all_s"] <= row["latency_s"] for row in estimates)
    assert len(solves) == 6
    assert "all_reduce" in invoke("extract --model", model, "--tensor", "2").stdout


NUMBERS = {"4M": 4e6, "4m": 4e6, "8k": 8e3, "1.5T": 1.5e12, "15e12": 15e12, "2B": 2e9, 7: 7, ".5k": 500}


@pytest.mark.parametrize(("text", "number"), NUMBERS.items())
def test_numbers_may_have_decimal_suffixes(text: str, number: float) -> None:
    assert amount(text) == number
    if number <= 2**31:
        assert count(text) == number


@pytest.mark.parametrize(
    "text",
    ["4X", "-1", "0", "nan", "inf", "", "k", "1e999", "4Mi", "1 k", "1e9T" * 9, "9" * 400, "1.5", "3G"],
)
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(BadParameter, match=r"must be a (whole )?number"):
        count(text)


@pytest.mark.parametrize("name", ["fp8-cs", "FP8_CS", "tensorwise"])
def test_precision_has_the_names_of_rows(name: str, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    for option in ("--precision", "--compute"):
        invoke("plan gpt2 --gpus 1xh100 --global-batch 1", option, name, "-o", out)
        assert json.loads(out.read_text())["question"]["precision"] == "fp8-cs"


@pytest.mark.slow
def test_a_batch_in_tokens_is_the_nearest_that_the_devices_share(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    shared = ("plan", "gpt2", "--gpus", "2xh100", "--sequence", "1k")
    invoke(*shared, "--batch-tokens", "9.5k", "--top", "1", "-o", out)
    question = json.loads(out.read_text())["question"]
    assert (question["sequence"], question["global_batch"]) == (1000, 10)  # 9.5, for two replicas


@pytest.mark.slow
def test_devices_and_system_may_be_given_in_one() -> None:
    partition = ("partition", "bert-large", "--json")
    both = invoke(*partition, "--system", "titan-v-ethernet", "--devices", "2").stdout
    assert invoke(*partition, "--gpus", "2xTitan-V-Ethernet").stdout == both


def test_systems_grow_for_runs(tmp_path: Path) -> None:
    path, out = tmp_path / "runs.csv", tmp_path / "out.csv"
    path.write_text("model,seq,gpus,global_batch,microbatch\ngpt2,64,8192,8192,1\n")
    invoke("simulate --runs", path, "--gpus", "8192xH100", "-o", out)
    assert ",ok; flash_attention true" in out.read_text().splitlines()[1]


def test_a_batch_that_memory_cannot_hold_is_a_status_or_one_message(tmp_path: Path) -> None:
    """The events of all its microbatches would take terabytes."""
    path, out = tmp_path / "runs.csv", tmp_path / "out.csv"
    path.write_text(f"model,seq,gpus,global_batch,pp,microbatch\ngpt2,1024,8,{2**31},8,1\n")
    invoke("simulate --runs", path, "--system", "h100", "-o", out)
    assert "invalid: the events of 2,147,483,648 microbatches in 8 stages need" in out.read_text()
    with pytest.raises(PhazeError, match=r"the events of 2,147,483,648 microbatches in \d+ stages need"):
        invoke("plan gpt2 --gpus 8xh100 --batch-tokens", 2**31, "--sequence", "1")


def test_microbatches_larger_than_a_batch_are_scheduled(model: str) -> None:
    for verb in ("estimate", "schedule"):
        assert invoke_json(verb, "--model", model, "--microbatch", "8192")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["space", "space --json", "--help"])
def test_an_answer_that_cannot_be_printed_is_one_line(arguments: str) -> None:
    command = [sys.executable, "-m", "phaze", *arguments.split()]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first == "error: cannot print the answer: No space left on device"
    assert second == "help: print to a terminal or another disk"


def test_a_folder_of_configuration_of_ones_own_comes_first(tmp_path: Path) -> None:
    (tmp_path / "systems").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "models/mine.yaml").write_text("{}")

    def refused(folder: Path) -> str:
        command = [sys.executable, "-m", "phaze", "--config", str(folder), "plan", "gpt2", "--gpus", "8xh100"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        return done.stderr

    assert refused(tmp_path) == (
        f"error: there is no model 'gpt2' ({tmp_path}/models/gpt2.yaml)\n"
        "help: known are mine; `phaze models` lists them, for others pass a path of a config.json\n"
    )
    assert "must be a folder that contains systems, models and devices" in refused(tmp_path / "none")
