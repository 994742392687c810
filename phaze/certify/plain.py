"""Independent bounds on the latency of a layer, to verify the bounds that exclude design points.

Simple bounds show which architectures are excluded without solving. For a pass of a layer with ℓ_i on one
core and ℓ̂_i on all, on many architectures at once:

    work   an operator on all cores keeps all of them busy (Section 4), so it takes at least min(ℓ_i, n ℓ̂_i)
           of core time on the n cores of its type. The latency is at least the sum over n, for tensor cores,
           vector cores and pairs. Network operators are added unless they overlap.
    path   operators on a path run one after the other, each for at least min(ℓ_i, ℓ̂_i).

The bound of one architecture combines both. Operators that are not separated by a precedence form a component
(a connected component of the graph of unordered operator pairs); everything in one comes before everything in
the next. A component takes at least its longest path, with min(ℓ, ℓ̂) for every operator, and at least its
work on each type of core: an operator keeps one of n cores busy for ℓ, or all of them for ℓ̂. The code
favours clarity over speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import networkx as nx
import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.schedule.graphs import ScheduledLayer

TYPES = {"tensor": ("tensor", "fused"), "vector": ("vector", "fused"), "pair": ("fused",)}
"""Operator types that occupy a tensor core, a vector core, and a pair of both."""
DESIGNS = tuple(f"{core}_design" for core in ("tensor", "vector", "fused"))
DIRECTIONS = ("forward", "backward")
Edges = tuple[tuple[int, int], ...]


class Estimated:
    """One pass of a layer, with its operators' latencies on A architectures from `estimated_s`, (n, A)."""

    def __init__(
        self,
        operators: pd.DataFrame,
        edges: pd.DataFrame,
        estimated: tuple[Floats, Floats],
        architectures: pd.DataFrame,
        *,
        overlap_communication: bool,
    ) -> None:
        ordered = operators.sort_values("operator")
        self.core = ordered["core"].to_numpy(str)
        self.overlap = overlap_communication
        place = {number: i for i, number in enumerate(ordered["operator"])}
        self.before: list[list[int]] = [[] for _ in place]
        for source, target in zip(edges["source"], edges["target"], strict=True):
            self.before[place[target]].append(place[source])
        designs = {name: architectures[name].to_numpy(np.int64) for name in DESIGNS}
        sources = [(int(work), _design(core)) for work, core in zip(ordered["work"], self.core, strict=True)]
        self.one_s, self.every_s = (
            np.stack([table[work][designs[design]] for work, design in sources]) for table in estimated
        )
        tensor, vector = (architectures[f"num_{c}"].to_numpy(np.float64) for c in ("tc", "vc"))
        self.cores = {"tensor": tensor, "vector": vector, "pair": np.minimum(tensor, vector)}


def estimated_s(estimates: pd.DataFrame) -> tuple[Floats, Floats]:
    """Latencies on one and on all cores, by work and design; NaN without an estimate, 0 for no-ops."""
    at = estimates["work"].to_numpy(np.int64), estimates["design"].to_numpy(np.int64)
    single, all_cores = (np.full([int(index.max(initial=0)) + 2 for index in at], np.nan) for _ in range(2))
    # The extra last row is what index -1 refers to, the work of no-ops.
    for table, name in ((single, "latency_s"), (all_cores, "latency_all_s")):
        table[at] = estimates[name].to_numpy(np.float64)
        table[-1] = 0.0
    return single, all_cores


def bound_by_work(layer: Estimated) -> Floats:
    """Lower bound (A,) on the latency, from the work on each type of core."""
    areas = []
    for kind, users in TYPES.items():
        used = np.isin(layer.core, users)
        # On one core an operator takes 1/n of the n cores for ℓ, on all of them everything for ℓ̂.
        areas.append(np.minimum(layer.one_s[used] / layer.cores[kind], layer.every_s[used]).sum(axis=0))
    busiest, link = np.max(areas, axis=0), layer.every_s[layer.core == "network"].sum(axis=0)
    return np.maximum(busiest, link) if layer.overlap else np.asarray(busiest + link)


def bound_by_path(layer: Estimated) -> Floats:
    """Lower bound (A,) on the latency, from the longest path through the layer."""
    finish = np.minimum(layer.one_s, layer.every_s)
    # Operators are in topological order, so their predecessors are finished here.
    for i, sources in enumerate(layer.before):
        if sources:
            finish[i] += finish[sources].max(axis=0)
    return np.asarray(finish.max(axis=0))


BOUNDS: dict[str, Callable[[Estimated], Floats]] = {"work": bound_by_work, "path": bound_by_path}
"""Simple bounds by name, the simplest first."""


@dataclass(frozen=True)
class Piece:
    """Component of a layer: its operators in order, and the transitive edges between them."""

    operators: tuple[int, ...]
    edges: Edges


