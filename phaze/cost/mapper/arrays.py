"""What a product (m × k) · (k × n) costs on a systolic array behind a buffer: definitions, not the search.

Cycles on an array of R rows and C columns, by what stays in the array. The cycle-accurate simulator
SCALE-Sim 3.0 counts

    weight stationary   (2R + C + m − 2) ⌈k/R⌉ ⌈n/C⌉ − 1      k × n in the array, m streams through it
    output stationary   (R + C + k − 2) ⌈m/R⌉ ⌈n/C⌉ − 1       m × n in the array, k streams through it
    input stationary    (2R + C + n − 2) ⌈k/R⌉ ⌈m/C⌉ − 1      k × m in the array, n streams through it

(input stationary by symmetry). The array is filled anew for every fold, ⌈k/R⌉ ⌈n/C⌉ times in the first
form. An array that preloads holds what stays twice, as the matrix unit of a TPU its weights (Jouppi et al.,
ISCA 2017, Section 2): the next fold moves down the columns in R cycles while the last one streams, and each
unit exchanges them when the first element of the next stream reaches it. Streams follow each other without a
gap but for those shorter than R, and only one filling is left:

    weight stationary   R + max(m, R) (⌈k/R⌉ ⌈n/C⌉ − 1) + m + R + C − 3

and input stationary with n for m. With one fold that is SCALE-Sim's. Results that stay are not loaded: output
stationary keeps its form.

Of a tiled product the cycles of all tiles add up, remainders with their own size; the one that is taken off
stands for counting from zero and is taken off once. If what stays is one fold and the loop over what streams
is innermost, then the next tile continues the stream: the array is not filled anew, and the buffer is a
window on the stream.

A buffer holds a tile (tm, tk, tn): its part of both operands twice, so that the next one loads while one is
worked on, and its part of the result once. Three loops walk over the tiles. An operand is fetched again in
every iteration of a loop that it does not depend on, if a loop inside that one changes its tile; a partial
sum is then written and read back, which makes 2⌈k/tk⌉ − 1 transfers of the result. For the best of the six
loop orders only the innermost loop matters.

What is exposed, because nothing can overlap it: one filling of the array, before the first pass (weights,
inputs) or after the last (results). What streams through the array streams through the buffer as well.

All functions are compiled. Sizes and counts are whole numbers, held in floats where they only enter
products; a float is exact up to 2^53.
"""

from __future__ import annotations

import numpy as np

from phaze.base.compiled import njit

WEIGHT, OUTPUT, INPUT = 0, 1, 2
"""Dataflows, by what stays in the array."""
INNER_M, INNER_K, INNER_N = 0, 1, 2
"""Loop orders, by the innermost loop."""
ROUNDED = 1.0 - 1e-12
"""Keeps a bound with roots below what it bounds, however they are rounded."""


@njit
def ceil_div(a: int, b: int) -> int:
    """⌈a/b⌉."""
    return -(-a // b)


@njit
def start_cycles(dataflow: int, rows: float, columns: float) -> float:
    """Cycles of a pass beside those of the stream: filling the array, and the skew across it."""
    return (rows if dataflow == OUTPUT else 2 * rows) + columns - 2


@njit
def pass_cycles(start: float, starts: float, stream: float, folds_in_all: float) -> float:
    """Cycles in which `stream` elements stream through all folds, with so many starts in each.

    They are counted from zero, but never fewer than the elements, as on an array of one, which has no start.
    """
    return max((start * starts + stream) * folds_in_all - 1.0, stream * folds_in_all)


@njit
def preloaded_cycles(start: float, load: float, starts: float, stream: float, folds_in_all: float) -> float:
    """Cycles of `pass_cycles` where what stays is loaded, in `load` cycles, while the fold before streams.

    A stream that starts several times in a fold is divided evenly, which is best; the shortest part is last.
    """
    last = np.floor(stream / starts)
    streams = max(stream, load * starts) * folds_in_all
    return streams + min(0.0, last - load) + start - 1.0  # type: ignore[no-any-return]


@njit
def buffer_words(
    inner: int, left: float, right: float, result: float, am: float, ak: float, an: float
) -> float:
    """Words that cross into a buffer and back.

    `left`, `right`, `result` are the words of the operands and the result, `am`, `ak`, `an` the tiles along
    m, k, n.
    """
    if inner == INNER_K:
        return left * an + right * am + result
    if inner == INNER_M:
        return left * an + right + result * (2.0 * ak - 1.0)
    return left + right * am + result * (2.0 * ak - 1.0)


@njit
def fewest_words(left: float, right: float, result: float, am: float, ak: float, an: float) -> float:
    """Fewest words that cross into a buffer and back, over the loop orders."""
    return min(
        buffer_words(INNER_M, left, right, result, am, ak, an),
        buffer_words(INNER_K, left, right, result, am, ak, an),
        buffer_words(INNER_N, left, right, result, am, ak, an),
    )


@njit
def largest_products(l2_words: float) -> tuple[float, float]:
    """Largest products of two dimensions of a tile that a buffer holds: with k one word wide those of m and
    n, with m or n one word wide those of the others.

    For x y = p, a tile takes at least p + 4 √p, and 2 p + 2 √(2 p).
    """
    return (np.sqrt(l2_words + 4.0) - 2.0) ** 2, (np.sqrt(l2_words + 1.0) - 1.0) ** 2 / 2.0


@njit
def least_moved(
    left: float, right: float, result: float, m: float, k: float, n: float, products: tuple[float, float]
) -> float:
    """Lower bound on `fewest_words` for m × k × n, over all tiles of `largest_products`.

    Two operands that share the buffer are fetched x and y times; a x + b y ≥ 2 √(a b x y). All operands and
    the result move at least once.
    """
    stays = max(left + right, 2.0 * ROUNDED * np.sqrt(left * right * m * n / products[0])) + result
    rows = max(left + 2.0 * result, 2.0 * ROUNDED * np.sqrt(2.0 * left * result * k * n / products[1]))
    columns = max(right + 2.0 * result, 2.0 * ROUNDED * np.sqrt(2.0 * right * result * k * m / products[1]))
    return min(stays, rows + right - result, columns + left - result)  # type: ignore[no-any-return]


@njit
def exposed_words(down: float, across: float, rows: float, columns: float) -> float:
    """Words that nothing overlaps: one filling of the array by what stays, (down, across)."""
    return min(down, rows) * min(across, columns)


@njit
def array_words(
    dataflow: int, left: float, right: float, result: float, starts: float, down: float, across: float
) -> float:
    """Words between a buffer and the array, partial sums included.

    The streaming dimension starts so often in each fold; `down` and `across` are the folds of the other two.
    """
    if dataflow == WEIGHT:
        return left * across + right * starts + result * (2.0 * down - 1.0)
    if dataflow == INPUT:
        return left * starts + right * across + result * (2.0 * down - 1.0)
    return left * across + right * down + result * (2.0 * starts - 1.0)


@njit
def overlapped_cycles(cycles: float, words: float, words_per_cycle: float) -> float:
    """Cycles of the array or those of the words behind it, whatever is more."""
    return max(cycles, words / words_per_cycle)
