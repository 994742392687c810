"""Partitions that fit a tight memory are found, and infeasibility is only stated with a proof."""

from __future__ import annotations

import numpy as np
import pytest

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.partition import flow, integer
from phaze.partition.flow import CutOptions, Partition, partition
from phaze.partition.weights import PartitionTerms, fits, weigh
from phaze.workload.operator_graphs import OperatorGraph
from tests.unit.partition.graphs import all_partitions


def graph_of(memory: list[float] | Floats, edges: list[tuple[int, int]] | None = None) -> OperatorGraph:
    """Return operators of two seconds with these memory sizes; edges carry no bytes."""
    n, ends = len(memory), np.array(edges or [], dtype=np.int64).reshape(-1, 2)
    return OperatorGraph(
        names=tuple(f"o{v}" for v in range(n)),
        forward_s=np.ones(n),
        backward_s=np.ones(n),
        parameter_bytes=np.zeros(n),
        forward_bytes=np.asarray(memory, dtype=np.float64),
        backward_bytes=np.zeros(n),
        edges=ends,
        edge_bytes=np.zeros(len(ends)),
    )


def cut(graph: OperatorGraph, stages: int, limit: float) -> Partition:
    """Return a partition."""
    return partition(graph, PartitionTerms(1.0, limit), stages, 1, CutOptions(48))


def test_three_and_three_and_three_times_two_fit_two_stages_of_six() -> None:
    """No interval of the operators' order fits, and a border has more fronted subgraphs than the limit."""
    graph = graph_of([3, 2, 3, 2, 2, *[0] * 10])
    found = cut(graph, 2, 6.0)
    assert fits(weigh(graph, PartitionTerms(1.0, 6.0)), found.chosen.stage_of)


def test_of_graphs_with_many_branches_those_that_fit_are_cut_and_others_are_said_to_have_no_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the number of fronted subgraphs per border is limited to a few."""
    monkeypatch.setattr(flow, "MOST_SETS", 8)
    said = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        n, stages = int(rng.integers(6, 10)), int(rng.integers(2, 4))
        edges = [(i, j) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.05]
        graph = graph_of(rng.integers(1, 9, n), edges)
        limit = float(np.ceil(graph.forward_bytes.sum() / stages) + rng.integers(0, 2))
        weights = weigh(graph, PartitionTerms(1.0, limit))
        if any(fits(weights, one) for one in all_partitions(weights, stages)):
            assert fits(weights, cut(graph, stages, limit).chosen.stage_of)
            continue
        with pytest.raises(PhazeError) as error:
            cut(graph, stages, limit)
        said.append(str(error.value))
    assert len(said) >= 3
    assert all("no partition into" in each or "no stage fits" in each for each in said)
    assert not any("no proof" in each for each in said)


def test_without_a_proof_it_is_only_said_that_none_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer, "MOST_TERMS", -1)
    monkeypatch.setattr(flow, "MOST_SETS", 20)
    with pytest.raises(PhazeError, match=r"found no partition into 2 stages .* no proof that there is none"):
        cut(graph_of([3, 2, 3, 2, 2, 0, 0, 0]), 2, 6.0)


def test_the_papers_flow_proves_nothing() -> None:
    options = CutOptions(2, flow="paper")
    with pytest.raises(PhazeError, match="no proof that there is none"):
        partition(graph_of([4, 4, 4]), PartitionTerms(1.0, 6.0), 2, 1, options)
