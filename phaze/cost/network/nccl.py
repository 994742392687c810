"""Time of NCCL collectives inside an NVLink domain: the minimum over its protocols and algorithms.

The time of every algorithm is linear in the size, with a fixed part and a part per byte, as in NCCL's own
tuning model (src/graph/tuning.cc). The fastest is used. Its time increases with size, is concave in it, and
decreases with bandwidth.

Rings take n − 1 steps (an all-reduce twice as many), each with an n-th of the tensor. The Simple protocol
also copies a rank's own part. With NVLS a rank has 1 + 1/n of the tensor on its links in each direction: the
tensor itself and an n-th of the sum. In an all-to-all a rank sends every peer its part: small parts to all
peers at once, large ones at the bandwidth that all peers share. It also copies its own part. A message goes
to one peer in the same manner, without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Number
from phaze.spec.speeds.collectives import NcclSpeeds

PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "broadcast": 2, "reduce": 2}
"""Number of passes of n − 1 ring steps in each kind of collective."""


class LinearTime(NamedTuple):
    """Collective algorithm whose time is linear in the bytes of the whole tensor."""

    fixed_s: float
    """Time independent of size, excluding the start-up time common to all algorithms."""
    byte_s: float
    """Time per byte."""


@dataclass(frozen=True)
class Nccl:
    """Cost model of NCCL collectives inside an NVLink domain."""

    speeds: NcclSpeeds
    bandwidth_bytes_per_s: float
    """Link bandwidth of a device, in each direction."""
    _algorithms: dict[tuple[str, int], tuple[LinearTime, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def seconds(self, kind: str, size_bytes: Number, ranks: int) -> Number:
        """Time of collectives on whole tensors, or of messages, excluding start-up time; 0 for one rank."""
        algorithms = self._algorithms.get((kind, ranks))
        if algorithms is None:
            algorithms = self._algorithms[kind, ranks] = self.algorithms(kind, ranks)
        if not isinstance(size_bytes, np.ndarray):
            return min([fixed_s + byte_s * size_bytes for fixed_s, byte_s in algorithms])
        fastest_s = algorithms[0].fixed_s + algorithms[0].byte_s * size_bytes
        for fixed_s, byte_s in algorithms[1:]:
            fastest_s = np.minimum(fastest_s, fixed_s + byte_s * size_bytes)
        return fastest_s

    def algorithms(self, kind: str, ranks: int) -> tuple[LinearTime, ...]:
        """Algorithms for a collective among `ranks` ranks, excluding those that are never fastest."""
        if ranks == 1:
            return (LinearTime(0.0, 0.0),)
        candidates = self._direct(kind, ranks) if kind in ("all_to_all", "send") else self._rings(kind, ranks)
        if kind == "all_reduce" and ranks > 2 and self.speeds.nvls:
            byte_s = (1.0 + 1.0 / ranks) / (self.speeds.nvls * self.bandwidth_bytes_per_s)
            candidates.append(LinearTime(self.speeds.nvls_start_s, byte_s))
        fastest: list[LinearTime] = []
        # Sorted by the fixed part: an algorithm that starts later must move bytes faster to ever win.
        for candidate in sorted(candidates):
            if not fastest or candidate.byte_s < fastest[-1].byte_s:
                fastest.append(candidate)
        return tuple(fastest)

    def _rings(self, kind: str, ranks: int) -> list[LinearTime]:
        speeds, steps = self.speeds, PASSES[kind] * (ranks - 1)
        part_s = steps / ranks / self.bandwidth_bytes_per_s
        simple_s = speeds.simple_start_s + steps * speeds.simple_step_s
        return [
            LinearTime(steps * speeds.step_s, part_s / speeds.ll),
            LinearTime(speeds.ll128_start_s + steps * speeds.step_s, part_s / speeds.ll128),
            LinearTime(simple_s, part_s / speeds.simple + 1.0 / ranks / speeds.own_bytes_per_s),
        ]

    def _direct(self, kind: str, ranks: int) -> list[LinearTime]:
        speeds, message = self.speeds, kind == "send"
        # A message carries its whole tensor to one peer, and copies nothing inside the device.
        parts, copied, peers = (1.0, 0.0, 1) if message else (1.0 / ranks, 1.0 / ranks, ranks - 1)
        small_byte_s = parts / (speeds.peer * self.bandwidth_bytes_per_s)
        sent_byte_s = peers * parts / (speeds.direct * self.bandwidth_bytes_per_s)
        direct_byte_s = sent_byte_s + copied / speeds.direct_own_bytes_per_s
        return [
            LinearTime(peers * speeds.peer_s, small_byte_s),
            LinearTime(speeds.direct_start_s + peers * speeds.peer_s, direct_byte_s),
        ]
