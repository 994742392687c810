"""Best tiling of one dataflow for parts of one size: the fastest, or with the fewest words on ties.

The streaming tile is as large as fits. The cost of a stationary tile (down, across) then decreases with the
number of tiles along each dimension, the folds, and the starts of the stream. Among tiles with the same
number of starts, only the largest and smaller ones with fewer folds can be optimal.

The best time so far bounds all three tile sizes from below, because more folds or starts would take too long.
The rest of the buffer bounds each size from above, and with it the words from below.

Candidate tile sizes of a dimension are multiples of the array size, and equal parts of a core's share. They
do not depend on the buffer size, so every tile that fits a small buffer is also tried with a large one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.compiled import njit_inlined, njit_nested
from phaze.cost.mapper.arrays import OUTPUT, WEIGHT, array_words
from phaze.cost.mapper.flows import (
    Core,
    Dataflow,
    buffered_words,
    continuing_words,
    cycles_of,
    largest_across,
    largest_down,
    largest_shared,
    largest_stream,
    least_cycles,
    may_hold,
    most_passes,
    most_words,
    smallest_repeated,
    smallest_stream,
    smallest_tile,
    time_of,
)

STEPS = np.array([*range(1, 17), *(factor << i for i in range(2, 16) for factor in (5, 6, 7, 8))], float)
"""Multiples and divisors tried: 1 to 16, then numbers with three significant bits: 20, 24, 28, 32, ..."""
MOST = 2 * len(STEPS) + 2
SIZE, NUMBER, FOLDS, FEWER = range(4)
"""Columns of a table of tiles.