@lru_cache(maxsize=256)
def pieces_of(core: tuple[str, ...], edges: Edges) -> tuple[Piece, ...]:
    """Components of a layer that run one after another, in order; no-ops take no time and are omitted."""
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(len(core)))
    closure = nx.transitive_closure_dag(graph)
    working = [i for i, kind in enumerate(core) if kind != "none"]
    ordered = closure.subgraph(working)
    # Unordered pairs are those that the transitive closure does not connect.
    apart = nx.complement(ordered.to_undirected())
    # All predecessors count in the closure, so the least in-degree rises from component to component.
    members = sorted(nx.connected_components(apart), key=lambda c: min(ordered.in_degree(i) for i in c))
    place = {i: position for position, i in enumerate(nx.topological_sort(graph))}
    return tuple(_piece(sorted(nodes, key=place.__getitem__), ordered) for nodes in members)


def _piece(operators: list[int], ordered: nx.DiGraph[int]) -> Piece:
    at = {i: position for position, i in enumerate(operators)}
    inside = sorted((at[i], at[j]) for i, j in ordered.subgraph(operators).edges)
    return Piece(tuple(operators), tuple(inside))


def layer_of_piece(layer: ScheduledLayer, piece: Piece) -> ScheduledLayer:
    """Stand-alone layer with the operators and edges of a component."""
    members = list(piece.operators)
    return ScheduledLayer(
        core=tuple(layer.core[i] for i in members),
        latency_s=layer.latency_s[members],
        latency_all_s=layer.latency_all_s[members],
        edges=piece.edges,
        num_tc=layer.num_tc,
        num_vc=layer.num_vc,
        overlap_communication=layer.overlap_communication,
    )


def bound_piece(layer: ScheduledLayer) -> float:
    """Lower bound on the latency of a component."""
    return max(_longest_path(layer), _most_work(layer))


def _longest_path(layer: ScheduledLayer) -> float:
    shortest = np.minimum(layer.latency_s, layer.latency_all_s).tolist()
    end = list(shortest)
    # Sorted by source: all edges into a source come before those out of it.
    for i, j in sorted(layer.edges):
        end[j] = max(end[j], end[i] + shortest[j])
    return max(end, default=0.0)


def _most_work(layer: ScheduledLayer) -> float:
    """Time of the busiest core type and of the network: the longer one with overlap, otherwise their sum."""
    busy = dict.fromkeys(TYPES, 0.0)
    cores = {"tensor": layer.num_tc, "vector": layer.num_vc, "pair": min(layer.num_tc, layer.num_vc)}
    link = 0.0
    times = zip(layer.latency_s.tolist(), layer.latency_all_s.tolist(), strict=True)
    for core, (single, all_cores) in zip(layer.core, times, strict=True):
        link += all_cores if core == "network" else 0.0
        for kind, users in TYPES.items():
            busy[kind] += min(single / cores[kind], all_cores) if core in users else 0.0
    most = max(busy.values())
    return max(most, link) if layer.overlap_communication else most + link


@dataclass(frozen=True)
class ChipPass:
    """One pass of a layer on one architecture."""

    architecture: str
    layer: str
    direction: str
    content: ScheduledLayer


def read_passes(
    operators: pd.DataFrame,
    edges: pd.DataFrame,
    estimates: pd.DataFrame,
    architectures: pd.DataFrame,
    *,
    overlap_communication: bool,
) -> Iterator[ChipPass]:
    """Yield every pass of every layer on every architecture, from the tables of one point."""
    times = _estimated(estimates, architectures)
    links = dict(list(edges.groupby(["layer", "direction"])))
    chips = architectures.to_dict(orient="records")
    for (layer, direction), group in operators.groupby(["layer", "direction"]):
        rows = group.sort_values("operator")
        place = {number: i for i, number in enumerate(rows["operator"])}
        pairs = links.get((layer, direction), edges.iloc[:0])
        ends = zip(pairs["source"], pairs["target"], strict=True)
        ordered = tuple(sorted((place[i], place[j]) for i, j in ends))
        cores, works = tuple(rows["core"]), tuple(rows["work"])
        for chip in chips:
            latency = [
                times[work, chip[_design(core)]] if work >= 0 else (0.0, 0.0)
                for core, work in zip(cores, works, strict=True)
            ]
            single, all_cores = np.array(latency, dtype=np.float64).T
            counts = int(chip["num_tc"]), int(chip["num_vc"])
            content = ScheduledLayer(cores, single, all_cores, ordered, *counts, overlap_communication)
            yield ChipPass(str(chip["architecture"]), str(layer), str(direction), content)


def _design(core: str) -> str:
    """Name of the design column for a core type; collectives use the column of the vector cores."""
    return {"tensor": "tensor_design", "fused": "fused_design"}.get(core, "vector_design")


def _estimated(
    estimates: pd.DataFrame, architectures: pd.DataFrame
) -> dict[tuple[int, int], tuple[float, float]]:
    """Operator latencies on one core and on all cores, by work and by design of these architectures."""
    used = estimates[estimates["design"].isin(architectures[list(DESIGNS)].to_numpy().ravel())]
    columns = (used[name].tolist() for name in ("work", "design", "latency_s", "latency_all_s"))
    return {(work, design): (single, every) for work, design, single, every in zip(*columns, strict=True)}
