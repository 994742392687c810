"""Time of NCCL's collectives inside an NVLink domain: the fastest of its protocols and algorithms.

Every way to do a collective takes a time that is linear in its size, a fixed part and a part per byte, as
in NCCL's own model of its choice (src/graph/tuning.cc). The time is that of the fastest way. It rises with
size, is concave in it, and falls with bandwidth.

Rings go n − 1 steps (an all-reduce twice as many), each with an n-th of the tensor. Simple copies a rank's
own part as well. With NVLS a rank has 1 + 1/n of the tensor on its links in each direction: the tensor itself
and an n-th of the sum. In an all-to-all a rank sends every peer its part: small parts to all peers at once,
large ones over the bandwidth that all peers share. It copies its own part. A message goes to one peer the
same way, without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from phaze.base.arrays import Floats
from phaze.spec.speeds.collectives import NcclSpeeds

Size = TypeVar("Size", float, Floats)
PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "broadcast": 2, "reduce": 2}
"""In how many times n − 1 steps a ring does a collective."""


class LinearWay(NamedTuple):
    """A way to do a collective: seconds that are linear in the bytes of the whole tensor."""

    fixed_s: float
    """Time whatever the size, without the start that all ways have in common."""
    byte_s: float
    """Time per byte."""


@dataclass(frozen=True)
class Nccl:
    """Collectives inside an NVLink domain whose links have a bandwidth."""

    speeds: NcclSpeeds
    bandwidth_bytes_per_s: float
    """Of a device, in each direction."""
    _ways: dict[tuple[str, int], tuple[LinearWay, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def seconds(self, kind: str, size_bytes: Size, ranks: int) -> Size:
        """Time of collectives of whole tensors, or of messages, after their start; 0 for one rank."""
        ways = self._ways.get((kind, ranks))
        if ways is None:
            ways = self._ways[kind, ranks] = self.ways(kind, ranks)
        if not isinstance(size_bytes, np.ndarray):
            return min([fixed + each * size_bytes for fixed, each in ways])
        found = ways[0].fixed_s + ways[0].byte_s * size_bytes
        for fixed_s, byte_s in ways[1:]:
            found = np.minimum(found, fixed_s + byte_s * size_bytes)
        return found

    def ways(self, kind: str, ranks: int) -> tuple[LinearWay, ...]:
        """Ways to do a collective among so many ranks, without those that are never fastest."""
        if ranks == 1:
            return (LinearWay(0.0, 0.0),)
        found = self._direct(kind, ranks) if kind in ("all_to_all", "send") else self._rings(kind, ranks)
        if kind == "all_reduce" and ranks > 2 and self.speeds.nvls:
            found.append(self._nvls(ranks))
        kept: list[LinearWay] = []
        for way in sorted(found):
            if not kept or way.byte_s < kept[-1].byte_s:
                kept.append(way)
        return tuple(kept)

    def _rings(self, kind: str, ranks: int) -> list[LinearWay]:
        own, steps = self.speeds, PASSES[kind] * (ranks - 1)
        part_s = steps / ranks / self.bandwidth_bytes_per_s
        return [
            LinearWay(steps * own.step_s, part_s / own.ll),
            LinearWay(own.ll128_start_s + steps * own.step_s, part_s / own.ll128),
            LinearWay(
                own.simple_start_s + steps * own.simple_step_s,
                part_s / own.simple + 1.0 / ranks / own.own_bytes_per_s,
            ),
        ]

    def _nvls(self, ranks: int) -> LinearWay:
        own = self.speeds
        return LinearWay(own.nvls_start_s, (1.0 + 1.0 / ranks) / (own.nvls * self.bandwidth_bytes_per_s))

    def _direct(self, kind: str, ranks: int) -> list[LinearWay]:
        own, message = self.speeds, kind == "send"
        parts, copied = (1.0, 0.0) if message else (1.0 / ranks, 1.0 / ranks)
        peers = 1 if message else ranks - 1
        return [
            LinearWay(peers * own.peer_s, parts / (own.peer * self.bandwidth_bytes_per_s)),
            LinearWay(
                own.direct_start_s + peers * own.peer_s,
                peers * parts / (own.direct * self.bandwidth_bytes_per_s)
                + copied / own.direct_own_bytes_per_s,
            ),
        ]
