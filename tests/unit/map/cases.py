"""Random stages and networks for tests of mappings."""

import itertools

import numpy as np

from phaze.base.arrays import Floats
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.map.objective import MappingProblem
from phaze.workload.operator_graphs import StageGraph

KINDS = ("directed", "undirected", "two-speeds", "nodes", "ring")


def drawn_stages(seed: int, stages: int, replicas: int) -> StageGraph:
    rng = np.random.default_rng(seed)
    ends = [(s, t) for s, t in itertools.combinations(range(stages), 2) if t == s + 1 or rng.random() < 0.4]
    times = rng.uniform(0, 2, (2, stages))
    parameters, sizes = rng.uniform(0, 20, stages), rng.uniform(0, 10, len(ends))
    edges = np.array(ends, np.int64).reshape(-1, 2)
    return StageGraph(*times, parameters, replicas, 4, edges=edges, edge_bytes=sizes)


def drawn_network(seed: int, devices: int, kind: str, *, latency: bool = False) -> DeviceNetwork:
    rng = np.random.default_rng(seed)
    index = np.arange(devices)
    apart = np.abs(index[:, None] - index[None, :])
    drawn = rng.uniform(0.5, 5, (devices, devices))
    bandwidth: dict[str, Floats] = {
        "directed": drawn,
        "undirected": (drawn + drawn.T) / 2,
        "two-speeds": rng.integers(1, 3, (devices, devices)).astype(float),
        "nodes": np.where(index[:, None] // 2 == index[None, :] // 2, 5.0, 1.0),
        "ring": 5.0 / np.maximum(np.minimum(apart, devices - apart), 1),
    }
    waits = rng.uniform(0, 1, (devices, devices)) if latency else np.zeros((devices, devices))
    return DeviceNetwork(bandwidth[kind], waits)


def least_by_trying_all(problem: MappingProblem) -> float:
    every = itertools.permutations(range(problem.network.devices), problem.slots)
    return min(problem.value_s(np.array(devices).reshape(problem.shape)) for devices in every)
