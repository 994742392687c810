"""Dataflows on a core: what streams, what stays, and the words that come and go for it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.theory.arrays import (
    INNER_K,
    INNER_M,
    ROUNDED,
    buffer_words,
    fewest_words,
    overlapped_cycles,
    pass_cycles,
)
from phaze.theory.compiled import njit_without_arrays as njit


class Core(NamedTuple):
    """A tensor core, its L2 buffer, and the global buffer's bandwidth."""

    rows: float
    columns: float
    l2_words: float
    words_per_cycle: float


class Flow(NamedTuple):
    """A dataflow on parts of a size: two dimensions (down, across) stay in the array, one streams.

    Input stationary is weight stationary of the transposed product, so only results that stay differ. Words
    are those of all products, fetched once by every core that needs them.
    """

    output: bool
    """The result stays; otherwise the right operand."""
    start: float
    down: float
    across: float
    stream: float
    repeats: float
    """Products of this size that the busiest core makes."""
    left: float
    right: float
    result: float
    extra: float
    """Words that cross the edge of the global buffer beside these."""
    least: float
    """No tiling has fewer words, extra ones aside."""
    exposed: float
    """Cycles that nothing overlaps, those of one filling of the array."""


@njit
def time_of(core: Core, flow: Flow, cycles: float, words: float) -> float:
    """Return the time of a mapping with so many cycles and words."""
    return overlapped_cycles(cycles, words + flow.extra, core.words_per_cycle) + flow.exposed


@njit
def cycles_of(flow: Flow, starts: float, down_folds: float, across_folds: float) -> float:
    """Return the cycles of the array, with so many starts of the stream in every fold."""
    return pass_cycles(flow.start, starts, flow.stream, flow.repeats * down_folds * across_folds)


@njit
def least_time(core: Core, flow: Flow, down_folds: float, across_folds: float) -> float:
    """Return a lower bound on the time of all tilings, none of which has fewer folds."""
    words = continuing_words(flow, down_folds, across_folds)
    continuing = time_of(core, flow, cycles_of(flow, 1.0, down_folds, across_folds), words)
    cycles = least_cycles(core, flow, down_folds, across_folds)
    return min(continuing, time_of(core, flow, cycles, flow.least))


@njit
def least_cycles(core: Core, flow: Flow, down_folds: float, across_folds: float) -> float:
    """Return a lower bound on the cycles if the stream starts anew in every tile.

    The buffer holds at most l2 / (2 x + y) of the stream beside a tile (x, y), so the starts in all X · Y
    folds are at least stream (2 x + y) X Y / l2; x X is no less than the whole dimension (x + y twice, where
    results stay).
    """
    around = 2.0 * flow.down * across_folds + (2.0 if flow.output else 1.0) * flow.across * down_folds
    starts = ROUNDED * flow.stream * around / (core.l2_words * down_folds * across_folds)
    return cycles_of(flow, max(1.0, starts), down_folds, across_folds)


@njit
def least_row_cycles(core: Core, flow: Flow, size: float, down_folds: float, across_folds: float) -> float:
    """Return the same for tiles of so large a size in the first dimension."""
    around = size * 2.0 * across_folds + (2.0 if flow.output else 1.0) * flow.across
    room = core.l2_words - (1.0 if flow.output else 2.0) * size
    starts = ROUNDED * flow.stream * around / (room * across_folds)
    return cycles_of(flow, max(1.0, starts), down_folds, across_folds)


@njit
def largest_stream(flow: Flow, down: float, across: float, l2_words: float) -> float:
    """Return the largest tile that streams beside (down, across) in the L2 buffer.

    It is what `theory.arrays.held_words` leaves room for.
    """
    if flow.output:
        return np.floor((l2_words - down * across) / (2.0 * (down + across)))  # type: ignore[no-any-return]
    return np.floor((l2_words - 2.0 * down * across) / (2.0 * down + across))  # type: ignore[no-any-return]


@njit
def largest_across(flow: Flow, down: float, l2_words: float) -> float:
    """Return the largest tile in the other dimension of the array that leaves room for the whole stream."""
    room = l2_words - 2.0 * flow.stream * down
    if flow.output:
        return np.floor(room / (down + 2.0 * flow.stream))  # type: ignore[no-any-return]
    return np.floor(room / (2.0 * down + flow.stream))  # type: ignore[no-any-return]


@njit
def largest_single(flow: Flow, down: float, l2_words: float) -> float:
    """Return the largest tile in the other dimension of the array that leaves room for one to stream."""
    if flow.output:
        return np.floor((l2_words - 2.0 * down) / (down + 2.0))  # type: ignore[no-any-return]
    return np.floor((l2_words - 2.0 * down) / (2.0 * down + 1.0))  # type: ignore[no-any-return]


@njit
def buffered_words(flow: Flow, down: float, across: float, streams: float) -> float:
    """Return the words of the best loop order for so many tiles along each dimension."""
    if flow.output:
        return fewest_words(flow.left, flow.right, flow.result, down, streams, across)
    return fewest_words(flow.left, flow.right, flow.result, streams, down, across)


@njit
def continuing_words(flow: Flow, down: float, across: float) -> float:
    """Return the words where the stream is innermost: they do not depend on its tiles."""
    if flow.output:
        return buffer_words(INNER_K, flow.left, flow.right, flow.result, down, 1.0, across)
    return buffer_words(INNER_M, flow.left, flow.right, flow.result, 1.0, down, across)


@njit
def least_words(flow: Flow, size: float, number: float, l2_words: float) -> float:
    """Return a lower bound on the words of all mappings with so large a tile in the first dimension.

    For every innermost loop, the tile in one other dimension is taken as large as would fit without the
    third; where two others share the buffer, a x + b y ≥ 2 √(a b x y) with the largest product that fits.
    """
    left, right, result = flow.left, flow.right, flow.result
    if flow.output:
        columns = max(1.0, ROUNDED * flow.across * (size + 2.0) / (l2_words - 2.0 * size))
        depth = max(1.0, ROUNDED * flow.stream * 2.0 * (size + 1.0) / (l2_words - size))
        shared = 2.0 * ROUNDED * np.sqrt(4.0 * left * result * flow.across * flow.stream / l2_words)
        return min(  # type: ignore[no-any-return]
            left * columns + right * number + result,
            max(left + 2.0 * result, shared) + right - result,
            left + right * number + result * (2.0 * depth - 1.0),
        )
    side = np.sqrt(4.0 * size * size + l2_words) - 2.0 * size
    shared = 2.0 * ROUNDED * np.sqrt(left * right * flow.across * flow.stream) / side
    each = ROUNDED * (2.0 * size + 1.0) / (l2_words - 2.0 * size)
    sums = result * (2.0 * number - 1.0)
    return min(  # type: ignore[no-any-return]
        max(left + right, shared) + result,
        left * max(1.0, flow.across * each) + right + sums,
        left + right * max(1.0, flow.stream * each) + sums,
    )
