"""Map matrix multiplications onto tensor cores: the fastest of all dataflows, tilings, loop orders and
distributions.

A multiplication of `batch` independent products (m × k) · (k × n) is divided into equal parts along batch,
rows and columns: up to 16 of any numbers, more by powers of two. Cores take the parts; a core works on its
part tile by tile, with the tile in its L2 buffer. All cores share the global buffer, from which each fetches
its own copy of what it needs. The time of a mapping is

    max(cycles of the array, words of all cores / words per cycle) + one filling / words per cycle,

with cycles and words as `theory.arrays` defines them. Cores are fed one after the other (paper, Section 4),
so that only one of them is waited for. What the search tries, for each of the three dataflows:

    tiles in the array's two dimensions   those of `estimate.tiles`
    the tile that streams                 the largest that fits the L2 buffer: a smaller one is never better
    loop orders                           all

Nothing that is tried depends on the buffer's size, its bandwidth or the number of cores, except that less
of it fits; so more of any of them is never slower. A number of cores that is no power of two may also divide
one dimension by 3, 5 or 7 times a power of two, or take more parts than there are cores, in rounds; it is
never credited with more than the next power of two.

The search knows nothing of HBM and the global buffer's size (see `estimate.hbm`), so that designs share it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phaze.estimate.flows import Flow, buffered_words, continuing_words, largest_stream, least_words
from phaze.estimate.parts import BETWEEN, FREE, ROUNDS, is_power, level_of, parts_of
from phaze.estimate.tiles import FOLDS, MOST, NUMBER, SIZE, K, M, N, list_tiles
from phaze.theory.arrays import (
    OUTPUT,
    WEIGHT,
    array_words,
    ceil_div,
    exposed_words,
    pass_cycles,
    run_cycles,
    start_cycles,
)
from phaze.theory.compiled import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TIME, CYCLES, WORDS, L2_WORDS = range(4)
"""Fields of the best mapping so far, in the order of `Mapped`."""


class Cores(NamedTuple):
    """Tensor cores, and the global buffer behind them; arrays (C,)."""

    rows: Ints
    columns: Ints
    l2_words: Ints
    words_per_cycle: Floats
    number: Ints
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


class Tables(NamedTuple):
    """Candidate tiles of a shape, see `estimate.tiles.list_tiles`."""

    parts: Ints
    """Numbers of parts into which a dimension may be divided."""
    place: Ints
    """Where a number is among `parts`."""
    tiles: Floats
    length: Ints


class Job(NamedTuple):
    """A shape (batch, m, k, n), with its tables."""

    shape: Ints
    extra_words: float
    tables: Tables


def map_shapes(shapes: Ints, extra_words: Floats, cores: Cores) -> Mapped:
    """Return the fastest mappings of shapes (S, 4: batch, m, k, n) on cores.

    `extra_words` (S,) cross the global buffer's edge beside the operands and share its bandwidth.
    """
    keys = np.column_stack(cores[:4]).astype(float)
    distinct, group_of = np.unique(keys, axis=0, return_inverse=True)
    order = np.lexsort((cores.number, group_of.ravel()))
    bounds = np.searchsorted(group_of.ravel()[order], np.arange(len(distinct) + 1))
    units, unit_of = np.unique(distinct[:, :2].astype(np.int64), return_inverse=True)
    found = np.empty((len(Mapped._fields), len(shapes), len(order)))
    groups = np.column_stack([distinct, unit_of.reshape(-1, 2)])
    counts = cores.number[order]
    # Contiguous, as otherwise it would be compiled once more.
    extra_words = np.ascontiguousarray(extra_words)
    _map_all(shapes, extra_words, groups, units, _tables(units, counts), bounds, order, counts, found)
    return Mapped(*found)


def _tables(units: Ints, counts: Ints) -> Tables:
    """Return tables to be filled for one shape after the other."""
    parts = parts_of(counts)
    place = np.searchsorted(parts, np.arange(parts[-1] + 1))
    tiles = np.empty((3, len(units), len(parts), MOST, 3))
    return Tables(parts, place, tiles, np.zeros(tiles.shape[:3], dtype=np.int64))


@njit
def _map_all(
    shapes: Ints, extra_words: Floats, groups: Floats, units: Ints, tables: Tables, bounds: Ints,
    order: Ints, counts: Ints, found: Floats,
) -> None:  # fmt: skip
    """Fill `found` (4, S, C), for one group of equal cores after the other."""
    for s in range(len(shapes)):
        list_tiles(shapes[s], units, tables.parts, tables.tiles, tables.length)
        job = Job(shapes[s], extra_words[s], tables)
        for g in range(len(groups)):
            x = groups[g]
            group = Group(int(x[0]), int(x[1]), int(x[4]), int(x[5]), x[2], x[3])
            places = order[bounds[g] : bounds[g + 1]]
            _map_group(job, group, counts[bounds[g] : bounds[g + 1]], places, found[:, s])


@njit
def _map_group(job: Job, group: Group, counts: Ints, places: Ints, found: Floats) -> None:
    """Fill `found` (4, C) at `places` for ascending `counts` of equal cores.

    More cores start from the best of fewer.
    """
    best, ours, limit = np.empty(4), np.empty(4), np.empty(4)
    best[TIME] = np.inf
    parts = 1
    for i in range(len(counts)):
        level = level_of(counts[i])
        while parts <= counts[i]:
            if is_power(parts):
                _improve(best, job, group, level_of(parts), 1)
            else:
                _divide(best, job, group, parts)
            parts = parts + 1 if parts < FREE else 2 * parts
        _copy(best, ours)
        if not is_power(counts[i]):
            _copy(best, limit)
            _best_between(ours, limit, job, group, level, counts[i])
        for field in range(4):
            found[field, places[i]] = ours[field]


@njit
def _divide(best: Floats, job: Job, group: Group, parts: int) -> None:
    """Replace `best` by the best mapping of so many parts, each on a core of its own, if that is faster."""
    for b in range(1, parts + 1):
        for m in range(1, parts // b + 1):
            if parts % (b * m) == 0:
                _try_split(best, job, group, b, m, parts // (b * m), 1)


@njit
def _copy(source: Floats, target: Floats) -> None:
    """Copy the fields of a mapping."""
    for field in range(len(source)):
        target[field] = source[field]


@njit
def _best_between(ours: Floats, limit: Floats, job: Job, group: Group, level: int, count: int) -> None:
    """Improve `ours`, the best on fewer cores, for a number between 2^level and the next power of two."""
    _improve(limit, job, group, level + 1, 1)
    for factor in BETWEEN:
        for i in range(level + 1):
            for j in range(level + 1):
                for k in range(level + 1):
                    if factor << (i + j + k) <= count:
                        _try_split(ours, job, group, factor << i, 1 << j, 1 << k, 1)
                        _try_split(ours, job, group, 1 << i, factor << j, 1 << k, 1)
                        _try_split(ours, job, group, 1 << i, 1 << j, factor << k, 1)
    for more in range(level + 1, level + 1 + ROUNDS):
        _improve(ours, job, group, more, ceil_div(1 << more, count))
    ours[TIME] = max(ours[TIME], limit[TIME])


@njit
def _improve(best: Floats, job: Job, group: Group, level: int, rounds: int) -> None:
    """Replace `best` by the best mapping of 2^level parts, `rounds` to a core, if that is faster."""
    for level_b in range(level + 1):
        if level_b < level and job.shape[0] % (2 << level_b) == 0:
            # Twice as many parts along the batch divide it too, need no copy of an operand, and are larger.
            continue
        for level_m in range(level + 1 - level_b):
            level_n = level - level_b - level_m
            _try_split(best, job, group, 1 << level_b, 1 << level_m, 1 << level_n, rounds)


@njit
def _try_split(best: Floats, job: Job, group: Group, b: int, m: int, n: int, rounds: int) -> None:
    """Replace `best` by the best mapping of so many parts along batch, m and n, if that is faster."""
    batch = job.shape[0]
    if b // 2 < batch and m // 2 < job.shape[1] and n // 2 < job.shape[3]:
        # Otherwise half as many parts would be as large.
        _try_parts(
            best, job, group, job.tables.place[m], job.tables.place[n], float(rounds * ceil_div(batch, b))
        )


@njit
def _try_parts(best: Floats, job: Job, group: Group, at_m: int, at_n: int, repeats: float) -> None:
    """Replace `best` by the best mapping of parts of such a size, if that is faster."""
    batch, m, k, n = float(job.shape[0]), float(job.shape[1]), float(job.shape[2]), float(job.shape[3])
    # Cores that share rows each need the left operand's, those that share columns the right operand's.
    left, right = batch * m * k * job.tables.parts[at_n], batch * k * n * job.tables.parts[at_m]
    result, extra = batch * m * n, job.extra_words
    if (left + right + result + extra) / group.words_per_cycle >= best[TIME]:
        return
    m, n = np.ceil(m / job.tables.parts[at_m]), np.ceil(n / job.tables.parts[at_n])
    rows, columns = group.rows, group.columns
    m_rows, m_columns = _tiles(job, M, group.row_unit, at_m), _tiles(job, M, group.column_unit, at_m)
    k_rows, n_columns = _tiles(job, K, group.row_unit, 0), _tiles(job, N, group.column_unit, at_n)
    start = float(start_cycles(WEIGHT, rows, columns))
    weight = Flow(False, start, m, n, repeats, left, right, result, extra, exposed_words(k, n, rows, columns))
    _try_flow(best, group, weight, k_rows, n_columns)
    inputs = Flow(False, start, n, m, repeats, right, left, result, extra, exposed_words(k, m, rows, columns))
    _try_flow(best, group, inputs, k_rows, m_columns)
    start = float(start_cycles(OUTPUT, rows, columns))
    output = Flow(True, start, k, n, repeats, left, right, result, extra, exposed_words(m, n, rows, columns))
    _try_flow(best, group, output, m_rows, n_columns)


@njit
def _tiles(job: Job, dimension: int, unit: int, parts: int) -> Floats:
    """Return the candidate tiles of a dimension for an array of some size, arrays (T, 3), ascending."""
    return job.tables.tiles[dimension, unit, parts, : job.tables.length[dimension, unit, parts]]


@njit
def _try_flow(best: Floats, group: Group, flow: Flow, downs: Floats, acrosses: Floats) -> None:
    """Replace `best` by the best mapping with a dataflow, if that is faster.

    What a lower bound shows not to be faster is passed over.
    """
    least = flow.repeats * (flow.start + flow.stream)
    few_downs, few_acrosses = downs[-1, FOLDS], acrosses[-1, FOLDS]
    limit = _limit(best, group, flow)
    if least * few_downs * few_acrosses - 1.0 >= limit:
        return
    for i in range(len(downs)):
        down = downs[i, SIZE]
        if largest_stream(flow, down, 1.0, group.l2_words) < 1.0:
            break
        if least * downs[i, FOLDS] * few_acrosses - 1.0 >= limit:
            continue
        words = least_words(flow, down, downs[i, NUMBER], group.l2_words) + flow.extra
        if words / group.words_per_cycle < limit:
            limit = _try_row(best, group, flow, limit, down, downs[i, NUMBER], downs[i, FOLDS], acrosses)


@njit
def _try_row(
    best: Floats, group: Group, flow: Flow, limit: float, down: float, number: float, down_folds: float,
    acrosses: Floats,
) -> float:  # fmt: skip
    """Replace `best` by the best mapping with a tile (down, any) in the array, if it is faster."""
    least = flow.repeats * (flow.start + flow.stream) * down_folds
    for j in range(len(acrosses)):
        across, across_folds = acrosses[j, SIZE], acrosses[j, FOLDS]
        if least * across_folds - 1.0 < limit:
            largest = largest_stream(flow, down, across, group.l2_words)
            if largest < 1.0:
                break
            streams = np.ceil(flow.stream / min(flow.stream, largest))
            words = buffered_words(flow, number, acrosses[j, NUMBER], streams)
            limit = _keep(best, group, flow, limit, down_folds, across_folds, streams, words)
            if down <= group.rows and across <= group.columns:
                words = continuing_words(flow, number, acrosses[j, NUMBER])
                limit = _keep(best, group, flow, limit, down_folds, across_folds, 1.0, words)
    return limit


@njit
def _keep(
    best: Floats, group: Group, flow: Flow, limit: float, down: float, across: float, starts: float,
    words: float,
) -> float:  # fmt: skip
    """Replace `best` by a mapping with so many folds if it is faster; return the new `_limit`."""
    cycles = pass_cycles(flow.start, starts, flow.stream, flow.repeats * down * across)
    time = run_cycles(cycles, words + flow.extra, flow.exposed, group.words_per_cycle)
    if time >= best[TIME]:
        return limit
    best[TIME], best[CYCLES], best[WORDS] = time, cycles, words
    dataflow = OUTPUT if flow.output else WEIGHT
    best[L2_WORDS] = array_words(dataflow, flow.left, flow.right, flow.result, starts, down, across)
    return _limit(best, group, flow)


@njit
def _limit(best: Floats, group: Group, flow: Flow) -> float:
    """Return what cycles of the array, or those of the words behind it, must stay below to be faster."""
    return best[TIME] - flow.exposed / group.words_per_cycle  # type: ignore[no-any-return]
