"""Network with ranks mapped to devices in any order, for collectives of all groups at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from phaze.base.arrays import Ints
from phaze.cost.network.network import Kind, Members, Network, Size
from phaze.layout import Group


@dataclass(frozen=True, eq=False)
class Arranged:
    """Time of a collective over mapped ranks: the slowest of all equivalent groups.

    A `Group` represents all groups with the same number of ranks and stride. Each has the network to itself.
    """

    network: Network
    devices: Ints
    """Device of every rank, (N,)."""
    _known: dict[tuple[Kind, float, Group], tuple[float, ...]] = field(default_factory=dict)

    def seconds(self, kind: Kind, size_bytes: Size, group: Members) -> Size:
        """Time of a collective, or of a message from one rank to the next; 0 for one rank."""
        if not isinstance(group, Group) or isinstance(size_bytes, np.ndarray):
            return self.network.seconds(kind, size_bytes, group)
        return max(self._each(kind, size_bytes, group), default=0.0)

    def by_level(self, kind: Kind, size_bytes: Size, group: Members) -> tuple[Size, ...]:
        """Time of a collective as a single level."""
        return (self.seconds(kind, size_bytes, group),)

    def _each(self, kind: Kind, size_bytes: float, group: Group) -> tuple[float, ...]:
        asked = kind, size_bytes, group
        if asked not in self._known:
            rows = self.groups(kind, group)
            self._known[asked] = tuple(self.network.seconds(kind, size_bytes, row) for row in rows)
        return self._known[asked]

    def groups(self, kind: Kind, group: Group) -> list[list[int]]:
        """Devices of all groups of this size and stride, (groups, ranks).

        For messages there is one group per sending rank.
        """
        if group.ranks < 2:
            return []
        ranks = np.arange(len(self.devices) - (group.ranks - 1) * group.stride)
        first = ranks if kind == "send" else ranks[ranks // group.stride % group.ranks == 0]
        found: list[list[int]] = self.devices[first[:, None] + np.arange(group.ranks) * group.stride].tolist()
        return found
