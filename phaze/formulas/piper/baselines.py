"""Piper and its baselines (Piper, Section 5): Piper's planner with restricted choices, and equal stages.

    no-dp        no data parallelism: d = 1
    no-tp        no tensor parallelism: t = 1
    no-ar        no recomputation of activations
    equi         equal stages, see `equal`
    equi-no-tp   equal stages with t = 1, in place of PipeDream-2BW's planner
    pipedream    t = 1, no recomputation, and no memory limit, in place of PipeDream's planner

A configuration recomputes activations if its name contains `recomp` in any case, as the authors' `activation
recomp`. PipeDream's own planner takes only paths of layers; here any graph is planned. It ignores memory, so
its stages may not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from phaze.base.arrays import Floats
from phaze.formulas.piper.equal import plan_equally
from phaze.formulas.piper.layers import FlatCluster, PiperPlan, ProfiledLayers
from phaze.formulas.piper.planner import SearchOptions, plan, plan_over_devices


def without_tensor_parallelism(layers: ProfiledLayers) -> ProfiledLayers:
    """Layers with only their single-device configurations."""
    return replace(layers, options={t: options for t, options in layers.options.items() if t == 1})


def without_recomputation(layers: ProfiledLayers) -> ProfiledLayers:
    """Layers with only the configurations that store activations; widths without any are dropped."""
    storing = {
        t: options.take(np.array(["recomp" not in name.lower() for name in options.names], dtype=np.bool_))
        for t, options in layers.options.items()
    }
    return replace(layers, options={t: options for t, options in storing.items() if options.names})


@dataclass(frozen=True)
class Contender:
    """Planner under comparison: Piper's planner with restricted choices, or equal stages."""

    restrict: Callable[[ProfiledLayers], ProfiledLayers] = lambda layers: layers
    """Function that restricts layers to the configurations that the planner may choose."""
    most_data: int | None = None
    """Largest degree of data parallelism."""
    limited: bool = True
    """True if stages have to fit in memory."""
    equal: bool = False
    """True for stages with equal numbers of layers, instead of Piper's search."""

    def plan(self, layers: ProfiledLayers, cluster: FlatCluster, options: SearchOptions) -> PiperPlan | None:
        """Best plan for layers returned by `restrict`; None if nothing fits."""
        if self.equal:
            return plan_equally(layers, cluster)
        return plan(layers, self._visible(cluster), replace(options, most_data=self.most_data))

    def sweep(self, layers: ProfiledLayers, cluster: FlatCluster, options: SearchOptions) -> Floats:
        """Best time with at most 1, …, K devices, (K,), from a single run; inf if nothing fits."""
        if not self.equal:
            options = replace(options, most_data=self.most_data)
            return plan_over_devices(layers, self._visible(cluster), options)[1:]
        times, most = np.full(cluster.devices, np.inf), cluster.devices
        while most and (equal_plan := plan_equally(layers, replace(cluster, devices=most))):
            # A plan stays the best down to the number of devices it uses.
            times[equal_plan.devices - 1 : most] = equal_plan.time_per_sample_s
            most = equal_plan.devices - 1
        return times

    def _visible(self, cluster: FlatCluster) -> FlatCluster:
        return cluster if self.limited else replace(cluster, memory_bytes=np.inf)


CONTENDERS: dict[str, Contender] = {
    "piper": Contender(),
    "no-dp": Contender(most_data=1),
    "no-tp": Contender(without_tensor_parallelism),
    "no-ar": Contender(without_recomputation),
    "equi": Contender(equal=True),
    "equi-no-tp": Contender(without_tensor_parallelism, equal=True),
    "pipedream": Contender(
        lambda layers: without_recomputation(without_tensor_parallelism(layers)), limited=False
    ),
}
