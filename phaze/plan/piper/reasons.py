"""Why there is no plan: the first thing that no plan can get around."""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.units import GIB
from phaze.plan.piper.layers import Cluster, Layers


def why_no_plan(layers: Layers, cluster: Cluster) -> str:
    """Return a reason for layers that the planner found no plan for."""
    single, total = _least_bytes(layers, cluster)
    if np.isinf(single).any():
        v = int(np.isinf(single).argmax())
        widths = [str(t) for t, options in layers.options.items() if v in options.layer]
        return f"devices: {_name(layers, v)} needs t = {' or '.join(widths)} devices, {cluster.devices} given"
    batch = f"{'exactly' if cluster.exactly else 'at most'} {cluster.microbatches} microbatches"
    if cluster.exactly and cluster.microbatches > cluster.devices:
        return f"batch: {batch} are data parallel on as many devices, {cluster.devices} given"
    given = f"{_gib(cluster.memory_bytes)} given"
    if single.max() > cluster.memory_bytes:
        name = _name(layers, int(single.argmax()))
        return f"memory: {name} alone takes at least {_gib(single.max())} of a device, {given}"
    together = f"{cluster.devices} devices of {given}"
    if total.sum() > cluster.memory_bytes * cluster.devices:
        return f"memory: all layers together take at least {_gib(total.sum())}, {together}"
    return f"memory or batch: no stages, degrees and configurations fit with {batch}, {together}"


def _least_bytes(layers: Layers, cluster: Cluster) -> tuple[Floats, Floats]:
    """Return (n,) the least memory of each layer, on one device and on all t; infinite without any."""
    single, total = np.full(len(layers), np.inf), np.full(len(layers), np.inf)
    for tensor, options in layers.options.items():
        if tensor <= cluster.devices:
            least = options.stash_bytes + options.fixed_bytes
            np.minimum.at(single, options.layer, least)
            np.minimum.at(total, options.layer, tensor * least)
    return single, total


def _name(layers: Layers, v: int) -> str:
    return f"layer {layers.ids[v]} ({layers.names[v]})"


def _gib(size: float) -> str:
    return f"{size / GIB:.4g} GiB"
