"""Layers in the JSON format of the Piper authors' program: what `instance` reads."""

from __future__ import annotations

import json
from pathlib import Path

from phaze.plan.piper.layers import Cluster, Layers, Options
from phaze.spec.documents import write_checked

Json = dict[str, object]


def write_instance(path: str | Path, layers: Layers, cluster: Cluster) -> None:
    """Write layers and cluster as an instance with a checksum; numbers keep all digits."""
    write_checked(json.dumps(as_json(layers, cluster), indent=1) + "\n", Path(path))


def as_json(layers: Layers, cluster: Cluster) -> Json:
    """Return layers and cluster as the keys and values of an instance."""
    return {
        "maxDevices": cluster.devices,
        "maxMemoryPerDevice": cluster.memory_bytes,
        "bandwidth": cluster.bandwidth_bytes_per_s,
        "mbsInBatch": cluster.microbatches,
        "nodes": [
            {"id": layers.ids[v], "name": layers.names[v], "TMPCs": _configurations(layers, v)}
            for v in range(len(layers))
        ],
        "edges": [
            {"sourceId": layers.ids[u], "destId": layers.ids[v], "communicationCost": float(size)}
            for (u, v), size in zip(layers.edges, layers.edge_bytes, strict=True)
        ],
    }


def _configurations(layers: Layers, layer: int) -> Json:
    """Return the configurations of a layer by width."""
    found: Json = {}
    for width, options in layers.options.items():
        first = options.first(len(layers))
        found[str(width)] = [
            _configuration(layers, options, c) for c in range(first[layer], first[layer + 1])
        ]
    return found


def _configuration(layers: Layers, options: Options, c: int) -> Json:
    layer = int(options.layer[c])
    return {
        "id": options.names[c],
        "timePerSample": float(options.time_s[c]),
        "parameterSize": float(options.weight_bytes[c]),
        "memoryUsageA": float(options.stash_bytes[c]),
        "memoryUsageB": float(options.fixed_bytes[c]),
        "syncTimeFw": {
            str(layers.ids[u]): float(options.forward_sync_bytes[c, e])
            for e, (u, v) in enumerate(layers.edges)
            if v == layer
        },
        "syncTimeBw": {
            str(layers.ids[v]): float(options.backward_sync_bytes[c, e])
            for e, (u, v) in enumerate(layers.edges)
            if u == layer
        },
    }
