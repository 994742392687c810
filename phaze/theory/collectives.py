"""Collectives in the throughput-optimal ring: on a flat network (paper, Appendix C.2), and level by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phaze.ndarrays import Floats


def ring_all_reduce_s(size_bytes: Floats, width: int, bandwidth_bytes_per_s: float) -> Floats:
    """Return the network time of an all-reduce over so many devices, 4 (t − 1)/t · size / bandwidth (paper,
    C.2).

    Each device sends (t − 1)/t of the tensor twice, for reduce-scatter and all-gather, and receives as
    much; the paper's factor of 4 counts both directions against one bandwidth.
    """
    return 4.0 * (width - 1) / width * size_bytes / bandwidth_bytes_per_s


def gradient_sync_s(weight_bytes: Floats, data: int, bandwidth_bytes_per_s: float) -> Floats:
    """Return the time to synchronise gradients over d replicas, 4 (d − 1)/d · weights / bandwidth (paper,
    (18)).
    """
    return ring_all_reduce_s(weight_bytes, data, bandwidth_bytes_per_s)


def sent_bytes(size_bytes: Floats, width: int) -> Floats:
    """Return the bytes that a device sends in an all-reduce, 2 (t − 1)/t · size."""
    return 2.0 * (width - 1) / width * size_bytes


def reduced_elements(elements: Floats, width: int) -> Floats:
    """Return the additions of a device: the reduce-scatter adds (t − 1)/t of the elements."""
    return (width - 1) / width * elements


@dataclass(frozen=True)
class Reach:
    """How a group of ranks lies on one level of a network."""

    ranks: int
    """Ranks, or groups of ranks, that meet on this level."""
    bandwidth_bytes_per_s: float
    """What a device sends to others of its group on this level, and at the same time receives."""
    latency_s: float = 0.0
    """Time of a step beside its bytes."""


def reaches(width: int, stride: int, levels: Sequence[tuple[int, float, float]]) -> tuple[Reach, ...]:
    """Return how many ranks of a group meet on every level of a network, the innermost first.

    Ranks are `stride` devices apart; `levels` are (devices of a group, bandwidth, latency). A level that is
    filled unevenly counts as its fullest group.
    """
    found, inside = [], 1
    for devices, bandwidth, latency in levels:
        here = min(width, max(1, devices // stride))
        found.append(Reach(-(-here // inside), bandwidth, latency))
        inside = max(here, inside)
    return tuple(found)


def reduce_scatter_s(size_bytes: float, group: Sequence[Reach]) -> float:
    """Return the time to reduce a tensor so that each rank has its share, level by level.

    On each level n ranks exchange (n − 1)/n of what the level inside left of the tensor to each of them, per
    direction: all of it inside a node of g, 1/g of it between nodes.
    """
    seconds = 0.0
    for reach in group:
        seconds += (reach.ranks - 1) * (
            size_bytes / reach.ranks / reach.bandwidth_bytes_per_s + reach.latency_s
        )
        size_bytes /= reach.ranks
    return seconds


def all_reduce_s(size_bytes: float, group: Sequence[Reach]) -> float:
    """Return the time of a reduce-scatter and the all-gather that mirrors it: 2 (n − 1)/n of the tensor per
    direction on one level.

    The planners count 4 (n − 1)/n, see `ring_all_reduce_s`.
    """
    return 2.0 * reduce_scatter_s(size_bytes, group)
