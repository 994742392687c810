"""Graphs to partition: arbitrary small ones, and large ones like those of models."""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats
from phaze.partition.weights import Weights
from phaze.workload.operator_graphs import OperatorGraph


def weights_of(
    compute: Floats | list[float],
    edges: list[tuple[int, int]],
    sizes: Floats | list[float],
    memory: Floats | list[float] | None = None,
    limit: float = np.inf,
    seconds_per_byte: float = 1.0,
) -> Weights:
    compute = np.asarray(compute, dtype=np.float64)
    order = sorted(range(len(edges)), key=lambda k: edges[k])
    return Weights(
        compute_s=compute,
        memory_bytes=np.zeros(len(compute)) if memory is None else np.asarray(memory, dtype=np.float64),
        edges=np.array([edges[k] for k in order], dtype=np.int64).reshape(-1, 2),
        edge_bytes=np.asarray(sizes, dtype=np.float64)[order],
        seconds_per_byte=seconds_per_byte,
        limit_bytes=limit,
    )


def random_weights(seed: int, nodes: int, density: float = 0.4, limit: float = np.inf) -> Weights:
    """Return any acyclic graph, connected or not."""
    rng = np.random.default_rng(seed)
    edges = [(i, j) for j in range(nodes) for i in range(j) if rng.random() < density]
    return weights_of(
        rng.integers(0, 10, nodes).astype(float),
        edges,
        rng.integers(0, 4, len(edges)).astype(float),
        rng.integers(0, 5, nodes).astype(float),
        limit,
    )


def operator_graph(weights: Weights) -> OperatorGraph:
    n = len(weights)
    return OperatorGraph(
        names=tuple(f"op{k}" for k in range(n)),
        forward_s=weights.compute_s / 3,
        backward_s=weights.compute_s * 2 / 3,
        parameter_bytes=weights.memory_bytes,
        forward_bytes=weights.memory_bytes,
        backward_bytes=weights.memory_bytes,
        edges=weights.edges,
        edge_bytes=weights.edge_bytes,
    )


def bert_like(blocks: int, seed: int = 0, bandwidth: float = 1e10) -> Weights:
    """Return a chain of transformer blocks: three branches of attention, two skips, and the operators
    between.
    """
    rng = np.random.default_rng(seed)
    compute, edges, sizes = [1e-4], [], []
    act = 4 * 512 * 1024 * 4.0

    def add(cost: float, inputs: list[int], size: float = act) -> int:
        compute.append(cost * rng.uniform(0.9, 1.1))
        for i in inputs:
            edges.append((i, len(compute) - 1))
            sizes.append(size)
        return len(compute) - 1

    x = 0
    for _ in range(blocks):
        q, k, v = (add(2e-5, [add(1.5e-3, [x])]) for _ in range(3))
        scores = add(1e-5, [add(4e-4, [q, add(3e-5, [k])])], 4 * act)
        mixed = add(4e-4, [add(1e-4, [add(2e-4, [scores], 4 * act)], 4 * act), v], 2 * act)
        x = add(6e-5, [add(1e-5, [add(1e-5, [add(1.5e-3, [mixed])]), x])])
        wide = add(3e-4, [add(6e-3, [x])], 4 * act)
        x = add(6e-5, [add(1e-5, [add(6e-3, [wide], 4 * act), x])])
    return weights_of(compute, edges, sizes, np.array(compute) * 1e9, np.inf, 2 / bandwidth)


def series_parallel(nodes: int, seed: int, width: int = 4) -> Weights:
    """Return a random series-parallel graph: forks of a few branches of random lengths, joined again."""
    rng = np.random.default_rng(seed)
    edges, last, count = [], 0, 1
    while count < nodes:
        ends = []
        for _ in range(int(rng.integers(1, width + 1))):
            here = last
            for _ in range(int(rng.integers(1, 6))):
                edges.append((here, count))
                here, count = count, count + 1
            ends.append(here)
        edges += [(end, count) for end in ends]
        last, count = count, count + 1
    compute = rng.lognormal(-8, 1.5, count)
    return weights_of(compute, edges, rng.lognormal(14, 1, len(edges)), compute * 1e9, np.inf, 2 / 1e10)


def all_partitions(weights: Weights, stages: int) -> list[np.ndarray]:
    """Return every partition into convex stages in order, by trying all."""
    every = np.indices((stages,) * len(weights)).reshape(len(weights), -1).T[:, ::-1]
    used = np.logical_and.reduce([(every == s).any(axis=1) for s in range(stages)])
    forward = (every[:, weights.edges[:, 0]] <= every[:, weights.edges[:, 1]]).all(axis=1)
    return list(every[used & forward])
