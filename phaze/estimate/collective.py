"""All-reduces: the ring over the network, and then the reduction on all vector cores (paper, Appendix C.2,
Table 3).
"""

from __future__ import annotations

import numpy as np

from phaze.estimate.designs import Designs
from phaze.estimate.works import Works
from phaze.ndarrays import Floats
from phaze.theory.collectives import reduced_elements, ring_all_reduce_s, sent_bytes


def network_seconds(works: Works, tensor: int, bandwidth_bytes_per_s: float) -> Floats:
    """Return the time of the rings of every work (W,)."""
    return works.total(ring_all_reduce_s(works.network_bytes, tensor, bandwidth_bytes_per_s))


def link_bytes(works: Works, tensor: int) -> Floats:
    """Return the bytes that a device sends in every work (W,)."""
    return works.total(sent_bytes(works.network_bytes, tensor))


def additions(works: Works, tensor: int) -> Floats:
    """Return the additions of a device in every work (W,)."""
    return works.total(_additions(works, tensor))


def reduction_cycles(works: Works, designs: Designs, tensor: int, cycles_per_addition: float) -> Floats:
    """Return the cycles of the additions on all vector cores, (W, D)."""
    lanes = designs.lanes * designs.cores
    return works.total(cycles_per_addition * np.ceil(_additions(works, tensor)[:, None] / lanes))


def _additions(works: Works, tensor: int) -> Floats:
    """Return the additions of every part (P,), none for parts that are no collectives."""
    return np.where(works.network_bytes > 0, reduced_elements(works.elements, tensor), 0.0)
