"""Planners compared on the same graph by the same measures."""

from dataclasses import replace

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.partition.flow import CutOptions, partition, problem_of
from phaze.partition.intervals import cut_as_pipedream, layer_labels, layer_weights, layers_of
from phaze.partition.planners import BASELINES, BaselineResult, compare_baselines
from phaze.partition.program import cut_within
from phaze.partition.weights import PartitionTerms, fits, stage_times, weigh
from phaze.workload.operator_graphs import OperatorGraph
from tests.unit.partition.graphs import bert_like, operator_graph

BLOCKS = 6


def bert(bandwidth: float = 1e10) -> OperatorGraph:
    graph = operator_graph(bert_like(BLOCKS, bandwidth=bandwidth))
    per_block = (len(graph.names) - 1) // BLOCKS
    names = ["embedding.lookup"]
    names += [f"block-{k // per_block}.op{k % per_block}" for k in range(len(graph.names) - 1)]
    return replace(graph, names=tuple(names))


TERMS = PartitionTerms(1e10)


def compare(
    graph: OperatorGraph, terms: PartitionTerms, stages: int, replicas: int, options: CutOptions
) -> list[BaselineResult]:
    """Return the results of all planners on a graph, ours first."""
    stage_of = partition(graph, terms, stages, replicas, options).chosen.stage_of
    mine = problem_of(graph, terms, stages, replicas).candidate(stage_of, "parmesan")
    ours = BaselineResult("parmesan", mine, "", fits(weigh(graph, terms), stage_of))
    return [ours, *compare_baselines(graph, terms, stages, replicas)]


def test_layers_are_what_names_have_before_the_dot_unless_given() -> None:
    graph = bert()
    assert sorted(set(layers_of(graph))) == [*(f"block-{k}" for k in range(BLOCKS)), "embedding"]
    given = replace(graph, layers=tuple("ab"[k % 2] for k in range(len(graph.names))))
    assert set(layers_of(given)) == {"a", "b"}


def test_layers_that_lead_into_each_other_are_one() -> None:
    graph = bert()
    mixed = replace(graph, layers=tuple("ab"[k % 2] for k in range(len(graph.names))))
    assert len(np.unique(layer_labels(mixed))) == 1
    assert len(np.unique(layer_labels(graph))) == BLOCKS + 1


def test_by_layer_no_layer_is_cut() -> None:
    graph = bert()
    stage_of = cut_as_pipedream(graph, weigh(graph, TERMS), 3)
    for layer in set(layers_of(graph)):
        of_layer = [s for s, name in zip(stage_of, layers_of(graph), strict=True) if name == layer]
        assert len(set(of_layer)) == 1


def test_more_stages_than_layers_need_operators() -> None:
    graph = bert()
    with pytest.raises(PhazeError, match="8 stages need as many layers, the graph has 7"):
        cut_as_pipedream(graph, weigh(graph, TERMS), 8)
    found = {one.planner: one for one in compare(graph, TERMS, 8, 1, CutOptions(32))}
    assert [name for name, one in found.items() if one.candidate is None] == ["pipedream", "piper", "phaze"]
    assert "as many layers" in found["piper"].reason


@pytest.mark.parametrize("stages", [2, 3, 6])
def test_nobody_is_below_ours_by_more_than_the_slack(stages: int) -> None:
    graph = bert()
    found = {one.planner: one.candidate for one in compare(graph, TERMS, stages, 2, CutOptions(32))}
    assert tuple(found) == ("parmesan", *BASELINES)
    ours = found["parmesan"]
    assert ours is not None
    for one in found.values():
        assert one is not None
        assert ours.time_s <= 1.02 * one.time_s * (1 + 1e-9)
        ends = one.stage_of[graph.edges]
        assert (ends[:, 0] <= ends[:, 1]).all()


def test_piper_finds_the_best_partition_of_layers() -> None:
    """Two programs: Piper's, and ours on the graph of layers, with expensive or cheap messages."""
    for bandwidth in (1e10, 1e9):
        graph, terms = bert(bandwidth), PartitionTerms(bandwidth)
        weights = weigh(graph, terms)
        layers, _ = layer_weights(graph, weights, 4)
        best = min(one.time_s for s in range(1, 5) if (one := cut_within(layers, s)) is not None)
        (piper,) = [one for one in compare(graph, terms, 4, 1, CutOptions(32)) if one.planner == "piper"]
        assert piper.candidate is not None
        assert stage_times(weights, piper.candidate.stage_of).max() == pytest.approx(best)


def test_pipedream_may_exceed_the_memory() -> None:
    graph = bert()
    sizes = np.zeros(len(graph.names))
    sizes[: len(sizes) // 2] = 1.0
    heavy = replace(graph, forward_bytes=1e12 * sizes, backward_bytes=1e12 * sizes)
    tight = replace(TERMS, device_memory_bytes=0.26 * 1e12 * sizes.sum())
    found = {one.planner: one for one in compare(heavy, tight, 4, 1, CutOptions(32))}
    assert not found["pipedream"].fits_memory
    assert found["parmesan"].fits_memory
