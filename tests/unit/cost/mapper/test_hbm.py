"""Words between HBM and the global buffer."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phaze.cost.mapper.loads import hbm_words
from tests.unit.cost.exhaustive import fewest_hbm_words

sizes = st.integers(1, 20_000)


def words_of(batch: int, m: int, k: int, n: int, *capacities: int) -> list[float]:
    """Return the words of one shape for some capacities."""
    return [float(w) for w in hbm_words(np.array([[batch, m, k, n]]), np.array(capacities))[0]]


def test_no_tiling_has_fewer_words() -> None:
    """Exactly the fewest words on 1,000 random products, compared with every integer tile and loop order."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        m, k, n = (int(x) for x in rng.integers(1, 30, 3))
        capacity = int(np.exp(rng.uniform(np.log(5), np.log(3000))))
        assert words_of(1, m, k, n, capacity) == [fewest_hbm_words(m, k, n, capacity)]


def test_what_fits_is_moved_once() -> None:
    """With a buffer for a row of tiles every word moves once, for every product of a batch."""
    assert words_of(3, 128, 256, 512, 2**20) == [3 * (128 * 256 + 256 * 512 + 128 * 512)]


@given(st.integers(1, 64), sizes, sizes, sizes, st.integers(5, 10**7), st.integers(0, 10**8))
def test_a_larger_buffer_never_needs_more(
    batch: int, m: int, k: int, n: int, capacity: int, more: int
) -> None:
    """And no buffer needs fewer words than the operands and the result have."""
    small, large = words_of(batch, m, k, n, capacity, capacity + more)
    assert batch * (m * k + k * n + m * n) <= large <= small < np.inf
