"""Cycles and words of a tiled matrix multiplication: published values, sums over tiles, reuse."""

from itertools import pairwise, permutations, product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.cost.mapper.arrays import (
    INNER_K,
    INNER_M,
    INNER_N,
    INPUT,
    OUTPUT,
    WEIGHT,
    array_words,
    buffer_words,
    exposed_words,
    fewest_words,
    largest_products,
    least_moved,
    preloaded_cycles,
    start_cycles,
)
from tests.oracles.arrays import array_cycles, folds, held_words, run_cycles

LOOPS = {INNER_M: 0, INNER_K: 1, INNER_N: 2}
STREAMED_BY = {WEIGHT: INNER_M, OUTPUT: INNER_K, INPUT: INNER_N}
sizes = st.integers(1, 60)
widths = st.sampled_from([1, 2, 3, 4, 8, 16])
Grid = npt.NDArray[np.float64]


def whole(dataflow: int, m: int, k: int, n: int, rows: int, columns: int) -> float:
    """Return the cycles of an untiled product."""
    return array_cycles(dataflow, INNER_M, (m, m), (k, k), (n, n), rows, columns)


def tiles(size: int, tile: int) -> list[int]:
    """Return the sizes of the tiles of a dimension."""
    return [min(tile, size - start) for start in range(0, size, tile)]


@pytest.mark.parametrize(
    ("dataflow", "shape", "array", "cycles"),
    [
        (OUTPUT, (128, 128, 128), (32, 32), 3039),
        (OUTPUT, (256, 256, 256), (32, 32), 20351),
        (OUTPUT, (500, 700, 300), (64, 32), 63519),
        (WEIGHT, (256, 256, 256), (32, 32), 22399),
        (WEIGHT, (512, 512, 512), (128, 128), 14303),
        (WEIGHT, (512, 1024, 1024), (128, 128), 57215),
    ],
)
def test_cycles_are_those_of_the_simulator(
    dataflow: int, shape: tuple[int, int, int], array: tuple[int, int], cycles: int
) -> None:
    """The closed forms equal the cycles of SCALE-Sim 3.0; shapes are (m, k, n)."""
    assert whole(dataflow, *shape, *array) == cycles


@given(sizes, sizes, sizes, widths, widths)
def test_input_stationary_is_weight_stationary_of_the_transposed_product(
    m: int, k: int, n: int, rows: int, columns: int
) -> None:
    """(A B)ᵀ = Bᵀ Aᵀ exchanges m with n, and the stationary with the streaming operand."""
    assert whole(INPUT, m, k, n, rows, columns) == whole(WEIGHT, n, k, m, rows, columns)


@given(sizes, sizes, sizes, sizes, sizes, sizes, widths, widths)
def test_cycles_of_tiles_add_up_with_their_remainders(
    m: int, k: int, n: int, tm: int, tk: int, tn: int, rows: int, columns: int
) -> None:
    """Unless a stream continues, a tiled product takes as long as its tiles, counted from zero once.

    On an array without fill, no cycle is subtracted.
    """
    for dataflow, inner in product((WEIGHT, OUTPUT, INPUT), LOOPS):
        if inner == STREAMED_BY[dataflow]:
            continue
        parts = product(tiles(m, tm), tiles(k, tk), tiles(n, tn))
        once = 1 if start_cycles(dataflow, rows, columns) else 0
        expected = sum(whole(dataflow, *part, rows, columns) + once for part in parts) - once
        found = array_cycles(dataflow, inner, (m, tm), (k, tk), (n, tn), rows, columns)
        assert found == expected


@given(sizes, sizes, sizes, sizes, widths, widths)
def test_a_stream_continues_across_tiles_if_what_stays_is_one_fold(
    m: int, k: int, n: int, tm: int, rows: int, columns: int
) -> None:
    """Tiles as small as the array cost nothing extra if the streaming loop is innermost, and restart
    otherwise.
    """
    tiled = ((m, min(tm, m)), (k, min(rows, k)), (n, min(columns, n)))
    assert array_cycles(WEIGHT, INNER_M, *tiled, rows, columns) == whole(WEIGHT, m, k, n, rows, columns)
    restarts = array_cycles(WEIGHT, INNER_K, *tiled, rows, columns)
    assert (restarts > whole(WEIGHT, m, k, n, rows, columns)) == (tm < m and 2 * rows + columns > 2)


