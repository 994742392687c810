"""PALM's network-only cases: ring all-reduce, overlapping tasks, group exchange (Figures 6, 7, 12).

A group exchange reduces the tensors of a group into another group of tiles (PALM, V.C, Equations 7 and 8,
Figure 11). Adapters are the tiles of the destination that receive from the source. Both groups are cut into
one run of neighbours per adapter. A run is reduced to its head, or broadcast from it: outwards along both
sides, or directly between the head and every tile.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations_with_replacement, pairwise, product
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from phaze.base.errors import PhazeError
from phaze.cost.network.collectives import collective
from phaze.cost.network.delivery import deliver
from phaze.cost.network.mesh import PortMemory, TileGrid, Wires, mesh, nearest_memory
from phaze.cost.network.messages import Message, Plan, together
from phaze.cost.network.network import Levels, Tier
from phaze.cost.network.topology import Switching
from phaze.layout import Group
from phaze.spec.names import AdapterComparison
from phaze.spec.tiled_study import ExchangeReading, Figure
from phaze.tables import TiledNetworks
from phaze.tiles.placement import ring

Strategy = Literal["all-reduce-first", "reduce-first"]
"""Strategies for an exchange between two groups: PALM's 1 (Equation 7) and 2 (Equation 8)."""
Sends = Literal["neighbours", "direct"]
"""Route of a reduce or broadcast in a run of tiles: between neighbours, or directly to or from the head."""
Ties = Literal["ring", "rows"]
"""Head chosen among equally near tiles: the first in ring order, or in row-major order (a corner)."""
TileTask = Literal["all-reduce", "all-to-all", "read", "write"]
Against = Literal["longest", "sum"]
"""Contention-free formula for tasks that start together: their maximum time, or the sum of their times."""
CORES = Wires(1024e9, 1e-9)
"""Links inside a wafer tile (PALM, Table VI); the paper gives no Link_Time: 1 ns per hop is assumed."""
GRID = TileGrid(4, 4)
MEMORY = PortMemory(GRID.edge(), 256e9)
"""Ports at both ends of each row; Table VI gives 256 GB/s per tile of 4 × 4 cores, not the port count."""
TOPOLOGY = mesh(GRID, CORES, MEMORY)
BERT_BASE_BYTES = 512 * 768 * 2.0
"""Activations of BERT-base for one sequence of 512 in 16 bits; the paper does not give its batch size."""
RING_TILES = (4, 16)
RING_BYTES = (1e6, 16e6, 64e6, 256e6)
TASK_BYTES = (0.5e6, 8e6, 32e6)
BROKEN_AT = (None, 0, 1, 2, 3)
"""Columns below which an extra tile breaks the rings of both groups; None: no extra tile."""


