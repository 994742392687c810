"""A step with shared ports: GPipe inside a node, and port bytes over port bandwidth between nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.device_networks import DeviceNetwork, flat_network
from phaze.map.heuristics import consecutive_map, p2p_map
from phaze.pipeline.gpipe import simulate_step, step_time_s
from phaze.pipeline.shared_ports import shared_step_s
from phaze.workload.graphs import edge_arrays
from phaze.workload.operator_graphs import StageGraph
from tests.unit.map.cases import drawn_network, drawn_stages


def chain(replicas: int, *, compute_s: float = 0.0, parameters: float = 0.0) -> StageGraph:
    """Return two stages that pass on 1 byte a microbatch, of four."""
    times = np.full(2, compute_s)
    return StageGraph(
        times, times, np.full(2, parameters), replicas, microbatches=4, **edge_arrays([(0, 1, 1.0)])
    )


def test_inside_one_node_it_is_the_step_of_gpipe() -> None:
    for seed in range(6):
        stages, network = drawn_stages(seed, 4, 3), drawn_network(seed, 12, "directed", latency=True)
        mapping = np.random.default_rng(seed).permutation(12).reshape(4, 3)
        alone = step_time_s(stages, mapping, network, 1e9)
        assert shared_step_s(stages, mapping, network, 12, 1e9) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("node", [1, 2, 4])
def test_sharing_never_makes_a_step_shorter(node: int) -> None:
    for seed in range(6):
        stages, network = drawn_stages(seed, 3, 4), drawn_network(seed, 12, "undirected")
        for mapping in (consecutive_map(3, 4), p2p_map(3, 4)):
            step = simulate_step(stages, mapping, network)
            assert shared_step_s(stages, mapping, network, node) >= step.step_s * (1 - 1e-12)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_replicas_of_a_stage_on_one_node_take_turns(replicas: int) -> None:
    """CS map: all messages of all replicas pass one port, forward and then back.

    The first replica has its last message R - 1 messages before the others, and begins to send back.
    """
    stages, network = chain(replicas), flat_network(2 * replicas, 1.0)
    shared = shared_step_s(stages, consecutive_map(2, replicas), network, replicas)
    assert shared == pytest.approx(2 * 4 * replicas - (replicas - 1))
    assert step_time_s(stages, consecutive_map(2, replicas), network) == pytest.approx(2 * 4)


def test_rings_across_nodes_share_their_ports_as_well() -> None:
    """P2p map of two replicas: both stages exchange 2 (R - 1)/R of their gradients through the same ports."""
    stages = replace(chain(2, parameters=8.0), edge_bytes=np.zeros(1))
    network = flat_network(4, 1.0)
    assert step_time_s(stages, p2p_map(2, 2), network) == pytest.approx(8.0)
    assert shared_step_s(stages, p2p_map(2, 2), network, 2) == pytest.approx(16.0)
    assert shared_step_s(stages, consecutive_map(2, 2), network, 2) == pytest.approx(8.0)


def test_a_port_in_is_shared_by_nodes_that_send_to_it() -> None:
    """Stages 0 and 1 are on separate nodes, and both send 1 byte to stage 2."""
    edges = np.array([[0, 2], [1, 2]])
    zero = np.zeros(3)
    stages = StageGraph(zero, zero, zero, 1, microbatches=1, edges=edges, edge_bytes=np.ones(2))
    network = DeviceNetwork(np.ones((6, 6)), np.zeros((6, 6)))
    assert step_time_s(stages, np.array([[0], [2], [4]]), network) == pytest.approx(2.0)
    assert shared_step_s(stages, np.array([[0], [2], [4]]), network, 2) == pytest.approx(4.0)


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(PhazeError, match="must name 4 different devices"):
        shared_step_s(chain(2), np.zeros((2, 2), np.int64), flat_network(4, 1.0), 2)
