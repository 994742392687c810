"""Which operators a border between stages may have on either side, given a time that no stage may exceed.

Let F_s be the fronted subgraph of the first s of S stages, C its computation, T the limit of a stage's time,
and C(G) all computation. Then C(F_s) ≤ s T and C(G) − C(F_s) ≤ (S − s) T. An operator lies in F_s only with
its ancestors, outside only with its descendants: where the ancestors and itself take more than s T, it lies
outside; where the descendants and itself take more than (S − s) T, it lies inside. What is left open at no
border belongs to one stage, and can be one node without loss: a path between two of these holds no others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.partition.weights import ROUNDING, Weights


@dataclass(frozen=True, eq=False)
class Windows:
    """How much computation the first s stages may have, s = 1 to S − 1, and what follows for each node."""

    least_s: Floats
    """Shape (S - 1,)."""
    most_s: Floats
    """Shape (S - 1,)."""
    earliest: Ints
    """The first stage that a node may be in, shape (n,)."""
    latest: Ints
    """The last stage that a node may be in, shape (n,)."""

    @property
    def contradictory(self) -> bool:
        """Return whether no partition keeps within the limit."""
        return bool((self.earliest > self.latest).any())

    @property
    def groups(self) -> Ints:
        """Return a label for each node, shape (n,): that of its stage where no border is open."""
        count = len(self.earliest)
        return np.where(self.earliest == self.latest, count + self.earliest, np.arange(count))


def windows_within(weights: Weights, stages: int, limit_s: float) -> Windows:
    """Return the windows that follow from a limit on the time of each stage; all is open without one."""
    total, borders = weights.total_s, np.arange(1, stages)
    if not np.isfinite(limit_s):
        return around(weights, np.full(stages - 1, -np.inf), np.full(stages - 1, np.inf))
    slack = ROUNDING * total
    least = total - (stages - borders) * limit_s - slack
    return around(weights, least.astype(np.float64), (borders * limit_s + slack).astype(np.float64))


def around(weights: Weights, least_s: Floats, most_s: Floats) -> Windows:
    """Return the windows for borders with computation between two bounds, both rising."""
    before, after = weights.closures
    outside = np.searchsorted(most_s, before, side="left")
    inside = len(least_s) - np.searchsorted(least_s, weights.total_s - after, side="right")
    return Windows(least_s, most_s, outside.astype(np.int64), (len(least_s) - inside).astype(np.int64))
