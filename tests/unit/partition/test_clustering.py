"""Clusters stay acyclic, fit the memory, and have the smallest cost."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.partition.clustering import cluster
from phaze.partition.weights import Weights, quotient, stage_memory
from tests.unit.partition.graphs import bert_like, random_weights, series_parallel, weights_of


def clustered_plainly(weights: Weights, most: int, alpha: float) -> np.ndarray:
    """Return clusters by the definition, searching another path for every pair in every step."""
    label = np.arange(len(weights))
    while len(np.unique(label)) > most:
        best = None
        graph = nx.DiGraph()
        graph.add_nodes_from(np.unique(label).tolist())
        sizes: dict[tuple[int, int], float] = {}
        for (i, j), size in zip(label[weights.edges].tolist(), weights.edge_bytes, strict=True):
            if i != j:
                graph.add_edge(i, j)
                sizes[i, j] = sizes.get((i, j), 0.0) + size
        for (u, v), size in sizes.items():
            graph.remove_edge(u, v)
            convex = not nx.has_path(graph, u, v)
            graph.add_edge(u, v)
            merged = np.where((label == u) | (label == v), 0, 1)
            fit = stage_memory(weights, merged)[0] <= weights.limit_bytes
            compute = weights.compute_s[(label == u) | (label == v)].sum()
            cost = compute - alpha * weights.seconds_per_byte * size
            if convex and fit and (best is None or cost < best[0]):
                best = (cost, u, v)
        if best is None:
            break
        label[label == best[2]] = best[1]
    return label


@pytest.mark.parametrize("alpha", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("limit", [np.inf, 25.0])
def test_every_step_takes_the_least_cost(alpha: float, limit: float) -> None:
    """The merged graph is rebuilt and searched from scratch in every step: the same clusters."""
    rng = np.random.default_rng(7)
    for seed in range(6):
        weights = random_weights(seed, 12, 0.3, limit)
        # Costs that are never equal: what comes first among equals is no matter here.
        apart = weights_of(
            rng.random(12), [tuple(e) for e in weights.edges.tolist()], rng.random(len(weights.edges)),
            weights.memory_bytes, limit,
        )  # fmt: skip
        for most in (2, 5, 8):
            ours = quotient(apart, cluster(apart, most, alpha))[1]
            plain = quotient(apart, clustered_plainly(apart, most, alpha))[1]
            assert (ours == plain).all(), (seed, most)


@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 40),
    density=st.sampled_from([0.02, 0.1, 0.4]),
    most=st.integers(1, 20),
    alpha=st.sampled_from([0.0, 0.01, 1.0, 100.0]),
    limit=st.sampled_from([np.inf, 30.0]),
)
def test_clusters_have_an_order_and_fit(
    seed: int, nodes: int, density: float, most: int, alpha: float, limit: float
) -> None:
    weights = random_weights(seed, nodes, density, limit)
    labels = cluster(weights, most, alpha)
    smaller, group = quotient(weights, labels)
    assert (smaller.edges[:, 0] < smaller.edges[:, 1]).all()
    assert smaller.compute_s.sum() == pytest.approx(weights.compute_s.sum())
    several = np.bincount(group) > 1
    assert (stage_memory(weights, group)[several] <= limit).all()


def test_connected_graphs_come_down_to_k() -> None:
    for weights in (bert_like(12), series_parallel(800, 3)):
        for alpha in (0.01, 1.0, 100.0):
            assert len(quotient(weights, cluster(weights, 32, alpha))[0]) == 32


def test_alpha_prefers_large_messages() -> None:
    weights = weights_of([1.0, 1.0, 2.0], [(0, 1), (1, 2)], [1.0, 50.0])
    assert cluster(weights, 2, 0.01).tolist() == [0, 0, 2]
    assert cluster(weights, 2, 1.0).tolist() == [0, 1, 1]


def test_a_pair_with_another_path_waits_until_the_path_is_in_one_of_them() -> None:
    weights = weights_of([1.0, 5.0, 1.0], [(0, 1), (1, 2), (0, 2)], [0.0, 0.0, 0.0])
    assert cluster(weights, 2, 1.0).tolist() == [0, 0, 2]
    assert cluster(weights, 1, 1.0).tolist() == [0, 0, 0]


def test_a_full_device_ends_it() -> None:
    weights = weights_of([1.0] * 3, [(0, 1), (1, 2)], [0.0, 0.0], [2.0, 2.0, 2.0], limit=4.0)
    assert len(np.unique(cluster(weights, 1, 1.0))) == 2


def test_groups_in_a_cycle_are_refused() -> None:
    weights = weights_of([1.0] * 3, [(0, 1), (1, 2)], [0.0, 0.0])
    with pytest.raises(PhazeError, match="cycle"):
        quotient(weights, np.array([0, 1, 0]))
