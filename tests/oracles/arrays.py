"""Cycles of a mapping by the definitions of `cost.mapper.arrays`, tile by tile, without bounds."""

from __future__ import annotations

from phaze.base.compiled import njit
from phaze.cost.mapper.arrays import (
    INNER_K,
    INNER_M,
    INNER_N,
    OUTPUT,
    WEIGHT,
    ceil_div,
    pass_cycles,
    preloaded_cycles,
    start_cycles,
)


@njit
def folds(size: int, tile: int, width: int) -> int:
    """Folds of an array of this width along a dimension, over all tiles."""
    return (size // tile) * ceil_div(tile, width) + ceil_div(size % tile, width)


@njit
def array_cycles(
    dataflow: int,
    inner: int,
    m: tuple[int, int],
    k: tuple[int, int],
    n: tuple[int, int],
    rows: int,
    columns: int,
    repeats: int = 1,
    preload: bool = False,
) -> float:
    """Cycles of all tiles of several products, with one loop innermost.

    `m`, `k`, `n` are (size, tile); with `preload` the stationary operand is loaded ahead.
    """
    if dataflow == WEIGHT:
        stream, down, across, continues = m, k, n, inner == INNER_M
    elif dataflow == OUTPUT:
        stream, down, across, continues = k, m, n, inner == INNER_K
    else:
        stream, down, across, continues = n, k, m, inner == INNER_N
    continues = continues and down[1] <= rows and across[1] <= columns
    starts = 1 if continues else ceil_div(stream[0], stream[1])
    folds_in_all = repeats * folds(down[0], down[1], rows) * folds(across[0], across[1], columns)
    start = start_cycles(dataflow, rows, columns)
    if preload and dataflow != OUTPUT:
        return preloaded_cycles(start, rows, starts, stream[0], folds_in_all)
    return pass_cycles(start, starts, stream[0], folds_in_all)


@njit
def held_words(tm: int, tk: int, tn: int) -> int:
    """Buffer words of a tile: both operands twice, the result once."""
    return 2 * (tm * tk + tk * tn) + tm * tn


@njit
def run_cycles(cycles: float, words: float, exposed: float, words_per_cycle: float) -> float:
    """Cycles of a mapping: those of the array or of its word transfers, plus exposed cycles."""
    return max(cycles, words / words_per_cycle) + exposed / words_per_cycle
