"""Core assignment of operators with known times, with pairs for fused ones."""

import numpy as np

from phaze.schedule.graphs import FUSED, TENSOR, VECTOR
from phaze.schedule.pairing import UNASSIGNED, assign_cores, sort_stably

Times = list[tuple[float, float]]


def assign(kinds: list[int], times: Times, num_tc: int, num_vc: int) -> tuple[bool, list[int]]:
    """Return whether cores are found for operators with given starts and ends, and the cores."""
    start, end = np.array(times).T
    found, core = assign_cores(np.array(kinds), start.copy(), end.copy(), num_tc, num_vc)
    return bool(found), core.tolist()


def test_a_core_is_used_again_when_its_operator_has_ended() -> None:
    """Two consecutive operators without overlap share the only core."""
    assert assign([TENSOR, TENSOR], [(0, 1), (1, 2)], 1, 1) == (True, [0, 0])


def test_what_takes_no_time_does_not_wait_for_what_begins_with_it() -> None:
    """It may run at the same moment on the same core, before it, in either order of the input."""
    assert assign([TENSOR, TENSOR], [(1, 6), (1, 1)], 1, 1) == (True, [0, 0])
    assert assign([TENSOR, TENSOR], [(1, 1), (1, 6)], 1, 1) == (True, [0, 0])
    assert not assign([TENSOR, TENSOR], [(1, 6), (2, 2)], 1, 1)[0]


def test_too_many_operators_at_once_find_no_cores() -> None:
    """Counts are respected, and otherwise no core is assigned."""
    assert assign([TENSOR, TENSOR], [(0, 2), (1, 2)], 1, 1) == (False, [UNASSIGNED, UNASSIGNED])


def test_single_operators_leave_pairs_to_fused_ones() -> None:
    """The tensor core without a partner is assigned first."""
    assert assign([TENSOR, FUSED], [(0, 2), (0, 2)], 2, 1) == (True, [1, 0])


def test_single_operators_gather_on_one_pair_for_a_fused_one_that_follows() -> None:
    """With one tensor and one vector operator running, a second pair stays free."""
    found, core = assign([TENSOR, VECTOR, FUSED], [(0, 3), (0, 3), (1, 2)], 2, 2)
    assert found
    assert core[0] == core[1] != core[2]


def test_free_cores_of_two_pairs_are_no_pair() -> None:
    """At 4 tensor core 0 and vector core 1 are busy: counts allow one more, but no pair is free."""
    kinds = [FUSED, FUSED, TENSOR, VECTOR, VECTOR, FUSED]
    times: Times = [(0, 2), (0, 3), (2, 6), (2, 4), (3, 6), (4, 5)]
    assert not assign(kinds, times, 2, 2)[0]
    assert assign(kinds[:-1], times[:-1], 2, 2)[0]
    assert assign(kinds, times, 3, 3)[0]


def test_a_first_choice_that_leads_nowhere_is_taken_back() -> None:
    """Later operators decide which pair a single operator blocks."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        n, num_tc, num_vc = 6, 2, 2
        start = rng.integers(0, 5, n).astype(np.float64)
        end = start + rng.integers(1, 4, n)
        kinds = rng.integers(0, 3, n)
        found = assign(kinds.tolist(), list(zip(start, end, strict=True)), num_tc, num_vc)[0]
        assert found == exists_by_trial(kinds, start, end, num_tc, num_vc)


def exists_by_trial(kinds: np.ndarray, start: np.ndarray, end: np.ndarray, num_tc: int, num_vc: int) -> bool:
    """Try every assignment of cores."""
    choices = [
        range({TENSOR: num_tc, VECTOR: num_vc, FUSED: min(num_tc, num_vc)}[int(kind)]) for kind in kinds
    ]
    for core in np.array(np.meshgrid(*choices)).reshape(len(kinds), -1).T:
        clash = any(
            core[i] == core[j]
            and start[i] < end[j]
            and start[j] < end[i]
            and (kinds[i] == kinds[j] or FUSED in (kinds[i], kinds[j]))
            for i in range(len(kinds))
            for j in range(i)
        )
        if not clash:
            return True
    return False


def test_equal_keys_keep_their_order() -> None:
    """A stable order makes schedules reproducible."""
    assert sort_stably(np.array([2.0, 1.0, 2.0, 1.0])).tolist() == [1, 3, 0, 2]