def test_a_stream_restarts_if_what_stays_is_more_than_one_fold() -> None:
    """An array with two folds in turn is refilled for every tile of the stream."""
    one = array_cycles(WEIGHT, INNER_M, (64, 16), (8, 8), (16, 8), 8, 8)
    two = array_cycles(WEIGHT, INNER_M, (64, 16), (8, 8), (16, 16), 8, 8)
    assert one == (22 + 64) * 2 - 1
    assert two == (22 * 4 + 64) * 2 - 1


class PreloadingArray:
    """Weight-stationary array simulated cycle by cycle; its units store a weight and the next one.

    Weights move down the columns through the registers of next weights, and stop in their row. The stream
    moves right, and sums move down. A unit switches to its next weight with the first element of a stream.
    """

    def __init__(self, rows: int, columns: int) -> None:
        """Create an empty array."""
        self.rows, self.columns = rows, columns
        self.cycle = 0
        self.results: list[tuple[int, int, int, float]] = []
        shape = (rows, columns)
        self.active, self.next = np.zeros(shape), np.full(shape, np.nan)
        self.moving: list[list[tuple[int, float] | None]] = [[None] * columns for _ in range(rows)]
        self.inputs: list[list[tuple[int, int, float] | None]] = [[None] * columns for _ in range(rows)]
        self.sums = np.zeros(shape)

    def step(
        self, weights: list[tuple[int, float] | None], inputs: list[tuple[int, int, float] | None]
    ) -> None:
        """Run a cycle: (row, weight) enter at the top of the columns, (pass, position, value) at the left."""
        for r in reversed(range(self.rows)):
            self.inputs[r] = [inputs[r], *self.inputs[r][:-1]]
        above = np.vstack([np.zeros(self.columns), self.sums[:-1]])
        for r, c in product(range(self.rows), range(self.columns)):
            arrived = self.inputs[r][c]
            if arrived is None:
                continue
            number, position, value = arrived
            if position == 0:
                assert not np.isnan(self.next[r, c]), "a stream has overtaken its weights"
                self.active[r, c], self.next[r, c] = self.next[r, c], np.nan
            self.sums[r, c] = above[r, c] + value * self.active[r, c]
            if r == self.rows - 1:
                self.results.append((number, position, c, self.sums[r, c]))
        for r in reversed(range(self.rows)):
            self.moving[r] = self.moving[r - 1] if r else weights
            for c, weight in enumerate(self.moving[r]):
                if weight is None or weight[0] < r:
                    continue
                assert np.isnan(self.next[r, c]), "a weight has overtaken a stream"
                if weight[0] == r:
                    self.next[r, c] = weight[1]
        self.cycle += 1


