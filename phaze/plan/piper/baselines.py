"""What Piper is compared with: its planner with less to choose from, and equal stages (Piper, Section 5).

    no_dp        no data parallelism: d = 1
    no_tp        no tensor parallelism: t = 1
    no_ar        no recomputation of activations
    equi         equal stages, see `equal`
    equi_no_tp   equal stages with t = 1, in place of PipeDream-2BW's planner
    pipedream    t = 1, no recomputation, and no limit of memory, in place of PipeDream's planner

A configuration recomputes activations if its name has `recomp` in it, in capitals or not, as the authors'
`activation recomp`. PipeDream's own planner takes paths of layers only; here any graph is planned. As it does
not know of memory, its stages may not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from phaze.base.arrays import Bools
from phaze.plan.piper.equal import plan_equally
from phaze.plan.piper.layers import Cluster, Layers, Options, Plan

Planner = Callable[[Layers, Cluster, int | None], Plan | None]
"""A planner; the last argument is the largest d, None for any."""

BASELINES = ("no_dp", "no_tp", "no_ar", "equi", "equi_no_tp", "pipedream")


def plan_baselines(layers: Layers, cluster: Cluster, planner: Planner) -> dict[str, Plan | None]:
    """Return what each baseline plans, None where it has no plan; stages index the layers as given."""
    kept = without_tensor_parallelism(layers)
    plans = {
        "no_dp": planner(layers, cluster, 1),
        "no_tp": planner(kept, cluster, None),
        "no_ar": _plan_without_recomputation(layers, cluster, planner),
        "equi": plan_equally(layers, cluster),
        "equi_no_tp": plan_equally(kept, cluster),
        "pipedream": _plan_without_recomputation(kept, replace(cluster, memory_bytes=np.inf), planner),
    }
    return {name: plans[name] for name in BASELINES}


def without_tensor_parallelism(layers: Layers) -> Layers:
    """Return the layers with their configurations on one device."""
    return replace(layers, options={t: options for t, options in layers.options.items() if t == 1})


def without_recomputation(layers: Layers) -> Layers:
    """Return the layers with the configurations that keep activations, and the widths that have any."""
    kept = {t: options.take(_stashing(options)) for t, options in layers.options.items()}
    return replace(layers, options={t: options for t, options in kept.items() if options.names})


def recomputes(name: str) -> bool:
    """Return whether a configuration of that name recomputes activations."""
    return "recomp" in name.lower()


def _plan_without_recomputation(layers: Layers, cluster: Cluster, planner: Planner) -> Plan | None:
    """Return a plan whose configurations are indices into those that were given."""
    found = planner(without_recomputation(layers), cluster, None)
    if found is None:
        return None
    given = {t: np.flatnonzero(_stashing(options)) for t, options in layers.options.items()}
    return Plan(
        tuple(
            replace(stage, configurations=tuple(given[stage.layout.tp][list(stage.configurations)].tolist()))
            for stage in found.stages
        )
    )


def _stashing(options: Options) -> Bools:
    return np.array([not recomputes(name) for name in options.names], dtype=np.bool_)
