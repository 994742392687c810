"""PALM's cases of the network alone: rings, tasks that overlap, groups that talk (Figures 6, 7, 12)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations_with_replacement, product
from typing import Literal, get_args

import pandas as pd

from phaze.base.errors import PhazeError
from phaze.cost.network.collectives import collective
from phaze.cost.network.delivery import deliver
from phaze.cost.network.mesh import Grid, Memory, Wires, mesh, nearest_memory
from phaze.cost.network.messages import Message, Plan, together
from phaze.cost.network.network import Levels, Tier
from phaze.cost.network.topology import Switching, Topology
from phaze.layout import Group
from phaze.spec.tiled_study import ExchangeReading, Figure
from phaze.tables import TiledNetworks
from phaze.tiles.exchange import Sends, Strategy, Ties, exchange, exchange_s, phases
from phaze.tiles.placement import ring
from phaze.tiles.tile import one_of

Work = Literal["all-reduce", "all-to-all", "read", "write"]
Against = Literal["longest", "sum"]
"""What a formula without contention has for tasks that start together: the longest of them, or their sum."""
Compare = Literal["best", "equal-adapters", "slowest-fastest"]
"""Which numbers of adapters of two strategies are compared: each strategy's best; one and the same, where the
gain is largest; or the slowest of the one with the fastest of the other."""
TURNS: tuple[Work, ...] = ("all-reduce", "all-to-all", "read", "write")

CORES = Wires(1024e9, 1e-9)
"""Links inside a tile of the wafer (PALM, Table VI); the paper prints no Link_Time: 1 ns a hop is assumed."""

BERT_BASE_BYTES = 512 * 768 * 2.0
"""Activations of BERT-base for one sequence of 512 in 16 bits; the paper does not print its batch."""


@dataclass(frozen=True)
class Measured:
    """A time with contention beside formulas without."""

    simulated_s: float
    formulas_s: tuple[float, ...]
    """Of every task alone."""

    def formula_s(self, against: Against = "longest") -> float:
        """Return what a formula has for all tasks: the longest of them, or one after the other."""
        return max(self.formulas_s) if against == "longest" else sum(self.formulas_s)

    def short(self, against: Against = "longest") -> float:
        """Return by which share of the simulated time the formula is too short."""
        return 1 - self.formula_s(against) / self.simulated_s


def memory_access(
    grid: Grid, memory: Memory, tiles: Sequence[int], size_bytes: float, write: bool = False
) -> Plan:
    """Return an access of equal shares by tiles at the same time, each to its nearest memory."""
    part = size_bytes / len(tiles)
    plan = []
    for tile in tiles:
        port = nearest_memory(grid, memory, tile)
        plan.append(Message(tile, port, part) if write else Message(port, tile, part))
    return tuple(plan)


def ring_all_reduce(tiles: int, size_bytes: float, wires: Wires = CORES) -> Measured:
    """Return an all-reduce on 2 × 2, 4 × 4, … tiles beside 2 (p − 1) (α + size/p · β) (Figure 6).

    Raises `PhazeError` where the tiles form no square with a ring.
    """
    side = round(tiles**0.5)
    grid = Grid(side, max(side, 1))
    found = ring(grid, range(grid.tiles))
    if side * side != tiles or not found.closed or tiles < 2:
        raise PhazeError(f"ring: tiles must be the square of an even number, got {tiles}")
    simulated = deliver(mesh(grid, wires), collective("all_reduce", found.order, size_bytes)).time_s
    neighbours = Levels((Tier(tiles, wires.bandwidth_bytes_per_s, wires.latency_s),))
    formula = neighbours.seconds("all_reduce", size_bytes, Group(tiles, 1))
    return Measured(simulated, (formula,))


def overlapping(
    tasks: Sequence[Work],
    size_bytes: float,
    grid: Grid | None = None,
    wires: Wires = CORES,
    memory: Memory | None = None,
) -> Measured:
    """Return tasks of all tiles that start together beside each of them without contention (Figure 7).

    Of an all-reduce or all-to-all, size_bytes is every tile's tensor; of a read or write, what all tiles
    access together. Unless they are given: 4 × 4 tiles, and a memory of 256 GB/s at both ends of every row
    (Table VI prints 256 GB/s per tile of 4 × 4 cores, not how many ports share it).
    """
    grid = grid or Grid(4, 4)
    memory = memory or Memory(grid.edge(), 256e9)
    plans = [_work(task, size_bytes, grid, memory) for task in tasks]
    return _beside_formulas(mesh(grid, wires, memory), plans)


def _beside_formulas(topology: Topology, plans: Sequence[Plan]) -> Measured:
    """Return plans that start together beside each of them without contention."""
    alone_s = tuple(deliver(topology, plan, "none").time_s for plan in plans)
    return Measured(deliver(topology, together(*plans)).time_s, alone_s)


@dataclass(frozen=True)
class Way:
    """How tiles of two groups send to each other (Figure 12), none of which the paper prints."""

    switching: Switching = "pipelined"
    half_duplex: bool = False
    sends: Sends = "neighbours"
    pieces: int = 1
    """In how many pieces a reduce or a broadcast along neighbours sends a tensor."""
    ties: Ties = "ring"


def inter_group(
    extra_column: int | None = None,
    adapters: int = 1,
    way: Way | None = None,
    size_bytes: float = BERT_BASE_BYTES,
) -> dict[Strategy, dict[str, float]]:
    """Return the terms of Equations (7) and (8) between two groups of 3 × 4 tiles side by side (Figure 12).

    With extra_column from 0 to 3 both groups have one tile more below that column, which breaks their rings.
    """
    way = way or Way()
    grid = Grid(4, 8)
    topology = mesh(grid, replace(CORES, half_duplex=way.half_duplex))
    source, target = (_group(grid, left, extra_column) for left in (0, 4))
    who = exchange(grid, ring(grid, source).order, ring(grid, target).order, adapters, way.ties)
    return {
        strategy: exchange_s(
            topology, phases(who, strategy, size_bytes, way.pieces, way.sends), switching=way.switching
        )
        for strategy in get_args(Strategy)
    }


@dataclass(frozen=True)
class Congestion:
    """How far a formula is short over all combinations of so many tasks (Figure 7)."""

    tasks: int
    against: Against
    least: float
    mean: float
    most: float


def congestion(size_bytes: float, most_tasks: int = 5) -> list[Congestion]:
    """Return the errors of formulas without contention by the number of tasks of one size (Figure 7).

    PALM prints 30 % for 5 tasks of 8 MB and at most 50 %, but not which tasks, tiles and ports, nor against
    which formula.
    """
    rows = []
    for tasks in range(1, most_tasks + 1):
        mixes = combinations_with_replacement(get_args(Work), tasks)
        found = [overlapping(some, size_bytes) for some in mixes]
        for against in get_args(Against):
            short = [some.short(against) for some in found]
            rows.append(Congestion(tasks, against, min(short), sum(short) / len(short), max(short)))
    return rows


def in_turns(tasks: int, size_bytes: float) -> Measured:
    """Return so many tasks of 4 × 4 tiles, one of each kind in turns, as the authors' program has them.

    An all-to-all goes around the ring there, in p − 1 rounds of (p − 1)/p of a tensor each, and every tile
    reads or writes a tensor of its own.
    """
    grid = Grid(4, 4)
    memory = Memory(grid.edge(), 256e9)
    order = ring(grid, range(grid.tiles)).order
    around = tuple(
        message._replace(size_bytes=size_bytes * (grid.tiles - 1) / grid.tiles)
        for message in collective("reduce_scatter", order, size_bytes)
    )
    kinds = {
        "all-reduce": collective("all_reduce", order, size_bytes),
        "all-to-all": around,
        "read": memory_access(grid, memory, order, grid.tiles * size_bytes),
        "write": memory_access(grid, memory, order, grid.tiles * size_bytes, write=True),
    }
    plans = [kinds[TURNS[k % len(TURNS)]] for k in range(tasks)]
    return _beside_formulas(mesh(grid, CORES, memory), plans)


@dataclass(frozen=True)
class Strategies:
    """Seconds of both strategies by number of adapters, from one on (Figure 12)."""

    first_s: tuple[float, ...]
    second_s: tuple[float, ...]
    broken: bool
    """Whether a tile breaks the rings: PALM's choice is then strategy 2, else 1."""

    def compared(self, compare: Compare) -> tuple[float, float]:
        """Return the seconds of strategies 1 and 2 that a comparison takes."""
        pairs = list(zip(self.first_s, self.second_s, strict=True))
        if compare == "best":
            return min(self.first_s), min(self.second_s)
        if compare == "equal-adapters":
            return max(pairs, key=self._gain)
        one_of("exchange", "compare", compare, get_args(Compare))
        slow, fast = (max, min) if self.broken else (min, max)
        return slow(self.first_s), fast(self.second_s)

    def gain(self, compare: Compare) -> float:
        """Return how much faster PALM's choice is: strategy 1 on a ring (3.08), 2 on a broken one (1.23)."""
        return self._gain(self.compared(compare))

    def _gain(self, pair: tuple[float, float]) -> float:
        first_s, second_s = pair
        return first_s / second_s if self.broken else second_s / first_s


