"""Map matrix multiplications onto tensor cores: the fastest of all dataflows, tilings, loop orders and distributions.

A multiplication of `batch` independent products (m × k) · (k × n) is divided into 2^level equal parts, by powers of two along
batch, rows and columns. Cores take the parts; a core works on its part tile by tile, with the tile in its L2 buffer. All
cores share the global buffer, from which each fetches its own copy of what it needs. The time of a mapping is

    max(cycles of the array, words of all cores / words per cycle) + first or last tile / words per cycle,

with cycles and words as `theory.arrays` defines them. Cores are fed one after the other (paper, Section 4), so that only
the first tile of one of them is waited for. What the search tries, for each of the three dataflows:

    tiles in the array's two dimensions   those of `estimate.tiles`
    the tile that streams                 the largest that fits the L2 buffer: a smaller one is never better
    loop orders                           all

Nothing that is tried depends on the buffer's size, its bandwidth or the number of cores, except that less of it fits; so
more of any of them is never slower. A number of cores that is no power of two may also take more parts than there are
cores, in rounds, and is never credited with more than the next power of two.

The search knows nothing of HBM and the global buffer's size (see `estimate.hbm`), so that designs share it.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from phaze.estimate.tiles import FOLDS, MOST, NUMBER, SIZE, K, M, N, list_tiles
from phaze.theory.arrays import (
    INNER_K,
    INNER_M,
    INNER_N,
    INPUT,
    OUTPUT,
    WEIGHT,
    array_words,
    buffer_words,
    ceil_div,
    fewest_words,
    pass_cycles,
    run_cycles,
    start_cycles,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDS = 3
"""A number of cores that is no power of two takes up to 2^ROUNDS times as many parts as the power of two below it."""
TIME, CYCLES, WORDS, L2_WORDS = range(4)
"""Fields of the best mapping so far, in the order of `Mapped`."""


class Cores(NamedTuple):
    """Tensor cores, and the global buffer behind them; arrays (C,)."""

    rows: Ints
    columns: Ints
    l2_words: Ints
    words_per_cycle: Floats
    count: Ints
    """How many such cores share the global buffer."""


class Mapped(NamedTuple):
    """The fastest mappings of shapes on cores, arrays (S, C)."""

    cycles: Floats
    """From the first word out of the global buffer to the last one in."""
    array_cycles: Floats
    """Cycles that the busiest array works."""
    glb_words: Floats
    """Words between global buffer and cores, without the extra ones."""
    l2_words: Floats
    """Words between L2 buffers and arrays."""


class Group(NamedTuple):
    """Equal cores; the units are positions among the distinct sizes of arrays."""

    rows: int
    columns: int
    row_unit: int
    column_unit: int
    l2_words: float
    words_per_cycle: float


class Job(NamedTuple):
    """A shape (batch, m, k, n), with its tables of tiles."""

    shape: Ints
    extra_words: float
    table: Floats
    length: Ints


class Traffic(NamedTuple):
    """Words of the operands and the result of all products, each fetched once by every core that needs it."""

    left: float
    right: float
    result: float
    extra: float


def map_shapes(shapes: Ints, extra_words: Floats, cores: Cores) -> Mapped:
    """Return the fastest mappings of shapes (S, 4: batch, m, k, n) on cores.

    `extra_words` (S,) cross the global buffer's edge beside the operands and share its bandwidth.
    """
    keys = np.column_stack(cores[:4]).astype(float)
    distinct, group_of = np.unique(keys, axis=0, return_inverse=True)
    order = np.lexsort((cores.count, group_of.ravel()))
    bounds = np.searchsorted(group_of.ravel()[order], np.arange(len(distinct) + 1))
    units, unit_of = np.unique(distinct[:, :2].astype(np.int64), return_inverse=True)
    found = np.empty((len(Mapped._fields), len(shapes), len(order)))
    groups = np.column_stack([distinct, unit_of.reshape(-1, 2)])
    _map_all(shapes, extra_words, groups, units, bounds, order, cores.count[order], found)
    return Mapped(*found)


@numba.njit(cache=True)
def _map_all(
    shapes: Ints, extra_words: Floats, groups: Floats, units: Ints, bounds: Ints, order: Ints, counts: Ints,
    found: Floats,
) -> None:  # fmt: skip
    """Fill `found` (4, S, C), for one group of equal cores after the other."""
    levels = 1
    for count in counts:
        levels = max(levels, _level(count) + 1 + (0 if _is_power(count) else ROUNDS))
    table = np.empty((3, len(units), levels, MOST, 3))
    length = np.zeros((3, len(units), levels), dtype=np.int64)
    for s in range(len(shapes)):
        list_tiles(shapes[s], units, table, length)
        job = Job(shapes[s], extra_words[s], table, length)
        for g in range(len(groups)):
            x = groups[g]
            group = Group(int(x[0]), int(x[1]), int(x[4]), int(x[5]), x[2], x[3])
            places = order[bounds[g] : bounds[g + 1]]
            _map_group(job, group, counts[bounds[g] : bounds[g + 1]], places, found[:, s])


@numba.njit(cache=True)
def _map_group(job: Job, group: Group, counts: Ints, places: Ints, found: Floats) -> None:
    """Fill `found` (4, C) at `places` for ascending `counts` of equal cores: more cores start from the best of fewer."""
    best = np.full(4, np.inf)
    done = -1
    for i in range(len(counts)):
        level = _level(counts[i])
        while done < level:
            done += 1
            _improve(best, job, group, done, 1)
        if _is_power(counts[i]):
            found[:, places[i]] = best
        else:
            found[:, places[i]] = _in_rounds(best, job, group, level, counts[i])


@numba.njit(cache=True)
def _in_rounds(best: Floats, job: Job, group: Group, level: int, count: int) -> Floats:
    """Return the best mapping on a number of cores between 2^level and the next power of two."""
    ours, limit = best.copy(), best.copy()
    _improve(limit, job, group, level + 1, 1)
    for more in range(level + 1, level + 1 + ROUNDS):
        _improve(ours, job, group, more, ceil_div(1 << more, count))
    ours[TIME] = max(ours[TIME], limit[TIME])
    return ours


@numba.njit(cache=True)
def _improve(best: Floats, job: Job, group: Group, level: int, rounds: int) -> None:
    """Replace `best` by the best mapping of 2^level parts, `rounds` to a core, if that is faster."""
    batch, m, n = job.shape[0], job.shape[1], job.shape[3]
    for level_b in range(level + 1):
        if _is_idle(level_b, batch):
            break
        repeats = float(rounds * ceil_div(batch, 1 << level_b))
        if level_b < level and batch % (2 << level_b) == 0:
            # Twice as many parts along the batch divide it, need no second copy of an operand, and leave larger parts.
            continue
        for level_m in range(level + 1 - level_b):
            level_n = level - level_b - level_m
            if _is_idle(level_m, m):
                break
            if not _is_idle(level_n, n):
                _try_parts(best, job, group, level_m, level_n, repeats)


@numba.njit(cache=True)
def _is_idle(level: int, size: int) -> bool:
    """Return whether half as many parts would be as large: cores beyond them had nothing to do."""
    return level > 0 and (1 << (level - 1)) >= size


@numba.njit(cache=True)
def _try_parts(best: Floats, job: Job, group: Group, level_m: int, level_n: int, repeats: float) -> None:
    """Replace `best` by the best mapping of parts of such a size, if that is faster."""
    traffic = _traffic(job, level_m, level_n)
    words = traffic.left + traffic.right + traffic.result + traffic.extra
    if words / group.words_per_cycle >= best[TIME]:
        return
    m, n = ceil_div(job.shape[1], 1 << level_m), ceil_div(job.shape[3], 1 << level_n)
    r, c = group.row_unit, group.column_unit
    k_rows = job.table[K, r, 0, : job.length[K, r, 0]]
    m_rows = job.table[M, r, level_m, : job.length[M, r, level_m]]
    m_columns = job.table[M, c, level_m, : job.length[M, c, level_m]]
    n_columns = job.table[N, c, level_n, : job.length[N, c, level_n]]
    _try_tiles(best, WEIGHT, k_rows, n_columns, float(m), repeats, traffic, group)
    _try_tiles(best, INPUT, k_rows, m_columns, float(n), repeats, traffic, group)
    _try_tiles(best, OUTPUT, m_rows, n_columns, float(job.shape[2]), repeats, traffic, group)


@numba.njit(cache=True)
def _traffic(job: Job, level_m: int, level_n: int) -> Traffic:
    """Return the words of all products; cores that share rows each need the left operand's rows, and so on."""
    batch, m, k, n = job.shape[0], job.shape[1], job.shape[2], job.shape[3]
    left = float(batch) * m * k * (1 << level_n)
    right = float(batch) * k * n * (1 << level_m)
    return Traffic(left, right, float(batch) * m * n, job.extra_words)


