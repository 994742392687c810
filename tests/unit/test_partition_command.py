"""`phaze partition`: from a model or a file to stages, and one message for each mistake."""

import json
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.partition.flow import CutOptions
from phaze.partition.study import Shape, ShapeResult
from phaze.partition.weights import PartitionTerms
from phaze.spec.documents import read_as
from phaze.spec.mapping import StoredMapping
from phaze.spec.names import MOST
from phaze.spec.operators import StoredOperators
from phaze.spec.stages import StoredStages
from phaze.workload.operator_graphs import OperatorGraph
from tests.commands import assert_refused, documented, invoke, invoke_json


@pytest.fixture(name="graph")
def documented_graph(tmp_path: Path) -> Path:
    """Return a file with the operators that config/formats.md shows."""
    return documented(1, tmp_path)


NEGATIVE = {"name": "a", "backward_s": 0, "parameter_bytes": 0, "forward_bytes": 0, "backward_bytes": 0}
NEGATIVE["forward_s"] = -1


def changed(graph: Path, **keys: object) -> str:
    data = json.loads(graph.read_text()) | keys
    graph.write_text(json.dumps(data))
    return str(graph)


def test_the_graph_of_the_readme_becomes_stages(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "stages.json"
    said = invoke("partition", graph, "--stages", "2", "--replicas", "3", "-o", out).stdout
    assert said.startswith("2 stages × 3 replicas: slowest stage ")
    stages = read_as(StoredStages, out)
    assert [stage.operators for stage in stages.stages] == [("embedding", "query"), ("feed-forward",)]
    assert (stages.model, stages.replicas, stages.microbatches, stages.recompute) == ("toy", 3, 4, True)
    assert stages.stages[1].backward_s == pytest.approx(0.018)
    assert [(edge.source, edge.target, edge.bytes) for edge in stages.edges] == [(0, 1, 16e6)]


def test_devices_alone_are_searched(graph: Path) -> None:
    rows = invoke_json("partition", graph, "--devices", "4")
    assert {(row["stages"], row["replicas"]) for row in rows} == {(1, 4), (2, 2)}
    rates = [row["samples_per_s"] for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(4 * rows[0]["replicas"] * 4 / rows[0]["step_time_s"])


def test_devices_that_a_given_shape_leaves_idle_are_named(graph: Path) -> None:
    shape = ("--stages", "1", "--replicas", "2")
    message = "partition: --stages 1 and --replicas 2 use 2 of 8 devices; leave out one of the two to use all"
    assert message in invoke("partition", graph, *shape, "--devices", "8").stderr
    assert "leave out" not in invoke("partition", graph, *shape, "--devices", "2").stderr


def test_a_graph_with_its_own_times_takes_no_system_by_the_name_that_was_given(graph: Path) -> None:
    for option, value in (("--gpus", "4xh100"), ("--system", "h100"), ("--sequence", "8")):
        message = f"partition: {option} applies to models only; a graph file already has times and sizes"
        assert_refused(message, "partition", graph, "--stages", "2", option, value)


def test_others_can_be_compared(graph: Path) -> None:
    (row,) = invoke_json("partition", graph, "--stages", "2", "--replicas", "2", "--baselines")
    assert list(row["baselines"]) == ["pipedream", "topological", "piper", "phaze"]
    for other in row["baselines"].values():
        assert row["stage_time_s"] <= 1.02 * other["stage_time_s"]
    lines = invoke("partition", graph, "--stages", "3", "--replicas", "1", "--baselines").stdout.splitlines()
    assert lines[1] == "  pipedream: 3 stages need as many layers, the graph has 2"


def test_without_recomputation_stages_are_faster(graph: Path) -> None:
    shape = ("--stages", "2", "--replicas", "1", "--json")
    (with_it,) = json.loads(invoke("partition", graph, *shape).stdout)
    (without,) = json.loads(invoke("partition", graph, *shape, "--no-recompute").stdout)
    assert without["stage_time_s"] < with_it["stage_time_s"]


def test_a_model_is_profiled_and_its_graph_gives_the_same(tmp_path: Path) -> None:
    graph, first, second = (tmp_path / name for name in ("graph.json", "first.json", "second.json"))
    shape = ("--stages", "4", "--replicas", "2", "--microbatches", "8", "--bandwidth-gbps", "2")
    invoke("partition resnet-50 --microbatch 8", *shape, "--graph-out", graph, "-o", first)
    assert read_as(StoredOperators, graph).microbatch == 8
    invoke("partition", graph, *shape, "-o", second)
    assert first.read_text() == second.read_text()
    stages = read_as(StoredStages, first)
    assert sum(stage.parameter_bytes for stage in stages.stages) == pytest.approx(4 * 25.557e6, rel=1e-3)
    assert stages.settings is not None
    assert stages.settings.bandwidth_bytes_per_s == 2e9


def test_a_published_configuration_is_a_model(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 128}
    config.write_text(json.dumps({"model_type": "gpt2", **sizes}), encoding="utf-8")
    assert (
        "3 stages × 2 replicas: slowest stage"
        in invoke("partition", config, "--stages", "3", "--replicas", "2").stdout
    )


@pytest.mark.parametrize(
    ("model", "given", "most"), [("swin-l", None, 32), ("swin-l", 40, 40), ("resnet-50", None, None)]
)
def test_models_of_the_paper_bring_its_number_of_clusters(
    monkeypatch: pytest.MonkeyPatch, model: str, given: int | None, most: int | None
) -> None:
    """Parmesan, Table VII; other models have the default."""
    asked = []

    def search(_g: OperatorGraph, _t: PartitionTerms, _s: Shape, options: CutOptions) -> list[ShapeResult]:
        asked.append(options.hyper_operators)
        raise PhazeError("enough")

    monkeypatch.setattr("phaze.partition.study.search", search)
    extra = () if given is None else ("-k", str(given))
    assert_refused("enough", "partition", model, "--stages", "4", "--replicas", "2", *extra)
    assert asked == [most]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"edges": [{"source": "query", "target": "value", "bytes": 1}]}, "'value' is not the name of an op"),
        ({"edges": [{"source": "query", "target": "query", "bytes": 1}]}, "not form a cycle, got query ->"),
        ({"edges": [{"source": "query", "target": "feed-forward", "bytes": -1}]}, "edges.0.bytes: .*got -1"),
        ({"operators": [NEGATIVE], "edges": []}, "operators.0.forward_s: .*got -1"),
        ({"microbatches": 4}, "microbatches: is not a known key"),
        ({"operators": []}, "operators: "),
        ({"format": "phaze-stages"}, "format: "),
    ],
)
def test_a_bad_graph_is_named_with_its_file(graph: Path, keys: dict[str, object], message: str) -> None:
    assert_refused(f"example-1.json: .*{message}", "partition", changed(graph, **keys), "--devices", "2")


