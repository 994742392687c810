"""PALM's figures on the network of tiles alone, as rows of table tiled_networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pandas as pd

from phaze.simulate.network.cases import congestion, in_turns, ring_all_reduce, strategies
from phaze.simulate.network.topology import Switching
from phaze.spec.tiled_study import Figure
from phaze.tables import TiledNetworks

Row = dict[str, object]

RING_TILES = (4, 16)
RING_BYTES = (1e6, 16e6, 64e6, 256e6)
TASK_BYTES = (0.5e6, 8e6, 32e6)
SWITCHINGS: tuple[Switching, ...] = ("pipelined", "hop-by-hop")
PIECES = (1, 4)
"""In how many pieces a reduce or a broadcast sends a tensor."""


def simulate_networks(figures: tuple[Figure, ...]) -> pd.DataFrame:
    """Return the figures asked for as table tiled_networks."""
    rows = [row for figure in figures for row in _FIGURES[figure]()]
    return TiledNetworks.check(pd.DataFrame(rows)) if rows else TiledNetworks.empty()


def rings() -> Iterator[Row]:
    """Yield all-reduces around rings of tiles beside their formula (Figure 6)."""
    for tiles, size in product(RING_TILES, RING_BYTES):
        found = ring_all_reduce(tiles, size)
        yield {
            "figure": 6,
            "setting": f"{tiles} tiles, {size / 1e6:g} MB",
            "group": f"{tiles} tiles",
            "seconds": found.simulated_s,
            "other_s": found.analytical_s,
            "value": found.short,
        }


def overlaps() -> Iterator[Row]:
    """Yield how far a formula is short for tasks that start together (Figure 7): all mixes, and in turns."""
    for size, tasks in product(TASK_BYTES, range(1, 6)):
        found = in_turns(tasks, size)
        yield {
            "figure": 7,
            "setting": f"{tasks} tasks of {size / 1e6:g} MB, kinds in turns",
            "group": "turns",
            "seconds": found.simulated_s,
            "other_s": found.analytical_s,
            "value": found.short,
        }
    for size in TASK_BYTES:
        for row in congestion(size):
            for which, value in (("least", row.least), ("mean", row.mean), ("most", row.most)):
                yield {
                    "figure": 7,
                    "setting": f"{row.tasks} tasks of {size / 1e6:g} MB, {which} of all mixes",
                    "group": which,
                    "seconds": 0.0,
                    "other_s": 0.0,
                    "value": value,
                }


def exchanges() -> Iterator[Row]:
    """Yield both strategies between groups, each with its best number of adapters (Figure 12)."""
    for extra, switching, half, pieces in product((None, 0, 1, 2, 3), SWITCHINGS, (False, True), PIECES):
        found = strategies(switching, half, pieces, extra)
        wires = "half duplex" if half else "full duplex"
        ring = "ring" if extra is None else f"broken ring, tile {extra}"
        yield {
            "figure": 12,
            "setting": f"{ring}, {switching}, {wires}, {pieces} pieces",
            "group": "ring" if extra is None else "broken ring",
            "seconds": found.first_s,
            "other_s": found.second_s,
            "value": found.gain,
        }


_FIGURES: dict[Figure, Callable[[], Iterator[Row]]] = {"6": rings, "7": overlaps, "12": exchanges}
