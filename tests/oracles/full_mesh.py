"""Topologies with a link from every device to every other."""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats
from phaze.cost.network.topology import Link, Topology


def full_mesh(bandwidth_bytes_per_s: Floats, latency_s: float | Floats = 0.0) -> Topology:
    """Topology with a direct link for every entry of a bandwidth matrix (from, to) off the diagonal."""
    devices = len(bandwidth_bytes_per_s)
    latency = np.broadcast_to(np.asarray(latency_s, np.float64), bandwidth_bytes_per_s.shape)
    links = tuple(
        Link(a, b, float(bandwidth_bytes_per_s[a, b]), float(latency[a, b]))
        for a in range(devices)
        for b in range(devices)
        if a != b
    )
    return Topology("full mesh", devices, devices, links, lambda a, b: [a, b] if a != b else [a])
