"""Collectives in the throughput-optimal ring: on a flat network (paper, Appendix C.2), and level by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from phaze.base.arrays import Floats

EXCHANGES = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0, "all_to_all": 1.0}
"""How often every device sends its share to all others, by the kind of a collective."""
REDUCING = ("all_reduce", "reduce_scatter")
"""Kinds of collectives that add."""


def factor(kind: str, width: int) -> float:
    """Return what of a tensor each of n devices sends: 2 (n − 1)/n in an all-reduce, (n − 1)/n in its two
    halves, reduce-scatter and all-gather, and in an all-to-all.

    The tensor is the whole one: what an all-reduce starts from and ends with, a reduce-scatter starts from,
    an all-gather ends with, and what a device has for all others and itself in an all-to-all.
    """
    return EXCHANGES[kind] * (width - 1) / width


def sent_bytes(kind: str, size_bytes: Floats, width: int) -> Floats:
    """Return the bytes that a device sends in a collective."""
    return factor(kind, width) * size_bytes


def network_s(sent: Floats, bandwidth_bytes_per_s: float, all_reduce_factor: float) -> Floats:
    """Return the time of collectives in which a device sends so many bytes, on a flat network, in seconds.

    An all-reduce takes `all_reduce_factor` (n − 1)/n · size / bandwidth: 2 where a link carries both
    directions at once, 4 in the paper (C.2); the others take their share of it.
    """
    return all_reduce_factor / EXCHANGES["all_reduce"] * sent / bandwidth_bytes_per_s


def reduced_elements(kind: str, elements: Floats, width: int) -> Floats:
    """Return the additions of a device: (t − 1)/t of the elements where the collective adds."""
    return (width - 1) / width * elements if kind in REDUCING else np.zeros_like(elements)


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


def collective_s(kind: str, size_bytes: float, group: Sequence[Reach]) -> float:
    """Return the time of a collective, level by level, the `factor` of the tensor per direction on one level.

    A reduce-scatter leaves each rank of a level its share, so that n ranks exchange (n − 1)/n of what the
    level inside left of the tensor: all of it inside a node of g, 1/g of it between nodes; an all-gather
    mirrors it, an all-reduce is both. In an all-to-all nothing becomes less: a rank sends every other one
    its part over the level on which they meet.
    """
    seconds, inside, all_ranks = 0.0, 1, prod(reach.ranks for reach in group)
    for reach in group:
        part = size_bytes / (all_ranks if kind == "all_to_all" else inside * reach.ranks)
        others = (reach.ranks - 1) * (inside if kind == "all_to_all" else 1)
        seconds += others * (part / reach.bandwidth_bytes_per_s + reach.latency_s)
        inside *= reach.ranks
    return EXCHANGES[kind] * seconds