@numba.njit(cache=True)
def _try_tiles(
    best: Floats, dataflow: int, downs: Floats, acrosses: Floats, stream: float, repeats: float,
    traffic: Traffic, group: Group,
) -> None:  # fmt: skip
    """Replace `best` by the best mapping with a dataflow and any tile (down, across) in the array, if that is faster."""
    start = float(start_cycles(dataflow, group.rows, group.columns))
    least = repeats * (start + stream)
    for down in downs:
        if least * down[FOLDS] * acrosses[-1, FOLDS] - 1.0 >= best[TIME]:
            continue
        for across in acrosses:
            fits = _largest(dataflow, down[SIZE], across[SIZE], group.l2_words)
            if fits < 1.0:
                break
            exposed = down[SIZE] * across[SIZE]
            if least * down[FOLDS] * across[FOLDS] - 1.0 + exposed / group.words_per_cycle < best[TIME]:
                streams = np.ceil(stream / min(stream, fits))
                words = _words(dataflow, False, traffic, down[NUMBER], across[NUMBER], streams)
                _keep(best, dataflow, streams, start, down, across, stream, repeats, words, traffic, group)
                if down[SIZE] <= group.rows and across[SIZE] <= group.columns:
                    words = _words(dataflow, True, traffic, down[NUMBER], across[NUMBER], streams)
                    _keep(best, dataflow, 1.0, start, down, across, stream, repeats, words, traffic, group)


