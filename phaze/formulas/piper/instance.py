"""Instances in the JSON format of the Piper authors' program.

    maxDevices           K
    maxMemoryPerDevice   M, bytes
    bandwidth            B, bytes per second in and out of a device
    mbsInBatch           N, microbatches per batch
    nodes                layers: `id`, `name`, and `TMPCs`, from every width t, as a string, to a list of
                         configurations, which may be empty
    edges                tensors between layers: `sourceId`, `destId`, `communicationCost` (bytes)

A configuration has an `id` (its name), `timePerSample` (seconds, or any unit: resulting times have that unit,
with transfers counted as seconds), `parameterSize` (bytes of weights on each device), `memoryUsageA` and
`memoryUsageB` (bytes: A per microbatch in flight, B once), `syncTimeFw` and `syncTimeBw` (bytes that the t
devices exchange if an edge crosses the boundary of the stage). `syncTimeFw` has a key, the id of the other
end, for every incoming edge, `syncTimeBw` for every outgoing one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from phaze.base.room import refuse_beyond_memory
from phaze.formulas.piper.layers import Configurations, FlatCluster, ProfiledLayers
from phaze.spec.documents import (
    CamelCase,
    ClusterInstance,
    LayerEdge,
    bad_edges,
    check_width,
    read_as,
    repeated_ids,
    write_checked,
)
from phaze.spec.values import Size, Text, Whole
from phaze.workload.graphs import edge_arrays

EXCHANGE_BYTES = 64
"""Memory needed per configuration and edge, in bytes: all arrays, for both directions."""
SHOWN = 10
"""Maximum number of mistakes of each kind that an error message lists."""


class StoredConfiguration(CamelCase):
    """Configuration of a layer on t devices."""

    id: Text
    time_per_sample: Size
    parameter_size: Size
    memory_usage_a: Size
    memory_usage_b: Size
    sync_time_fw: dict[Text, Size]
    sync_time_bw: dict[Text, Size]


class StoredLayer(CamelCase):
    """Layer with its configurations by width."""

    id: Whole
    name: Text
    configurations: dict[Text, list[StoredConfiguration]] = Field(alias="TMPCs")


class PiperInstance(ClusterInstance):
    """Piper instance: layers with their configurations, edges, cluster and batch."""

    nodes: list[StoredLayer] = Field(min_length=1)
    edges: list[LayerEdge]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        # Later checks assume that earlier ones passed.
        for mistakes in (_bad_layers(self.nodes), _bad_graph(self), _bad_syncs(self)):
            messages = list(mistakes)
            if messages:
                omitted = [f"and {len(messages) - SHOWN} more mistakes"] if len(messages) > SHOWN else []
                raise ValueError("\n".join(messages[:SHOWN] + omitted))
        return self

    def layers(self) -> ProfiledLayers:
        """Layers in the order of their ids.

        Raises PhazeError if configurations times edges exceed the machine's memory.
        """
        configurations = sum(len(options) for node in self.nodes for options in node.configurations.values())
        refuse_beyond_memory(
            EXCHANGE_BYTES * configurations * len(self.edges),
            f"the exchanges of {configurations} configurations over {len(self.edges)} edges",
            "merge layers, or give fewer configurations",
        )
        # Positions follow ids, whatever the order of the file.
        nodes = sorted(self.nodes, key=lambda node: node.id)
        position = {node.id: place for place, node in enumerate(nodes)}
        widths = sorted({int(t) for node in nodes for t, options in node.configurations.items() if options})
        return ProfiledLayers(
            ids=tuple(position),
            names=tuple(node.name for node in nodes),
            options={width: _options(nodes, self.edges, str(width)) for width in widths},
            **edge_arrays(
                (position[edge.source_id], position[edge.dest_id], edge.communication_cost)
                for edge in self.edges
            ),
        )


def read_instance(path: str | Path) -> PiperInstance:
    """Read an instance from a JSON file; PhazeError names file, key, value and allowed values."""
    return read_as(PiperInstance, path)


def _options(nodes: list[StoredLayer], edges: list[LayerEdge], width: str) -> Configurations:
    """Configurations of all layers at one tensor-parallel width."""
    owned = [(place, c) for place, node in enumerate(nodes) for c in node.configurations.get(width, [])]
    rows: dict[int, list[int]] = {node.id: [] for node in nodes}
    for row, (place, _) in enumerate(owned):
        rows[nodes[place].id].append(row)
    forward, backward = np.zeros((len(owned), len(edges))), np.zeros((len(owned), len(edges)))
    for column, edge in enumerate(edges):
        for row in rows[edge.dest_id]:
            forward[row, column] = owned[row][1].sync_time_fw[str(edge.source_id)]
        for row in rows[edge.source_id]:
            backward[row, column] = owned[row][1].sync_time_bw[str(edge.dest_id)]
    configurations = [configuration for _, configuration in owned]
    return Configurations(
        names=tuple(c.id for c in configurations),
        layer=np.array([place for place, _ in owned], dtype=np.int64),
        time_s=np.array([c.time_per_sample for c in configurations], dtype=np.float64),
        weight_bytes=np.array([c.parameter_size for c in configurations], dtype=np.float64),
        stash_bytes=np.array([c.memory_usage_a for c in configurations], dtype=np.float64),
        fixed_bytes=np.array([c.memory_usage_b for c in configurations], dtype=np.float64),
        forward_sync_bytes=forward,
        backward_sync_bytes=backward,
    )


def _bad_layers(nodes: list[StoredLayer]) -> Iterator[str]:
    """Yield error messages for mistakes within single layers."""
    yield from (f"nodes: {message}" for message in repeated_ids(node.id for node in nodes))
    for node in nodes:
        where = f"nodes: id {node.id}: TMPCs:"
        for width, options in node.configurations.items():
            try:
                check_width(width)
            except ValueError as error:
                yield f"{where} {error}"
            for name, times in sorted(Counter(option.id for option in options).items()):
                if times > 1:
                    repeated = f"id {name!r} is given {times} times; ids of a list must be unique"
                    yield f"{where} width {width}: {repeated}"
        if not any(node.configurations.values()):
            yield f"{where} at least one configuration is needed at some width, got none"


def _bad_graph(instance: PiperInstance) -> Iterator[str]:
    """Yield error messages for the edges; cycles are checked only if the edges are valid."""
    messages = [f"edges: {message}" for message in bad_edges({n.id for n in instance.nodes}, instance.edges)]
    yield from messages or _cycle(instance.edges)


def _cycle(edges: list[LayerEdge]) -> Iterator[str]:
    graph: TopologicalSorter[int] = TopologicalSorter()
    for edge in edges:
        graph.add(edge.dest_id, edge.source_id)
    try:
        graph.prepare()
    except CycleError as error:
        layers = " -> ".join(str(layer) for layer in error.args[1])
        yield f"edges: {layers} is a cycle; the graph must have none"


def _bad_syncs(instance: PiperInstance) -> Iterator[str]:
    """Yield error messages for configurations whose synchronised tensors do not match their layer's edges."""
    sources: dict[int, set[str]] = {node.id: set() for node in instance.nodes}
    targets: dict[int, set[str]] = {node.id: set() for node in instance.nodes}
    for edge in instance.edges:
        sources[edge.dest_id].add(str(edge.source_id))
        targets[edge.source_id].add(str(edge.dest_id))
    for node in instance.nodes:
        arriving, departing = sources[node.id], targets[node.id]
        for width, options in node.configurations.items():
            for option in options:
                where = f"nodes: id {node.id}: TMPCs: width {width}: {option.id!r}"
                yield from _bad_keys(f"{where}: syncTimeFw", option.sync_time_fw, arriving, "an edge into")
                yield from _bad_keys(f"{where}: syncTimeBw", option.sync_time_bw, departing, "an edge out of")