Its size, the number of tiles in the part, the number of folds, and the index of the largest smaller tile with
fewer folds; -1 if there is none.
"""


@njit_nested
def list_tiles(size: float, unit: float, table: Floats) -> int:
    """Fill `table` (MOST, 4) with the candidate tiles of a dimension, ascending; return their number."""
    count = _append_tile(table, 0, size, 1.0, unit)
    part, multiple, array = len(STEPS) - 1, 0, _least_tile(size, unit, unit)
    while part > 0 and STEPS[part] >= size:
        part -= 1
    while part >= 0:
        tile = np.ceil(size / STEPS[part])
        if array < tile:
            tile, multiple = array, multiple + 1
            array = _least_tile(size, STEPS[multiple] * unit, unit) if multiple < len(STEPS) else np.inf
        else:
            part -= 1
        if tile > table[count - 1, SIZE]:
            count = _append_tile(table, count, size, tile, unit)
    return count


@njit_nested
def _least_tile(size: float, tile: float, unit: float) -> float:
    """Smallest tile size that needs no more tiles and folds than `tile`, a multiple of the array size.

    The last array need not be full: the unfilled rest is divided equally among all tiles but the last.
    """
    if tile >= size:
        return size
    number = np.ceil(size / tile)
    unfilled = np.ceil(size / unit) * unit - size
    return tile - min(np.floor(unfilled / (number - 1.0)), tile - np.ceil(size / number))  # type: ignore[no-any-return]


@njit_nested
def _append_tile(table: Floats, count: int, size: float, tile: float, unit: float) -> int:
    full_tiles = np.floor(size / tile)
    remainder = size - full_tiles * tile
    folds = full_tiles * np.ceil(tile / unit) + np.ceil(remainder / unit)
    fewer = count - 1
    # Each step along FEWER leads to fewer folds, and skips only tiles with at least as many as the one it
    # leaves.
    while fewer >= 0 and table[fewer, FOLDS] >= folds:
        fewer = int(table[fewer, FEWER])
    table[count, SIZE] = tile
    table[count, NUMBER] = full_tiles + (1.0 if remainder > 0.0 else 0.0)
    table[count, FOLDS] = folds
    table[count, FEWER] = fewer
    return count + 1


class Best(NamedTuple):
    """Best mapping so far: time, array cycles, words to and from the global buffer, and L2 words."""

    time: float
    cycles: float
    words: float
    l2_words: float


@njit_nested
def may_continue(best: Best, core: Core, flow: Dataflow, downs: float, acrosses: float) -> bool:
    """True if one-fold tiles, for which the stream never restarts, may beat `best`.

    `downs` and `acrosses` are lower bounds on their folds.
    """
    cycles, words = cycles_of(flow, 1.0, downs, acrosses), continuing_words(flow, downs, acrosses)
    return not _is_beaten(best, core, flow, cycles, words, _l2_words(flow, 1.0, downs, acrosses))


@njit_nested
def may_start(best: Best, core: Core, flow: Dataflow, downs: float, acrosses: float) -> bool:
    """True if tiles that restart the stream may beat `best`."""
    cycles = least_cycles(core, flow, downs, acrosses)
    return not _is_beaten(best, core, flow, cycles, flow.least, _l2_words(flow, 1.0, downs, acrosses))


@njit_nested
def try_flow(
    best: Best, core: Core, flow: Dataflow, downs: Floats, acrosses: Floats, continues: bool
) -> Best:
    """Best mapping with the given dataflow, or `best` if that is better.

    Tilings are pruned by lower bounds. `continues` is the result of `may_continue`.
    """
    few_downs, few = downs[-1, FOLDS], acrosses[-1, FOLDS]
    if continues:
        best = _try_continuing(best, core, flow, downs, acrosses)
        if not may_start(best, core, flow, few_downs, few):
            return best
    passes = most_passes(flow, best.time)
    stream = smallest_stream(flow, few_downs * few, passes)
    across = max(1.0, smallest_tile(flow, flow.across, few_downs, passes))
    return _try_downs(best, core, flow, downs, acrosses, largest_down(flow, across, stream, core.l2_words))


@njit_nested
def _try_downs(
    best: Best, core: Core, flow: Dataflow, downs: Floats, acrosses: Floats, largest: float
) -> Best:
    """Best mapping with `down` tiles of at most `largest`, or `best` if that is better.

    The smallest tile is bounded by the time limit. Its words must also cross within that limit, see
    `largest_shared` and `smallest_repeated`.
    """
    time, few, i = np.inf, acrosses[-1, FOLDS], _last_within(downs, largest)
    smallest, shared, repeated, least, passes = 0.0, np.inf, 0.0, 0.0, np.inf
    while i >= 0:
        if best.time < time:
            time, words = best.time, most_words(core, flow, best.time)
            passes = most_passes(flow, time)
            smallest = smallest_tile(flow, flow.down, few, passes)
            least = smallest_tile(flow, flow.across, 1.0, passes)
            shared, repeated = largest_shared(flow, words, core.l2_words), smallest_repeated(flow, words)
        if downs[i, SIZE] < smallest:
            break
        # Between both limits no loop order keeps within the words, so jump to the next tile below.
        if shared < downs[i, SIZE] < repeated:
            i = _last_within(downs[:i], shared)
        else:
            folds = downs[i, FOLDS]
            across = max(1.0, least * folds)
            if may_hold(flow, downs[i, SIZE], across, folds * few, passes, core.l2_words):
                best = _try_down(best, core, flow, downs[i], acrosses, across, passes)
            i -= 1
    return best


@njit_inlined
def _try_continuing(best: Best, core: Core, flow: Dataflow, downs: Floats, acrosses: Floats) -> Best:
    """Best mapping with tiles of a single fold, so that the stream never restarts, or `best` if better.

    The largest tiles are best. Smaller ones matter only if the buffer is too small for the largest.
    """
    for i in range(_last_within(downs, core.rows), -1, -1):
        room = largest_across(flow, downs[i, SIZE], 1.0, core.l2_words)
        j = _last_within(acrosses, min(core.columns, room))
        if j >= 0:
            words = continuing_words(flow, downs[i, NUMBER], acrosses[j, NUMBER])
            best = _offer(best, core, flow, words, 1.0, downs[i, FOLDS], acrosses[j, FOLDS])
            if room >= core.columns:
                break
    return best


@njit_inlined
def _try_down(
    best: Best, core: Core, flow: Dataflow, row: Floats, acrosses: Floats, least: float, passes: float
) -> Best:
    """Best mapping with a stationary tile (down, at least `least`), or `best` if that is better."""
    few = acrosses[-1, FOLDS]
    stream = smallest_stream(flow, row[FOLDS] * few, passes)
    most = largest_across(flow, row[SIZE], stream, core.l2_words)
    if most >= least and _may_fit(best, core, flow, row, few, least, most):
        best = _try_acrosses(best, core, flow, row, acrosses, least, most, passes)
    return best


@njit_inlined
def _may_fit(
    best: Best, core: Core, flow: Dataflow, row: Floats, few: float, least: float, most: float
) -> bool:
    """True if tiles (down, `least` to `most`) may beat `best`, by lower bounds on starts and words."""
    down, number, folds = row[SIZE], row[NUMBER], row[FOLDS]
    starts = max(1.0, np.ceil(flow.stream / largest_stream(flow, down, least, core.l2_words)))
    tiles = max(1.0, np.ceil(flow.across / most))
    words = buffered_words(flow, number, tiles, starts)
    cycles, l2_words = cycles_of(flow, starts, folds, few), _l2_words(flow, starts, folds, few)
    return not _is_beaten(best, core, flow, cycles, words, l2_words)


@njit_inlined
def _try_acrosses(
    best: Best,
    core: Core,
    flow: Dataflow,
    row: Floats,
    acrosses: Floats,
    least: float,
    most: float,
    passes: float,
) -> Best:
    """Best mapping with a stationary tile (down, `least` to `most`), or `best` if that is better.

    Among tiles with a single start of the stream, a smaller one matters only if it has fewer folds.
    """
    down, number, folds = row[SIZE], row[NUMBER], row[FOLDS]
    once = largest_across(flow, down, flow.stream, core.l2_words)
    j = _last_within(acrosses, most)
    while j >= 0 and acrosses[j, SIZE] >= least:
        across, streams = acrosses[j, SIZE], 1.0
        if may_hold(flow, down, across, folds * acrosses[j, FOLDS], passes, core.l2_words):
            if across > once:
                streams = np.ceil(flow.stream / largest_stream(flow, down, across, core.l2_words))
            if cycles_of(flow, streams, folds, acrosses[j, FOLDS]) + flow.exposed <= best.time:
                words = buffered_words(flow, number, acrosses[j, NUMBER], streams)
                best = _offer(best, core, flow, words, streams, folds, acrosses[j, FOLDS])
        j = j - 1 if across > once else int(acrosses[j, FEWER])
    return best


@njit_nested
def _last_within(tiles: Floats, size: float) -> int:
    low, high = 0, len(tiles)
    while low < high:
        middle = (low + high) // 2
        if tiles[middle, SIZE] <= size:
            low = middle + 1
        else:
            high = middle
    return low - 1


@njit_nested
def _is_beaten(best: Best, core: Core, flow: Dataflow, cycles: float, words: float, l2_words: float) -> bool:
    """True if no mapping with at least these cycles and words beats `best`."""
    time = time_of(core, flow, cycles, words)
    if time != best.time:
        return time > best.time
    if words != best.words:
        return words > best.words
    if l2_words != best.l2_words:
        return l2_words > best.l2_words
    return cycles >= best.cycles


@njit_nested
def _offer(
    best: Best, core: Core, flow: Dataflow, words: float, starts: float, down: float, across: float
) -> Best:
    """Mapping with the given traffic in words, stream starts and folds, or `best` if that is better."""
    cycles, l2_words = cycles_of(flow, starts, down, across), _l2_words(flow, starts, down, across)
    if _is_beaten(best, core, flow, cycles, words, l2_words):
        return best
    return Best(time_of(core, flow, cycles, words), cycles, words, l2_words)


@njit_nested
def _l2_words(flow: Dataflow, starts: float, down: float, across: float) -> float:
    dataflow = OUTPUT if flow.output else WEIGHT
    return array_words(dataflow, flow.left, flow.right, flow.result, starts, down, across)