def test_operators_that_take_no_time_are_refused(graph: Path) -> None:
    still = [one | {"forward_s": 0, "backward_s": 0} for one in json.loads(graph.read_text())["operators"]]
    command = f"partition {changed(graph, operators=still)} --stages 2 --replicas 1"
    assert_refused("the operators of the graph take no time", command)


def test_most_replicas_of_a_file_need_no_matrix_of_theirs(graph: Path) -> None:
    shape = ("--stages", "2", "--replicas", str(MOST))
    assert invoke("partition", graph, *shape).stdout.startswith(f"2 stages × {MOST} replicas: ")


def test_times_that_sum_up_to_more_than_files_may_hold_are_refused(graph: Path, tmp_path: Path) -> None:
    slow = [one | {"forward_s": 9e29} for one in json.loads(graph.read_text())["operators"]]
    command = f"partition {changed(graph, operators=slow)} --stages 2 --replicas 1 -o {tmp_path / 'out'}"
    assert_refused(r"example-1\.json: operators: forward_s and backward_s must sum up to", command)


@pytest.mark.parametrize("option", ["-o", "--graph-out"])
def test_a_model_too_slow_for_a_file_is_refused(tmp_path: Path, project_root: Path, option: str) -> None:
    config = project_root / "config"
    device = (config / "devices" / "titan-v.yaml").read_text().replace("1.455e+9", "1.0e-24")
    (tmp_path / "slow-device.yaml").write_text(device)
    system = (config / "systems" / "titan-v-ethernet.yaml").read_text()
    (tmp_path / "slow.yaml").write_text(system.replace("titan-v", "slow-device.yaml", 1))
    shape = ("--stages", "2", "--replicas", "1", "--system", str(tmp_path / "slow.yaml"))
    assert_refused(r"gpt2: .*must .* 1e\+30, got", "partition gpt2", *shape, option, tmp_path / "out.json")


