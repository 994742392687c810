"""The best tiling of one dataflow on parts of one size: the fastest, of these that with the fewest words.

What streams is as large as fits; what a tile (down, across) in the array costs then falls with the number of
tiles along each dimension, the folds, and the starts of the stream. So of all tiles beside which the stream
starts as often, only the largest counts, and smaller ones with fewer folds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phaze.estimate.flows import (
    Core,
    Flow,
    buffered_words,
    continuing_words,
    cycles_of,
    largest_across,
    largest_single,
    largest_stream,
    least_cycles,
    least_row_cycles,
    least_words,
    time_of,
)
from phaze.estimate.tiles import FEWER, FOLDS, NUMBER, SIZE
from phaze.theory.arrays import OUTPUT, WEIGHT, array_words
from phaze.theory.compiled import njit_without_arrays as njit

Floats = NDArray[np.float64]


class Best(NamedTuple):
    """The best mapping so far, see `estimate.tensor.Mapped`."""

    time: float
    cycles: float
    words: float
    l2_words: float


@njit
def try_flow(best: Best, core: Core, flow: Flow, downs: Floats, acrosses: Floats) -> Best:
    """Return the best mapping with a dataflow, or `best` if that is better.

    What a lower bound shows not to be better is passed over.
    """
    few_downs, few = downs[-1, FOLDS], acrosses[-1, FOLDS]
    best = _try_continuing(best, core, flow, downs, acrosses)
    l2_words = _l2_words(flow, 1.0, few_downs, few)
    if _is_beaten(best, core, flow, least_cycles(core, flow, few_downs, few), flow.least, l2_words):
        return best
    i, width = _last_within(downs, largest_single(flow, 1.0, core.l2_words)), len(downs)
    while i >= 0:
        first = max(0, i + 1 - width)
        size, number = downs[first, SIZE], downs[i, NUMBER]
        folds = max(downs[i, FOLDS] if first == i else number, few_downs)
        cycles, l2_words = least_row_cycles(core, flow, size, folds, few), _l2_words(flow, 1.0, folds, few)
        words = flow.least
        if time_of(core, flow, cycles, words) <= best.time:
            words = max(words, least_words(flow, size, number, core.l2_words))
        if _is_beaten(best, core, flow, cycles, words, l2_words):
            i, width = first - 1, 2 * width
        elif width > 1:
            width //= 2
        else:
            best = _try_row(best, core, flow, downs[i], acrosses)
            i -= 1
    return best


@njit
def _try_continuing(best: Best, core: Core, flow: Flow, downs: Floats, acrosses: Floats) -> Best:
    """Return the best mapping of tiles of one fold, through which the stream goes on.

    The largest are best; smaller ones count where the buffer is too small for them.
    """
    for i in range(_last_within(downs, core.rows), -1, -1):
        room = largest_single(flow, downs[i, SIZE], core.l2_words)
        j = _last_within(acrosses, min(core.columns, room))
        if j >= 0:
            words = continuing_words(flow, downs[i, NUMBER], acrosses[j, NUMBER])
            best = _offer(best, core, flow, words, 1.0, downs[i, FOLDS], acrosses[j, FOLDS])
            if room >= core.columns:
                break
    return best


@njit
def _try_row(best: Best, core: Core, flow: Flow, row: Floats, acrosses: Floats) -> Best:
    """Return the best mapping with a tile (down, any) in the array, or `best` if that is better."""
    down, number, folds, few = row[SIZE], row[NUMBER], row[FOLDS], acrosses[-1, FOLDS]
    once = _last_within(acrosses, largest_across(flow, down, core.l2_words))
    j = once
    while j >= 0:
        words = buffered_words(flow, number, acrosses[j, NUMBER], 1.0)
        best = _offer(best, core, flow, words, 1.0, folds, acrosses[j, FOLDS])
        j = int(acrosses[j, FEWER])
    j, width = once + 1, len(acrosses)
    while j < len(acrosses):
        largest = largest_stream(flow, down, acrosses[j, SIZE], core.l2_words)
        if largest < 1.0:
            break
        streams, last = np.ceil(flow.stream / largest), min(j + width, len(acrosses)) - 1
        words = buffered_words(flow, number, acrosses[last, NUMBER], streams)
        across = acrosses[j, FOLDS] if last == j else max(acrosses[last, NUMBER], few)
        cycles, l2_words = cycles_of(flow, streams, folds, across), _l2_words(flow, streams, folds, across)
        if _is_beaten(best, core, flow, cycles, words, l2_words):
            j, width = last + 1, 2 * width
        elif width > 1:
            width //= 2
        else:
            best = _offer(best, core, flow, words, streams, folds, across)
            j += 1
    return best


@njit
def _last_within(tiles: Floats, size: float) -> int:
    """Return the place of the largest tile up to a size, -1 if there is none."""
    low, high = 0, len(tiles)
    while low < high:
        middle = (low + high) // 2
        if tiles[middle, SIZE] <= size:
            low = middle + 1
        else:
            high = middle
    return low - 1


@njit
def _is_beaten(best: Best, core: Core, flow: Flow, cycles: float, words: float, l2_words: float) -> bool:
    """Return whether a mapping with no fewer cycles and words is no better than the best."""
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
    best: Best, core: Core, flow: Flow, words: float, starts: float, down: float, across: float
) -> Best:
    """Return a mapping with so many words, starts and folds, or `best` if that is better."""
    cycles, l2_words = cycles_of(flow, starts, down, across), _l2_words(flow, starts, down, across)
    if _is_beaten(best, core, flow, cycles, words, l2_words):
        return best
    return Best(time_of(core, flow, cycles, words), cycles, words, l2_words)


@njit
def _l2_words(flow: Flow, starts: float, down: float, across: float) -> float:
    """Return the words between L2 buffers and arrays."""
    dataflow = OUTPUT if flow.output else WEIGHT
    return array_words(dataflow, flow.left, flow.right, flow.result, starts, down, across)
