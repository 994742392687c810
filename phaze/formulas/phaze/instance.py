"""Placement instances and results in the JSON format of the Phaze authors' device_placement program.

For every TMP width, an instance gives the layers (`nodes`) with their sizes and latencies, and the tensors
between them (`edges`); the layer graph is the same for all widths and has no cycle. If it contains a path
through all layers, stages are parts of that path; otherwise branches may run concurrently. Sizes are bytes,
`bandwidth` bytes per second, latencies seconds. As in that program, memory includes weights and gradients
with SGD, and one more copy of the weights with Adam.
"""

from __future__ import annotations

import json
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from phaze.formulas.flushing import Chain, Setting
from phaze.formulas.phaze.flush import Infeasible, place_widths
from phaze.layout import Layout
from phaze.spec.documents import (
    CamelCase,
    ClusterInstance,
    LayerEdge,
    bad_edges,
    check_width,
    read_as,
    repeated_ids,
)
from phaze.spec.values import Count, Size, Text, Whole
from phaze.workload.graphs import edge_arrays


class Node(CamelCase):
    """Layer, or its shard on one of t devices."""

    id: Whole
    parameter_size: Size
    activation_size: Size
    optimal_latency_fw: Size
    optimal_latency_bw: Size
    is_tensor_parallelized: Annotated[bool, Field(strict=True)]


