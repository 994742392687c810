"""Several chains of the local search side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.deadline import Deadline
from phaze.map.annealing import Task, anneal, new_state
from phaze.map.heuristics import random_map


@dataclass(frozen=True)
class Chains:
    """How the local search runs."""

    seed: int = 0
    steps: int = 1_000_000
    """Changes of places tried by each chain."""
    count: int = 4
    """Chains, each on a thread."""


def best_of_chains(
    task: Task, starts: list[Ints], near: Ints, chains: Chains, deadline: Deadline | None = None
) -> tuple[float, Ints]:
    """Return the best value and mapping (S, R) of several chains, or of what they did until the deadline.

    Cool ones begin at good mappings, hot ones at good and at random ones; `starts` are ranked, the best
    first, `near` has the devices near every device, shape (D, D).
    """
    stages, replicas = starts[0].shape
    devices, until = len(near), deadline or Deadline()

    def chain(k: int) -> tuple[float, int, Ints]:
        rng = np.random.default_rng([chains.seed, k])
        hot = 0.02 if k % 2 else 0.002
        mapping = starts[k // 2 % len(starts)]
        if k % 4 == 3:
            hot, mapping = 0.05, random_map(stages, replicas, devices, chains.seed + k)
        found, value = anneal(
            task, new_state(task, _with_free(mapping, devices)), near, rng, chains.steps, hot, 1e-5, until
        )
        return value, k, found

    with ThreadPoolExecutor(chains.count) as pool, until.for_threads():
        value, _, found = min(pool.map(chain, range(chains.count)), key=lambda one: one[:2])
    return value, found[: stages * replicas].reshape(stages, replicas)


def _with_free(mapping: Ints, devices: int) -> Ints:
    """Return the devices of all slots and then those that are free, shape (D,)."""
    used = mapping.reshape(-1)
    return np.concatenate([used, np.setdiff1d(np.arange(devices), used)])
