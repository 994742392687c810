"""Dataflows on a core: what streams, what stays, and the words that come and go for it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.compiled import njit
from phaze.cost.mapper.arrays import (
    INNER_K,
    INNER_M,
    ROUNDED,
    buffer_words,
    fewest_words,
    overlapped_cycles,
    pass_cycles,
    preloaded_cycles,
)


class Core(NamedTuple):
    """A tensor core, its L2 buffer, and the global buffer's bandwidth."""

    rows: float
    columns: float
    l2_words: float
    words_per_cycle: float
    preloads: bool
    """What stays in the array is loaded while the fold before streams."""


class Dataflow(NamedTuple):
    """A dataflow on parts of a size: two dimensions (down, across) stay in the array, one streams.

    Input stationary is weight stationary of the transposed product, so only results that stay differ. Words
    are those of all products, fetched once by every core that needs them.
    """

    output: bool
    """The result stays; otherwise the right operand."""
    start: float
    """Cycles of a start of the stream beside those of the stream."""
    load: float
    """Fewest cycles from one start to the next where the array preloads, and `start` counts once; else 0."""
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
def time_of(core: Core, flow: Dataflow, cycles: float, words: float) -> float:
    """Time of a mapping with so many cycles and words."""
    return overlapped_cycles(cycles, words + flow.extra, core.words_per_cycle) + flow.exposed


@njit
def cycles_of(flow: Dataflow, starts: float, down_folds: float, across_folds: float) -> float:
    """Cycles of the array, with so many starts of the stream in every fold."""
    if flow.load > 0.0:
        folds = flow.repeats * down_folds * across_folds
        return preloaded_cycles(flow.start, flow.load, starts, flow.stream, folds)
    return pass_cycles(flow.start, starts, flow.stream, flow.repeats * down_folds * across_folds)


@njit
def least_time(core: Core, flow: Dataflow, down_folds: float, across_folds: float) -> float:
    """Lower bound on the time of all tilings, none of which has fewer folds."""
    words = continuing_words(flow, down_folds, across_folds)
    continuing = time_of(core, flow, cycles_of(flow, 1.0, down_folds, across_folds), words)
    cycles = least_cycles(core, flow, down_folds, across_folds)
    return min(continuing, time_of(core, flow, cycles, flow.least))


@njit
def least_cycles(core: Core, flow: Dataflow, down_folds: float, across_folds: float) -> float:
    """Lower bound on the cycles if the stream starts anew in every tile.

    The buffer holds at most l2 / (2 x + y) of the stream beside a tile (x, y), so the starts in all X · Y
    folds are at least stream (2 x + y) X Y / l2; x X is no less than the whole dimension (x + y twice, where
    results stay).
    """
    around = 2.0 * flow.down * across_folds + (2.0 if flow.output else 1.0) * flow.across * down_folds
    starts = ROUNDED * flow.stream * around / (core.l2_words * down_folds * across_folds)
    # Of a part of a start the last stream may be rounded down a cycle too little.
    rounded = 1.0 if flow.load > 0.0 else 0.0
    return cycles_of(flow, max(1.0, starts), down_folds, across_folds) - rounded


@njit
def largest_stream(flow: Dataflow, down: float, across: float, l2_words: float) -> float:
    """Largest tile that streams beside (down, across) in the L2 buffer.

    Both operands of a tile are there twice, the result once.
    """
    if flow.output:
        return np.floor((l2_words - down * across) / (2.0 * (down + across)))  # type: ignore[no-any-return]
    return np.floor((l2_words - 2.0 * down * across) / (2.0 * down + across))  # type: ignore[no-any-return]


@njit
def largest_across(flow: Dataflow, down: float, stream: float, l2_words: float) -> float:
    """Largest tile in the other dimension of the array beside so much of the stream."""
    room = l2_words - 2.0 * stream * down
    if flow.output:
        return np.floor(room / (down + 2.0 * stream))  # type: ignore[no-any-return]
    return np.floor(room / (2.0 * down + stream))  # type: ignore[no-any-return]


@njit
def largest_down(flow: Dataflow, across: float, stream: float, l2_words: float) -> float:
    """Largest tile in the first dimension of the array that leaves room for the others."""
    if flow.output:
        return np.floor((l2_words - 2.0 * stream * across) / (2.0 * stream + across))  # type: ignore[no-any-return]
    return np.floor((l2_words - stream * across) / (2.0 * (stream + across)))  # type: ignore[no-any-return]


