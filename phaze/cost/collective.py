"""Collectives: the ring over the network, and then the reduction on all vector cores (paper, Appendix C.2,
Table 3).
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats
from phaze.cost.designs import Designs
from phaze.cost.mapper.works import Works
from phaze.cost.network.collectives import EXCHANGES, network_s, reduced_elements, sent_bytes


def reduced_bytes(works: Works) -> Floats:
    """Return the tensors that all-reduces of every work combine, in bytes (W,).

    Another collective counts as the all-reduce in which a device sends as much.
    """
    found = np.zeros_like(works.network_bytes)
    for kind, exchanges in EXCHANGES.items():
        own = works.kinds == kind
        found[own] = exchanges / EXCHANGES["all_reduce"] * works.network_bytes[own]
    return works.total(found)


def link_bytes(works: Works, tensor: int) -> Floats:
    """Return the bytes that a device sends in every work (W,)."""
    return sent_bytes("all_reduce", reduced_bytes(works), tensor)


def network_seconds(
    works: Works, tensor: int, bandwidth_bytes_per_s: float, all_reduce_factor: float
) -> Floats:
    """Return the time of the rings of every work (W,)."""
    return network_s(link_bytes(works, tensor), bandwidth_bytes_per_s, all_reduce_factor)


def additions(works: Works, tensor: int) -> Floats:
    """Return the additions of a device in every work (W,)."""
    return works.total(_additions(works, tensor))


def reduction_cycles(works: Works, designs: Designs, tensor: int, cycles_per_addition: float) -> Floats:
    """Return the cycles of the additions on all vector cores, (W, D)."""
    lanes = designs.lanes * designs.vector_cores
    return works.total(cycles_per_addition * np.ceil(_additions(works, tensor)[:, None] / lanes))


def _additions(works: Works, tensor: int) -> Floats:
    """Return the additions of every part (P,), none for parts that are no collectives."""
    found = np.zeros_like(works.elements)
    for kind in EXCHANGES:
        own = works.kinds == kind
        found[own] = reduced_elements(kind, works.elements[own], tensor)
    return found
