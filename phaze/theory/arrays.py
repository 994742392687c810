"""Cycles of a systolic array and words that a buffer moves, for one matrix multiplication (m × k) · (k × n).

Cycles of a tile on an array of R rows and C columns, by what stays in the array (these closed forms are what the
cycle-accurate simulator SCALE-Sim 3.0 counts):

    weight stationary   (2R + C + m − 2) ⌈k/R⌉ ⌈n/C⌉ − 1      k × n in the array, m streams
    output stationary   (R + C + k − 2) ⌈m/R⌉ ⌈n/C⌉ − 1       m × n in the array, k streams
    input stationary    (2R + C + n − 2) ⌈k/R⌉ ⌈m/C⌉ − 1      k × m in the array, n streams

Words that cross into a buffer which holds one tile (tm, tk, tn) of both operands and the result, twice each so that the
next tile loads while one is worked on. Three loops walk over the tiles. An operand is fetched again in every
iteration of a loop that it does not depend on, if a loop inside that one changes its tile; a partial sum is then
written and read back. Of the six loop orders only the innermost loop matters for the best:

    k innermost   A once per column of tiles, B once per row of tiles, the result once
    m innermost   A once per column of tiles, B once, partial sums 2⌈k/tk⌉ − 1 times
    n innermost   A once, B once per row of tiles, partial sums 2⌈k/tk⌉ − 1 times

All functions are compiled; arguments and results are integers that fit into 64 bits, words are floats.
"""

from __future__ import annotations

import numba

WEIGHT, OUTPUT, INPUT = 0, 1, 2
"""Dataflows, by what stays in the array."""


@numba.njit(cache=True, inline="always")
def ceil_div(a: int, b: int) -> int:
    """Return ⌈a/b⌉."""
    return -(-a // b)


@numba.njit(cache=True)
def folds(size: int, tile: int, width: int) -> int:
    """Return how often an array of that width is filled, over all tiles of a dimension."""
    rest = size % tile
    return (size // tile) * ceil_div(tile, width) + ceil_div(rest, width)


@numba.njit(cache=True)
def array_cycles(
    dataflow: int, m: int, k: int, n: int, tm: int, tk: int, tn: int, rows: int, columns: int
) -> int:
    """Return the cycles of all tiles of a matrix multiplication, one after the other."""
    if dataflow == WEIGHT:
        fill, stream, ts, a, ta, b, tb = 2 * rows + columns - 2, m, tm, k, tk, n, tn
    elif dataflow == OUTPUT:
        fill, stream, ts, a, ta, b, tb = rows + columns - 2, k, tk, m, tm, n, tn
    else:
        fill, stream, ts, a, ta, b, tb = 2 * rows + columns - 2, n, tn, k, tk, m, tm
    streams = ceil_div(stream, ts)
    passes = folds(a, ta, rows) * folds(b, tb, columns)
    return (fill * streams + stream) * passes - streams * ceil_div(a, ta) * ceil_div(b, tb)


@numba.njit(cache=True)
def best_cycles(
    m: int, k: int, n: int, tm: int, tk: int, tn: int, rows: int, columns: int
) -> tuple[int, int]:
    """Return the fewest cycles over the dataflows, and the dataflow."""
    best, chosen = array_cycles(WEIGHT, m, k, n, tm, tk, tn, rows, columns), WEIGHT
    for dataflow in (OUTPUT, INPUT):
        cycles = array_cycles(dataflow, m, k, n, tm, tk, tn, rows, columns)
        if cycles < best:
            best, chosen = cycles, dataflow
    return best, chosen


@numba.njit(cache=True)
def buffer_words(order: int, m: int, k: int, n: int, tm: int, tk: int, tn: int) -> float:
    """Return the words that cross a buffer's edge; `order` is the innermost loop, 0 m, 1 k, 2 n."""
    am, ak, an = ceil_div(m, tm), ceil_div(k, tk), ceil_div(n, tn)
    left, right, result = float(m) * k, float(k) * n, float(m) * n
    if order == 1:
        return left * an + right * am + result
    if order == 0:
        return left * an + right + result * (2 * ak - 1)
    return left + right * am + result * (2 * ak - 1)


@numba.njit(cache=True)
def best_words(m: int, k: int, n: int, tm: int, tk: int, tn: int) -> float:
    """Return the fewest words over the loop orders."""
    return min(
        buffer_words(0, m, k, n, tm, tk, tn),
        buffer_words(1, m, k, n, tm, tk, tn),
        buffer_words(2, m, k, n, tm, tk, tn),
    )


@numba.njit(cache=True, inline="always")
def tile_words(tm: int, tk: int, tn: int) -> int:
    """Return the words of one tile of both operands and the result."""
    return tm * tk + tk * tn + tm * tn


@numba.njit(cache=True)
def largest_third(capacity_words: int, a: int, b: int) -> int:
    """Return the largest x with 2 (ab + ax + bx) ≤ capacity, 0 if there is none."""
    return max(0, (capacity_words // 2 - a * b) // (a + b))


@numba.njit(cache=True)
def array_words(dataflow: int, m: int, k: int, n: int, rows: int, columns: int) -> float:
    """Return the words between an L2 buffer and the array, partial sums included."""
    if dataflow == WEIGHT:
        stream, a, b = m, k, n
    elif dataflow == OUTPUT:
        stream, a, b = k, m, n
    else:
        stream, a, b = n, k, m
    across, down = ceil_div(b, columns), ceil_div(a, rows)
    if dataflow == OUTPUT:
        return float(stream) * (a * across + b * down) + float(a) * b
    return float(a) * b + float(stream) * a * across + float(stream) * b * (2 * down - 1)