@lru_cache(maxsize=256)
def strategies(way: Way, extra_column: int | None = None, most: int | None = None) -> Strategies:
    """Return both strategies with one to so many adapters, as many as a group has tiles unless said."""
    tiles = 12 + (extra_column is not None)
    times = [inter_group(extra_column, adapters, way) for adapters in range(1, min(most or tiles, tiles) + 1)]
    first, second = (tuple(time[name]["total"] for time in times) for name in get_args(Strategy))
    return Strategies(first, second, extra_column is not None)


def _group(grid: Grid, left: int, extra_column: int | None) -> list[int]:
    tiles = [grid.tile(row, left + column) for row in range(3) for column in range(4)]
    if extra_column is None:
        return tiles
    if not 0 <= extra_column < 4:
        raise PhazeError(f"inter-group: extra_column must be from 0 to 3, got {extra_column}")
    return [*tiles, grid.tile(3, left + extra_column)]


def _work(task: Work, size_bytes: float, grid: Grid, memory: Memory) -> Plan:
    """Return the plan of one task of all tiles."""
    tiles = range(grid.tiles)
    if task == "all-reduce":
        return collective("all_reduce", ring(grid, tiles).order, size_bytes)
    if task == "all-to-all":
        return collective("all_to_all", tiles, size_bytes)
    one_of("network", "a task", task, get_args(Work))
    return memory_access(grid, memory, tiles, size_bytes, task == "write")


