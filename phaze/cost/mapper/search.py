"""Best-first search for `cost.mapper.loads`: every shape on every group of identical cores.

Every split and dataflow has a lower bound on its time. The one with the smallest bound is searched first. Of
the others only those whose bound does not exceed the best time found are searched.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit, njit_inlined, njit_nested
from phaze.cost.mapper.arrays import INPUT, OUTPUT, WEIGHT, exposed_words, start_cycles
from phaze.cost.mapper.flows import Core, Dataflow, least_time
from phaze.cost.mapper.splits import LEFT, PLACE, REPEATS, RIGHT, K, M, N, SplitRanges, Splits
from phaze.cost.mapper.tilings import SIZE, Best, list_tiles, may_continue, may_start, try_flow

DOWN, ACROSS, STREAM = (K, M, K), (N, N, M), (M, K, N)
"""Stationary dimensions and the streaming dimension, by dataflow."""


class CoreGroups(NamedTuple):
    """Groups of identical cores (G,), and the splits that their core counts allow."""

    groups: Floats
    """Array rows and columns, L2 buffer in words, and words per cycle, (G, 4)."""
    places: Ints
    """Indices of the array rows, columns and buffer among the distinct values, (G, 3)."""
    bounds: Ints
    """First position of every group in `order`, and the end, (G + 1,)."""
    order: Ints
    """Cores sorted by group, then by core count."""
    count_of: Ints
    """Index of the core count in `ranges`, for each core in `order`."""
    ranges: SplitRanges
    preloads: bool
    """True if arrays preload the next stationary fold, as in `cost.mapper.flows.Core`."""


class Tables(NamedTuple):
    """Scratch buffers reused for every shape."""

    lower: Floats
    """Lower bound on the time of every (dataflow, split) on the current group, (3 X,)."""
    within: Ints
    """Indices in `lower` of candidates that may be as fast as the best mapping."""
    tiles: Floats
    """Candidate tiles (U, T, MOST, 4) by array size and by (dimension, parts); see `cost.mapper.tilings`.

    A table is filled on first use and reused while its dimension keeps the same size.
    """
    length: Ints
    """Number of tiles in each table (U, T); 0 before it is filled."""


class CoreJob(NamedTuple):
    """Search job: one shape on one group of identical cores."""

    result: float
    """Size of the result in words."""
    extra_words: float
    core: Core
    place: Ints
    """Indices of the array rows, columns and buffer in the tables."""
    splits: Splits
    tables: Tables


@njit
def search_shape(
    result: float, extra_words: float, splits: Splits, groups: CoreGroups, tables: Tables, costs: Floats
) -> None:
    """Fill `costs` (4, C) with the best mapping of a shape on every core configuration."""
    for g in range(len(groups.groups)):
        x = groups.groups[g]
        core = Core(x[0], x[1], x[2], x[3], groups.preloads)
        job = CoreJob(result, extra_words, core, groups.places[g], splits, tables)
        _search_group(job, groups, groups.bounds[g], groups.bounds[g + 1], costs)


@njit_nested
def _search_group(job: CoreJob, groups: CoreGroups, start: int, stop: int, costs: Floats) -> None:
    """Fill `costs` (4, C) for one group of identical cores, by ascending core count.

    Each count starts from the best mapping of the smaller ones. A count with its own splits is never credited
    with a better result than the next power of two.
    """
    before, ranges, done = job.splits.before, groups.ranges, 0
    _bound_splits(job, before[0], before[ranges.every[groups.count_of[stop - 1]]])
    best = Best(np.inf, np.inf, np.inf, np.inf)
    for i in range(start, stop):
        c = groups.count_of[i]
        begin, end, ours, limit = ranges.own[c, 0], ranges.above[c, 1], best, 0.0
        if begin < end:
            _bound_splits(job, before[begin], before[end])
        # A single loop, so that the large tuple of tables is not passed to another function.
        for turn in range(3 if begin < end else 1):
            first, last = _split_range(ranges, c, done, turn)
            ours = _improve(best, job, before[first], before[last])
            if turn == 0:
                best, done = ours, last
            elif turn == 1:
                limit = ours.time
        place = groups.order[i]
        costs[0, place], costs[1, place] = max(ours.time, limit), ours.cycles
        costs[2, place], costs[3, place] = ours.words, ours.l2_words


@njit_nested
def _split_range(ranges: SplitRanges, c: int, done: int, turn: int) -> tuple[int, int]:
    """Range of splits to try for a core count in one of three turns.

    Turn 0 covers splits shared with larger counts and not yet tried by smaller ones, turn 1 those that bound
    the count, turn 2 its own.
    """
    if turn == 0:
        return done, ranges.every[c]
    rows = ranges.above if turn == 1 else ranges.own
    return rows[c, 0], rows[c, 1]


@njit_nested
def _bound_splits(job: CoreJob, start: int, stop: int) -> None:
    """Compute lower bounds for a range of splits and all dataflows."""
    size = len(job.tables.lower) // 3
    for dataflow in (WEIGHT, OUTPUT, INPUT):
        _bound_flow(
            job.tables.lower[dataflow * size + start : dataflow * size + stop],
            job.core,
            _flow(job, dataflow, 0),
            dataflow,
            job.splits,
            job.place,
            start,
        )


@njit_nested
def _bound_flow(
    lower: Floats,
    core: Core,
    first: Dataflow,
    dataflow: int,
    splits: Splits,
    place: Ints,
    start: int,
) -> None:
    """Compute lower bounds for one dataflow on the splits from `start` on; `first` describes split 0.

    All arrays read here are contiguous in the split index, so that the compiler can vectorise.
    """
    stop, fields = start + len(lower), splits.fields
    down, across = fields[DOWN[dataflow]][start:stop], fields[ACROSS[dataflow]][start:stop]
    stream, repeats = fields[STREAM[dataflow]][start:stop], fields[REPEATS][start:stop]
    left = fields[RIGHT if dataflow == INPUT else LEFT][start:stop]
    right = fields[LEFT if dataflow == INPUT else RIGHT][start:stop]
    words = splits.words[place[2]][start:stop]
    downs = splits.folds[DOWN[dataflow], place[0]][start:stop]
    acrosses = splits.folds[ACROSS[dataflow], place[1]][start:stop]
    for x in range(len(lower)):
        flow = Dataflow(
            first.output,
            first.start,
            first.load,
            down[x],
            across[x],
            stream[x],
            repeats[x],
            left[x],
            right[x],
            first.result,
            first.extra,
            words[x],
            exposed_words(down[x], across[x], core.rows, core.columns) / core.words_per_cycle,
        )
        lower[x] = least_time(core, flow, downs[x], acrosses[x])


@njit_nested
def _folds(job: CoreJob, dataflow: int, x: int) -> tuple[float, float]:
    """Lower bounds on the folds of a split along its two stationary dimensions."""
    folds, place = job.splits.folds, job.place
    return folds[DOWN[dataflow], place[0], x], folds[ACROSS[dataflow], place[1], x]


@njit_nested
def _flow(job: CoreJob, dataflow: int, x: int) -> Dataflow:
    fields, core = job.splits.fields, job.core
    down, across = fields[DOWN[dataflow], x], fields[ACROSS[dataflow], x]
    return Dataflow(
        dataflow == OUTPUT,
        start_cycles(dataflow, core.rows, core.columns),
        core.rows if core.preloads and dataflow != OUTPUT else 0.0,
        down,
        across,
        fields[STREAM[dataflow], x],
        fields[REPEATS, x],
        fields[RIGHT if dataflow == INPUT else LEFT, x],
        fields[LEFT if dataflow == INPUT else RIGHT, x],
        job.result,
        job.extra_words,
        job.splits.words[job.place[2], x],
        exposed_words(down, across, core.rows, core.columns) / core.words_per_cycle,
    )


@njit_inlined
def _improve(best: Best, job: CoreJob, start: int, stop: int) -> Best:
    """Best mapping over a range of splits, or `best` if that is better."""
    lower, within, count = job.tables.lower, job.tables.within, -1
    y = _first_candidate(lower, best.time, start, stop)
    while y >= 0:
        best = _try_split(best, job, y)
        # NaN fails every comparison: a candidate that was searched is never chosen again.
        lower[y] = np.nan
        # Listed after the first search only, whose result excludes most candidates.
        if count < 0:
            count = _list_within(lower, within, best.time, start, stop)
        y = _next_candidate(lower, within[:count], best.time)
    return best


@njit_nested
def _first_candidate(lower: Floats, time: float, start: int, stop: int) -> int:
    """Index of the smallest lower bound over a range of splits and all dataflows; -1 if all exceed `time`."""
    first, least, size = -1, np.inf, len(lower) // 3
    for x in range(start, stop):
        for y in (x, size + x, 2 * size + x):
            if lower[y] < least:
                first, least = y, lower[y]
    return first if least <= time else -1


@njit_nested
def _list_within(lower: Floats, within: Ints, time: float, start: int, stop: int) -> int:
    """List the indices whose lower bound is at most `time`, and return their number."""
    count, size = 0, len(lower) // 3
    for x in range(start, stop):
        for y in (x, size + x, 2 * size + x):
            within[count] = y
            count += lower[y] <= time
    return count


@njit_nested
def _next_candidate(lower: Floats, within: Ints, time: float) -> int:
    """Listed index with the smallest lower bound; -1 if all exceed `time`."""
    first, least = -1, time
    for y in within:
        if lower[y] <= least:
            first, least = y, lower[y]
    return first


@njit_inlined
def _try_split(best: Best, job: CoreJob, y: int) -> Best:
    """Best mapping with the dataflow and split at an index in `lower`, or `best` if that is better."""
    size = len(job.tables.lower) // 3
    dataflow = (y >= size) + (y >= 2 * size)
    x = y - dataflow * size
    core, flow, (few_downs, few) = job.core, _flow(job, dataflow, x), _folds(job, dataflow, x)
    continues = may_continue(best, core, flow, few_downs, few)
    if continues or may_start(best, core, flow, few_downs, few):
        fields, tiles, length = job.splits.fields, job.tables.tiles, job.tables.length
        row, column = job.place[0], job.place[1]
        d, a = int(fields[PLACE + DOWN[dataflow], x]), int(fields[PLACE + ACROSS[dataflow], x])
        downs = _fill_tiles(flow.down, core.rows, tiles[row, d], length[row, d:])
        acrosses = _fill_tiles(flow.across, core.columns, tiles[column, a], length[column, a:])
        best = try_flow(best, core, flow, tiles[row, d, :downs], tiles[column, a, :acrosses], continues)
    return best


@njit_nested
def _fill_tiles(size: float, unit: float, table: Floats, length: Ints) -> int:
    """Fill the table of candidate tiles of a dimension if necessary, and return their number.

    The last tile is the whole dimension.
    """
    # A table that was filled for another size has another last tile.
    if length[0] == 0 or table[length[0] - 1, SIZE] != size:
        length[0] = list_tiles(size, unit, table)
    return length[0]  # type: ignore[no-any-return]
