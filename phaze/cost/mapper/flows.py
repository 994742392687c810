"""Dataflows on a core: stationary and streaming operands, and the words they transfer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.compiled import njit_nested
from phaze.cost.mapper.arrays import (
    INNER_K,
    INNER_M,
    ROUNDED,
    buffer_words,
    fewest_words,
    pass_cycles,
    preloaded_cycles,
)


class Core(NamedTuple):
    """Tensor core with its L2 buffer, and the bandwidth of the global buffer."""

    rows: float
    columns: float
    l2_words: float
    words_per_cycle: float
    preloads: bool
    """True if the array loads the next stationary fold while the current one streams."""


class Dataflow(NamedTuple):
    """Dataflow for products of one size: a stationary tile (down, across), and a streaming dimension.

    Input stationary equals weight stationary of the transposed product, so only output stationary needs its
    own case. Words count all products; each core fetches its own copy.
    """

    output: bool
    """True if the result is stationary; False if the right operand is."""
    start: float
    """Overhead cycles each time the stream starts, excluding the stream itself."""
    load: float
    """Minimum cycles between starts if the array preloads (`start` then counts once); otherwise 0."""
    down: float
    across: float
    stream: float
    repeats: float
    """Number of products of this size on the busiest core."""
    left: float
    right: float
    result: float
    extra: float
    """Additional words transferred to or from the global buffer."""
    least: float
    """Lower bound on the words that any tiling transfers, excluding `extra`."""
    exposed: float
    """Exposed cycles: one fill of the array, which nothing overlaps."""


@njit_nested
def time_of(core: Core, flow: Dataflow, cycles: float, words: float) -> float:
    """Time of a mapping in cycles, from its array cycles and transferred words."""
    return max(cycles, (words + flow.extra) / core.words_per_cycle) + flow.exposed


@njit_nested
def cycles_of(flow: Dataflow, starts: float, down_folds: float, across_folds: float) -> float:
    """Cycles of the array if the stream is started `starts` times per fold."""
    if flow.load > 0.0:
        folds = flow.repeats * down_folds * across_folds
        return preloaded_cycles(flow.start, flow.load, starts, flow.stream, folds)
    return pass_cycles(flow.start, starts, flow.stream, flow.repeats * down_folds * across_folds)


@njit_nested
def least_time(core: Core, flow: Dataflow, down_folds: float, across_folds: float) -> float:
    """Lower bound on the time of all tilings with at least the given numbers of folds."""
    words = continuing_words(flow, down_folds, across_folds)
    continuing = time_of(core, flow, cycles_of(flow, 1.0, down_folds, across_folds), words)
    cycles = least_cycles(core, flow, down_folds, across_folds)
    return min(continuing, time_of(core, flow, cycles, flow.least))


@njit_nested
def least_cycles(core: Core, flow: Dataflow, down_folds: float, across_folds: float) -> float:
    """Lower bound on the cycles if the stream restarts in every tile.

    With a tile (x, y) the buffer stores at most l2 / (2 x + y) of the stream, so the starts in all X · Y
    folds are at least stream (2 x + y) X Y / l2. x X is at least the whole dimension (x + y twice for output
    stationary).
    """
    around = 2.0 * flow.down * across_folds + (2.0 if flow.output else 1.0) * flow.across * down_folds
    starts = ROUNDED * flow.stream * around / (core.l2_words * down_folds * across_folds)
    # With a fractional number of starts, the last stream may be rounded down one cycle too little.
    rounded = 1.0 if flow.load > 0.0 else 0.0
    return cycles_of(flow, max(1.0, starts), down_folds, across_folds) - rounded


@njit_nested
def largest_stream(flow: Dataflow, down: float, across: float, l2_words: float) -> float:
    """Largest streaming tile that fits the L2 buffer together with a stationary tile (down, across).

    Both operands of a tile are double-buffered, the result is stored once.
    """
    if flow.output:
        return np.floor((l2_words - down * across) / (2.0 * (down + across)))  # type: ignore[no-any-return]
    return np.floor((l2_words - 2.0 * down * across) / (2.0 * down + across))  # type: ignore[no-any-return]


@njit_nested
def largest_across(flow: Dataflow, down: float, stream: float, l2_words: float) -> float:
    """Largest tile size across the array that fits the buffer with tile sizes `down` and `stream`."""
    room = l2_words - 2.0 * stream * down
    if flow.output:
        return np.floor(room / (down + 2.0 * stream))  # type: ignore[no-any-return]
    return np.floor(room / (2.0 * down + stream))  # type: ignore[no-any-return]


@njit_nested
def largest_down(flow: Dataflow, across: float, stream: float, l2_words: float) -> float:
    """Largest tile size down the array that fits the buffer with tile sizes `across` and `stream`."""
    if flow.output:
        return np.floor((l2_words - 2.0 * stream * across) / (2.0 * stream + across))  # type: ignore[no-any-return]
    return np.floor((l2_words - stream * across) / (2.0 * (stream + across)))  # type: ignore[no-any-return]


@njit_nested
def most_passes(flow: Dataflow, time: float) -> float:
    """Upper bound on the array cycles of one product, for mappings within a time limit."""
    once = flow.start - flow.load if flow.load > 0.0 else 0.0
    return (time - flow.exposed - once + 1.0) / (ROUNDED * flow.repeats)


@njit_nested
def may_hold(
    flow: Dataflow, down: float, across: float, folds: float, passes: float, l2_words: float
) -> bool:
    """True if a tile (down, across) may fit in the buffer, for mappings of at most `passes` cycles.

    `folds` is a lower bound on their folds. The streaming tile is that of `smallest_stream` before rounding;
    both sides of the inequality are multiplied by its denominator.
    """
    streams = flow.stream * folds
    if flow.load > 0.0:
        cycles, stream = passes, flow.load * streams
    else:
        # Starts take the cycles that streams leave; the streaming tile is then at least `stream` / `cycles`.
        cycles, stream = passes - streams, flow.start * streams
    stationary = down * across * cycles
    if flow.output:
        needed = 2.0 * stream * (down + across) + stationary
    else:
        needed = stream * (2.0 * down + across) + 2.0 * stationary
    return streams <= passes and ROUNDED * needed <= l2_words * cycles


@njit_nested
def smallest_tile(flow: Dataflow, size: float, folds: float, passes: float) -> float:
    """Lower bound on a tile's size along an array dimension, for mappings of at most `passes` cycles.

    `folds` is a lower bound on the folds along the other dimension. Along this one there are at least as many
    folds as tiles.
    """
    # Least cycles per fold: the stream with one start, or the load of the next fold if that is longer.
    least = max(flow.stream, flow.load) if flow.load > 0.0 else flow.start + flow.stream
    return size * folds * least / passes


@njit_nested
def smallest_stream(flow: Dataflow, folds: float, passes: float) -> float:
    """Lower bound on the streaming tile for mappings of at most `passes` cycles; inf if none exists.

    `folds` is a lower bound on all their folds.
    """
    if flow.load > 0.0:
        starts = np.floor(passes / (folds * flow.load)) if folds * flow.stream <= passes else 0.0
    else:
        # Starts per fold that still fit in the cycles; the streaming tile is the stream over them.
        starts = np.floor((passes / folds - flow.stream) / flow.start)
    return max(1.0, np.ceil(flow.stream / starts)) if starts >= 1.0 else np.inf


@njit_nested
def buffered_words(flow: Dataflow, down: float, across: float, streams: float) -> float:
    """Words transferred in the best loop order, for the given numbers of tiles."""
    if flow.output:
        return fewest_words(flow.left, flow.right, flow.result, down, streams, across)
    return fewest_words(flow.left, flow.right, flow.result, streams, down, across)


@njit_nested
def continuing_words(flow: Dataflow, down: float, across: float) -> float:
    """Words transferred with the streaming loop innermost; independent of the streaming tile."""
    if flow.output:
        return buffer_words(INNER_K, flow.left, flow.right, flow.result, down, 1.0, across)
    return buffer_words(INNER_M, flow.left, flow.right, flow.result, 1.0, down, across)


@njit_nested
def most_words(core: Core, flow: Dataflow, time: float) -> float:
    """Upper bound on the words moved by any mapping within a time limit."""
    return (time - flow.exposed) * core.words_per_cycle / ROUNDED - flow.extra


@njit_nested
def largest_shared(flow: Dataflow, words: float, l2_words: float) -> float:
    """Largest `down` tile for which the other two dimensions can share the buffer within a word limit.

    In one loop order both share it. The words moved per tile are then a x + b y ≥ 2 √(a b x y), with the
    largest product that fits.
    """
    if flow.output:
        side = 4.0 * ROUNDED * np.sqrt(flow.left * flow.result * flow.across * flow.stream)
        side /= words + flow.result - flow.right
        return (l2_words - side * side) / (2.0 * side)  # type: ignore[no-any-return]
    side = 2.0 * ROUNDED * np.sqrt(flow.left * flow.right * flow.across * flow.stream) / (words - flow.result)
    return (l2_words - side * side) / (4.0 * side)  # type: ignore[no-any-return]


@njit_nested
def smallest_repeated(flow: Dataflow, words: float) -> float:
    """Smallest `down` tile within a word limit, for loop orders other than that of `largest_shared`.

    An operand or the result is then transferred once for every tile along that dimension.
    """
    if flow.output:
        return ROUNDED * flow.down * flow.right / (words - flow.left - flow.result)
    return ROUNDED * 2.0 * flow.down * flow.result / (words - flow.left - flow.right + flow.result)
