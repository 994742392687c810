"""How the sum of a group's tensors comes to another group of tiles (PALM, V.C, Equations 7 and 8, Figure 11).

Adapters are the tiles of the destination that receive from the source. Both groups are cut into as many runs
of neighbours as there are adapters; a run is reduced to its head, or broadcast from it: along both sides, or
directly between the head and every tile.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.optimize import linear_sum_assignment

from phaze.base.errors import PhazeError
from phaze.cost.network.collectives import collective
from phaze.cost.network.delivery import Contention, deliver
from phaze.cost.network.mesh import Grid
from phaze.cost.network.messages import Message, Plan, together
from phaze.cost.network.topology import Switching, Topology
from phaze.tiles.tile import one_of

Strategy = Literal["all-reduce-first", "reduce-first"]
"""PALM's strategies 1 (Equation 7) and 2 (Equation 8)."""
Sends = Literal["neighbours", "direct"]
"""Whether a run is reduced or broadcast from neighbour to neighbour, or directly between its head and all."""
Ties = Literal["ring", "rows"]
"""Which of equally near tiles is a head: the first around the ring, or the first row by row, at a corner."""


@dataclass(frozen=True)
class Run:
    """Neighbouring tiles of a group that share an adapter or a sender."""

    tiles: tuple[int, ...]
    head: int
    """The tile that all come together in, or come from."""

    @property
    def sides(self) -> list[tuple[int, ...]]:
        """Tiles from the head on, in both directions."""
        at = self.tiles.index(self.head)
        return [side for side in (self.tiles[at::-1], self.tiles[at:]) if len(side) > 1]

    @property
    def others(self) -> list[int]:
        """All tiles but the head."""
        return [tile for tile in self.tiles if tile != self.head]


@dataclass(frozen=True)
class Exchange:
    """Two groups, each in the order of its ring, and who of them talks to whom."""

    source: tuple[int, ...]
    senders: tuple[Run, ...]
    """Runs of the source, one for each adapter."""
    receivers: tuple[Run, ...]
    """Runs of the destination with their adapters, in the order of its ring."""


def exchange(
    grid: Grid,
    source: Sequence[int],
    target: Sequence[int],
    adapters: int | Sequence[int],
    ties: Ties = "ring",
) -> Exchange:
    """Return who talks to whom between two groups, both in the order of their rings.

    A number of adapters cuts the destination into runs of equal length, of which the tile nearest to the
    source is the adapter; named adapters get the tiles up to half way to the next one. Every run of the
    source goes to one adapter, over the fewest hops in total, from its tile nearest to that.
    """
    one_of("exchange", "ties", ties, get_args(Ties))
    receivers = _receivers(grid, source, target, adapters, ties)
    runs = _cut(source, len(receivers))
    hops = np.array([[_gap(grid, run, [receiver.head]) for run in runs] for receiver in receivers])
    _, chosen = linear_sum_assignment(hops)
    senders = tuple(
        Run(runs[k], _nearest(grid, runs[k], [receiver.head], ties))
        for k, receiver in zip(chosen.tolist(), receivers, strict=True)
    )
    return Exchange(tuple(source), senders, receivers)


def phases(
    groups: Exchange,
    strategy: Strategy,
    size_bytes: float,
    pieces: int = 1,
    sends: Sends = "neighbours",
) -> dict[str, Plan]:
    """Return the plans of the terms of Equation (7) or (8), by their names there.

    Every adapter receives a whole tensor. A reduce or broadcast along neighbours sends a tensor in so many
    pieces; a direct one sends it whole.
    """
    one_of("exchange", "strategy", strategy, get_args(Strategy))
    one_of("exchange", "sends", sends, get_args(Sends))
    across = tuple(
        Message(sender.head, receiver.head, size_bytes)
        for sender, receiver in zip(groups.senders, groups.receivers, strict=True)
    )
    spread = together(
        *(plan for run in groups.receivers for plan in _from_head(run, size_bytes, pieces, sends))
    )
    if strategy == "all-reduce-first":
        return {
            "SG_AR": collective("all_reduce", groups.source, size_bytes),
            "Inter_Comm": across,
            "DG_B": spread,
        }
    gathered = together(
        *(plan for run in groups.senders for plan in _to_head(run, size_bytes, pieces, sends))
    )
    among = collective("all_reduce", [run.head for run in groups.receivers], size_bytes)
    return {"SG_R": gathered, "Inter_Comm": across, "Adapters_AR": among, "DG_B": spread}


def _from_head(run: Run, size_bytes: float, pieces: int, sends: Sends) -> list[Plan]:
    """Return the broadcast of a run, as plans that go on at the same time."""
    if sends == "direct":
        return [tuple(Message(run.head, tile, size_bytes) for tile in run.others)]
    return [collective("broadcast", side, size_bytes, pieces) for side in run.sides]


def _to_head(run: Run, size_bytes: float, pieces: int, sends: Sends) -> list[Plan]:
    """Return the reduce of a run, as plans that go on at the same time."""
    if sends == "direct":
        return [tuple(Message(tile, run.head, size_bytes) for tile in run.others)]
    return [collective("reduce", side, size_bytes, pieces) for side in run.sides]


def exchange_s(
    topology: Topology,
    plans: dict[str, Plan],
    contention: Contention = "arrival",
    switching: Switching = "pipelined",
) -> dict[str, float]:
    """Return the seconds of every term, each starting when the one before is over, and their total."""
    seconds = {name: deliver(topology, plan, contention, switching).time_s for name, plan in plans.items()}
    return {**seconds, "total": sum(seconds.values())}


def _receivers(
    grid: Grid, source: Sequence[int], target: Sequence[int], adapters: int | Sequence[int], ties: Ties
) -> tuple[Run, ...]:
    if isinstance(adapters, int):
        return tuple(Run(run, _nearest(grid, run, source, ties)) for run in _cut(target, adapters))
    named = sorted(adapters, key=list(target).index) if set(adapters) <= set(target) else []
    if not named or len(set(named)) < len(named) or len(named) > len(source):
        raise PhazeError(
            f"exchange: adapters must be 1 to {len(source)} different tiles of the destination, "
            f"got {list(adapters)}"
        )
    places = [list(target).index(tile) for tile in named]
    cuts = [0, *((a + b + 1) // 2 for a, b in itertools.pairwise(places)), len(target)]
    return tuple(Run(tuple(target[a:b]), tile) for tile, a, b in zip(named, cuts[:-1], cuts[1:], strict=True))


def _cut(tiles: Sequence[int], parts: int) -> list[tuple[int, ...]]:
    """Return tiles in runs whose lengths differ by at most one."""
    if not 1 <= parts <= len(tiles):
        raise PhazeError(
            f"exchange: adapters must be from 1 to the {len(tiles)} tiles of a group, got {parts}"
        )
    cuts = [len(tiles) * k // parts for k in range(parts + 1)]
    return [tuple(tiles[a:b]) for a, b in itertools.pairwise(cuts)]


def _nearest(grid: Grid, run: Sequence[int], others: Sequence[int], ties: Ties) -> int:
    """Return the tile of a run with the fewest hops to any of others, the first of several."""
    ordered = run if ties == "ring" else sorted(run)
    return min(ordered, key=lambda tile: _gap(grid, [tile], others))


def _gap(grid: Grid, some: Sequence[int], others: Sequence[int]) -> int:
    """Return the fewest hops between two sets of tiles."""
    return min(grid.distance(a, b) for a in some for b in others)
