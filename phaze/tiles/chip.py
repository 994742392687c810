"""Tiled accelerators: what one tile has, and how tiles and memories lie on the chip (PALM, II.C, IV.C)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import Literal, get_args

from phaze.base.errors import PhazeError
from phaze.cost.mapper.arrays import INPUT, OUTPUT, WEIGHT
from phaze.cost.network.mesh import Grid, Memory, Wires, mesh, nearest_memory
from phaze.cost.network.topology import Topology
from phaze.cost.utilisation import peak_flops_per_s

Dataflow = Literal["weight", "input", "output"]
"""What stays in an array (PALM, Table II: WS, IS)."""

DATAFLOWS: Mapping[Dataflow, int] = MappingProxyType({"weight": WEIGHT, "input": INPUT, "output": OUTPUT})
"""The numbers by which `cost.mapper.arrays` knows dataflows."""


@dataclass(frozen=True)
class Tile:
    """What has a router and a memory of its own: arrays of processing elements, vector lanes, SRAM.

    It is the smallest part with a router: what PALM's wafer (Table VI) calls a core, with 4 × 4 in a tile.
    """

    rows: int
    """Processing elements of an array from top to bottom; each multiplies and adds once in a cycle."""
    columns: int
    clock_hz: float
    sram_bytes: float
    sram_bandwidth_bytes_per_s: float
    """Between SRAM and arrays, reads and writes together; inf: it never binds, as in PALM."""
    arrays: int = 1
    lanes: int = 0
    """Vector operations in a cycle; 0: they are not counted, as in PALM."""
    dataflows: tuple[Dataflow, ...] = ("weight", "input")
    """Those that an array knows; of a product the fastest is taken."""
    fetched_once: bool = False
    """Whether operands that SRAM cannot hold pass once for a product, and not for each part that fits."""

    def __post_init__(self) -> None:
        positive = "rows", "columns", "clock_hz", "sram_bytes", "sram_bandwidth_bytes_per_s", "arrays"
        for name in positive:
            if not getattr(self, name) > 0:
                raise PhazeError(f"tile: {name} must be > 0, got {getattr(self, name)}")
        if self.lanes < 0:
            raise PhazeError(f"tile: lanes must be ≥ 0, got {self.lanes}")
        if not self.dataflows or set(self.dataflows) - set(get_args(Dataflow)):
            raise PhazeError(
                f"tile: dataflows must be some of {', '.join(DATAFLOWS)}, got {', '.join(self.dataflows)}"
            )

    @property
    def part_bytes(self) -> float:
        """Return how much of an operand can stay while the other passes."""
        return inf if self.fetched_once else self.sram_bytes

    @property
    def peak_flops_per_s(self) -> float:
        """Two FLOPs for every processing element and cycle."""
        return peak_flops_per_s(self.arrays, self.rows, self.columns, self.clock_hz)


@dataclass(frozen=True)
class Chip:
    """Equal tiles on a mesh or torus, and the memories at tiles that have a port."""

    name: str
    grid: Grid
    tile: Tile
    wires: Wires
    """Links between neighbours, each with its bandwidth in every direction."""
    memory: Memory | None = None
    """DRAM that all tiles reach through the network; None: there is none."""
    dram_bytes: float = inf
    """Of all ports together."""
    _ports: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.dram_bytes > 0:
            raise PhazeError(f"chip {self.name}: dram_bytes must be > 0, got {self.dram_bytes}")

    @cached_property
    def topology(self) -> Topology:
        """Tiles, then one node for every port, and the links."""
        return mesh(self.grid, self.wires, self.memory)

    def port(self, tile: int) -> int:
        """Return the node of the memory that a tile uses: the nearest one, the first of several.

        Raises `PhazeError` where there is none.
        """
        if self.memory is None:
            raise PhazeError(f"chip {self.name}: has no memory")
        if tile not in self._ports:
            self._ports[tile] = nearest_memory(self.grid, self.memory, tile)
        return self._ports[tile]

    @property
    def peak_flops_per_s(self) -> float:
        """Of all tiles."""
        return self.grid.tiles * self.tile.peak_flops_per_s
