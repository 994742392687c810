"""Stages, replicas and mapping chosen together, against partition and map one after the other."""

from dataclasses import replace

import numpy as np
import pytest

from phaze.cost.network.device_networks import DeviceNetwork
from phaze.map.ensemble import MapSettings, map_stages
from phaze.map.joint import search_jointly
from phaze.map.search import SearchLimits
from phaze.partition.flow import CutOptions
from phaze.partition.intervals import StagePaces, cut_at_paces
from phaze.partition.study import search
from phaze.partition.weights import PartitionTerms, Weights, stage_graph_of, sums
from phaze.workload.operator_graphs import OperatorGraph
from tests.effort import DRAWS
from tests.unit.map.cases import KINDS, drawn_network
from tests.unit.partition.graphs import operator_graph, random_weights

SHAPES = ((2, 1), (3, 1), (2, 2), (1, 2))
QUICK = MapSettings("p2p", steps=100, limits=SearchLimits(tries=300))


def drawn(seed: int) -> tuple[OperatorGraph, PartitionTerms, DeviceNetwork, tuple[int, int]]:
    """Draw a graph, its terms, a network with links and devices of several speeds, and a shape."""
    rng = np.random.default_rng(seed)
    stages, replicas = SHAPES[seed % len(SHAPES)]
    network = drawn_network(seed, stages * replicas + seed % 2, KINDS[seed % len(KINDS)], latency=True)
    if rng.random() < 0.5:
        network = replace(network, speeds=rng.uniform(0.5, 2.0, network.devices))
    weights = random_weights(seed, int(rng.integers(stages + 1, 10)))
    # A graph whose operators all take no time cannot be balanced.
    graph = operator_graph(replace(weights, compute_s=weights.compute_s + 0.1))
    return graph, PartitionTerms(rng.uniform(0.5, 5), microbatches=3), network, (stages, replicas)


@pytest.mark.long
def test_together_is_never_slower_than_one_after_the_other() -> None:
    """`PHAZE_DRAWS=1000 pytest tests/unit/map/test_joint.py` draws more."""
    faster = 0
    for seed in range(DRAWS):
        graph, terms, network, shape = drawn(seed)
        (cut,) = search(graph, terms, (*shape, None), CutOptions())
        assert cut.partition is not None
        stages = stage_graph_of(graph, cut.partition.chosen.stage_of, terms, cut.replicas)
        after = map_stages(stages, network, QUICK).best.step_s
        (plan,) = search_jointly(graph, terms, (*shape, None), CutOptions(), network, QUICK)
        assert plan.step_s <= after, seed
        faster += plan.step_s < after * (1 - 1e-9)
    assert faster >= DRAWS // 10


def test_every_number_of_stages_that_divides_the_devices_is_priced() -> None:
    graph, terms, network, _ = drawn(2)
    plans = search_jointly(graph, terms, (None, None, 4), CutOptions(), network, QUICK)
    assert sorted((plan.stages, plan.replicas) for plan in plans) == [(1, 4), (2, 2), (4, 1)]
    rates = [plan.microbatches_per_s for plan in plans]
    assert rates == sorted(rates, reverse=True)


def test_a_device_twice_as_fast_gets_twice_the_work() -> None:
    chain = Weights(
        compute_s=np.ones(9),
        memory_bytes=np.zeros(9),
        edges=np.array([(k, k + 1) for k in range(8)]),
        edge_bytes=np.full(8, 1e-9),
        seconds_per_byte=1.0,
        limit_bytes=np.inf,
    )
    network = replace(drawn_network(0, 2, "undirected"), speeds=np.array([1.0, 2.0]))
    terms = PartitionTerms(1e9, microbatches=100)
    (plan,) = search_jointly(operator_graph(chain), terms, (2, 1, None), CutOptions(), network, QUICK)
    assert plan.candidate is not None
    assert plan.mapped is not None
    devices = plan.mapped.best.mapping[plan.candidate.stage_of, 0]
    assert np.bincount(devices).tolist() == [3, 6]


def paced_time_s(weights: Weights, stage_of: np.ndarray, paces: StagePaces) -> float:
    """Longest stage time with each message on the links next to its stages."""
    count = len(paces.slowness)
    times = sums(stage_of, weights.compute_s, count) * paces.slowness
    times += paces.waits_s[:-1] + paces.waits_s[1:]
    for (u, v), size in zip(stage_of[weights.edges], weights.edge_bytes, strict=True):
        if u != v:
            times[u] += size * paces.seconds_per_byte[u + 1]
            times[v] += size * paces.seconds_per_byte[v]
    return float(times.max())


def test_intervals_for_paces_are_the_best_of_all() -> None:
    for seed in range(30):
        rng, weights, stages = np.random.default_rng(seed), random_weights(seed, 8), 2 + seed % 3
        ends = rng.uniform(0, 1, (2, stages - 1))
        paces = StagePaces(rng.uniform(0.5, 2, stages), *np.pad(ends, ((0, 0), (1, 1))))
        cuts = (np.array(cut) for cut in np.ndindex(*(9,) * (stages - 1)))
        ordered = [cut for cut in cuts if (np.diff([0, *cut, 8]) > 0).all()]
        every = [np.searchsorted(cut, np.arange(8), side="right") for cut in ordered]
        stage_of = cut_at_paces(weights, paces)
        assert stage_of is not None
        least = min(paced_time_s(weights, one, paces) for one in every)
        assert paced_time_s(weights, stage_of, paces) == pytest.approx(least), seed
