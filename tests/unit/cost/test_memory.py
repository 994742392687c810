"""Memory of a stage in steady state, and the number of microbatches in flight that fits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.cost.memory import Schedule, microbatches_in_flight, most_in_flight, parameter_bytes
from phaze.layout import Optimizer, Precision


@pytest.mark.parametrize(
    ("optimizer", "precision", "weights", "gradients", "state"),
    [
        ("sgd", "half", 2, 2, 0),
        ("sgd-momentum", "half", 2, 2, 2),
        ("adam", "half", 2, 2, 4),
        ("sgd", "mixed", 2, 2, 4),
        ("sgd-momentum", "mixed", 2, 2, 8),
        ("adam", "mixed", 2, 2, 12),
        ("adam-bf16", "mixed", 2, 2, 8),
        ("adam-fp8", "mixed", 2, 2, 6),
        ("sgd", "single", 4, 4, 0),
        ("adam", "single", 4, 4, 8),
    ],
)
def test_bytes_of_a_parameter(
    optimizer: Optimizer, precision: Precision, weights: int, gradients: int, state: int
) -> None:
    found = parameter_bytes(optimizer, precision)
    assert (found.weights, found.gradients, found.optimizer) == (weights, gradients, state)
    assert found.static == weights + gradients + state


@pytest.mark.parametrize(
    ("schedule", "stage", "microbatches", "in_flight"),
    [("1f1b", 1, 32, 0), ("1f1b", 5, 32, 4), ("gpipe", 1, 32, 32), ("gpipe", 5, 8, 8)],
)
def test_microbatches_in_flight(schedule: Schedule, stage: int, microbatches: int, in_flight: int) -> None:
    assert microbatches_in_flight(schedule, stage, microbatches) == in_flight


sizes = st.integers(0, 10**12).map(float)


@given(sizes, sizes, sizes, st.integers(0, 100))
def test_one_microbatch_more_than_the_most_does_not_fit(
    constant: float, stashed: float, memory: float, limit: int
) -> None:
    most = int(most_in_flight(np.array([constant]), np.array([stashed]), memory, limit)[0])

    def fits(in_flight: int) -> bool:
        return constant + in_flight * stashed <= memory

    assert -1 <= most <= limit
    assert most == -1 or fits(most)
    assert most == limit or not fits(most + 1)


def test_without_stashes_any_number_fits() -> None:
    most = most_in_flight(np.array([5.0, 5.0]), np.zeros(2), 5.0, 17)
    assert most.tolist() == [17, 17]


def test_unlimited_memory_holds_all() -> None:
    assert most_in_flight(np.array([5.0]), np.array([3.0]), np.inf, 17).tolist() == [17]
