"""Map matrix multiplications onto tensor cores: the fastest of all dataflows, tilings and distributions.

A matrix multiplication of `batch` independent products (m × k) · (k × n) runs on c = cb·cm·cn cores, which share batch, rows
and columns; powers of two for each, and any c up to all cores, so that more cores are never slower. A core works on its part
tile by tile: the tile is in its L2 buffer, double-buffered, and comes from the global buffer. Its time is

    max(cycles of the array, words from the global buffer of all cores / words per cycle) + first and last tile,

where `theory.arrays` defines cycles and words. The global buffer in turn is filled from HBM tile by tile, with
tiles of its own, which need not hold those of the cores (a non-inclusive hierarchy). The slower of the two binds.

Neither the array's cycles nor the words depend on anything but shape, array and buffer, so each is computed for the
distinct ones only and gathered for the designs.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from phaze.theory.arrays import (
    array_words,
    best_cycles,
    best_words,
    ceil_div,
    largest_third,
    tile_words,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Mapped(NamedTuple):
    """The fastest mapping of every shape for every core count of a group of designs; arrays (shapes, counts)."""

    cycles: Floats
    """From the first word out of the global buffer to the last one in."""
    array_cycles: Floats
    """Cycles that the arrays work; where this is less than `cycles`, the global buffer binds."""
    glb_words: Floats
    """Words between global buffer and cores."""
    l2_words: Floats
    """Words between L2 buffers and arrays."""


def splits_of(counts: Ints) -> Ints:
    """Return the distributions (cb, cm, cn) over cores to try, (splits, 3): powers of two, and all of an odd count."""
    top = int(counts.max()).bit_length()
    powers = [1 << i for i in range(top)]
    limit = int(counts.max())
    triples = {(a, b, c) for a in powers for b in powers for c in powers if a * b * c <= limit}
    for count in map(int, counts):
        triples |= {(count, 1, 1), (1, count, 1), (1, 1, count)}
    return np.array(sorted(triples), dtype=np.int64)


def map_shapes(
    shapes: Ints, extra_words: Floats, array: tuple[int, int, int], words_per_cycle: float, counts: Ints
) -> Mapped:
    """Return the fastest mappings of shapes (S, 4: batch, m, k, n) on cores (rows, columns, L2 words) by core count.

    `extra_words` (S,) share the global buffer with the operands; `counts` (N,) ascend from 1.
    """
    found = _map(shapes, extra_words, *array, words_per_cycle, counts, splits_of(counts))
    return Mapped(found[0], found[1], found[2], found[3])


@numba.njit(cache=True)
def _map(shapes, extra_words, rows, columns, l2_words, words_per_cycle, counts, splits):  # type: ignore[no-untyped-def]
    """Return (4, S, N): cycles, array cycles, global-buffer words and L2 words of the best mapping."""
    found = np.full((4, len(shapes), len(counts)), np.inf)
    for s in range(len(shapes)):
        batch, m, k, n = shapes[s]
        parts = {}
        for split in splits:
            cb, cm, cn = split
            if cb > batch or cm > m or cn > n:
                continue
            pm, pn = ceil_div(m, cm), ceil_div(n, cn)
            if (pm, pn) not in parts:
                parts[pm, pn] = _tilings(pm, k, pn, rows, columns, l2_words)
            used = cb * cm * cn
            place = np.searchsorted(counts, used)
            rounds = ceil_div(batch, cb)
            for option in parts[pm, pn]:
                work = rounds * option[0]
                words = batch * cm * cn * option[1]
                cycles = (
                    max(work, (words + extra_words[s]) / words_per_cycle) + used * option[2] / words_per_cycle
                )
                if cycles < found[0, s, place]:
                    found[0, s, place] = cycles
                    found[1, s, place] = work
                    found[2, s, place] = words
                    found[3, s, place] = batch * cm * cn * option[3]
        for place in range(1, len(counts)):
            if found[0, s, place - 1] <= found[0, s, place]:
                found[:, s, place] = found[:, s, place - 1]
    return found


@numba.njit(cache=True)
def _tilings(m, k, n, rows, columns, l2_words):  # type: ignore[no-untyped-def]
    """Return the tilings of a core's part (T, 4): array cycles, words from outside, exposed words, words to the array.

    Two dimensions are multiples of the array's by powers of two, the third is the largest that fits the L2 buffer; a
    tiling that another one beats in everything is left out.
    """
    step = max(rows, columns)
    options = np.empty((0, 4))
    for third in range(3):
        a_size, b_size, c_size = (k, n, m) if third == 0 else ((m, n, k) if third == 1 else (m, k, n))
        a = min(step, a_size)
        while a > 0:
            b = min(step, b_size)
            while b > 0:
                c = _fitted(c_size, largest_third(l2_words, a, b), step)
                if c > 0:
                    tm, tk, tn = (c, a, b) if third == 0 else ((a, c, b) if third == 1 else (a, b, c))
                    options = _keep(options, _option(m, k, n, tm, tk, tn, rows, columns))
                b = _next(b, b_size)
            a = _next(a, a_size)
    if len(options) == 0:
        return np.append(options, _option(m, k, n, 1, 1, 1, rows, columns).reshape(1, 4), axis=0)
    return options


@numba.njit(cache=True)
def _next(tile, size):  # type: ignore[no-untyped-def]
    """Return the next larger tile to try, 0 after the whole."""
    return 0 if tile >= size else min(2 * tile, size)


@numba.njit(cache=True)
def _fitted(size, largest, step):  # type: ignore[no-untyped-def]
    """Return a tile of at most `largest`: the whole, or equal parts of whole arrays."""
    if largest >= size:
        return size
    if largest < step:
        return largest
    most = largest // step * step
    equal = ceil_div(ceil_div(size, ceil_div(size, most)), step) * step
    return min(most, equal)


@numba.njit(cache=True)
def _option(m, k, n, tm, tk, tn, rows, columns):  # type: ignore[no-untyped-def]
    cycles, dataflow = best_cycles(m, k, n, tm, tk, tn, rows, columns)
    words = best_words(m, k, n, tm, tk, tn)
    return np.array(
        [float(cycles), words, float(tile_words(tm, tk, tn)), array_words(dataflow, m, k, n, rows, columns)]
    )


@numba.njit(cache=True)
def _keep(options, option):  # type: ignore[no-untyped-def]
    """Return the options with one more, unless one of them is as good in cycles, words and exposed words."""
    for other in options:
        if other[0] <= option[0] and other[1] <= option[1] and other[2] <= option[2]:
            return options
    return np.append(options, option.reshape(1, 4), axis=0)


def hbm_words(shapes: Ints, glb_words: Ints) -> Floats:
    """Return the words between HBM and global buffer for shapes (S, 4) and capacities in words (G,): (S, G)."""
    found: Floats = _hbm(shapes, glb_words)
    return found


@numba.njit(cache=True)
def _hbm(shapes, glb_words):  # type: ignore[no-untyped-def]
    found = np.empty((len(shapes), len(glb_words)))
    for s in range(len(shapes)):
        batch, m, k, n = shapes[s]
        for g in range(len(glb_words)):
            found[s, g] = batch * _fewest(m, k, n, glb_words[g])
    return found


@numba.njit(cache=True)
def _fewest(m, k, n, capacity):  # type: ignore[no-untyped-def]
    """Return the fewest words over tilings: two dimensions in equal parts, the third as large as fits."""
    best = np.inf
    for third in range(3):
        a_size, b_size, c_size = (k, n, m) if third == 0 else ((m, n, k) if third == 1 else (m, k, n))
        a_parts = 1
        while a_parts <= a_size:
            a = ceil_div(a_size, a_parts)
            b_parts = 1
            while b_parts <= b_size:
                b = ceil_div(b_size, b_parts)
                c = min(c_size, largest_third(capacity, a, b))
                if c > 0:
                    tm, tk, tn = (c, a, b) if third == 0 else ((a, c, b) if third == 1 else (a, b, c))
                    best = min(best, best_words(m, k, n, tm, tk, tn))
                b_parts = _more(b_parts, b_size)
            a_parts = _more(a_parts, a_size)
    return best


@numba.njit(cache=True)
def _more(parts, size):  # type: ignore[no-untyped-def]
    """Return the next number of parts to try: all up to 16, then by an eighth; beyond `size` at the end."""
    following = parts + 1 if parts < 16 else parts + parts // 8
    return size if parts < size < following else following
