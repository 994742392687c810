"""Collectives: the ring over the network, and then the reduction on all vector cores (paper, Appendix C.2,
Table 3).
"""

import numpy as np

from phaze.base.arrays import Floats
from phaze.cost.designs import Designs
from phaze.cost.mapper.works import Works
from phaze.cost.network.network import EXCHANGES, Kind, sent_bytes
from phaze.layout import Layout

REDUCING: tuple[Kind, ...] = ("all_reduce", "reduce_scatter")
"""Kinds of collectives that add."""


def reduced_bytes(works: Works) -> Floats:
    """Tensors that all-reduces of every work combine, in bytes (W,).

    Another collective counts as the all-reduce in which a device sends as much.
    """
    found = np.zeros_like(works.network_bytes)
    for kind, exchanges in EXCHANGES.items():
        own = works.kinds == kind
        found[own] = exchanges / EXCHANGES["all_reduce"] * works.network_bytes[own]
    return works.total(found)


def additions(works: Works, layout: Layout) -> Floats:
    """Additions of a device in every work (W,): (t − 1)/t of the elements that it has."""
    return works.total(_additions(works, layout))


def reduction_cycles(works: Works, designs: Designs, layout: Layout, cycles_per_addition: float) -> Floats:
    """Cycles of the additions on all vector cores, (W, D)."""
    lanes = designs.lanes * designs.vector_cores
    return works.total(cycles_per_addition * np.ceil(_additions(works, layout)[:, None] / lanes))


def _additions(works: Works, layout: Layout) -> Floats:
    """Additions of every part (P,): every rank adds up what it would send to scatter the sums."""
    adds = np.isin(works.kinds, REDUCING)
    return np.where(adds, sent_bytes("reduce_scatter", works.elements, layout.tp), 0.0)
