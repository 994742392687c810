"""Stages balanced by compute, compared with all cuts."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.papers.palm.inference import balanced_starts


def slowest(compute_s: list[float], starts: tuple[int, ...]) -> float:
    """Return the time of the slowest stage."""
    ends = (*starts[1:], len(compute_s))
    return max(sum(compute_s[i:j]) for i, j in zip(starts, ends, strict=True))


@pytest.mark.parametrize("seed", range(30))
def test_no_cut_has_a_faster_slowest_stage(seed: int) -> None:
    rng = np.random.default_rng(seed)
    compute = rng.integers(0, 9, int(rng.integers(1, 9))).astype(float).tolist()
    for stages in range(1, len(compute) + 1):
        cuts = [(0, *cut) for cut in combinations(range(1, len(compute)), stages - 1)]
        starts = balanced_starts(np.array(compute), stages)
        assert starts in cuts
        assert slowest(compute, starts) == min(slowest(compute, cut) for cut in cuts)


def test_equal_operators_are_shared_out_evenly() -> None:
    assert balanced_starts(np.ones(12), 4) == (0, 3, 6, 9)


@pytest.mark.parametrize("stages", [0, 4])
def test_every_stage_needs_an_operator(stages: int) -> None:
    with pytest.raises(PhazeError, match=f"between 1 and the 3 operators, got {stages}"):
        balanced_starts(np.ones(3), stages)
