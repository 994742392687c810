"""What layers move for one microbatch: bytes between HBM and chip, and tensors that slices all-reduce.

The energy of a schedule counts every byte once, so that over the energy of a byte it is the traffic of the
operators as they are scheduled, each on one core or on all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.ndarrays import Floats
from phaze.place.point import Point
from phaze.theory.collectives import sent_bytes
from phaze.theory.energy import HBM, LINK, Rates, Work


@dataclass(frozen=True)
class Traffic:
    """Bytes of every layer of a chain for one microbatch, on one device of its slices, (n,) each."""

    forward_hbm_bytes: Floats
    backward_hbm_bytes: Floats
    forward_reduced_bytes: Floats
    """Tensors that the slices all-reduce, as large as each slice has them."""
    backward_reduced_bytes: Floats


def layer_traffic(point: Point, work: Work, rates: Rates) -> Traffic:
    """Return what the layers of a chain move, from the energy of their schedules."""
    passes = [np.repeat(joules, point.runs.counts, axis=0) for joules in (work.forward_j, work.backward_j)]
    sent = float(sent_bytes("all_reduce", np.ones(1), point.tensor)[0])
    hbm = [joules[:, HBM] / rates.hbm_j_per_byte for joules in passes]
    reduced = [
        joules[:, LINK] / rates.link_j_per_byte / sent if sent else np.zeros(len(joules)) for joules in passes
    ]
    return Traffic(hbm[0], hbm[1], reduced[0], reduced[1])
