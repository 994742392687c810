"""Memory ports that the tiles of a large block use, by cell of the chip, from a sample of the tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Ints
from phaze.tiles.blocks import TileBlock
from phaze.tiles.chip import Chip

SAMPLED = 64
"""Rows and columns of a block whose nearest ports are computed; a smaller block is computed as a whole."""


class PortUse(NamedTuple):
    """Ports in one cell that tiles of a block use."""

    cell: int
    users: float
    """Tiles that use the ports."""
    ports: float
    """Number of ports that would serve the tiles as fast, had each as many of them as the busiest port."""
    crosses: bool
    """True if a port and the farthest of its tiles are in different chips."""
    far: int
    """Cell with the farthest tiles of most ports."""


def port_uses(chip: Chip, block: TileBlock, cell_of: Callable[[Ints, Ints], Ints]) -> Iterator[PortUse]:
    """Yield the uses of the ports nearest to the tiles of a block; ties go to the first port.

    `cell_of` returns the cells of rows and columns. Neighbouring ports between two sampled tiles count as one
    with the bandwidth of all of them.
    """
    if chip.memory is None:
        return
    counts = [min(side, SAMPLED) for side in block.sides]
    steps = [side / count for side, count in zip(block.sides, counts, strict=True)]
    sampled = [
        first + ((np.arange(count) + 0.5) * step).astype(np.int64)
        for first, count, step in zip((block.row, block.column), counts, steps, strict=True)
    ]
    ports = np.divmod(np.array(chip.memory.ports, np.int64), chip.grid.columns)
    down, across = (_hops(chip, axis, sampled[axis], ports[axis]) for axis in (0, 1))
    hops = down[:, None] + across[None]
    nearest = np.argmin(hops, axis=-1).ravel()
    rows, columns = np.repeat(sampled[0], counts[1]), np.tile(sampled[1], counts[0])
    tiles = len(block) / len(nearest)

    # Ports that are closer together than the sampled tiles form a run, which is used evenly.
    runs = np.stack([(ports[axis] / steps[axis]).astype(np.int64) for axis in (0, 1)])
    run = np.unique(runs, axis=1, return_inverse=True)[1].ravel()
    users = np.bincount(nearest, minlength=len(run)) * tiles
    load = (np.bincount(run, users) / np.bincount(run))[run]

    used = np.flatnonzero(users)
    order = np.lexsort((-np.min(hops, axis=-1).ravel(), nearest))
    far = order[np.searchsorted(nearest[order], used)]
    far_cells, cells = cell_of(rows[far], columns[far]), cell_of(*ports)[used]
    crosses = _chip_of(chip, rows[far], columns[far]) != _chip_of(chip, *ports)[used]
    for cell in np.unique(cells).tolist():
        here, its = cells == cell, used[cells == cell]
        most = int(np.argmax(np.bincount(far_cells[here], users[its])))
        count = float(users[its].sum())
        yield PortUse(cell, count, count / float(load[its].max()), bool(crosses[here].any()), most)


def _hops(chip: Chip, axis: int, places: Ints, ports: Ints) -> Ints:
    """Hops along an axis between places and ports, (places, ports)."""
    away = np.abs(places[:, None] - ports[None])
    length = (chip.grid.rows, chip.grid.columns)[axis]
    return np.asarray(np.minimum(away, length - away) if chip.grid.wrap else away)


def _chip_of(chip: Chip, rows: Ints, columns: Ints) -> Ints:
    """Number of the chip of every tile; 0 on a chip without borders inside."""
    if chip.wires.block is None:
        return np.zeros(len(rows), np.int64)
    high, wide = chip.wires.block
    return rows // high * chip.grid.columns + columns // wide
