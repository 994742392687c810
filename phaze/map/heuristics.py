"""Mappings by hand: consecutive devices for the replicas of a stage, or for the stages of a replica."""

from __future__ import annotations

import numpy as np

from phaze.theory.operator_graphs import Ints


def consecutive_map(stages: int, replicas: int) -> Ints:
    """Return the CS map: replicas of the first stage on the first devices, then those of the second.

    Shape (S, R); consecutive stages on consecutive devices, all-reduce first (Parmesan, Section VIII-A).
    """
    return np.arange(stages * replicas).reshape(stages, replicas)


def p2p_map(stages: int, replicas: int) -> Ints:
    """Return the p2p map: stages of the first replica on the first devices, then of the second.

    Shape (S, R) (Parmesan, Section VIII-C).
    """
    return np.ascontiguousarray(np.arange(stages * replicas).reshape(replicas, stages).T)


def random_map(stages: int, replicas: int, devices: int, seed: int) -> Ints:
    """Return a mapping on devices drawn at random, shape (S, R)."""
    drawn = np.random.default_rng(seed).permutation(devices)[: stages * replicas]
    return drawn.reshape(stages, replicas)