class Neighbours(NamedTuple):
    """Run of neighbouring tiles in a group, with the tile that communicates with the other group."""

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
    """Match runs of consecutive tiles in a source group with the adapters of a target group.

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


def _gap(grid: TileGrid, group: Sequence[int], others: Sequence[int]) -> int:
    """Fewest hops between two sets of tiles."""
    return min(grid.distance(a, b) for a in group for b in others)


class Contended(NamedTuple):
    """Simulated time with contention, next to contention-free formulas."""

    simulated_s: float
    formulas_s: tuple[float, ...]
    """Contention-free time of each task."""

    def formula_s(self, against: Against = "longest") -> float:
        """Contention-free time of all tasks in s: concurrent (longest) or sequential (sum)."""
        return max(self.formulas_s) if against == "longest" else sum(self.formulas_s)

    def short(self, against: Against = "longest") -> float:
        """Underestimate by the formula, as a fraction of the simulated time."""
        return 1 - self.formula_s(against) / self.simulated_s


def ring_all_reduce(tiles: int, size_bytes: float) -> Contended:
    """AdapterComparison an all-reduce on 2 × 2, 4 × 4, … tiles with 2 (p − 1) (α + size/p · β) (Figure 6)."""
    grid = TileGrid(round(tiles**0.5), round(tiles**0.5))
    order = ring(grid, range(tiles)).order
    simulated = deliver(mesh(grid, CORES), collective("all_reduce", order, size_bytes)).time_s
    neighbours = Levels((Tier(tiles, CORES.bandwidth_bytes_per_s, CORES.latency_s),))
    return Contended(simulated, (neighbours.seconds("all_reduce", size_bytes, Group(tiles, 1)),))


def overlapping(tasks: Sequence[TileTask], size_bytes: float) -> Contended:
    """AdapterComparison tasks started simultaneously on 4 × 4 tiles with the same tasks run alone (Figure 7).

    For an all-reduce or all-to-all, size_bytes is the tensor of one tile. For a read or write, it is the
    total of all tiles.
    """
    kinds = _tasks(size_bytes)
    return _contended([kinds[task] for task in tasks])


@lru_cache(maxsize=4)
def _tasks(size_bytes: float) -> Mapping[TileTask, Plan]:
    return {
        "all-reduce": collective("all_reduce", ring(GRID, range(GRID.tiles)).order, size_bytes),
        "all-to-all": collective("all_to_all", range(GRID.tiles), size_bytes),
        "read": _access(range(GRID.tiles), size_bytes),
        "write": _access(range(GRID.tiles), size_bytes, write=True),
    }


def in_turns(tasks: int, size_bytes: float) -> Contended:
    """AdapterComparison `tasks` concurrent tasks of alternating kinds with each task run alone (Figure 7).

    Follows the authors' program, where an all-to-all is sent around the ring, in p − 1 rounds of (p − 1)/p of
    a tensor each. Every tile reads or writes a tensor of its own.
    """
    count, order = GRID.tiles, ring(GRID, range(GRID.tiles)).order
    kinds = (
        collective("all_reduce", order, size_bytes),
        tuple(
            message._replace(size_bytes=size_bytes * (count - 1) / count)
            for message in collective("reduce_scatter", order, size_bytes)
        ),
        _access(order, count * size_bytes),
        _access(order, count * size_bytes, write=True),
    )
    return _contended([kinds[k % len(kinds)] for k in range(tasks)])


def _access(tiles: Sequence[int], size_bytes: float, *, write: bool = False) -> Plan:
    """Messages for concurrent reads or writes of equal shares, each tile at its nearest memory port."""
    pairs = [(tile, nearest_memory(GRID, MEMORY, tile)) for tile in tiles]
    return tuple(Message(*(pair if write else pair[::-1]), size_bytes / len(tiles)) for pair in pairs)


def _contended(plans: Sequence[Plan]) -> Contended:
    """Simulate plans that run concurrently, and each plan alone."""
    alone_s = tuple(deliver(TOPOLOGY, plan, "none").time_s for plan in plans)
    return Contended(deliver(TOPOLOGY, together(*plans)).time_s, alone_s)


class Congestion(NamedTuple):
    """Smallest, mean and largest underestimate by a formula over all mixes of `tasks` tasks (Figure 7)."""

    tasks: int
    against: Against
    least: float
    mean: float
    most: float


def congestion(size_bytes: float, most_tasks: int = 5) -> list[Congestion]:
    """Underestimates by contention-free formulas for 1 to `most_tasks` equally large tasks (Figure 7).

    PALM gives 30 % for 5 tasks of 8 MB and at most 50 %. It names neither the tasks, tiles and ports, nor the
    formula.
    """
    rows = []
    for tasks in range(1, most_tasks + 1):
        mixes = combinations_with_replacement(get_args(TileTask), tasks)
        overlaps = [overlapping(mix, size_bytes) for mix in mixes]
        for against in get_args(Against):
            short = [mix.short(against) for mix in overlaps]
            rows.append(Congestion(tasks, against, min(short), sum(short) / len(short), max(short)))
    return rows


class Way(NamedTuple):
    """One combination of simulation options for the exchange between two groups (Figure 12)."""

    reading: ExchangeReading = ExchangeReading()
    switching: Switching = "pipelined"
    half_duplex: bool = False
    pieces: int = 1
    """Number of pieces into which a reduce or broadcast along neighbours splits its tensor."""


def inter_group(extra_column: int | None, adapters: int, setting: Way) -> dict[Strategy, dict[str, float]]:
    """Times in s of the terms of Equations (7) and (8), between two groups of 3 × 4 tiles (Figure 12).

    The terms follow each other. With extra_column from 0 to 3, both groups have an extra tile below that
    column, which breaks their rings.
    """
    grid = TileGrid(4, 8)
    topology = mesh(grid, replace(CORES, half_duplex=setting.half_duplex))
    groups = [
        [grid.tile(row, first_column + column) for row in range(3) for column in range(4)]
        for first_column in (0, 4)
    ]
    extra = [] if extra_column is None else [extra_column]
    source, target = (
        ring(grid, [*tiles, *(grid.tile(3, first_column + column) for column in extra)]).order
        for tiles, first_column in zip(groups, (0, 4), strict=True)
    )
    who = exchange(grid, source, target, adapters, setting.reading.ties)
    times: dict[Strategy, dict[str, float]] = {}
    for strategy in get_args(Strategy):
        plans = phases(who, strategy, BERT_BASE_BYTES, setting.pieces, setting.reading.sends)
        seconds = {
            name: deliver(topology, plan, switching=setting.switching).time_s for name, plan in plans.items()
        }
        times[strategy] = {**seconds, "total": sum(seconds.values())}
    return times


class StrategyTimes(NamedTuple):
    """Times in s of both strategies with 1, 2, … adapters (Figure 12)."""

    first_s: tuple[float, ...]
    second_s: tuple[float, ...]
    broken: bool
    """True if an extra tile breaks the rings: PALM then chooses strategy 2, otherwise strategy 1."""

    def compared(self, compare: AdapterComparison) -> tuple[float, float]:
        """Times of strategies 1 and 2 in s, at the adapter counts that `compare` selects."""
        if compare == "best":
            return min(self.first_s), min(self.second_s)
        if compare == "equal-adapters":
            return max(zip(self.first_s, self.second_s, strict=True), key=self._gain)
        slow, fast = (max, min) if self.broken else (min, max)
        return slow(self.first_s), fast(self.second_s)

    def gain(self, compare: AdapterComparison) -> float:
        """Speed-up of the strategy that PALM prefers: on a ring the first, on a broken ring the second.

        Published: 3.08 and 1.23.
        """
        return self._gain(self.compared(compare))

    def _gain(self, pair: tuple[float, float]) -> float:
        first_s, second_s = pair
        return first_s / second_s if self.broken else second_s / first_s


@lru_cache(maxsize=256)
def strategies(setting: Way, extra_column: int | None = None, most: int | None = None) -> StrategyTimes:
    """Times of both strategies with 1 to `most` adapters, by default up to the tiles of a group."""
    tiles = 12 + (extra_column is not None)
    times = [
        inter_group(extra_column, adapters, setting) for adapters in range(1, min(most or tiles, tiles) + 1)
    ]
    first, second = (tuple(time[name]["total"] for time in times) for name in get_args(Strategy))
    return StrategyTimes(first, second, extra_column is not None)


Row = tuple[int, str, str, str, float, float, float]
"""Row of table `tiled_networks`: figure, reading, setting, group, seconds, other_s, value."""
Exchanges = Mapping[str, ExchangeReading]
"""Interpretations (readings) of Figure 12, by name."""


def simulate_networks(figures: tuple[Figure, ...], exchanges: Exchanges) -> pd.DataFrame:
    """Simulate the requested figures; returns table `tiled_networks`."""
    rows = [row for figure in figures for row in _FIGURES[figure](exchanges)]
    columns = list(TiledNetworks.fields())
    return TiledNetworks.check(pd.DataFrame(rows, columns=columns)) if rows else TiledNetworks.empty()


def _rings(_: Exchanges) -> Iterator[Row]:
    """Yield rows that compare ring all-reduces with their formula (Figure 6)."""
    for tiles, size in product(RING_TILES, RING_BYTES):
        all_reduce, group = ring_all_reduce(tiles, size), f"{tiles} tiles"
        setting = f"{group}, {size / 1e6:g} MB"
        yield 6, "formula", setting, group, all_reduce.simulated_s, all_reduce.formula_s(), all_reduce.short()


def _overlaps(_: Exchanges) -> Iterator[Row]:
    """Yield rows that compare concurrent tasks with formulas that ignore contention (Figure 7)."""
    for size in TASK_BYTES:
        size_text = f"of {size / 1e6:g} MB"
        for tasks, against in product(range(1, 6), get_args(Against)):
            turns, setting = in_turns(tasks, size), f"{tasks} tasks {size_text}, kinds in turns"
            times = turns.simulated_s, turns.formula_s(against), turns.short(against)
            yield 7, against, setting, "turns", *times
        for row in congestion(size):
            for which, value in (("least", row.least), ("mean", row.mean), ("most", row.most)):
                setting = f"{row.tasks} tasks {size_text}, {which} of all mixes"
                yield 7, row.against, setting, which, 0.0, 0.0, value


def _strategies(exchanges: Exchanges) -> Iterator[Row]:
    """Yield rows that compare both strategies under each interpretation (Figure 12)."""
    for name, reading in (exchanges or {"best": ExchangeReading()}).items():
        for extra, switching, half, pieces in product(
            BROKEN_AT, reading.switching, reading.half_duplex, reading.pieces
        ):
            exchange_setting = Way(reading, switching, half, pieces)
            times = strategies(exchange_setting, extra, reading.most_adapters)
            setting = (
                f"{'ring' if extra is None else f'broken ring, tile {extra}'}, {_words(exchange_setting)}"
            )
            group = "ring" if extra is None else "broken ring"
            compared_s = times.compared(reading.compare)
            yield 12, name, setting, group, *compared_s, times.gain(reading.compare)


def _words(setting: Way) -> str:
    wires = "half duplex" if setting.half_duplex else "full duplex"
    sends = "direct sends" if setting.reading.sends == "direct" else f"{setting.pieces} pieces"
    return f"{setting.switching}, {wires}, {sends}"


_FIGURES: dict[Figure, Callable[[Exchanges], Iterator[Row]]] = {
    "6": _rings,
    "7": _overlaps,
    "12": _strategies,
}
