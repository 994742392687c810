"""The mapper without pruning: every candidate of one product on one design, by definition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil, prod
from typing import NamedTuple

import numba
import numpy as np

from phaze.base.arrays import Ints
from phaze.cost.mapper.arrays import array_words, buffer_words, ceil_div, exposed_words
from phaze.cost.mapper.splits import FREE
from phaze.cost.mapper.tilings import STEPS
from tests.oracles.arrays import array_cycles, folds, held_words, run_cycles
from tests.unit.cost.exhaustive import Problem

STAYS = {0: (1, 2, 0), 1: (0, 2, 1), 2: (1, 0, 2)}
"""Stationary dimensions (rows first) and the streaming dimension, by dataflow."""


class Part(NamedTuple):
    """Part of the busiest core: a number of products (m, k, n), with the words of all cores."""

    size: tuple[int, int, int]
    repeats: int
    words: tuple[float, float, float]


class Found(NamedTuple):
    """Best of some mappings, and their number."""

    cycles: float
    glb_words: float
    l2_words: float
    array_cycles: float
    mappings: int


def best_candidate(p: Problem) -> Found:
    """Return the fastest candidate on a power of two of cores; of equally fast ones that with the fewest
    words to the global buffer, then to the array, then with the fewest cycles there.
    """
    found = [best_tiling(p, part, flow) for part in parts_of(p) for flow in STAYS]
    best = min(found)
    return best._replace(mappings=sum(one.mappings for one in found))


def parts_of(p: Problem) -> Iterator[Part]:
    """Yield the parts of every division that is tried."""
    cores = range(1, p.cores + 1)
    for b, m, n in product(cores, repeat=3):
        if b * m * n <= p.cores and tried(p, b, m, n):
            left, right = float(p.batch * p.m * p.k * n), float(p.batch * p.k * p.n * m)
            size = (ceil(p.m / m), p.k, ceil(p.n / n))
            yield Part(size, ceil(p.batch / b), (left, right, float(p.batch * p.m * p.n)))


def tried(p: Problem, b: int, m: int, n: int) -> bool:
    """Return whether this number of parts is a candidate: any small number, powers of two above."""
    parts = prod((b, m, n))
    if parts & (parts - 1):
        return parts <= FREE
    # Where twice as many parts along the batch divide it too, the batch goes first.
    return m * n == 1 or p.batch % (2 * b) > 0


def best_tiling(p: Problem, part: Part, flow: int) -> Found:
    """Return the best tiling and loop order of a dataflow."""
    down, across, stream = STAYS[flow]
    downs, acrosses = tile_sizes(part.size[down], p.rows), tile_sizes(part.size[across], p.columns)
    grid = np.array(list(product(downs, acrosses)), dtype=np.int64)
    tiles = np.empty((len(grid), 3), dtype=np.int64)
    tiles[:, down], tiles[:, across] = grid[:, 0], grid[:, 1]
    tiles[:, stream] = largest(tiles, stream, part.size[stream], p.l2_words)
    return Found(*_best_of(p, part, flow, (down, across, stream), tiles[tiles[:, stream] > 0]))


@numba.njit
def _best_of(
    p: Problem, part: Part, flow: int, order: tuple[int, int, int], tiles: Ints
) -> tuple[float, float, float, float, int]:
    """Return the best of some tiles (T, 3), compared as a tuple."""
    m, k, n = part.size
    down, across, stream = order
    exposed = exposed_words(float((m, k, n)[down]), float((m, k, n)[across]), p.rows, p.columns)
    best = (np.inf, np.inf, np.inf, np.inf)
    for t in range(len(tiles)):
        tm, tk, tn = tiles[t]
        numbers = (float(ceil_div(m, tm)), float(ceil_div(k, tk)), float(ceil_div(n, tn)))
        down_folds = float(folds(part.size[down], tiles[t, down], p.rows))
        across_folds = float(folds(part.size[across], tiles[t, across], p.columns))
        for inner in range(3):
            words = buffer_words(inner, *part.words, *numbers)
            sizes = ((m, tm), (k, tk), (n, tn))
            cycles = array_cycles(flow, inner, *sizes, p.rows, p.columns, part.repeats, p.preload)
            continues = inner == stream and tiles[t, down] <= p.rows and tiles[t, across] <= p.columns
            starts = 1.0 if continues else numbers[stream]
            moved = array_words(flow, *part.words, starts, down_folds, across_folds)
            time = run_cycles(cycles, words + p.extra, exposed, p.words_per_cycle)
            candidate = (time, words, moved, cycles)
            if candidate < best:
                best = candidate
    return (*best, 3 * len(tiles))


def tile_sizes(size: int, unit: int) -> list[int]:
    """Return the candidate tiles of a dimension."""
    steps = [int(step) for step in STEPS]
    arrays = [smallest(size, s * unit, unit) for s in steps if s * unit < size]
    return sorted({1, *arrays, *(ceil(size / s) for s in steps)})


def smallest(size: int, tile: int, unit: int) -> int:
    """Return the smallest tile with the same number of tiles and folds."""
    wanted = (ceil(size / tile), ceil(size / unit))
    found = tile
    while found > 1 and (ceil(size / (found - 1)), folds(size, found - 1, unit)) == wanted:
        found -= 1
    return found


def largest(tiles: Ints, stream: int, size: int, l2_words: int) -> Ints:
    """Return the largest tile of the streaming dimension; buffer words are linear in it."""
    none, one = tiles.copy(), tiles.copy()
    none[:, stream], one[:, stream] = 0, 1
    base, each = (held_words.py_func(*(tile.T)) for tile in (none, one))
    return np.clip((l2_words - base) // (each - base), 0, size)
