"""Reduction of a group's tensors into another group of tiles (PALM, V.C, Equations 7 and 8, Figure 11).

Adapters are the tiles of the destination that receive from the source. Both groups are cut into one run of
neighbours per adapter. A run is reduced to its head, or broadcast from it: outwards along both sides, or
directly between the head and every tile.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from phaze.base.errors import PhazeError
from phaze.cost.network.collectives import collective
from phaze.cost.network.mesh import TileGrid
from phaze.cost.network.messages import Message, Plan, together

Strategy = Literal["all-reduce-first", "reduce-first"]
"""Strategies for an exchange between two groups: PALM's 1 (Equation 7) and 2 (Equation 8)."""
Sends = Literal["neighbours", "direct"]
"""Route of a reduce or broadcast in a run of tiles: between neighbours, or directly to or from the head."""
Ties = Literal["ring", "rows"]
"""Head chosen among equally near tiles: the first in ring order, or in row-major order (a corner)."""


class Neighbours(NamedTuple):
    """Run of neighbouring tiles in a group, with the head that communicates with the other group."""

    tiles: tuple[int, ...]
    head: int
    """Tile to which the run is reduced, or from which it is broadcast."""

    def passed(
        self, kind: Literal["broadcast", "reduce"], size_bytes: float, pieces: int, sends: Sends
    ) -> list[Plan]:
        """Concurrent message plans for a broadcast from the head, or for a reduce to it.

        Along neighbours the tensor is sent in `pieces` pieces; directly, as a whole.
        """
        if sends == "direct":
            others = [tile for tile in self.tiles if tile != self.head]
            pairs = [(self.head, tile) if kind == "broadcast" else (tile, self.head) for tile in others]
            return [tuple(Message(*pair, size_bytes) for pair in pairs)]
        at = self.tiles.index(self.head)
        sides = self.tiles[at::-1], self.tiles[at:]
        return [collective(kind, side, size_bytes, pieces) for side in sides if len(side) > 1]


class TwoGroups(NamedTuple):
    """Two groups in ring order, and the pairs of runs that communicate."""

    source: tuple[int, ...]
    senders: tuple[Neighbours, ...]
    """Runs of the source group, one per adapter."""
    receivers: tuple[Neighbours, ...]
    """Runs of the destination group in ring order; the head of each run is its adapter."""


def exchange(
    grid: TileGrid, source: Sequence[int], target: Sequence[int], adapters: int, ties: Ties
) -> TwoGroups:
    """Match the runs of a source group with the adapters of a target group; both groups in ring order.

    The destination is cut into one run per adapter, of nearly equal length. The adapter is the tile of the
    run nearest to the source. Each run of the source sends to one adapter, from its tile nearest to that
    adapter; the assignment has the fewest hops in total.
    """
    receivers = tuple(Neighbours(run, _nearest(grid, run, source, ties)) for run in _cut(target, adapters))
    runs = _cut(source, adapters)
    hops = np.array([[_gap(grid, run, [receiver.head]) for run in runs] for receiver in receivers])
    _, chosen = linear_sum_assignment(hops)
    senders = tuple(
        Neighbours(runs[k], _nearest(grid, runs[k], [receiver.head], ties))
        for k, receiver in zip(chosen.tolist(), receivers, strict=True)
    )
    return TwoGroups(tuple(source), senders, receivers)


def phases(
    groups: TwoGroups, strategy: Strategy, size_bytes: float, pieces: int = 1, sends: Sends = "neighbours"
) -> dict[str, Plan]:
    """Communication phases, one per term of PALM's Equation (7) or (8), by the paper's symbol.

    Every adapter receives a whole tensor.
    """
    across = tuple(
        Message(sender.head, receiver.head, size_bytes)
        for sender, receiver in zip(groups.senders, groups.receivers, strict=True)
    )
    spread = together(
        *(plan for run in groups.receivers for plan in run.passed("broadcast", size_bytes, pieces, sends))
    )
    if strategy == "all-reduce-first":
        reduced = collective("all_reduce", groups.source, size_bytes)
        return {"SG_AR": reduced, "Inter_Comm": across, "DG_B": spread}
    gathered = together(
        *(plan for run in groups.senders for plan in run.passed("reduce", size_bytes, pieces, sends))
    )
    among = collective("all_reduce", [run.head for run in groups.receivers], size_bytes)
    return {"SG_R": gathered, "Inter_Comm": across, "Adapters_AR": among, "DG_B": spread}


def _cut(tiles: Sequence[int], parts: int) -> list[tuple[int, ...]]:
    """Cut tiles into runs whose lengths differ by at most one."""
    if not 1 <= parts <= len(tiles):
        raise PhazeError(
            f"exchange: adapters must be from 1 to the {len(tiles)} tiles of a group, got {parts}"
        )
    return [tuple(tiles[a:b]) for a, b in pairwise(len(tiles) * k // parts for k in range(parts + 1))]


def _nearest(grid: TileGrid, run: Sequence[int], others: Sequence[int], ties: Ties) -> int:
    """Tile of a run that is nearest, in hops, to any of the other tiles; `ties` breaks ties."""
    return min(run if ties == "ring" else sorted(run), key=lambda tile: _gap(grid, [tile], others))


def _gap(grid: TileGrid, some: Sequence[int], others: Sequence[int]) -> int:
    """Fewest hops between two sets of tiles."""
    return min(grid.distance(a, b) for a in some for b in others)
