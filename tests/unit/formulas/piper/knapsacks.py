"""Knapsacks of stages, generated or from planning, with two methods to choose and an independent third."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

from phaze.base.arrays import Floats, Ints
from phaze.formulas.downsets import enumerate_downsets
from phaze.formulas.piper.knapsack import cheapest, choose_by_ratio, choose_exactly
from phaze.formulas.piper.layers import Configurations, FlatCluster, ProfiledLayers
from phaze.formulas.piper.stages import costs_of, price_stage
from phaze.layout import Layout

SHAPES = 20
"""Shapes of layers and degrees drawn together, for the number of microbatches in flight."""


@dataclass(frozen=True)
class Knapsack:
    """Layers with the time and the memory of each configuration."""

    first: Ints
    """Index of each layer's first configuration, (n + 1,)."""
    member: NDArray[np.bool_]
    """Layers of the stage, (n,)."""
    time_s: Floats
    memory_bytes: Floats
    limit_bytes: float
    common_s: float = 0.0
    """Time independent of the choice."""

    @property
    def choices(self) -> list[list[tuple[float, float]]]:
        """Return (time, memory) of the configurations by layer of the stage."""
        pairs = list(zip(self.time_s.tolist(), self.memory_bytes.tolist(), strict=True))
        return [pairs[self.first[v] : self.first[v + 1]] for v in np.flatnonzero(self.member)]

    def binds(self) -> bool:
        """Return whether the fastest configurations do not fit, while the smallest do."""
        layers = np.flatnonzero(self.member)
        _, fast = cheapest(self.first, layers, self.time_s, self.memory_bytes, 0.0)
        small, _ = cheapest(self.first, layers, self.memory_bytes, self.time_s, 0.0)
        return bool(small <= self.limit_bytes < fast)

    def by_the_rule(self) -> float | None:
        """Return the time by the paper's rule; None if nothing fits."""
        return self._time(choose_by_ratio)

    def exactly(self) -> float | None:
        """Return the minimum time; None if nothing fits."""
        return self._time(choose_exactly)

    def _time(self, choose: object) -> float | None:
        chosen = np.full(len(self.member), -1, dtype=np.int64)
        assert callable(choose)
        if not choose(self.first, self.member, self.time_s, self.memory_bytes, self.limit_bytes, chosen):
            return None
        picked = chosen[self.member]
        assert np.all((picked >= self.first[:-1][self.member]) & (picked < self.first[1:][self.member]))
        assert self.memory_bytes[picked].sum() <= self.limit_bytes * (1 + 1e-12)
        return float(self.time_s[picked].sum() + self.common_s)

    def by_integer_program(self) -> float | None:
        """Return the minimum time found by HiGHS; None if nothing fits. Memory is in shares of M."""
        choices = self.choices
        owner = np.repeat(np.arange(len(choices)), [len(c) for c in choices])
        time, memory = np.array([pair for c in choices for pair in c]).T
        one_each = LinearConstraint(np.equal.outer(np.arange(len(choices)), owner).astype(float), 1, 1)
        most = self.limit_bytes or 1.0
        fits = LinearConstraint(memory[None] / most, -np.inf, self.limit_bytes / most)
        scale = abs(time).max() or 1.0
        found = milp(
            time / scale,
            integrality=np.ones(len(time)),
            bounds=Bounds(0, 1),
            constraints=[one_each, fits],
            options={"mip_rel_gap": 0.0},
        )
        return float(time[np.round(found.x) == 1].sum() + self.common_s) if found.success else None


def arising(layers: ProfiledLayers, cluster: FlatCluster, count: int, seed: int) -> Iterator[Knapsack]:
    """Yield knapsacks whose memory binds, of random stages (S, t, d, s) that planning meets.

    S is the difference of two nested downsets, d a degree that the cluster allows, ceil(s/d) any that N
    allows: for each S, t and d a few.
    """
    rng = np.random.default_rng(seed)
    downsets = enumerate_downsets(len(layers), layers.pairs)
    costs, degrees = costs_of(layers, cluster), cluster.data_widths()
    found = 0
    while found < count:
        outer = int(rng.integers(1, len(downsets)))
        inner = int(rng.choice(downsets.within(outer)[:-1]))
        member = np.zeros(len(layers), dtype=np.bool_)
        member[list(downsets.difference(outer, inner))] = True
        t = int(rng.integers(len(costs.widths)))
        data = int(rng.choice(degrees[degrees * costs.widths[t] <= cluster.devices]))
        exchanged, most = cluster.exchanged(Layout(dp=data)), -(-cluster.microbatches // data)
        for in_flight in rng.permutation(most)[:SHAPES] + 1:
            own_s, memory, common_s = price_stage(costs, member, t, exchanged, in_flight)
            knapsack = Knapsack(costs.first[t], member, own_s, memory, cluster.memory_bytes, common_s)
            if found < count and knapsack.binds():
                found += 1
                yield knapsack


def with_more_configurations(layers: ProfiledLayers, seed: int) -> ProfiledLayers:
    """Return layers of two configurations with two more each, of time and memory somewhere between."""
    rng = np.random.default_rng(seed)
    return replace(layers, options={t: _doubled(o, rng) for t, o in layers.options.items()})


def _doubled(options: Configurations, rng: np.random.Generator) -> Configurations:
    """Return the two configurations of each layer, and two between them."""
    plain = np.arange(0, len(options.layer), 2)
    rows = np.stack([plain, plain + 1, plain, plain], axis=1).ravel()
    way = np.array([0.0, 0.0, 1.0, 1.0] * len(plain))

    def between(values: Floats) -> Floats:
        share = way * rng.uniform(0.05, 0.95, len(rows))
        return values[rows] + share * (values[rows // 2 * 2 + 1] - values[rows])

    return Configurations(
        names=tuple(f"{options.names[row]} {i % 4}" for i, row in enumerate(rows)),
        layer=options.layer[rows],
        time_s=between(options.time_s),
        weight_bytes=options.weight_bytes[rows],
        stash_bytes=between(options.stash_bytes),
        fixed_bytes=between(options.fixed_bytes),
        forward_sync_bytes=options.forward_sync_bytes[rows],
        backward_sync_bytes=options.backward_sync_bytes[rows],
    )


def drawn(rng: np.random.Generator, layers: int, most: int) -> Knapsack:
    """Return a generated knapsack with at most `most` configurations per layer, some of them equal."""
    counts = rng.integers(1, most + 1, layers)
    return Knapsack(
        first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        member=np.ones(layers, dtype=np.bool_),
        time_s=rng.integers(-3, 20, counts.sum()).astype(float),
        memory_bytes=rng.integers(0, 20, counts.sum()).astype(float),
        limit_bytes=float(rng.integers(0, 12 * layers)),
    )
