"""PALM's cases of the network: rings, tasks that overlap, groups that talk (Figures 6, 7, 12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Literal, get_args

from phaze.errors import PhazeError
from phaze.simulate.network.collectives import all_reduce, all_to_all, reduce_scatter, ring_s
from phaze.simulate.network.delivery import deliver
from phaze.simulate.network.exchange import Strategy, exchange, exchange_s, phases
from phaze.simulate.network.mesh import Grid, Memory, Wires, mesh, nearest_memory
from phaze.simulate.network.messages import Message, Plan, together
from phaze.simulate.network.rings import ring
from phaze.simulate.network.topology import Switching, Topology

Work = Literal["all-reduce", "all-to-all", "read", "write"]
TURNS: tuple[Work, ...] = ("all-reduce", "all-to-all", "read", "write")

CORES = Wires(1024e9, 1e-9)
"""Links inside a tile of the wafer (PALM, Table VI); the paper prints no Link_Time: 1 ns a hop is assumed."""

BERT_BASE_BYTES = 512 * 768 * 2.0
"""Activations of BERT-base for one sequence of 512 in 16 bits; the paper does not print its batch."""


@dataclass(frozen=True)
class Measured:
    """A time with contention beside one from a formula."""

    simulated_s: float
    analytical_s: float

    @property
    def short(self) -> float:
        """By which share of the simulated time the formula is too short."""
        return 1 - self.analytical_s / self.simulated_s


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
    simulated = deliver(mesh(grid, wires), all_reduce(found.order, size_bytes)).time_s
    formula = ring_s("all-reduce", tiles, size_bytes, wires.bandwidth_bytes_per_s, wires.latency_s)
    return Measured(simulated, formula)


def overlapping(
    tasks: Sequence[Work],
    size_bytes: float,
    grid: Grid | None = None,
    wires: Wires = CORES,
    memory: Memory | None = None,
) -> Measured:
    """Return tasks of all tiles that start together beside the longest of them without contention (Figure 7).

    Of an all-reduce or all-to-all, size_bytes is every tile's tensor; of a read or write, what all tiles
    access together. Unless they are given: 4 × 4 tiles, and a memory of 256 GB/s at both ends of every row
    (Table VI prints 256 GB/s per tile of 4 × 4 cores, not how many ports share it).
    """
    grid = grid or Grid(4, 4)
    memory = memory or Memory(grid.edge(), 256e9)
    plan = together(*(_work(task, size_bytes, grid, memory) for task in tasks))
    topology = mesh(grid, wires, memory)
    return Measured(deliver(topology, plan).time_s, deliver(topology, plan, "none").time_s)


def inter_group(
    extra_column: int | None = None,
    adapters: int = 1,
    size_bytes: float = BERT_BASE_BYTES,
    wires: Wires = CORES,
    switching: Switching = "pipelined",
    pieces: int = 1,
) -> dict[Strategy, dict[str, float]]:
    """Return the terms of Equations (7) and (8) between two groups of 3 × 4 tiles side by side (Figure 12).

    With extra_column from 0 to 3 both groups have one tile more below that column, which breaks their rings.
    """
    grid = Grid(4, 8)
    topology = mesh(grid, wires)
    source, target = (_group(grid, left, extra_column) for left in (0, 4))
    who = exchange(grid, ring(grid, source).order, ring(grid, target).order, adapters)
    return {
        strategy: exchange_s(topology, phases(who, strategy, size_bytes, pieces), switching=switching)
        for strategy in get_args(Strategy)
    }


@dataclass(frozen=True)
class Congestion:
    """How far formulas are short over all combinations of so many tasks (Figure 7)."""

    tasks: int
    size_bytes: float
    least: float
    mean: float
    most: float


def congestion(size_bytes: float, most_tasks: int = 5) -> list[Congestion]:
    """Return the errors of a formula without contention by the number of tasks of one size (Figure 7).

    PALM prints 30 % for 5 tasks of 8 MB and at most 50 %, but not which tasks, tiles and ports.
    """
    rows = []
    for tasks in range(1, most_tasks + 1):
        short = [
            overlapping(some, size_bytes).short
            for some in combinations_with_replacement(get_args(Work), tasks)
        ]
        rows.append(Congestion(tasks, size_bytes, min(short), sum(short) / len(short), max(short)))
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
        for message in reduce_scatter(order, size_bytes)
    )
    kinds = {
        "all-reduce": all_reduce(order, size_bytes),
        "all-to-all": around,
        "read": memory_access(grid, memory, order, grid.tiles * size_bytes),
        "write": memory_access(grid, memory, order, grid.tiles * size_bytes, write=True),
    }
    plan = together(*(kinds[TURNS[k % len(TURNS)]] for k in range(tasks)))
    topology = mesh(grid, CORES, memory)
    return Measured(deliver(topology, plan).time_s, deliver(topology, plan, "none").time_s)


@dataclass(frozen=True)
class Strategies:
    """Both strategies, each with the number of adapters that suits it best (Figure 12)."""

    switching: Switching
    half_duplex: bool
    pieces: int
    extra_column: int | None
    """Where a tile breaks the rings, if one does."""
    first_s: float
    second_s: float
    furthest: float
    """Largest gain at one and the same number of adapters."""

    @property
    def gain(self) -> float:
        """How much faster PALM's choice is: strategy 1 on a ring (its 3.08), 2 on a broken one (1.23)."""
        return self.second_s / self.first_s if self.extra_column is None else self.first_s / self.second_s


def strategies(
    switching: Switching, half_duplex: bool, pieces: int, extra_column: int | None = None
) -> Strategies:
    """Return both strategies over all numbers of adapters (Figure 12)."""
    wires = replace(CORES, half_duplex=half_duplex)
    tiles = 12 + (extra_column is not None)
    times = [
        inter_group(extra_column, adapters, wires=wires, switching=switching, pieces=pieces)
        for adapters in range(1, tiles + 1)
    ]
    first = [time["all-reduce-first"]["total"] for time in times]
    second = [time["reduce-first"]["total"] for time in times]
    worse, better = (second, first) if extra_column is None else (first, second)
    furthest = max(a / b for a, b in zip(worse, better, strict=True))
    return Strategies(switching, half_duplex, pieces, extra_column, min(first), min(second), furthest)


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
        return all_reduce(ring(grid, tiles).order, size_bytes)
    if task == "all-to-all":
        return all_to_all(tiles, size_bytes)
    if task in ("read", "write"):
        return memory_access(grid, memory, tiles, size_bytes, task == "write")
    raise PhazeError(f"network: a task must be one of {', '.join(get_args(Work))}, got {task}")


def wafer(rows: int = 5, columns: int = 4, latency_s: float = 1e-9) -> tuple[Grid, Topology, Memory]:
    """Return PALM's wafer (Table VI): 4 × 4 cores in each of 5 × 4 tiles, memories at west and east edges."""
    grid = Grid(rows * 4, columns * 4)
    wires = Wires(1024e9, latency_s, (4, 4), 256e9)
    memory = Memory(grid.edge(), 256e9)
    return grid, mesh(grid, wires, memory), memory
