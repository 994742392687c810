"""Costs of a stage: time per sample and memory (Piper, Section 4, "TPS of a fixed configuration").

A stage S with data- and tensor-parallel degrees d and t takes

    1/d · [Σ X(v).p + (Σ over incoming edges (u, v) of 2 (c + X(v).c_fw)
                     + Σ over outgoing edges (v, w) of 2 (c + X(v).c_bw)) / B] + 4 (d-1)/d · Σ X(v).w / (n B)

where the gradients of n microbatches are synchronised at once: n = N (`batch`) or n = d (`round`). Its memory
is Σ (X(v).a · ceil(s/d) + X(v).b) bytes. Both are sums of contributions of the layers' configurations, so
choosing configurations is a knapsack. (The paper prints the second sum over incoming edges again; Appendix B
has it over outgoing ones.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.formulas.piper.knapsack import choose_by_ratio, choose_exactly
from phaze.formulas.piper.layers import FlatCluster, PlannedStage, ProfiledLayers, in_flight
from phaze.layout import Layout

Choose = Callable[[Ints, Bools, Floats, Floats, float, Ints], bool]
"""Function that chooses the configuration of every layer; returns true if a choice fits in memory."""


class ConfigurationCosts(NamedTuple):
    """Costs of all configurations on a cluster, all T widths concatenated, as input of compiled code."""

    widths: Ints
    """(T,) tensor-parallel widths t."""
    first: Ints
    """(T, n + 1) index of a layer's first configuration."""
    time_s: Floats
    """(C,) time per sample X.p."""
    weight_s: Floats
    """(C,) gradient exchange time 4 X.w / B."""
    stash_bytes: Floats
    """(C,) memory per microbatch in flight X.a."""
    fixed_bytes: Floats
    """(C,) fixed memory X.b."""
    forward_s: Floats
    """(C, E) transfer time 2 (c + X.c_fw) / B of incoming edges."""
    backward_s: Floats
    """(C, E) transfer time 2 (c + X.c_bw) / B of outgoing edges."""
    sources: Ints
    """(E,) source layer."""
    targets: Ints
    """(E,) target layer."""
    limit_bytes: float
    """Memory of each device, M."""


@lru_cache(maxsize=16)
def costs_of(layers: ProfiledLayers, cluster: FlatCluster) -> ConfigurationCosts:
    """Costs of all configurations as input of compiled code."""
    options = [layers.options[t] for t in sorted(layers.options)]
    bandwidth = cluster.bandwidth_bytes_per_s
    begin = np.cumsum([0, *(len(o.layer) for o in options)])
    return ConfigurationCosts(
        widths=np.array(sorted(layers.options), dtype=np.int64),
        first=np.array(
            [b + o.first(len(layers)) for b, o in zip(begin, options, strict=False)], dtype=np.int64
        ),
        time_s=_stacked([o.time_s for o in options]),
        weight_s=_stacked([cluster.network.endless_s("all_reduce", o.weight_bytes) for o in options]),
        stash_bytes=_stacked([o.stash_bytes for o in options]),
        fixed_bytes=_stacked([o.fixed_bytes for o in options]),
        forward_s=_stacked([2 * (layers.edge_bytes + o.forward_sync_bytes) / bandwidth for o in options]),
        backward_s=_stacked([2 * (layers.edge_bytes + o.backward_sync_bytes) / bandwidth for o in options]),
        sources=layers.sources,
        targets=layers.targets,
        limit_bytes=float(cluster.memory_bytes),
    )


def _stacked(tables: list[Floats]) -> Floats:
    """Concatenated tables in row-major order."""
    return np.ascontiguousarray(np.concatenate(tables), dtype=np.float64)