def simulated_cycles(weights: list[Grid], streams: list[Grid], rows: int, columns: int) -> int:
    """Return the cycles, counted from zero, in which an array multiplies streams (m, rows) with weights.

    Everything enters as early as it can: a weight when its place is free, a stream behind the one before,
    when its weights are there. All results are checked.
    """
    starts = [rows]
    for stream in streams[:-1]:
        starts.append(starts[-1] + max(len(stream), rows))
    array = PreloadingArray(rows, columns)
    total = sum(stream.shape[0] for stream in streams) * columns
    while len(array.results) < total:
        entering: list[tuple[int, float] | None] = [None] * columns
        arriving: list[tuple[int, int, float] | None] = [None] * rows
        for number, start in enumerate(starts):
            before = starts[number - 1] if number else 0
            for c in range(columns):
                turn = array.cycle - before - c * (number > 0)
                if 0 <= turn < rows:
                    row = rows - 1 - turn
                    entering[c] = (row, float(weights[number][row, c]))
            for r in range(rows):
                position = array.cycle - start - r
                if 0 <= position < len(streams[number]):
                    arriving[r] = (number, position, float(streams[number][position, r]))
        array.step(entering, arriving)
    for number, position, c, found in array.results:
        assert found == streams[number][position] @ weights[number][:, c]
    return array.cycle - 1


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 12), st.integers(1, 4), st.integers(1, 3))
def test_preloaded_cycles_are_those_of_an_array_cycle_by_cycle(
    rows: int, columns: int, stream: int, folds_in_all: int, starts: int
) -> None:
    """Units with two weights give correct products in the cycles of the closed form, for long and short
    streams.

    A stream with several starts is divided evenly, the longer parts first.
    """
    starts = min(starts, stream)
    rng = np.random.default_rng([rows, columns, stream, folds_in_all, starts])
    parts = [len(part) for part in np.array_split(np.arange(stream), starts)] * folds_in_all
    streams = [rng.integers(-9, 9, (part, rows)).astype(float) for part in parts]
    weights = [rng.integers(-9, 9, (rows, columns)).astype(float) for _ in parts]
    start = start_cycles(WEIGHT, rows, columns)
    closed = preloaded_cycles(start, rows, float(starts), float(stream), float(folds_in_all))
    assert simulated_cycles(weights, streams, rows, columns) == closed


@given(sizes, sizes, sizes, sizes, widths, widths, st.sampled_from([WEIGHT, OUTPUT, INPUT]))
def test_preloading_is_never_slower_and_saves_nothing_of_one_fold(
    m: int, k: int, n: int, tile: int, rows: int, columns: int, dataflow: int
) -> None:
    """Fills overlap with streams, except the first; the time for all elements to pass remains."""
    tiled = ((m, min(tile, m)), (k, min(tile, k)), (n, min(tile, n)))
    for inner in LOOPS:
        plain = array_cycles(dataflow, inner, *tiled, rows, columns)
        ahead = array_cycles(dataflow, inner, *tiled, rows, columns, 1, True)
        assert m * k * n / (rows * columns) <= ahead + 1
        assert ahead <= plain
        if dataflow == OUTPUT:
            assert ahead == plain
    one = ((m, m), (min(k, rows), min(k, rows)), (min(n, columns), min(n, columns)))
    assert array_cycles(WEIGHT, INNER_M, *one, rows, columns, 1, True) == whole(
        WEIGHT, m, one[1][0], one[2][0], rows, columns
    )


def test_a_preloading_array_is_busy_while_streams_are_long() -> None:
    """512 × 1024 × 1024 on 128 × 128: 64 folds of 512 and one fill, instead of one fill per fold."""
    tiled = ((512, 512), (1024, 1024), (1024, 1024))
    assert array_cycles(WEIGHT, INNER_K, *tiled, 128, 128) == 57215
    assert array_cycles(WEIGHT, INNER_K, *tiled, 128, 128, 1, True) == 64 * 512 + 3 * 128 - 3


