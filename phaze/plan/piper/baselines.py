"""Piper and what it is compared with (Piper, Section 5): its planner with less to choose from, equal stages.

    no-dp        no data parallelism: d = 1
    no-tp        no tensor parallelism: t = 1
    no-ar        no recomputation of activations
    equi         equal stages, see `equal`
    equi-no-tp   equal stages with t = 1, in place of PipeDream-2BW's planner
    pipedream    t = 1, no recomputation, and no limit of memory, in place of PipeDream's planner

A configuration recomputes activations if its name has `recomp` in it, in capitals or not, as the authors'
`activation recomp`. PipeDream's own planner takes paths of layers only; here any graph is planned. As it does
not know of memory, its stages may not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from phaze.base.arrays import Floats
from phaze.plan.piper.equal import plan_equally
from phaze.plan.piper.layers import FlatCluster, PiperPlan, ProfiledLayers
from phaze.plan.piper.planner import SearchOptions, plan, plan_over_devices

Restrict = Callable[[ProfiledLayers], ProfiledLayers]


@dataclass(frozen=True)
class Contender:
    """A planner, in the two ways that it is asked."""

    restrict: Restrict
    """Layers with the configurations that it may choose."""
    plan: Callable[[ProfiledLayers, FlatCluster, SearchOptions], PiperPlan | None]
    """The best plan, None if nothing fits."""
    sweep: Callable[[ProfiledLayers, FlatCluster, SearchOptions], Floats]
    """(K,) the best time with at most 1, …, K devices, infinite where nothing fits, from a single run."""


def without_tensor_parallelism(layers: ProfiledLayers) -> ProfiledLayers:
    """Layers with their configurations on one device."""
    return replace(layers, options={t: options for t, options in layers.options.items() if t == 1})


def without_recomputation(layers: ProfiledLayers) -> ProfiledLayers:
    """Layers with the configurations that keep activations, and the widths that have any."""
    kept = {
        t: options.take(np.array(["recomp" not in name.lower() for name in options.names], dtype=np.bool_))
        for t, options in layers.options.items()
    }
    return replace(layers, options={t: options for t, options in kept.items() if options.names})


def _whole(layers: ProfiledLayers) -> ProfiledLayers:
    return layers


def _searching(
    restrict: Restrict, most_data: int | None = None, most_bytes: float | None = None
) -> Contender:
    """Piper's planner with less to choose from, or with another memory."""

    def given(cluster: FlatCluster) -> FlatCluster:
        return cluster if most_bytes is None else replace(cluster, memory_bytes=most_bytes)

    return Contender(
        restrict,
        lambda layers, cluster, how: plan(layers, given(cluster), replace(how, most_data=most_data)),
        lambda layers, cluster, how: plan_over_devices(
            layers, given(cluster), replace(how, most_data=most_data)
        )[1:],
    )


def _equally(restrict: Restrict) -> Contender:
    """Equal stages, which are cut from one order of the layers whatever is asked."""
    return Contender(
        restrict,
        lambda layers, cluster, _: plan_equally(layers, cluster),
        lambda layers, cluster, _: _sweep_equally(layers, cluster),
    )


def _sweep_equally(layers: ProfiledLayers, cluster: FlatCluster) -> Floats:
    """Times from the largest number of devices down: a plan is the best down to what it uses."""
    times, most = np.full(cluster.devices, np.inf), cluster.devices
    while most > 0:
        found = plan_equally(layers, replace(cluster, devices=most))
        if found is None:
            break
        times[found.devices - 1 : most] = found.time_per_sample_s
        most = found.devices - 1
    return times


CONTENDERS: dict[str, Contender] = {
    "piper": _searching(_whole),
    "no-dp": _searching(_whole, most_data=1),
    "no-tp": _searching(without_tensor_parallelism),
    "no-ar": _searching(without_recomputation),
    "equi": _equally(_whole),
    "equi-no-tp": _equally(without_tensor_parallelism),
    "pipedream": _searching(
        lambda layers: without_recomputation(without_tensor_parallelism(layers)), most_bytes=np.inf
    ),
}
