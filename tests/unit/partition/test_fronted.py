"""Windows from a time limit lose no partition within the limit."""

from itertools import product

import networkx as nx
import numpy as np
import pytest

from phaze.partition.fronted import windows_within
from phaze.partition.weights import fits, stage_times, with_ancestors, with_descendants
from tests.unit.partition.graphs import all_partitions, random_weights


@pytest.mark.parametrize("nodes", [1, 7, 70, 200])
def test_closures_are_sums_over_ancestors_and_descendants(nodes: int) -> None:
    weights = random_weights(nodes, nodes, 0.05)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(weights.edges.tolist())
    for found, relatives in (
        (with_ancestors(weights.compute_s, weights.edges), nx.ancestors),
        (with_descendants(weights.compute_s, weights.edges), nx.descendants),
    ):
        expected = [weights.compute_s[[v, *relatives(graph, v)]].sum() for v in range(nodes)]
        assert found == pytest.approx(np.array(expected))


def test_every_partition_within_the_limit_lies_in_the_windows() -> None:
    for seed, stages in product(range(8), (2, 3)):
        weights = random_weights(seed, 6, 0.3)
        every = [one for one in all_partitions(weights, stages) if fits(weights, one)]
        for limit in np.quantile([stage_times(weights, one).max() for one in every], [0, 0.3, 1]):
            windows = windows_within(weights, stages, float(limit))
            for one in every:
                if stage_times(weights, one).max() <= limit:
                    assert (windows.earliest <= one).all()
                    assert (one <= windows.latest).all()


def test_a_limit_below_every_partition_is_a_contradiction() -> None:
    weights = random_weights(1, 12, 0.3)
    assert windows_within(weights, 3, 0.5 * weights.total_s / 3).contradictory
    assert not windows_within(weights, 3, weights.total_s).contradictory


def test_without_a_limit_all_is_open() -> None:
    windows = windows_within(random_weights(2, 9, 0.3), 4, np.inf)
    assert (windows.earliest == 0).all()
    assert (windows.latest == 3).all()
