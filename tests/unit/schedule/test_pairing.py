"""Core assignment of operators with known times, with pairs for fused ones."""

import numpy as np

from phaze.schedule.graphs import FUSED, TENSOR, VECTOR
from phaze.schedule.pairing import UNASSIGNED, assign_cores, sort_stably


def clashes(kinds: np.ndarray, start: np.ndarray, end: np.ndarray, core: np.ndarray) -> bool:
    """True if two operators use a core at once; a fused one uses both cores of a pair."""
    return any(
        core[i] == core[j]
        and start[i] < end[j]
        and start[j] < end[i]
        and (kinds[i] == kinds[j] or FUSED in (kinds[i], kinds[j]))
        for i in range(len(kinds))
        for j in range(i)
    )


def test_cores_are_found_if_any_assignment_has_no_clash() -> None:
    """Later operators decide which pair a single one blocks; one without duration may share a start."""
    rng, found = np.random.default_rng(3), 0
    for _ in range(400):
        n, num_tc, num_vc = 6, *rng.integers(1, 4, 2).tolist()
        start = rng.integers(0, 5, n).astype(np.float64)
        end, kinds = start + rng.integers(0, 4, n), rng.integers(0, 3, n)
        counts = [
            {TENSOR: num_tc, VECTOR: num_vc, FUSED: min(num_tc, num_vc)}[kind] for kind in kinds.tolist()
        ]
        possible = np.array(np.meshgrid(*map(range, counts))).reshape(n, -1).T
        is_found, core = assign_cores(kinds, start.copy(), end.copy(), num_tc, num_vc)
        assert is_found == any(not clashes(kinds, start, end, choice) for choice in possible)
        if is_found:
            assert not clashes(kinds, start, end, core)
            assert ((core >= 0) & (core < counts)).all()
        else:
            assert set(core.tolist()) == {UNASSIGNED}
        found += is_found
    assert 100 < found < 300


def test_equal_keys_keep_their_order() -> None:
    """A stable order makes schedules reproducible."""
    assert sort_stably(np.array([2.0, 1.0, 2.0, 1.0])).tolist() == [1, 3, 0, 2]
