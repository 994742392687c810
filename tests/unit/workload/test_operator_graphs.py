"""Graph files preserve their graphs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.spec.documents import read_as, write_document
from phaze.spec.operators import StoredOperators
from phaze.spec.stages import StoredMessage, StoredStage, StoredStages
from phaze.workload.operator_graphs import OperatorGraph, operator_graph, stage_graph, stored_operators

GRAPH = OperatorGraph(
    names=("a", "b", "c"),
    forward_s=np.array([1e-3, 2e-3, 0.1 + 0.2]),
    backward_s=np.array([2.0, 0.0, 1.0]),
    parameter_bytes=np.array([0.0, 8.0, 4.0]),
    forward_bytes=np.array([1.0, 2.0, 3.0]),
    backward_bytes=np.array([4.0, 5.0, 6.0]),
    edges=np.array([[0, 1], [0, 2], [1, 2]]),
    edge_bytes=np.array([16.0, 32.0, 64.0]),
    layers=("first", "first", "second"),
)


def test_a_graph_of_operators_survives_its_file(tmp_path: Path) -> None:
    write_document(stored_operators(GRAPH, "toy", 4), tmp_path / "toy.json")
    found = operator_graph(read_as(StoredOperators, tmp_path / "toy.json"))
    assert (found.names, found.layers) == (GRAPH.names, GRAPH.layers)
    for key in ("forward_s", "backward_s", "parameter_bytes", "forward_bytes", "backward_bytes", "edges"):
        assert np.array_equal(getattr(found, key), getattr(GRAPH, key)), key
    assert np.array_equal(found.edge_bytes, GRAPH.edge_bytes)


def test_operators_are_put_in_a_topological_order() -> None:
    stored = stored_operators(GRAPH, "toy", 4)
    turned = stored.model_copy(update={"operators": stored.operators[::-1], "edges": stored.edges[::-1]})
    found = operator_graph(turned)
    assert found.names == GRAPH.names
    assert np.array_equal(found.edges, GRAPH.edges)


def test_an_operator_without_a_layer_is_its_own() -> None:
    stored = stored_operators(GRAPH, "toy", 4)
    bare = tuple(one.model_copy(update={"layer": None}) for one in stored.operators)
    assert operator_graph(stored.model_copy(update={"operators": bare})).layers == GRAPH.names


def test_a_graph_of_stages_survives_its_file(tmp_path: Path) -> None:
    stages = StoredStages(
        format="phaze-stages",
        version=1,
        model="toy",
        replicas=2,
        microbatches=4,
        recompute=False,
        stages=tuple(StoredStage(forward_s=k, backward_s=2 * k, parameter_bytes=8) for k in (1.0, 2.0, 3.0)),
        edges=(StoredMessage(source=1, target=2, bytes=5), StoredMessage(source=0, target=2, bytes=7)),
    )
    write_document(stages, tmp_path / "stages.json")
    found = read_as(StoredStages, tmp_path / "stages.json")
    assert found == stages
    graph = stage_graph(found)
    assert graph.compute_s.tolist() == [3.0, 6.0, 9.0]
    assert (graph.edges.tolist(), graph.edge_bytes.tolist()) == ([[0, 2], [1, 2]], [7.0, 5.0])
    assert (graph.replicas, graph.microbatches) == (2, 4)


def test_one_layer_for_each_operator() -> None:
    with pytest.raises(PhazeError, match="needs 3 layers, got 1"):
        replace(GRAPH, layers=("x",))
