"""Dataflows on a core: what streams, what stays, and the words that come and go for it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.theory.arrays import INNER_K, INNER_M, buffer_words, fewest_words
from phaze.theory.compiled import njit


class Flow(NamedTuple):
    """A dataflow on parts of a size: two dimensions (down, across) stay in the array, one streams.

    Input stationary is weight stationary of the transposed product, so only results that stay differ. Words
    are those of all products, fetched once by every core that needs them.
    """

    output: bool
    """The result stays; otherwise the right operand."""
    start: float
    stream: float
    across: float
    repeats: float
    """Products of this size that the busiest core makes."""
    left: float
    right: float
    result: float
    extra: float
    exposed: float


@njit
def largest_stream(flow: Flow, down: float, across: float, l2_words: float) -> float:
    """Return the largest tile that streams beside (down, across) in the L2 buffer.

    It is what `theory.arrays.held_words` leaves room for.
    """
    if flow.output:
        return np.floor((l2_words - down * across) / (2.0 * (down + across)))  # type: ignore[no-any-return]
    return np.floor((l2_words - 2.0 * down * across) / (2.0 * down + across))  # type: ignore[no-any-return]


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
        columns = max(1.0, flow.across * (size + 2.0) / (l2_words - 2.0 * size))
        depth = max(1.0, flow.stream * 2.0 * (size + 1.0) / (l2_words - size))
        shared = 2.0 * np.sqrt(4.0 * left * result * flow.across * flow.stream / l2_words)
        return min(  # type: ignore[no-any-return]
            left * columns + right * number + result,
            max(left + 2.0 * result, shared) + right - result,
            left + right * number + result * (2.0 * depth - 1.0),
        )
    side = np.sqrt(4.0 * size * size + l2_words) - 2.0 * size
    shared = 2.0 * np.sqrt(left * right * flow.across * flow.stream) / side
    each = (2.0 * size + 1.0) / (l2_words - 2.0 * size)
    sums = result * (2.0 * number - 1.0)
    return min(  # type: ignore[no-any-return]
        max(left + right, shared) + result,
        left * max(1.0, flow.across * each) + right + sums,
        left + right * max(1.0, flow.stream * each) + sums,
    )