def best_stage(
    layers: ProfiledLayers,
    cluster: FlatCluster,
    members: Sequence[int],
    layout: Layout,
    degree: int,
    exact: bool = False,
) -> PlannedStage | None:
    """Stage S with its time TPS(S, t, d, s) and configurations; None if infeasible (Section 4).

    members: positions of the layers of S; layout: d and t; degree: s, the sum of the data-parallel degrees of
    this stage and all later ones, at least d. Configurations are chosen by the rule of `knapsack` or exactly.
    """
    if layout.tp not in layers.options or layout.devices > cluster.devices or degree > cluster.microbatches:
        return None
    if layout.dp not in cluster.data_widths():
        return None
    member = np.zeros(len(layers), dtype=np.bool_)
    member[list(members)] = True
    costs, choose = costs_of(layers, cluster), choose_exactly if exact else choose_by_ratio
    return planned_stage(costs, member, layout, in_flight(degree, layout), cluster.exchanged(layout), choose)


def planned_stage(
    costs: ConfigurationCosts,
    member: Bools,
    layout: Layout,
    waiting: int,
    exchanged: float,
    choose: Choose,
    around: int = 1,
) -> PlannedStage | None:
    """Stage with the configurations chosen by a rule; None if infeasible.

    member: (L,) its layers; layout: d and t; waiting: microbatches in flight; exchanged: gradient exchanges
    per microbatch, as in `price_stage`; around: replicas of the enclosing pipeline.
    """
    t = int(np.searchsorted(costs.widths, layout.tp))
    own_s, memory_bytes, common_s = price_stage(costs, member, t, exchanged, waiting)
    chosen = np.full(len(member), -1, dtype=np.int64)
    if not choose(costs.first[t], member, own_s, memory_bytes, costs.limit_bytes, chosen):
        return None
    picked = chosen[member]
    return PlannedStage(
        layers=tuple(np.flatnonzero(member).tolist()),
        layout=layout,
        configurations=tuple((picked - costs.first[t, 0]).tolist()),
        in_flight=waiting,
        time_s=float(own_s[picked].sum() + common_s) / (layout.dp * around),
        memory_bytes=float(memory_bytes[picked].sum()),
    )


@njit
def price_stage(
    costs: ConfigurationCosts, member: Bools, t: int, exchanged: float, in_flight: int
) -> tuple[Floats, Floats, float]:
    """Time and memory of each configuration, (C,), and the time common to all; times are multiplied by d.

    The minimum over a layer's configurations of all terms except X.p is common; each configuration adds its
    difference. If they are equal, ratios of memory to time have no rounding error: equal ones stay equal.
    Nothing that was added is subtracted: a configuration that costs 1e20 does not affect the price of the
    others.
    """
    own_s, memory_bytes = costs.time_s.copy(), costs.stash_bytes * in_flight + costs.fixed_bytes
    weight_s, common_s = costs.weight_s.reshape(-1, 1), 0.0
    for v in range(len(member)):
        if member[v]:
            begin, end = costs.first[t, v], costs.first[t, v + 1]
            common_s += _set_apart(own_s, exchanged, weight_s, 0, begin, end)
    for e in range(len(costs.sources)):
        u, v = costs.sources[e], costs.targets[e]
        if member[v] and not member[u]:
            common_s += _set_apart(own_s, 1.0, costs.forward_s, e, costs.first[t, v], costs.first[t, v + 1])
        if member[u] and not member[v]:
            common_s += _set_apart(own_s, 1.0, costs.backward_s, e, costs.first[t, u], costs.first[t, u + 1])
    return own_s, memory_bytes, common_s


@njit
def _set_apart(own_s: Floats, times: float, cost_s: Floats, column: int, begin: int, end: int) -> float:
    """Add each configuration's excess over the minimum cost to its own time, and return the minimum."""
    least_s = np.inf
    for x in range(begin, end):
        least_s = min(least_s, cost_s[x, column])
    for x in range(begin, end):
        # Only the excess is the configuration's own: equal costs leave its time exact.
        own_s[x] += times * (cost_s[x, column] - least_s)
    return float(times * least_s) if begin < end else 0.0
