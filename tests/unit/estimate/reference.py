"""The mapper without its factors: every candidate of one product on one design, by definition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil, prod

from phaze.estimate.parts import FREE
from phaze.estimate.tiles import STEPS
from phaze.theory.arrays import array_cycles, buffer_words, exposed_words, folds, held_words, run_cycles
from tests.unit.estimate.exhaustive import Problem

STAYS = {0: (1, 2, 0), 1: (0, 2, 1), 2: (1, 0, 2)}
"""By dataflow: the two dimensions of the tile that stays, rows first, and the one that streams."""


def fastest_candidate(p: Problem) -> float:
    """Return the cycles of the fastest candidate on a power of two of cores."""
    cores = range(1, p.cores + 1)
    divisions = [parts for parts in product(cores, repeat=3) if prod(parts) <= p.cores]
    return min(cycles for parts in divisions if tried(p, *parts) for cycles in candidates(p, *parts))


def tried(p: Problem, b: int, m: int, n: int) -> bool:
    """Return whether so many parts are a candidate: any up to a few, powers of two beyond."""
    parts = b * m * n
    if parts & (parts - 1):
        return parts <= FREE
    # Where twice as many parts along the batch divide it too, the batch goes first.
    return m * n == 1 or p.batch % (2 * b) > 0


def candidates(p: Problem, parts_b: int, parts_m: int, parts_n: int) -> Iterator[float]:
    """Yield the cycles of every tiling, loop order and dataflow of so many parts."""
    part = (ceil(p.m / parts_m), p.k, ceil(p.n / parts_n))
    words = (
        float(p.batch * p.m * p.k * parts_n),
        float(p.batch * p.k * p.n * parts_m),
        float(p.batch * p.m * p.n),
    )
    repeats = ceil(p.batch / parts_b)
    for dataflow, (down, across, stream) in STAYS.items():
        exposed = exposed_words(float(part[down]), float(part[across]), p.rows, p.columns)
        for x, y in product(tile_sizes(part[down], p.rows), tile_sizes(part[across], p.columns)):
            tile = {down: x, across: y}
            z = largest(tile, part[stream], p.l2_words)
            if z:
                tiled = [tile.get(d, z) for d in range(3)]
                for inner in range(3):
                    counts = [float(ceil(size / t)) for size, t in zip(part, tiled, strict=True)]
                    moved = buffer_words(inner, *words, *counts) + p.extra
                    pairs = list(zip(part, tiled, strict=True))
                    cycles = array_cycles(dataflow, inner, *pairs, p.rows, p.columns, repeats)
                    yield run_cycles(cycles, moved, exposed, p.words_per_cycle)


def tile_sizes(size: int, unit: int) -> list[int]:
    """Return the candidate tiles of a dimension."""
    steps = [int(step) for step in STEPS]
    arrays = [smallest(size, s * unit, unit) for s in steps if s * unit < size]
    return sorted({1, *arrays, *(ceil(size / s) for s in steps)})


def smallest(size: int, tile: int, unit: int) -> int:
    """Return the smallest tile of which as many fill the array as often."""
    wanted = (ceil(size / tile), ceil(size / unit))
    found = tile
    while found > 1 and (ceil(size / (found - 1)), folds(size, found - 1, unit)) == wanted:
        found -= 1
    return found


def largest(tile: dict[int, int], size: int, l2_words: int) -> int:
    """Return the largest tile of the dimension that streams, 0 if none fits."""
    fits = 0
    for z in range(1, size + 1):
        if held_words(*[tile.get(d, z) for d in range(3)]) > l2_words:
            break
        fits = z
    return fits
