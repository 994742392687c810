"""Chips of tiles: PALM's wafer without its file, and chips with less bandwidth."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from phaze.cost.network.mesh import PortMemory, TileGrid, Wires, mesh
from phaze.cost.network.topology import Topology
from phaze.tiles.chip import Chip


def wafer(rows: int = 5, columns: int = 4, latency_s: float = 1e-9) -> tuple[TileGrid, Topology, PortMemory]:
    """Return PALM's wafer (Table VI): 4 × 4 cores in each of 5 × 4 tiles, memories at west and east edges."""
    grid = TileGrid(rows * 4, columns * 4)
    wires = Wires(1024e9, latency_s, (4, 4), 256e9)
    memory = PortMemory(grid.edge(), 256e9)
    return grid, mesh(grid, wires, memory), memory


def slower(chip: Chip, part: Literal["sram", "links", "dram"], factor: float = 0.5) -> Chip:
    """Return a chip with one bandwidth multiplied by a factor."""
    if part == "sram":
        given = chip.tile.sram_bandwidth_bytes_per_s
        changed = {"sram_bandwidth_bytes_per_s": given and given * factor}
        return replace(chip, tile=chip.tile.model_copy(update=changed))
    if part == "links":
        between = chip.wires.between_bandwidth_bytes_per_s
        wires = replace(
            chip.wires,
            bandwidth_bytes_per_s=chip.wires.bandwidth_bytes_per_s * factor,
            between_bandwidth_bytes_per_s=between and between * factor,
        )
        return replace(chip, wires=wires)
    assert chip.memory is not None
    memory = replace(chip.memory, bandwidth_bytes_per_s=chip.memory.bandwidth_bytes_per_s * factor)
    return replace(chip, memory=memory)
