"""PALM's figures on the network of tiles alone, as rows of table tiled_networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import get_args

import pandas as pd

from phaze.spec.tiled_study import Exchange, Figure
from phaze.tables import TiledNetworks
from phaze.tiles.network_cases import Against, Way, congestion, in_turns, ring_all_reduce, strategies

Row = dict[str, object]
Exchanges = Mapping[str, Exchange]
"""Readings of Figure 12, by name."""

RING_TILES = (4, 16)
RING_BYTES = (1e6, 16e6, 64e6, 256e6)
TASK_BYTES = (0.5e6, 8e6, 32e6)
BROKEN_AT = (None, 0, 1, 2, 3)
"""Columns below which a tile more breaks the rings of two groups; none for groups that form rings."""


def simulate_networks(figures: tuple[Figure, ...], exchanges: Exchanges) -> pd.DataFrame:
    """Return the figures asked for as table tiled_networks."""
    rows = [row for figure in figures for row in _FIGURES[figure](exchanges)]
    return TiledNetworks.check(pd.DataFrame(rows)) if rows else TiledNetworks.empty()


def rings(_: Exchanges) -> Iterator[Row]:
    """Yield all-reduces around rings of tiles beside their formula (Figure 6)."""
    for tiles, size in product(RING_TILES, RING_BYTES):
        found = ring_all_reduce(tiles, size)
        yield {
            "figure": 6,
            "reading": "formula",
            "setting": f"{tiles} tiles, {size / 1e6:g} MB",
            "group": f"{tiles} tiles",
            "seconds": found.simulated_s,
            "other_s": found.formula_s(),
            "value": found.short(),
        }


def overlaps(_: Exchanges) -> Iterator[Row]:
    """Yield how far formulas are short for tasks that start together (Figure 7): all mixes, and in turns."""
    for size in TASK_BYTES:
        yield from _turns(size)
        for row in congestion(size):
            for which, value in (("least", row.least), ("mean", row.mean), ("most", row.most)):
                yield {
                    "figure": 7,
                    "reading": row.against,
                    "setting": f"{row.tasks} tasks of {size / 1e6:g} MB, {which} of all mixes",
                    "group": which,
                    "seconds": 0.0,
                    "other_s": 0.0,
                    "value": value,
                }


def _turns(size_bytes: float) -> Iterator[Row]:
    """Yield one to five tasks of a size, kinds in turns, against every formula."""
    for tasks in range(1, 6):
        found = in_turns(tasks, size_bytes)
        for against in get_args(Against):
            yield {
                "figure": 7,
                "reading": against,
                "setting": f"{tasks} tasks of {size_bytes / 1e6:g} MB, kinds in turns",
                "group": "turns",
                "seconds": found.simulated_s,
                "other_s": found.formula_s(against),
                "value": found.short(against),
            }


def exchanges_of(exchanges: Exchanges) -> Iterator[Row]:
    """Yield both strategies between groups as every reading compares them (Figure 12)."""
    for name, exchange in (exchanges or {"best": Exchange()}).items():
        for extra, way in product(BROKEN_AT, _ways(exchange)):
            found = strategies(way, extra, exchange.most_adapters)
            first_s, second_s = found.compared(exchange.compare)
            yield {
                "figure": 12,
                "reading": name,
                "setting": f"{_place(extra)}, {_words(way)}",
                "group": "ring" if extra is None else "broken ring",
                "seconds": first_s,
                "other_s": second_s,
                "value": found.gain(exchange.compare),
            }


def _ways(exchange: Exchange) -> Iterator[Way]:
    for switching, half, pieces in product(exchange.switching, exchange.half_duplex, exchange.pieces):
        yield Way(switching, half, exchange.sends, pieces, exchange.ties)


def _place(extra: int | None) -> str:
    return "ring" if extra is None else f"broken ring, tile {extra}"


def _words(way: Way) -> str:
    wires = "half duplex" if way.half_duplex else "full duplex"
    sends = "direct sends" if way.sends == "direct" else f"{way.pieces} pieces"
    return f"{way.switching}, {wires}, {sends}"


_FIGURES: dict[Figure, Callable[[Exchanges], Iterator[Row]]] = {"6": rings, "7": overlaps, "12": exchanges_of}