@njit
def most_passes(flow: Dataflow, time: float) -> float:
    """Upper bound on the cycles of one product, for mappings within a time."""
    once = flow.start - flow.load if flow.load > 0.0 else 0.0
    return (time - flow.exposed - once + 1.0) / (ROUNDED * flow.repeats)


@njit
def may_hold(
    flow: Dataflow, down: float, across: float, folds: float, passes: float, l2_words: float
) -> bool:
    """Whether the buffer may hold a tile (down, across), for mappings within `most_passes`.

    They have no fewer folds in all. So much streams as `smallest_stream` says, before that is rounded; both
    sides are multiplied by what it divides by.
    """
    streams = flow.stream * folds
    if flow.load > 0.0:
        rest, stream = passes, flow.load * streams
    else:
        rest, stream = passes - streams, flow.start * streams
    each = down * across * rest
    if flow.output:
        held = 2.0 * stream * (down + across) + each
    else:
        held = stream * (2.0 * down + across) + 2.0 * each
    return streams <= passes and ROUNDED * held <= l2_words * rest


@njit
def smallest_tile(flow: Dataflow, size: float, folds: float, passes: float) -> float:
    """Lower bound on the tiles along a dimension of the array, for mappings within `most_passes`.

    They have no fewer folds along the other dimension; along this one no fewer than tiles.
    """
    least = max(flow.stream, flow.load) if flow.load > 0.0 else flow.start + flow.stream
    return size * folds * least / passes


@njit
def smallest_stream(flow: Dataflow, folds: float, passes: float) -> float:
    """Lower bound on the tiles that stream, for mappings within `most_passes`; infinite if none is.

    They have no fewer folds in all.
    """
    if flow.load > 0.0:
        starts = np.floor(passes / (folds * flow.load)) if folds * flow.stream <= passes else 0.0
    else:
        starts = np.floor((passes / folds - flow.stream) / flow.start)
    return max(1.0, np.ceil(flow.stream / starts)) if starts >= 1.0 else np.inf


@njit
def buffered_words(flow: Dataflow, down: float, across: float, streams: float) -> float:
    """Words of the best loop order for so many tiles along each dimension."""
    if flow.output:
        return fewest_words(flow.left, flow.right, flow.result, down, streams, across)
    return fewest_words(flow.left, flow.right, flow.result, streams, down, across)


@njit
def continuing_words(flow: Dataflow, down: float, across: float) -> float:
    """Words where the stream is innermost: they do not depend on its tiles."""
    if flow.output:
        return buffer_words(INNER_K, flow.left, flow.right, flow.result, down, 1.0, across)
    return buffer_words(INNER_M, flow.left, flow.right, flow.result, 1.0, down, across)


@njit
def most_words(core: Core, flow: Dataflow, time: float) -> float:
    """Upper bound on the words of all mappings within a time."""
    return (time - flow.exposed) * core.words_per_cycle / ROUNDED - flow.extra


@njit
def largest_shared(flow: Dataflow, words: float, l2_words: float) -> float:
    """Largest tile in the first dimension beside which the others share the buffer well enough.

    In one loop order both share it, and what moves once for every tile is a x + b y ≥ 2 √(a b x y) with the
    largest product that fits.
    """
    if flow.output:
        side = 4.0 * ROUNDED * np.sqrt(flow.left * flow.result * flow.across * flow.stream)
        side /= words + flow.result - flow.right
        return (l2_words - side * side) / (2.0 * side)  # type: ignore[no-any-return]
    side = 2.0 * ROUNDED * np.sqrt(flow.left * flow.right * flow.across * flow.stream) / (words - flow.result)
    return (l2_words - side * side) / (4.0 * side)  # type: ignore[no-any-return]


@njit
def smallest_repeated(flow: Dataflow, words: float) -> float:
    """Smallest tile in the first dimension with which another loop order has as few words.

    An operand or the result then crosses once for every tile along it.
    """
    if flow.output:
        return ROUNDED * flow.down * flow.right / (words - flow.left - flow.result)
    return ROUNDED * 2.0 * flow.down * flow.result / (words - flow.left - flow.right + flow.result)
