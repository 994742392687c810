"""Placement instances are parsed strictly, and results are written like those of the authors' program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.formulas.phaze.instance import Result, place_instance, read_instance, result_text
from phaze.spec.documents import read_as
from tests.unit.formulas.phaze import exhaustive_graphs
from tests.unit.formulas.phaze.files import Change, Plain, drop, edge, put, saved

NEGATIVE = "should be greater than or equal to 0, got"


def example() -> Plain:
    """Return an instance of three layers at two widths; ids do not follow the order of the graph."""

    def nodes(width: int) -> list[Plain]:
        return [
            {"id": layer, "activationSize": 10, "isTensorParallelized": width > 1}
            | {"parameterSize": 100 / width, "optimalLatencyFw": 1 / width, "optimalLatencyBw": 2 / width}
            for layer in (7, -1, 3)
        ]

    edges = [
        {"sourceId": 3, "destId": 7, "communicationCost": 4},
        {"sourceId": -1, "destId": 3, "communicationCost": 4},
        {"sourceId": -1, "destId": 7, "communicationCost": 2},
    ]
    expert = dict.fromkeys(("fixedPP", "fixedTMPC", "fixedDP", "numTransformerLayers"), 1)
    machine = {"maxMemoryPerDevice": 1e4, "maxDevices": 4, "bandwidth": 1e3, "mbsInBatch": 8.0}
    training = {"activationRecomputation": False, "optimizerAlgorithm": "SGD"}
    graph = {"nodes": {"1": nodes(1), "2": nodes(2)}, "edges": {"1": edges, "2": edges}}
    return machine | training | graph | expert


def test_layers_are_put_in_the_order_of_the_graph(tmp_path: Path) -> None:
    instance = read_instance(saved(tmp_path, example()))
    assert instance.order() == [-1, 3, 7]
    assert sorted(instance.chain("1").tensors) == [(0, 1, 4.0), (0, 2, 2.0), (1, 2, 4.0)]


@pytest.mark.parametrize(("optimizer", "copies"), [("SGD", 2), ("Adam", 3)])
def test_adam_keeps_one_more_copy_of_the_weights(optimizer: str, copies: int, tmp_path: Path) -> None:
    instance = read_instance(saved(tmp_path, {**example(), "optimizerAlgorithm": optimizer}))
    assert instance.chain("1").static_bytes.tolist() == [100.0 * copies] * 3


def test_a_result_has_the_fields_of_the_authors_program_and_survives_a_round_trip(tmp_path: Path) -> None:
    result = place_instance(read_instance(saved(tmp_path, example())))
    (tmp_path / "out.json").write_text(result_text(result))
    written = json.loads((tmp_path / "out.json").read_text())
    assert set(written) == {"stages", "tensorParallelDegree", "dataParallelDegree", "finalTimePerBatch"}
    assert all(set(stage) == {"nodes", "devicesForStage"} for stage in written["stages"])
    assert [layer for stage in written["stages"] for layer in stage["nodes"]] == [-1, 3, 7]
    assert read_as(Result, tmp_path / "out.json") == result


def test_an_infeasible_result_has_no_stages_a_null_time_and_a_reason(tmp_path: Path) -> None:
    result = place_instance(read_instance(saved(tmp_path, {**example(), "maxMemoryPerDevice": 50})))
    (tmp_path / "out.json").write_text(result_text(result))
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["stages"] == []
    assert written["finalTimePerBatch"] is None
    assert written["reason"].startswith("memory: ")
    assert read_as(Result, tmp_path / "out.json") == result


def test_the_fields_of_the_expert_placement_may_be_left_out(tmp_path: Path) -> None:
    content = {key: value for key, value in example().items() if not key.startswith(("fixed", "num"))}
    assert read_instance(saved(tmp_path, content)).fixed_pp is None


def branched(**changes: object) -> Plain:
    """Return the example with layers 3 and 7 parallel to each other after layer -1."""
    edges = [edge(-1, 3), edge(-1, 7)]
    return {**example(), "edges": {"1": edges, "2": edges}, **changes}


def test_layers_that_may_come_in_any_order_are_kept_as_they_are_given(tmp_path: Path) -> None:
    instance = read_instance(saved(tmp_path, branched()))
    assert instance.order() == [-1, 7, 3]
    assert not instance.has_path()
    assert read_instance(saved(tmp_path, example())).has_path()


def test_branches_run_side_by_side_on_more_devices_where_that_is_best(tmp_path: Path) -> None:
    # One microbatch, t = 1: layer -1 and one branch on a device, the other branch on another one.
    problem = branched(mbsInBatch=1, maxDevices=2, bandwidth=1e9)
    del problem["nodes"]["2"], problem["edges"]["2"]
    instance = read_instance(saved(tmp_path, problem))
    result = place_instance(instance)
    assert [(stage.nodes, stage.devices_for_stage) for stage in result.stages] == [([-1, 7, 3], 2)]
    assert result.final_time_per_batch == exhaustive_graphs.best(instance.chain("1"), 1, instance.setting())
    assert result.final_time_per_batch == pytest.approx(6.0, rel=1e-6)
    (tmp_path / "result.json").write_text(result_text(result))
    assert read_as(Result, tmp_path / "result.json") == result


def test_the_width_is_chosen_for_graphs_with_branches_too(tmp_path: Path) -> None:
    instance = read_instance(saved(tmp_path, branched()))
    result = place_instance(instance)
    assert result.final_time_per_batch == min(
        exhaustive_graphs.best(instance.chain(width), int(width), instance.setting()) for width in ("1", "2")
    )


def test_too_many_branches_are_refused(tmp_path: Path) -> None:
    layers = [{**example()["nodes"]["1"][0], "id": layer} for layer in range(14)]
    problem = {**example(), "nodes": {"1": layers}, "edges": {"1": []}}
    with pytest.raises(PhazeError, match=r"the layer graph has more than 10000 downsets, .*: merge layers"):
        place_instance(read_instance(saved(tmp_path, problem)))


def test_a_single_layer_without_edges_is_an_instance(tmp_path: Path) -> None:
    content = example()
    content["nodes"], content["edges"] = {"1": content["nodes"]["1"][:1]}, {"1": []}
    assert len(place_instance(read_instance(saved(tmp_path, content))).stages) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: "{", "is not valid JSON"),
        (lambda _: '{"maxDevices": 1, "maxDevices": 2}', "key 'maxDevices' is given twice"),
        (lambda _: '{"bandwidth": NaN}', "bandwidth: should be a finite number, got nan"),
        (lambda _: [1], "must hold a JSON object, got list"),
        (put("gpus", value=3), "gpus: is not a known key, got 3"),
        (put("max_devices", value=3), "max_devices: is not a known key, got 3"),
        (drop("bandwidth"), "bandwidth: Field required"),
        (put("bandwidth", value=0), "bandwidth: should be greater than 0, got 0"),
        (put("bandwidth", value="fast"), "bandwidth: must be a number, got 'fast'"),
        (put("maxDevices", value=-4), "maxDevices: should be greater than 0, got -4"),
        (put("mbsInBatch", value=0), "mbsInBatch: should be greater than 0, got 0"),
        (put("maxMemoryPerDevice", value=-1), "maxMemoryPerDevice: should be greater than 0, got -1"),
        (put("optimizerAlgorithm", value="LAMB"), "Algorithm: should be 'SGD' or 'Adam', got 'LAMB'"),
        (put("activationRecomputation", value=1), "Recomputation: must be true or false, got 1"),
        (put("nodes", "1", 0, "parameterSize", value=-5), f"nodes.1.0.parameterSize: {NEGATIVE} -5"),
        (put("nodes", "2", 1, "optimalLatencyFw", value=-1), f"nodes.2.1.optimalLatencyFw: {NEGATIVE} -1"),
        (put("nodes", "1", 0, "size", value=1), "nodes.1.0.size: is not a known key, got 1"),
        (put("edges", "1", 0, "communicationCost", value=-1), f"edges.1.0.communicationCost: {NEGATIVE} -1"),
        (put("edges", "1", 0, "destId", value=99), "edges.1: edge 3 -> 99: destId 99 is not the id of a"),
        (put("edges", "1", 0, "sourceId", value=99), "edges.1: edge 99 -> 7: sourceId 99 is not the id of a"),
        (put("edges", "1", 0, value=edge(3, 3)), "connects a layer to itself"),
        (put("edges", "1", 0, value=edge(-1, 3)), "edges.1: edge -1 -> 3 is given 2 times"),
        (put("edges", "1", value=[edge(-1, 3), edge(3, 7), edge(7, 3)]), "form or follow a cycle"),
        (put("edges", "1", value=[edge(-1, 3), edge(3, 7)]), "ends differ from edges."),
        (put("nodes", "1", 0, "id", value=3), "nodes.1: id 3 is given 2 times; ids must be unique"),
        (put("nodes", "1", 0, "isTensorParallelized", value=True), "must be false for TMP width 1, got true"),
        (put("nodes", "1", value=[]), "nodes.1: at least one layer is needed, got none"),
        (put("nodes", value={}), "nodes: Dictionary should have at least 1 item"),
        (drop("edges", "2"), "nodes have TMP widths ['1', '2'], edges ['1']; they must agree"),
        (drop("nodes", "1"), "nodes have TMP widths ['2'], edges ['1', '2']; they must agree"),
        (put("nodes", "two", value=[]), "TMP width 'two' must be a positive whole number"),
        (put("nodes", "0", value=[]), "TMP width '0' must be a positive whole number"),
    ],
)
def test_bad_input_is_refused_with_its_file_and_key(change: Change, message: str, tmp_path: Path) -> None:
    path = saved(tmp_path, change(example()))
    with pytest.raises(PhazeError) as error:
        read_instance(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


def test_layers_that_differ_between_widths_are_refused(tmp_path: Path) -> None:
    content = example()
    content["nodes"]["2"][0]["id"] = 8
    content["edges"]["2"] = [edge(3, 8), edge(-1, 3), edge(-1, 8)]
    with pytest.raises(PhazeError, match="ids differ from nodes"):
        read_instance(saved(tmp_path, content))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PhazeError, match=r"none\.json: cannot be read: No such file"):
        read_instance(tmp_path / "none.json")
