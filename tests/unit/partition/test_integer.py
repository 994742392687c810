"""The integer program agrees with the dynamic program, and also solves graphs with too many subgraphs for
it.
"""

from __future__ import annotations

import numpy as np
import pytest

from phaze.partition.flow import SLACK, CutOptions, partition
from phaze.partition.integer import BETTER, cut_by_program
from phaze.partition.program import cut_within
from phaze.partition.weights import PartitionTerms, fits, weigh
from tests.unit.partition.graphs import operator_graph, random_weights, series_parallel


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("limit", [np.inf, 22.0])
def test_it_finds_the_optimum_from_any_partition(seed: int, limit: float) -> None:
    weights, stages = random_weights(seed, 9 + seed % 4, 0.3, limit), 2 + seed % 3
    best = cut_within(weights, stages)
    found = cut_by_program(weights, stages, weights.total_s + 100.0)
    if best is None:
        assert found is None or found.cut is None
        return
    assert found is not None
    assert found.cut is not None
    assert found.cut.time_s == pytest.approx(best.time_s)
    assert found.bound_s == pytest.approx(best.time_s, rel=1e-5)
    assert fits(weights, found.cut.stage_of)


def test_from_the_optimum_it_proves_it() -> None:
    weights = random_weights(5, 12, 0.3)
    best = cut_within(weights, 3)
    assert best is not None
    found = cut_by_program(weights, 3, best.time_s)
    assert found is not None
    assert found.cut is None
    assert found.bound_s == pytest.approx(best.time_s * (1 - BETTER), rel=1e-9)


def test_programs_that_are_too_large_are_left_alone() -> None:
    assert cut_by_program(random_weights(1, 120, 0.4), 4, 1e9) is None


@pytest.mark.parametrize(("name", "stages"), [("forks", 2), ("forks", 4), ("random", 2)])
def test_wide_graphs_are_proven_where_subgraphs_are_too_many(name: str, stages: int) -> None:
    """Forks of up to twelve branches, and a sparse random graph: the dynamic program would run for hours."""
    wide = {"forks": series_parallel(300, 7, 12), "random": random_weights(4, 40, 0.1)}[name]
    terms = PartitionTerms(1e10 if name == "forks" else 2.0, recompute=False)
    found = partition(operator_graph(wide), terms, stages, 1, CutOptions(24))
    assert found.proven
    assert found.chosen.time_s <= (1 + SLACK) * found.bound_s
    assert "operators" in {one.made_by for one in found.candidates}
    assert len(weigh(operator_graph(wide), terms)) == len(found.chosen.stage_of)
