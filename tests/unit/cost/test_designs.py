"""Estimates of distinct works and designs, looked up for operators and architectures."""

import numpy as np
import pytest

from phaze.cost.designs import designs_of_operators, gather_latencies

WORK = np.array([0, 0, 1, 1])
DESIGN = np.array([3, 5, 8, 9])
VALUES = np.array([1.0, 2.0, 3.0, 4.0])


def test_operators_find_the_estimate_of_their_design() -> None:
    """Operators with the same work share it; operators without work take no time."""
    designs = designs_of_operators(
        ["tensor", "vector", "none", "tensor"], np.array([3, 5, 5]), np.array([8, 8, 9]), np.array([0, 0, 0])
    )
    found = gather_latencies(np.array([0, 1, -1, 0]), designs, WORK, DESIGN, VALUES)
    assert found.tolist() == [[1, 3, 0, 1], [2, 3, 0, 2], [2, 4, 0, 2]]


def test_collectives_run_on_the_vector_design() -> None:
    """A network operator reduces on the vector cores."""
    found = designs_of_operators(["network", "fused"], np.array([1]), np.array([2]), np.array([3]))
    assert found.tolist() == [[2, 3]]


def test_a_missing_estimate_is_an_error() -> None:
    """The error names the operator and the architecture."""
    with pytest.raises(KeyError, match="operator 0 of architecture 1"):
        gather_latencies(np.array([1]), np.array([[8], [3]]), WORK, DESIGN, VALUES)


def test_no_ops_alone_need_no_estimates() -> None:
    """Also without any estimates."""
    none = np.array([], dtype=np.int64)
    found = gather_latencies(np.array([-1]), np.array([[0], [0]]), none, none, np.array([]))
    assert found.tolist() == [[0], [0]]
