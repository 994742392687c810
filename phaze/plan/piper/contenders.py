"""Piper and what it is compared with, as cases name them: what each is given, and how it plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from phaze.plan.piper.baselines import without_recomputation, without_tensor_parallelism
from phaze.plan.piper.cases import Contender
from phaze.plan.piper.equal import plan_equally
from phaze.plan.piper.layers import Cluster, Layers, Plan
from phaze.plan.piper.planner import plan, plan_over_devices
from phaze.spec.names import Planner
from phaze.spec.planning import Mode

Restrict = Callable[[Layers], Layers]


def _all(layers: Layers) -> Layers:
    return layers


def _plan(layers: Layers, cluster: Cluster, mode: Mode, *, most_data: int | None = None) -> Plan | None:
    return plan(layers, cluster, linear=mode == "table-1", most_data=most_data)


def _sweep(
    layers: Layers, cluster: Cluster, mode: Mode, *, most_data: int | None = None
) -> NDArray[np.float64]:
    times = plan_over_devices(layers, cluster, linear=mode == "table-1", most_data=most_data)
    return times[1:]


def _plan_equally(layers: Layers, cluster: Cluster, mode: Mode) -> Plan | None:
    del mode  # equal stages are cut from one order of the layers anyway
    return plan_equally(layers, cluster)


def _sweep_equally(layers: Layers, cluster: Cluster, mode: Mode) -> NDArray[np.float64]:
    """Return the times from the largest number of devices down: a plan is the best down to what it uses."""
    times = np.full(cluster.devices, np.inf)
    most = cluster.devices
    while most > 0:
        found = _plan_equally(layers, replace(cluster, devices=most), mode)
        if found is None:
            break
        times[found.devices - 1 : most] = found.time_per_sample_s
        most = found.devices - 1
    return times


def _search(restrict: Restrict, most_data: int | None = None) -> Contender:
    return Contender(restrict, partial(_plan, most_data=most_data), partial(_sweep, most_data=most_data))


CONTENDERS: dict[Planner, Contender] = {
    "piper": _search(_all),
    "no-dp": _search(_all, most_data=1),
    "no-tp": _search(without_tensor_parallelism),
    "no-ar": _search(without_recomputation),
    "equi": Contender(_all, _plan_equally, _sweep_equally),
    "equi-no-tp": Contender(without_tensor_parallelism, _plan_equally, _sweep_equally),
}
"""By name."""