class Instance(ClusterInstance):
    """Placement problem: layers and edges for every TMP width, cluster, batch and optimizer."""

    nodes: dict[Text, list[Node]] = Field(min_length=1)
    edges: dict[Text, list[LayerEdge]] = Field(min_length=1)
    activation_recomputation: Annotated[bool, Field(strict=True)]
    optimizer_algorithm: Literal["SGD", "Adam"]
    fixed_pp: Count | None = Field(None, alias="fixedPP")
    fixed_tmpc: Count | None = Field(None, alias="fixedTMPC")
    fixed_dp: Count | None = Field(None, alias="fixedDP")
    num_transformer_layers: Annotated[Whole, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for width in self.nodes.keys() | self.edges.keys():
            check_width(width)
        if self.nodes.keys() != self.edges.keys():
            raise ValueError(
                f"nodes have TMP widths {sorted(self.nodes)}, edges {sorted(self.edges)}; they must agree"
            )
        for width in self.nodes:
            _check_graph(width, self.nodes[width], self.edges[width])
            self._check_same_graph(width, next(iter(self.nodes)))
        return self

    def _check_same_graph(self, width: str, other: str) -> None:
        if {n.id for n in self.nodes[width]} != {n.id for n in self.nodes[other]}:
            raise ValueError(
                f"nodes.{width}: ids differ from nodes.{other}; all TMP widths have the same layers"
            )
        if _ends(self.edges[width]) != _ends(self.edges[other]):
            raise ValueError(
                f"edges.{width}: ends differ from edges.{other}; all TMP widths have the same edges"
            )

    def order(self) -> list[int]:
        """Layer ids in a topological order; it is unique if there is a path through all layers."""
        width = next(iter(self.nodes))
        return _order([node.id for node in self.nodes[width]], _ends(self.edges[width]))

    def has_path(self) -> bool:
        """True if there is a path through all layers, so that their order is unique."""
        ends = _ends(self.edges[next(iter(self.nodes))])
        return all(pair in ends for pair in pairwise(self.order()))

    def setting(self) -> Setting:
        """Cluster, batch and memory limit of the instance."""
        return Setting(
            devices=self.max_devices,
            microbatches=self.mbs_in_batch,
            bandwidth_bytes_per_s=self.bandwidth,
            memory_bytes=self.max_memory_per_device,
            recompute=self.activation_recomputation,
        )

    def chain(self, width: str) -> Chain:
        """Layer chain for one TMP width, in the order of `order`."""
        position = {layer: place for place, layer in enumerate(self.order())}
        nodes = sorted(self.nodes[width], key=lambda node: position[node.id])
        weights = np.array([node.parameter_size for node in nodes])
        return Chain(
            forward_s=np.array([node.optimal_latency_fw for node in nodes]),
            backward_s=np.array([node.optimal_latency_bw for node in nodes]),
            parameter_bytes=weights,
            # Weights and gradients, and one further copy with Adam, as in the authors' program.
            static_bytes=(3 if self.optimizer_algorithm == "Adam" else 2) * weights,
            activation_bytes=np.array([node.activation_size for node in nodes]),
            tensor_parallel=np.array([node.is_tensor_parallelized for node in nodes]),
            **edge_arrays(
                (position[edge.source_id], position[edge.dest_id], edge.communication_cost)
                for edge in self.edges[width]
            ),
        )


class ResultStage(CamelCase):
    """Layers and device count of one stage of a placement."""

    nodes: list[int]
    """Ids of the stage's layers, in order."""
    devices_for_stage: int


class Result(CamelCase):
    """Placement, or the reason why there is none."""

    stages: list[ResultStage]
    tensor_parallel_degree: int | None
    data_parallel_degree: int | None
    final_time_per_batch: float | None
    reason: Text | None = None
    """Violated limit and by how much; absent if there is a placement."""


def read_instance(path: str | Path) -> Instance:
    """Read an instance from a JSON file; PhazeError names file, key, value and allowed values."""
    return read_as(Instance, path)


def place_instance(instance: Instance) -> Result:
    """Best placement of an instance; if infeasible, a result with the reason and without stages.

    PhazeError if the layer graph has too many branches.
    """
    graphs = {Layout(tp=int(width)): instance.chain(width) for width in instance.nodes}
    if instance.has_path():
        placement = place_widths(graphs, instance.setting())
    else:  # lazy import: it takes longer than placing a chain
        from phaze.formulas.phaze.branches import place_graphs

        placement = place_graphs(graphs, instance.setting())
    if isinstance(placement, Infeasible):
        return Result(
            stages=[],
            tensor_parallel_degree=None,
            data_parallel_degree=None,
            final_time_per_batch=None,
            reason=placement.reason,
        )
    order = instance.order()
    return Result(
        stages=[
            ResultStage(nodes=[order[v] for v in layers], devices_for_stage=devices)
            for layers, devices in zip(placement.layers, placement.devices, strict=True)
        ],
        tensor_parallel_degree=placement.layout.tp,
        data_parallel_degree=placement.data,
        final_time_per_batch=placement.time_s,
    )


def result_text(result: Result) -> str:
    """Format a result as JSON."""
    content = result.model_dump(by_alias=True, exclude={"reason"} if result.reason is None else None)
    return json.dumps(content, indent=2, allow_nan=False)


def _check_graph(width: str, nodes: list[Node], edges: list[LayerEdge]) -> None:
    ids = [node.id for node in nodes]
    if not ids:
        raise ValueError(f"nodes.{width}: at least one layer is needed, got none")
    for message in repeated_ids(ids):
        raise ValueError(f"nodes.{width}: {message}")
    for node in nodes:
        if width == "1" and node.is_tensor_parallelized:
            raise ValueError(
                f"nodes.1: id {node.id}: isTensorParallelized must be false for TMP width 1, got true"
            )
    for message in bad_edges(set(ids), edges):
        raise ValueError(f"edges.{width}: {message}")
    _order(ids, _ends(edges))


def _ends(edges: list[LayerEdge]) -> set[tuple[int, int]]:
    return {(edge.source_id, edge.dest_id) for edge in edges}


def _order(ids: list[int], edges: set[tuple[int, int]]) -> list[int]:
    """Topological order, with ties in the given order; ValueError if there is a cycle."""
    position = {layer: place for place, layer in enumerate(ids)}
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(ids, ()))
    for source, target in edges:
        sorter.add(target, source)
    with suppress(CycleError):
        sorter.prepare()
    ready: list[int] = []
    order: list[int] = []
    while sorter.is_active():
        for layer in sorter.get_ready():
            # The first of the ready layers in the user's order is next: the order is unique.
            heappush(ready, position[layer])
        order.append(ids[heappop(ready)])
        sorter.done(order[-1])
    if len(order) < len(ids):
        stuck = sorted(set(ids) - set(order))
        raise ValueError(
            f"edges: layers {', '.join(map(str, stuck[:5]))} form or follow a cycle; it must be a DAG"
        )
    return order
