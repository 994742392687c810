"""Collectives on a flat network, in the throughput-optimal ring (paper, Appendix C.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
