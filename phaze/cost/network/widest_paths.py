"""Paths whose narrowest edge is as wide as possible: what links are worth between nodes that share none."""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np

from phaze.base.arrays import Floats

Edges = list[list[tuple[int, float]]]
"""Targets and bandwidths of the edges of every node."""


def edges_of(bandwidth: Floats) -> Edges:
    """Return the edges of every node: wherever a matrix of bandwidths (from, to) is above 0."""
    edges: Edges = [[] for _ in bandwidth]
    for source, target in np.argwhere(bandwidth > 0).tolist():
        if source != target:
            edges[source].append((target, float(bandwidth[source, target])))
    return edges


def widest(edges: Edges, source: int) -> list[float]:
    """Return the width of the widest path from a node to every node, 0 where there is none."""
    width = [0.0] * len(edges)
    width[source] = float("inf")
    heap = [(-width[source], source)]
    while heap:
        negative, node = heapq.heappop(heap)
        if -negative < width[node]:
            continue
        for other, bandwidth in edges[node]:
            through = min(width[node], bandwidth)
            if through > width[other]:
                width[other] = through
                heapq.heappush(heap, (-through, other))
    return width


def fewest_hops(edges: Edges, source: int, target: int, width: float) -> list[int]:
    """Return the nodes of the shortest path over edges that are wide enough; there must be one."""
    came = {source: source}
    queue = deque([source])
    while target not in came:
        node = queue.popleft()
        for other, bandwidth in edges[node]:
            if bandwidth >= width and other not in came:
                came[other] = node
                queue.append(other)
    path = [target]
    while path[-1] != source:
        path.append(came[path[-1]])
    return path[::-1]


def fill_with_widest_paths(bandwidth: Floats, latency: Floats) -> tuple[Floats, Floats]:
    """Return both matrices with the pairs that have no link: width and latency of their widest path.

    Of widest paths the one with the fewest hops; where there is no path the bandwidth stays 0.
    """
    edges = edges_of(bandwidth)
    filled, waits = bandwidth.copy(), latency.copy()
    missing = (bandwidth == 0) & ~np.eye(len(bandwidth), dtype=bool)
    for source in np.flatnonzero(missing.any(axis=1)).tolist():
        width = widest(edges, source)
        for target in np.flatnonzero(missing[source]).tolist():
            if width[target] > 0:
                path = fewest_hops(edges, source, target, width[target])
                filled[source, target] = width[target]
                waits[source, target] = latency[path[:-1], path[1:]].sum()
    return filled, waits