@numba.njit(cache=True, inline="always")
def _largest(dataflow: int, down: float, across: float, l2_words: float) -> float:
    """Return the largest tile that can stream beside (down, across) in the L2 buffer, see `theory.arrays.held_words`."""
    if dataflow == OUTPUT:
        return np.floor((l2_words - down * across) / (2.0 * (down + across)))  # type: ignore[no-any-return]
    return np.floor((l2_words - 2.0 * down * across) / (2.0 * down + across))  # type: ignore[no-any-return]


@numba.njit(cache=True, inline="always")
def _words(
    dataflow: int, continues: bool, traffic: Traffic, down: float, across: float, streams: float
) -> float:
    """Return the words of the best loop order, or of that in which the stream continues, for so many tiles each."""
    left, right, result = traffic.left, traffic.right, traffic.result
    if dataflow == WEIGHT:
        am, ak, an, inner = streams, down, across, INNER_M
    elif dataflow == INPUT:
        am, ak, an, inner = across, down, streams, INNER_N
    else:
        am, ak, an, inner = down, streams, across, INNER_K
    if continues:
        return buffer_words(inner, left, right, result, am, ak, an)
    return fewest_words(left, right, result, am, ak, an)


@numba.njit(cache=True, inline="always")
def _keep(
    best: Floats, dataflow: int, starts: float, start: float, down: Floats, across: Floats, stream: float,
    repeats: float, words: float, traffic: Traffic, group: Group,
) -> None:  # fmt: skip
    """Replace `best` by this mapping if it is faster."""
    cycles = repeats * pass_cycles(start, starts, stream, down[FOLDS] * across[FOLDS]) - 1.0
    exposed = down[SIZE] * across[SIZE]
    time = run_cycles(cycles, words + traffic.extra, exposed, group.words_per_cycle)
    if time < best[TIME]:
        best[TIME], best[CYCLES], best[WORDS] = time, cycles, words
        best[L2_WORDS] = array_words(
            dataflow, traffic.left, traffic.right, traffic.result, starts, down[FOLDS], across[FOLDS]
        )


@numba.njit(cache=True)
def _level(count: int) -> int:
    """Return the largest level with 2^level ≤ count."""
    level = 0
    while (2 << level) <= count:
        level += 1
    return level


@numba.njit(cache=True)
def _is_power(count: int) -> bool:
    """Return whether a number is a power of two."""
    return count & (count - 1) == 0
