"""A step whose messages occupy devices: programs that send, receive and compute in turn."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import replace

import numpy as np
import pytest

from phaze.base.arrays import Ints
from phaze.base.errors import PhazeError
from phaze.cost.network.device_networks import DeviceNetwork, flat_network
from phaze.pipeline.gpipe import held_step_s, simulate_step, step_time_s
from phaze.workload.graphs import edge_arrays
from phaze.workload.operator_graphs import StageGraph
from tests.unit.map.cases import drawn_network, drawn_stages


def test_a_stage_waits_while_its_message_is_under_way() -> None:
    """Passes of 1 s and 2 s, messages of 1 s, two microbatches: 13 s by hand, 11 s with concurrent links."""
    ones = np.array([1.0, 1.0])
    stages = StageGraph(ones, 2 * ones, 0 * ones, 1, microbatches=2, **edge_arrays([(0, 1, 1.0)]))
    mapping, network = np.array([[0], [1]]), flat_network(2, 1.0)
    assert held_step_s(stages, mapping, network) == pytest.approx(13)
    assert step_time_s(stages, mapping, network) == pytest.approx(11)


@pytest.mark.parametrize("latency", [False, True])
def test_it_is_the_step_of_programs_that_meet_for_every_message(*, latency: bool) -> None:
    for seed in range(12):
        stages, network = drawn_stages(seed, 5, 2), drawn_network(seed, 10, "directed", latency=latency)
        mapping = np.random.default_rng(seed).permutation(10).reshape(5, 2)
        ended = np.array([_run_programs(stages, mapping[:, r], network) for r in range(2)]).T
        step = simulate_step(stages, mapping, network, 1e9)
        expected = (ended.max(axis=1) + step.all_reduce_s + step.update_s).max()
        assert held_step_s(stages, mapping, network, 1e9) == pytest.approx(expected, rel=1e-12)
        assert expected >= step.step_s * (1 - 1e-12)


def test_without_messages_it_is_the_step_of_gpipe() -> None:
    for seed in range(4):
        stages, network = drawn_stages(seed, 4, 3), drawn_network(seed, 12, "undirected")
        apart = replace(stages, edges=np.empty((0, 2), np.int64), edge_bytes=np.empty(0))
        mapping = np.random.default_rng(seed).permutation(12).reshape(4, 3)
        assert held_step_s(apart, mapping, network) == pytest.approx(step_time_s(apart, mapping, network))


def test_a_mapping_that_is_none_is_refused() -> None:
    stages = drawn_stages(0, 2, 1)
    with pytest.raises(PhazeError, match="must name 2 different devices"):
        held_step_s(stages, np.array([[0], [0]]), flat_network(2, 1.0))


Step = tuple[str, int, int, float]
"""Next action of a device: compute, or a message (its partner), its number, and its duration."""


def _run_programs(stages: StageGraph, devices: Ints, network: DeviceNetwork) -> list[float]:
    """Return the end of every stage's program; a message begins when both programs have reached it."""
    count = len(stages.forward_s)
    programs: list[deque[Step]] = [deque() for _ in range(count)]
    edges = [
        (a, b, float(size)) for (a, b), size in zip(stages.edges.tolist(), stages.edge_bytes, strict=True)
    ]
    back = [(b, a, size) for a, b, size in sorted(edges, key=lambda edge: (edge[1], edge[0]), reverse=True)]
    numbers = itertools.count()
    for times, sent, ahead in ((stages.forward_s, edges, True), (stages.backward_s, back, False)):
        for _ in range(stages.microbatches):
            for s in range(count) if ahead else reversed(range(count)):
                programs[s].append(("compute", s, -1, float(times[s])))
                for _, t, size in (message for message in sent if message[0] == s):
                    link, number = (devices[s], devices[t]), next(numbers)
                    took = float(network.waits_s[link] + size * network.seconds_per_byte[link])
                    programs[s].append(("message", t, number, took))
                    programs[t].append(("message", s, number, took))
    now = [0.0] * count
    while any(programs):
        for s in range(count):
            if not programs[s]:
                continue
            kind, other, message, took = programs[s][0]
            if kind == "compute":
                programs[s].popleft()
                now[s] += took
            elif programs[other][0][2] == message:
                programs[s].popleft()
                programs[other].popleft()
                now[s] = now[other] = max(now[s], now[other]) + took
    return now
