"""Random chains and settings, small enough for exhaustive search and tight enough to be interesting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from phaze.formulas.flushing import Chain, Setting
from phaze.workload.graphs import edge_arrays


def random_chain(rng: Generator, layers: int, tensor: int = 1, skips: float = 0.3) -> Chain:
    """Return a chain with skip edges, layers that cannot be split, and now and then equal or empty layers."""
    whole = bool(rng.random() < 0.5)
    values = rng.integers(0, 12, (2, layers)) if rng.random() < 0.4 else 12 * rng.random((2, layers))
    weights = rng.integers(0, 20, layers).astype(float)
    edges = [(i, i + 1, float(rng.integers(0, 60))) for i in range(layers - 1)]
    edges += [
        (i, j, float(rng.integers(0, 60)))
        for i in range(layers)
        for j in range(i + 2, layers)
        if rng.random() < skips
    ]
    return Chain(
        forward_s=values[0].astype(float),
        backward_s=values[1].astype(float),
        parameter_bytes=weights,
        static_bytes=weights * rng.integers(2, 5),
        activation_bytes=rng.integers(0, 20, layers).astype(float),
        tensor_parallel=np.full(layers, False) if tensor == 1 else whole | (rng.random(layers) < 0.6),
        **edge_arrays(edges),
    )


def random_setting(rng: Generator, chain: Chain) -> Setting:
    """Return a setting in which memory often binds and sometimes forbids every placement."""
    total = float(np.sum(chain.static_bytes + chain.activation_bytes))
    return Setting(
        devices=int(rng.integers(1, 17)),
        microbatches=int(rng.integers(1, 17)),
        bandwidth_bytes_per_s=float(rng.choice([3.0, 20.0, 1000.0])),
        memory_bytes=float(np.round(total * rng.choice([0.3, 0.6, 1.0, 2.0, 8.0]) * (0.5 + rng.random()))),
        recompute=bool(rng.random() < 0.5),
        schedule="1f1b" if rng.random() < 0.7 else "gpipe",
        gradients="every-stage" if rng.random() < 0.5 else "first-stage",
        all_reduce_factor=float(rng.choice([2.0, 4.0])),
    )


def uniform_chain(layers: int = 6) -> Chain:
    """Return equal layers: 1 s forward, 2 s backward, 10 bytes of weights, 4 of activations, 2 on an edge."""
    ones = np.ones(layers)
    return Chain(
        forward_s=ones,
        backward_s=2 * ones,
        parameter_bytes=10 * ones,
        static_bytes=20 * ones,
        activation_bytes=4 * ones,
        tensor_parallel=np.full(layers, False),
        **edge_arrays((i, i + 1, 2.0) for i in range(layers - 1)),
    )


def ample_setting(devices: int = 4, microbatches: int = 8) -> Setting:
    """Return a setting in which everything fits and the network is fast."""
    return Setting(devices, microbatches, bandwidth_bytes_per_s=1e9, memory_bytes=1e9)


def relaxed(setting: Setting, rng: Generator) -> Setting:
    """Return a setting with more of one thing: memory, devices or bandwidth."""
    factor = int(rng.integers(2, 5))
    match rng.integers(0, 3):
        case 0:
            return replace(setting, memory_bytes=factor * setting.memory_bytes)
        case 1:
            return replace(setting, devices=factor * setting.devices)
        case _:
            return replace(setting, bandwidth_bytes_per_s=factor * setting.bandwidth_bytes_per_s)