def _bad_keys(where: str, ends: dict[str, float], expected: set[str], what: str) -> Iterator[str]:
    if expected - ends.keys():
        missing = ", ".join(sorted(expected - ends.keys(), key=int))
        yield f"{where}: lacks {missing}; each other end of {what} the layer is needed"
    if ends.keys() - expected:
        strange, allowed = ", ".join(sorted(ends.keys() - expected)), ", ".join(sorted(expected, key=int))
        yield f"{where}: has {strange}, not the other end of {what} the layer; allowed: {allowed or 'none'}"


def write_instance(path: str | Path, layers: ProfiledLayers, cluster: FlatCluster) -> None:
    """Write layers and cluster as an instance file with a checksum; numbers keep all their digits."""
    content = {
        "maxDevices": cluster.devices,
        "maxMemoryPerDevice": cluster.memory_bytes,
        "bandwidth": cluster.bandwidth_bytes_per_s,
        "mbsInBatch": cluster.microbatches,
        "nodes": [
            {"id": layer, "name": name, "TMPCs": _stored_configurations(layers, v)}
            for v, (layer, name) in enumerate(zip(layers.ids, layers.names, strict=True))
        ],
        "edges": [
            {"sourceId": layers.ids[u], "destId": layers.ids[v], "communicationCost": size}
            for u, v, size in layers.tensors
        ],
    }
    write_checked(json.dumps(content, indent=1) + "\n", Path(path))


def _stored_configurations(layers: ProfiledLayers, layer: int) -> dict[str, list[dict[str, object]]]:
    """Configurations of a layer by width, in the format of an instance file."""
    into = [(e, str(layers.ids[u])) for e, (u, v) in enumerate(layers.pairs) if v == layer]
    out = [(e, str(layers.ids[v])) for e, (u, v) in enumerate(layers.pairs) if u == layer]
    return {
        str(width): [
            {
                "id": options.names[c],
                "timePerSample": float(options.time_s[c]),
                "parameterSize": float(options.weight_bytes[c]),
                "memoryUsageA": float(options.stash_bytes[c]),
                "memoryUsageB": float(options.fixed_bytes[c]),
                "syncTimeFw": {end: float(options.forward_sync_bytes[c, e]) for e, end in into},
                "syncTimeBw": {end: float(options.backward_sync_bytes[c, e]) for e, end in out},
            }
            for c in np.flatnonzero(options.layer == layer).tolist()
        ]
        for width, options in layers.options.items()
    }
