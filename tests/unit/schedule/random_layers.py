"""Random layers that are hard to schedule: wider than the core counts, fused operators, ℓ̂ near ℓ."""

import numpy as np

from phaze.schedule.graphs import Edges, ScheduledLayer


def random_layer(
    seed: int, operators: int, *, network: bool = False, overlap: bool = False
) -> ScheduledLayer:
    """Return a layer with fewer cores than operators side by side, and num_tc ≠ num_vc."""
    rng = np.random.default_rng(seed)
    kinds = ["tensor", "vector", "fused", *(["network", "none"] if network else [])]
    core = tuple(str(kind) for kind in rng.choice(kinds, operators))
    one = rng.uniform(1e-6, 9e-6, operators)
    every = one * rng.uniform(0.3, 1.0, operators)
    num_tc, num_vc = (int(count) for count in rng.choice([1, 2, 3], 2, replace=False))
    return ScheduledLayer(core, one, every, random_edges(rng, operators, 0.25), num_tc, num_vc, overlap)


def random_edges(rng: np.random.Generator, operators: int, density: float) -> Edges:
    """Return the edges of a random graph in topological order."""
    pairs = np.argwhere(np.triu(rng.random((operators, operators)) < density, 1))
    return tuple((int(i), int(j)) for i, j in pairs)


TRANSFORMER = """
norm-1 vector
q tensor norm-1
q-bias vector q
q-reshape none q-bias
q-rotary vector q-reshape
k tensor norm-1
k-bias vector k
k-reshape none k-bias
k-rotary vector k-reshape
v tensor norm-1
v-bias vector v
v-reshape none v-bias
scores tensor q-rotary k-rotary
scale vector scores
mask vector scale
softmax vector mask
dropout vector softmax
context tensor dropout v-reshape
projection tensor context
projection-bias vector projection
all-reduce-1 network projection-bias
add-1 vector all-reduce-1
norm-2 vector add-1
gate tensor norm-2
up tensor norm-2
silu vector gate
product vector silu up
down tensor product
all-reduce-2 network down
dropout-2 vector all-reduce-2
add-2 vector dropout-2 add-1
"""
"""Operators of an unfused transformer layer: name, core type, and the operators that they read."""
WEIGHTS = {"q", "k", "v", "projection", "gate", "up", "down"}
"""Products with a weight, which has a separate gradient."""


def transformer_graph(kind: str) -> tuple[tuple[str, ...], Edges]:
    """Return core types and edges of a transformer layer: its forward pass, its paired backward pass, or its
    split one with a separate weight gradient per product.
    """
    rows = [line.split() for line in TRANSFORMER.strip().splitlines()]
    place = {name: i for i, (name, *_) in enumerate(rows)}
    core = [row[1] for row in rows]
    edges = [(place[parent], i) for i, (_, _, *parents) in enumerate(rows) for parent in parents]
    if kind != "forward":
        last = len(rows) - 1
        core, edges = core[::-1], [(last - j, last - i) for i, j in edges]
    if kind == "split":
        for name in sorted(WEIGHTS):
            edges += [(i, len(core)) for i, j in edges if j == last - place[name]]
            core.append("tensor")
    return tuple(core), tuple(edges)


def transformer_layer(seed: int, num_tc: int, num_vc: int, kind: str = "forward") -> ScheduledLayer:
    """Return a transformer layer with random latencies: products take long, all cores help more or less."""
    rng = np.random.default_rng(seed)
    core, edges = transformer_graph(kind)
    n = len(core)
    one, every = np.zeros(n), np.zeros(n)
    for i, type_ in enumerate(core):
        cores = {"tensor": num_tc, "vector": num_vc}.get(type_, 1)
        times = {"tensor": rng.uniform(5e-5, 2e-4), "vector": rng.uniform(1e-6, 2e-5), "network": 3e-5}
        every[i] = times.get(type_, 0)
        one[i] = every[i] * (1 + (cores - 1) * rng.uniform(0.2, 1.0))
    return ScheduledLayer(core, one, every, edges, num_tc, num_vc)


def brush_layer(seed: int, num_tc: int = 2, num_vc: int = 3) -> ScheduledLayer:
    """Return sixteen independent products and vector operators: too wide for a list of barriers."""
    rng = np.random.default_rng(seed)
    core = ("tensor", "vector") * 8
    one = rng.uniform(1e-6, 9e-6, len(core))
    return ScheduledLayer(core, one, one * rng.uniform(0.5, 1.0, len(core)), (), num_tc, num_vc)