Row = tuple[int, str, str, str, float, float, float]
"""Figure, reading, setting, group, seconds, other_s, value: the columns of table tiled_networks."""
Exchanges = Mapping[str, ExchangeReading]
"""Readings of Figure 12, by name."""

RING_TILES = (4, 16)
RING_BYTES = (1e6, 16e6, 64e6, 256e6)
TASK_BYTES = (0.5e6, 8e6, 32e6)
BROKEN_AT = (None, 0, 1, 2, 3)
"""Columns below which a tile more breaks the rings of two groups; none for groups that form rings."""


def simulate_networks(figures: tuple[Figure, ...], exchanges: Exchanges) -> pd.DataFrame:
    """Return the figures asked for as table tiled_networks."""
    rows = [row for figure in figures for row in _FIGURES[figure](exchanges)]
    columns = list(TiledNetworks.fields())
    return TiledNetworks.check(pd.DataFrame(rows, columns=columns)) if rows else TiledNetworks.empty()


def rings(_: Exchanges) -> Iterator[Row]:
    """Yield all-reduces around rings of tiles beside their formula (Figure 6)."""
    for tiles, size in product(RING_TILES, RING_BYTES):
        found, group = ring_all_reduce(tiles, size), f"{tiles} tiles"
        setting = f"{group}, {size / 1e6:g} MB"
        yield 6, "formula", setting, group, found.simulated_s, found.formula_s(), found.short()


def overlaps(_: Exchanges) -> Iterator[Row]:
    """Yield how far formulas are short for tasks that start together (Figure 7): all mixes, and in turns."""
    for size in TASK_BYTES:
        each = f"of {size / 1e6:g} MB"
        for tasks, against in product(range(1, 6), get_args(Against)):
            found, setting = in_turns(tasks, size), f"{tasks} tasks {each}, kinds in turns"
            times = found.simulated_s, found.formula_s(against), found.short(against)
            yield 7, against, setting, "turns", *times
        for row in congestion(size):
            for which, value in (("least", row.least), ("mean", row.mean), ("most", row.most)):
                setting = f"{row.tasks} tasks {each}, {which} of all mixes"
                yield 7, row.against, setting, which, 0.0, 0.0, value


def exchanges_of(exchanges: Exchanges) -> Iterator[Row]:
    """Yield both strategies between groups as every reading compares them (Figure 12)."""
    for name, asked in (exchanges or {"best": ExchangeReading()}).items():
        for extra, way in product(BROKEN_AT, _ways(asked)):
            found = strategies(way, extra, asked.most_adapters)
            setting = f"{'ring' if extra is None else f'broken ring, tile {extra}'}, {_words(way)}"
            group = "ring" if extra is None else "broken ring"
            compared_s = found.compared(asked.compare)
            yield 12, name, setting, group, *compared_s, found.gain(asked.compare)


def _ways(exchange: ExchangeReading) -> Iterator[Way]:
    for switching, half, pieces in product(exchange.switching, exchange.half_duplex, exchange.pieces):
        yield Way(switching, half, exchange.sends, pieces, exchange.ties)


def _words(way: Way) -> str:
    wires = "half duplex" if way.half_duplex else "full duplex"
    sends = "direct sends" if way.sends == "direct" else f"{way.pieces} pieces"
    return f"{way.switching}, {wires}, {sends}"


_FIGURES: dict[Figure, Callable[[Exchanges], Iterator[Row]]] = {"6": rings, "7": overlaps, "12": exchanges_of}
