"""The best tiling of one dataflow on parts of one size: the fastest, of these that with the fewest words.

What streams is as large as fits; what a tile (down, across) in the array costs then falls with the number of
tiles along each dimension, the folds, and the starts of the stream. So of all tiles beside which the stream
starts as often, only the largest counts, and smaller ones with fewer folds.

The time of the best mapping so far bounds all three sizes of a tile from below: so many folds take too long,
and so many starts of the stream. What these leave of the buffer bounds each from above, and with that the
words from below.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.compiled import njit, njit_inlined
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
from phaze.cost.mapper.tiles import FEWER, FOLDS, NUMBER, SIZE


class Best(NamedTuple):
    """The best mapping so far, see `cost.mapper.tensor.Mapped`."""

    time: float
    cycles: float
    words: float
    l2_words: float


@njit
def may_continue(best: Best, core: Core, flow: Dataflow, downs: float, acrosses: float) -> bool:
    """Whether tiles of one fold may be better, through which the stream goes on.

    None has fewer folds along the dimensions of the array.
    """
    cycles, words = cycles_of(flow, 1.0, downs, acrosses), continuing_words(flow, downs, acrosses)
    return not _is_beaten(best, core, flow, cycles, words, _l2_words(flow, 1.0, downs, acrosses))


@njit
def may_start(best: Best, core: Core, flow: Dataflow, downs: float, acrosses: float) -> bool:
    """Whether tiles may be better in each of which the stream starts anew."""
    cycles = least_cycles(core, flow, downs, acrosses)
    return not _is_beaten(best, core, flow, cycles, flow.least, _l2_words(flow, 1.0, downs, acrosses))


@njit
def try_flow(
    best: Best, core: Core, flow: Dataflow, downs: Floats, acrosses: Floats, continues: bool
) -> Best:
    """Best mapping with a dataflow, or `best` if that is better.

    What a lower bound shows not to be better is passed over; `continues` is the answer of `may_continue`.
    """
    few_downs, few = downs[-1, FOLDS], acrosses[-1, FOLDS]
    if continues:
        best = _try_continuing(best, core, flow, downs, acrosses)
        if not may_start(best, core, flow, few_downs, few):
            return best
    passes = most_passes(flow, best.time)
    stream = smallest_stream(flow, few_downs * few, passes)
    across = max(1.0, smallest_tile(flow, flow.across, few_downs, passes))
    return _try_rows(best, core, flow, downs, acrosses, largest_down(flow, across, stream, core.l2_words))


@njit
def _try_rows(
    best: Best, core: Core, flow: Dataflow, downs: Floats, acrosses: Floats, largest: float
) -> Best:
    """Best mapping with up to so large a tile in the first dimension of the array.

    The smallest may do in time, and all words must cross in it: see `largest_shared`, `smallest_repeated`.
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
        if shared < downs[i, SIZE] < repeated:
            i = _last_within(downs[:i], shared)
        else:
            folds = downs[i, FOLDS]
            across = max(1.0, least * folds)
            if may_hold(flow, downs[i, SIZE], across, folds * few, passes, core.l2_words):
                best = _try_row(best, core, flow, downs[i], acrosses, across, passes)
            i -= 1
    return best


@njit_inlined
def _try_continuing(best: Best, core: Core, flow: Dataflow, downs: Floats, acrosses: Floats) -> Best:
    """Best mapping of tiles of one fold, through which the stream goes on.

    The largest are best; smaller ones count where the buffer is too small for them.
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
def _try_row(
    best: Best, core: Core, flow: Dataflow, row: Floats, acrosses: Floats, least: float, passes: float
) -> Best:
    """Best mapping with a tile (down, `least` or more) in the array, or `best`."""
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
    """Whether tiles (down, `least` to `most`) may be better: all starts and words cross in time."""
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
    """Best mapping with a tile (down, `least` to `most`) in the array, or `best`.

    Of those beside which the stream starts once, a smaller one counts only if it has fewer folds.
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


@njit
def _last_within(tiles: Floats, size: float) -> int:
    low, high = 0, len(tiles)
    while low < high:
        middle = (low + high) // 2
        if tiles[middle, SIZE] <= size:
            low = middle + 1
        else:
            high = middle
    return low - 1


@njit
def _is_beaten(best: Best, core: Core, flow: Dataflow, cycles: float, words: float, l2_words: float) -> bool:
    """Whether a mapping with no fewer cycles and words is no better than the best."""
    time = time_of(core, flow, cycles, words)
    if time != best.time:
        return time > best.time
    if words != best.words:
        return words > best.words
    if l2_words != best.l2_words:
        return l2_words > best.l2_words
    return cycles >= best.cycles


@njit
def _offer(
    best: Best, core: Core, flow: Dataflow, words: float, starts: float, down: float, across: float
) -> Best:
    """Mapping with so many words, starts and folds, or `best` if that is better."""
    cycles, l2_words = cycles_of(flow, starts, down, across), _l2_words(flow, starts, down, across)
    if _is_beaten(best, core, flow, cycles, words, l2_words):
        return best
    return Best(time_of(core, flow, cycles, words), cycles, words, l2_words)


@njit
def _l2_words(flow: Dataflow, starts: float, down: float, across: float) -> float:
    dataflow = OUTPUT if flow.output else WEIGHT
    return array_words(dataflow, flow.left, flow.right, flow.result, starts, down, across)
