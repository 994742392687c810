"""Cost model of a matrix product (m × k) · (k × n) on a systolic array fed by a buffer.

Cycles on an array of R rows and C columns, by dataflow. The cycle-accurate simulator SCALE-Sim 3.0 counts

    weight stationary   (2R + C + m − 2) ⌈k/R⌉ ⌈n/C⌉ − 1      k × n in the array, m streams through it
    output stationary   (R + C + k − 2) ⌈m/R⌉ ⌈n/C⌉ − 1       m × n in the array, k streams through it
    input stationary    (2R + C + n − 2) ⌈k/R⌉ ⌈m/C⌉ − 1      k × m in the array, n streams through it

(input stationary by symmetry). The array is refilled for every fold, ⌈k/R⌉ ⌈n/C⌉ times in the first form. An
array that preloads double-buffers its stationary operand, as the matrix unit of a TPU does its weights
(Jouppi et al., ISCA 2017, Section 2). The next fold moves down the columns in R cycles while the last one
streams, and each unit swaps them when the first element of the next stream reaches it. Streams follow each
other without a gap, except those shorter than R. Only one fill is left:

    weight stationary   R + max(m, R) (⌈k/R⌉ ⌈n/C⌉ − 1) + m + R + C − 3

and input stationary with n for m. With one fold this equals SCALE-Sim. Stationary results are not loaded, so
output stationary keeps its form.

The cycles of a tiled product are the sum over its tiles, with remainder tiles at their own size. The −1
accounts for counting from zero and is subtracted once. If the stationary part is one fold and the loop over
the streaming dimension is innermost, the next tile continues the stream: the array is not refilled, and the
buffer is a window on the stream.

A buffer stores a tile (tm, tk, tn): both operands double-buffered, and the result once. Three loops iterate
over the tiles. An operand is fetched again in every iteration of a loop that it does not depend on, if a loop
nested in that one changes its tile. A partial sum is then written and read back, which makes 2⌈k/tk⌉ − 1
transfers of the result. For the best of the six loop orders only the innermost loop matters.

One fill of the array is exposed, because nothing can overlap it: before the first pass (weights, inputs) or
after the last (results). The streaming operand also streams through the buffer.

All functions are compiled. Sizes and counts are whole numbers, stored as floats where they only enter
products; a float is exact up to 2^53.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.compiled import njit, njit_nested

WEIGHT, OUTPUT, INPUT = 0, 1, 2
"""Dataflows, identified by their stationary operand."""
INNER_M, INNER_K, INNER_N = 0, 1, 2
"""Loop orders, identified by their innermost loop."""
ROUNDED = 1.0 - 1e-12
"""Factor that keeps lower bounds valid despite rounding of square roots."""


@njit_nested
def ceil_div(a: int, b: int) -> int:
    """Integer division that rounds up, ⌈a/b⌉."""
    return -(-a // b)


@njit
def start_cycles(dataflow: int, rows: float, columns: float) -> float:
    """Overhead cycles of a pass: array fill and skew, without the stream itself."""
    return (rows if dataflow == OUTPUT else 2 * rows) + columns - 2


@njit
def pass_cycles(start: float, starts: float, stream: float, folds_in_all: float) -> float:
    """Cycles to stream `stream` elements through all folds if the stream starts `starts` times per fold.

    Cycles are counted from zero, but are at least the number of elements: an array of one unit has no start.
    """
    return max((start * starts + stream) * folds_in_all - 1.0, stream * folds_in_all)


@njit_nested
def preloaded_cycles(start: float, load: float, starts: float, stream: float, folds_in_all: float) -> float:
    """Cycles as in `pass_cycles`, if the array loads the next fold (in `load` cycles) during the current one.

    A stream with several starts per fold is divided evenly, which is optimal; the shortest part is last.
    """
    last = np.floor(stream / starts)
    streams = max(stream, load * starts) * folds_in_all
    return streams + min(0.0, last - load) + start - 1.0  # type: ignore[no-any-return]


@njit_nested
def buffer_words(
    inner: int, left: float, right: float, result: float, am: float, ak: float, an: float
) -> float:
    """Words transferred into and out of a buffer, for a given innermost loop.

    `left`, `right` and `result` are the words of the operands and the result. `am`, `ak` and `an` are the
    numbers of tiles along m, k and n.
    """
    if inner == INNER_K:
        return left * an + right * am + result
    if inner == INNER_M:
        return left * an + right + result * (2.0 * ak - 1.0)
    return left + right * am + result * (2.0 * ak - 1.0)


@njit_nested
def fewest_words(left: float, right: float, result: float, am: float, ak: float, an: float) -> float:
    """Minimum number of words transferred into and out of a buffer, over all loop orders."""
    return min(
        buffer_words(INNER_M, left, right, result, am, ak, an),
        buffer_words(INNER_K, left, right, result, am, ak, an),
        buffer_words(INNER_N, left, right, result, am, ak, an),
    )


def largest_products(l2_words: Floats) -> tuple[Floats, Floats]:
    """Largest products of two tile dimensions that fit a buffer if the third dimension is 1.

    Returns the product m · n with k one word wide, and the product of the other two with m or n one word
    wide. For x y = p, a tile takes at least p + 4 √p, and 2 p + 2 √(2 p).
    """
    return (np.sqrt(l2_words + 4.0) - 2.0) ** 2, (np.sqrt(l2_words + 1.0) - 1.0) ** 2 / 2.0


def least_moved(
    left: Floats,
    right: Floats,
    result: float,
    m: Floats,
    k: float,
    n: Floats,
    products: tuple[Floats, Floats],
) -> Floats:
    """Lower bound on `fewest_words` for a product m × k × n, over all tiles within `largest_products`.

    Two operands that share the buffer are fetched x and y times, and a x + b y ≥ 2 √(a b x y). All operands
    and the result move at least once.
    """
    # One of the three stays in the buffer: here the result, in `rows` the right operand, in `columns` the
    # left one.
    stays = np.maximum(left + right, 2.0 * ROUNDED * np.sqrt(left * right * m * n / products[0])) + result
    rows = np.maximum(left + 2.0 * result, 2.0 * ROUNDED * np.sqrt(2.0 * left * result * k * n / products[1]))
    columns = np.maximum(
        right + 2.0 * result, 2.0 * ROUNDED * np.sqrt(2.0 * right * result * k * m / products[1])
    )
    return np.minimum(np.minimum(stays, rows + right - result), columns + left - result)


@njit_nested
def exposed_words(down: float, across: float, rows: float, columns: float) -> float:
    """Words to fill the array once with the stationary operand (down × across); this fill is exposed."""
    return min(down, rows) * min(across, columns)


@njit
def array_words(
    dataflow: int, left: float, right: float, result: float, starts: float, down: float, across: float
) -> float:
    """Words transferred between a buffer and the array, including partial sums.

    `starts` is the number of starts of the stream per fold. `down` and `across` are the folds of the other
    two dimensions.
    """
    if dataflow == WEIGHT:
        return left * across + right * starts + result * (2.0 * down - 1.0)
    if dataflow == INPUT:
        return left * starts + right * across + result * (2.0 * down - 1.0)
    return left * across + right * down + result * (2.0 * starts - 1.0)