LINKS = "source,target,latency_s,bandwidth_bytes_per_s\n"


def links(folder: Path, *rows: str) -> Path:
    path = folder / "links.csv"
    path.write_text(LINKS + "".join(f"{row}\n" for row in rows))
    return path


@pytest.mark.slow
def test_with_a_topology_stages_and_mapping_are_chosen_together(graph: Path, tmp_path: Path) -> None:
    table = links(tmp_path, "0,1,1e-5,1e9", "1,0,2e-5,2e9")
    out, map_out = tmp_path / "stages.json", tmp_path / "map.json"
    rows = invoke_json("partition", graph, "--topology", table, "-o", out, "--map-out", map_out)
    assert {(row["stages"], row["replicas"]) for row in rows} == {(1, 2), (2, 1)}
    mapping = read_as(StoredMapping, map_out)
    assert mapping.step_time_s == rows[0]["step_time_s"]
    assert [list(row) for row in mapping.mapping] == rows[0]["mapping"]
    assert read_as(StoredStages, out).replicas == rows[0]["replicas"]
    # The later commands read both files, and find nothing faster.
    again = invoke_json("map", out, "--topology", table)
    assert again["step_time_s"] >= mapping.step_time_s * (1 - 1e-12)
    slow = links(tmp_path, "0,1,1,1e9", "1,0,1,2e9")
    (row,) = invoke_json("partition", graph, "--topology", slow, "--stages", "2", "--replicas", "1")
    assert row["step_time_s"] > 2.0  # an activation and a gradient wait for the latency


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "links.csv: must have links, got no rows"),
        (("0,1,1e-5,-1",), "line 2: bandwidth_bytes_per_s: must be > 0, got '-1'"),
        (("0,1,-1e-5,1",), "line 2: latency_s: must be >= 0, got '-1e-5'"),
        (("0,1,1e-5,1", "0,1,1e-5,1"), "line 3: link 0 -> 1 is given twice"),
        (("0,0,1e-5,1",), "line 2: target: must be another device than source"),
        (("0.5,1,1e-5,1",), "line 2: source: must be a whole number"),
        (("0,1,1e-5",), "line 2: bandwidth_bytes_per_s: is missing"),
        (("0,1,1e-5,1", "2,1,1e-5,1"), "is not connected: there is no path from 0 to 2"),
    ],
)
def test_a_bad_table_of_links_is_named(
    graph: Path, tmp_path: Path, rows: tuple[str, ...], message: str
) -> None:
    assert_refused(message, "partition", graph, "--topology", links(tmp_path, *rows))


def test_what_does_not_go_with_a_topology_is_refused(graph: Path, tmp_path: Path) -> None:
    table = links(tmp_path, "0,1,1e-5,1e9", "1,0,1e-5,1e9")
    for extra in ("--stages 3 --replicas 1", "--devices 4"):
        assert_refused(
            r"links\.csv: devices: must be at least [34],", f"partition {graph} --topology {table} {extra}"
        )
    assert_refused(
        "--map-out needs --topology", f"partition {graph} --devices 2 --map-out {tmp_path}/map.json"
    )
    assert_refused("without a network", f"partition {graph} --topology {table} --baselines")
