"""A given plan under Piper's cost model: what each of its stages takes, or why it is none of Piper's plans.

Written out from Sections 3 and 4 of the paper for stages and configurations that are given, apart from the
planner, so that one can check the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.units import GIB
from phaze.layout import Layout
from phaze.plan.piper.chain import CONFIGURATIONS
from phaze.plan.piper.layers import Cluster, Layers, Options, Plan, PlannedStage, in_flight


@dataclass(frozen=True)
class Given:
    """A stage with how all of its layers run."""

    layers: tuple[int, ...]
    """Positions, rising."""
    layout: Layout
    """d, t, and what all layers recompute."""

    @property
    def configuration(self) -> str:
        """Return the name of each layer's configuration."""
        return CONFIGURATIONS[self.layout.recompute]


def why_outside(cluster: Cluster, stages: Sequence[Given]) -> str:
    """Return which data width Piper would not choose: one that does not divide N; empty if all do.

    Such a plan has a price, if some replicas have a microbatch less, but it is none of Piper's.
    """
    for stage in stages if cluster.synchronisation == "batch" else ():
        if cluster.microbatches % stage.layout.dp:
            return (
                f"data: {stage.layout.dp} does not divide the {cluster.microbatches} microbatches of a batch"
            )
    return ""


def price(layers: Layers, cluster: Cluster, stages: Sequence[Given]) -> Plan | str:
    """Return the plan with these stages in the order of the data flow, or what keeps it from running.

    Whether the data widths divide N is not asked (`why_outside`).
    """
    degree = sum(stage.layout.dp for stage in stages)
    devices = sum(stage.layout.devices for stage in stages)
    if devices > cluster.devices:
        return f"devices: it takes {devices}, {cluster.devices} given"
    if degree > cluster.microbatches:
        return f"batch: data widths sum to {degree}, above the {cluster.microbatches} microbatches of a batch"
    planned: list[PlannedStage] = []
    for stage in stages:
        found = _price_stage(layers, cluster, stage, degree)
        if isinstance(found, str):
            return f"stage {len(planned)}: {found}"
        planned.append(found)
        degree -= stage.layout.dp
    return Plan(tuple(planned))


def _price_stage(layers: Layers, cluster: Cluster, stage: Given, degree: int) -> PlannedStage | str:
    """Return a stage with that sum of the data widths from it on, or what it lacks."""
    width = stage.layout.tp
    if width not in layers.options:
        return f"tensor: no layer has a configuration of width {width}"
    options = layers.options[width]
    chosen = _chosen(layers, options, stage)
    if len(chosen) < len(stage.layers):
        return f"configuration: not every layer can {stage.configuration} at width {width}"
    waiting = in_flight(degree, stage.layout.dp)
    memory = float(np.sum(options.stash_bytes[chosen] * waiting + options.fixed_bytes[chosen]))
    if memory > cluster.memory_bytes:
        return f"memory: it needs {memory / GIB:.2f} GiB, {cluster.memory_bytes / GIB:g} given"
    time_s = _time_s(layers, cluster, stage, chosen)
    return PlannedStage(stage.layers, stage.layout, tuple(int(c) for c in chosen), waiting, time_s, memory)


def _chosen(layers: Layers, options: Options, stage: Given) -> Ints:
    """Return the configuration of every layer that has one of that name."""
    first = options.first(len(layers))
    return np.array(
        [
            c
            for v in stage.layers
            for c in range(first[v], first[v + 1])
            if options.names[c] == stage.configuration
        ],
        dtype=np.int64,
    )


def _time_s(layers: Layers, cluster: Cluster, stage: Given, chosen: Ints) -> float:
    """Return the time per sample: compute and communication over d, gradients once a batch or a round."""
    options, inside = layers.options[stage.layout.tp], np.isin(np.arange(len(layers)), stage.layers)
    enters, leaves = layers.crossing(inside)
    arriving = 2.0 * (layers.edge_bytes + options.forward_sync_bytes[chosen].sum(axis=0))[enters].sum()
    departing = 2.0 * (layers.edge_bytes + options.backward_sync_bytes[chosen].sum(axis=0))[leaves].sum()
    data = stage.layout.dp
    weights = float(options.weight_bytes[chosen].sum())
    gradients = cluster.network.charged_bytes("all_reduce", weights, data)
    rounds = data if cluster.synchronisation == "round" else cluster.microbatches
    transfers = ((arriving + departing) / data + gradients / rounds) / cluster.bandwidth_bytes_per_s
    return float(options.time_s[chosen].sum() / data + transfers)
