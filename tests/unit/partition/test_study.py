"""Every partitioner of a study gives its own partition."""

from dataclasses import replace

import pytest

from phaze.partition.study import cut_point
from phaze.spec.map_study import StagesPoint
from phaze.spec.names import PARTITIONERS, Partitioner
from phaze.spec.operators import StoredOperators
from phaze.spec.stages import StoredStages
from phaze.workload.operator_graphs import stored_operators
from tests.unit.partition.graphs import bert_like, operator_graph

BLOCKS = 6


def stored_bert() -> StoredOperators:
    graph = operator_graph(bert_like(BLOCKS, bandwidth=1e9))
    per_block = (len(graph.names) - 1) // BLOCKS
    blocks = [f"block-{k // per_block}" for k in range(len(graph.names) - 1)]
    return stored_operators(replace(graph, layers=("embedding", *blocks)), "bert", 4)


def point_of(partitioner: Partitioner, stages: int = 4) -> StagesPoint:
    return StagesPoint(
        graph="bert", partitioner=partitioner, hyper_operators=24, stages=stages, replicas=2, microbatches=4
    )


def cut(partitioner: Partitioner, stages: int = 4) -> StoredStages:
    return cut_point(stored_bert(), point_of(partitioner, stages), 1e9)


def step_s(stages: StoredStages) -> float:
    assert stages.step_time_s is not None
    return stages.step_time_s


def time_s(stages: StoredStages) -> float:
    assert stages.stage_time_s is not None
    return stages.stage_time_s


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_each_cuts_all_operators_into_the_stages_asked_for(partitioner: Partitioner) -> None:
    found = cut(partitioner)
    assert len(found.stages) == 4
    assert sum(len(stage.operators) for stage in found.stages) == len(bert_like(BLOCKS))


@pytest.mark.parametrize("stages", [3, 4, 6])
def test_each_step_of_the_flow_is_worth_it(stages: int) -> None:
    found = {name: cut(name, stages) for name in PARTITIONERS}
    assert step_s(found["paper"]) <= step_s(found["clusters"])
    for name in ("paper", "clusters", "order", "full"):
        assert step_s(found["fastest"]) <= step_s(found[name])
        assert time_s(found["full"]) <= 1.02 * time_s(found[name]) * (1 + 1e-9)


def test_pipedreams_stages_are_whole_layers() -> None:
    found = cut("pipedream", 6)
    starts = [int(stage.operators[0].removeprefix("op")) for stage in found.stages]
    per_block = (len(bert_like(BLOCKS)) - 1) // BLOCKS
    assert all(start == 0 or start % per_block == 1 for start in starts)


def test_pipedream_with_operators_as_layers_cuts_inside_blocks_and_balances_better() -> None:
    by_layer, by_operator = cut("pipedream", 4), cut("pipedream-operators", 4)
    slowest = [max(s.forward_s + s.backward_s for s in found.stages) for found in (by_layer, by_operator)]
    assert slowest[1] < slowest[0]
    per_block = (len(bert_like(BLOCKS)) - 1) // BLOCKS
    starts = [int(stage.operators[0].removeprefix("op")) for stage in by_operator.stages[1:]]
    assert any(start % per_block != 1 for start in starts)
