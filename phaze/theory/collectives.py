"""Collectives on a flat network, in the throughput-optimal ring (paper, Appendix C.2)."""

from __future__ import annotations


def ring_all_reduce_s(size_bytes: float, width: int, bandwidth_bytes_per_s: float) -> float:
    """Return the network time of an all-reduce: 4 (t − 1)/t · size / bandwidth (paper, C.2).

    The ring sends (t − 1)/t of the tensor twice; the paper's factor of 4 also counts both directions of a link against its
    bandwidth, and equation (18) has the same factor.
    """
    return 4.0 * (width - 1) / width * size_bytes / bandwidth_bytes_per_s


def reduced_elements(elements: float, width: int) -> float:
    """Return the additions that a device makes in a ring all-reduce: (t − 1)/t of the elements."""
    return elements * (width - 1) / width