@given(sizes, sizes, widths)
def test_folds_count_the_fillings_of_all_tiles(size: int, tile: int, width: int) -> None:
    """Every tile fills the array according to its size, including remainder tiles."""
    assert folds(size, tile, width) == sum(-(-part // width) for part in tiles(size, tile))


def words_of_a_walk(order: tuple[int, int, int], sizes_: tuple[int, ...], tile: tuple[int, ...]) -> float:
    """Return the words of three nested loops over tiles (outermost first), counted one tile after the other.

    A tile stays while it does not change. A result that comes back is read before it is written again.
    """
    parts = [tiles(size, part) for size, part in zip(sizes_, tile, strict=True)]
    walk = []
    for index in product(*(range(len(parts[loop])) for loop in order)):
        place = dict(zip(order, index, strict=True))
        walk.append((place[0], place[1], place[2]))
    words, written = 0, set()
    for dims in ((0, 1), (1, 2), (0, 2)):
        seen = [tuple(step[d] for d in dims) for step in walk]
        changes = [seen[0], *(after for before, after in pairwise(seen) if after != before)]
        for where in changes:
            size = parts[dims[0]][where[0]] * parts[dims[1]][where[1]]
            words += size * (2 if dims == (0, 2) and where in written else 1)
            if dims == (0, 2):
                written.add(where)
    return words


@given(st.tuples(*[st.integers(1, 12)] * 3), st.tuples(*[st.integers(1, 12)] * 3))
def test_words_are_those_of_walking_over_the_tiles(
    shape: tuple[int, int, int], tile: tuple[int, int, int]
) -> None:
    """The closed forms equal the fewest words over all six loop orders, counted tile by tile."""
    m, k, n = shape
    counts = [float(-(-size // part)) for size, part in zip(shape, tile, strict=True)]
    walked = min(words_of_a_walk(order, shape, tile) for order in permutations((0, 1, 2)))
    assert fewest_words(float(m * k), float(k * n), float(m * n), *counts) == walked


@given(st.tuples(*[st.integers(1, 5)] * 3), st.sampled_from(list(LOOPS)))
def test_each_closed_form_is_a_loop_order(counts: tuple[int, int, int], inner: int) -> None:
    """With more than one tile everywhere, only the innermost loop matters."""
    shape, tile = tuple(3 * (c + 1) for c in counts), (3, 3, 3)
    m, k, n = shape
    tiled = [float(c + 1) for c in counts]
    found = buffer_words(inner, float(m * k), float(k * n), float(m * n), *tiled)
    orders = [order for order in permutations((0, 1, 2)) if order[2] == LOOPS[inner]]
    assert {words_of_a_walk(order, shape, tile) for order in orders} == {found}


def test_a_buffer_holds_operands_twice_and_the_result_once() -> None:
    """A tile of 2 × 3 × 5 takes 2 (6 + 15) + 10 words."""
    assert held_words(2, 3, 5) == 52


def test_one_filling_of_the_array_is_exposed() -> None:
    """The part of the stationary operand that one fill of the array needs."""
    assert exposed_words(100.0, 300.0, 128, 128) == 100 * 128


def test_words_to_the_array_by_hand() -> None:
    """4 × 6 × 8 on a 2 × 4 array: folds 3 along k and 2 along n or m, one start."""
    left, right, result = 24.0, 48.0, 32.0
    assert array_words(WEIGHT, left, right, result, 1.0, 3.0, 2.0) == 24 * 2 + 48 + 32 * 5
    assert array_words(INPUT, left, right, result, 1.0, 3.0, 1.0) == 24 + 48 * 1 + 32 * 5
    assert array_words(OUTPUT, left, right, result, 1.0, 2.0, 2.0) == 24 * 2 + 48 * 2 + 32


def test_the_slower_of_array_and_words_binds() -> None:
    """Cycles of the array and of the words overlap; exposed cycles are added."""
    assert run_cycles(100.0, 400.0, 8.0, 2.0) == 204.0
    assert run_cycles(100.0, 40.0, 8.0, 2.0) == 104.0


@given(st.tuples(sizes, sizes, sizes), st.tuples(sizes, sizes, sizes), st.integers(1, 8), st.integers(1, 8))
def test_no_tile_that_fits_moves_fewer_words_than_the_bound(
    shape: tuple[int, int, int], tile: tuple[int, int, int], shares_left: int, shares_right: int
) -> None:
    """For any sharing of a buffer that just fits the tile; and each word moves at least once."""
    (m, k, n), (tm, tk, tn) = shape, tuple(map(min, shape, tile))
    left, right, result = float(m * k * shares_left), float(k * n * shares_right), float(m * n)
    products = largest_products(float(held_words(tm, tk, tn)))
    bound = least_moved(left, right, result, float(m), float(k), float(n), products)
    words = fewest_words(left, right, result, -(-m // tm), -(-k // tk), -(-n // tn))
    assert left + right + result <= bound <= words
