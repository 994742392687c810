"""Cycles of vector operations."""

import numpy as np
import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.vector import cycle_figures, cycles_per_element, vector_cycles
from phaze.spec.architecture import CycleFigures

FIGURES = CycleFigures(forward={"gelu": 1, "softmax": 10}, backward={"gelu": 2, "softmax": 3})


def test_forward_and_backward_have_their_own_figures() -> None:
    """The role selects the table; matrix multiplications and collectives have no cycles there."""
    parts = pd.DataFrame(
        {
            "kind": ["gelu", "gelu", "matmul", "softmax", "all_reduce"],
            "role": ["forward", "backward", "weight_gradient", "forward", "forward"],
        }
    )
    assert cycles_per_element(parts, cycle_figures(FIGURES, {})).tolist() == [1, 2, 0, 10, 0]


def test_a_study_replaces_single_figures() -> None:
    """Only the named figure changes."""
    found = cycle_figures(FIGURES, {"backward.gelu": 7.5})
    assert found == {
        ("forward", "gelu"): 1,
        ("forward", "softmax"): 10,
        ("backward", "gelu"): 7.5,
        ("backward", "softmax"): 3,
    }


def test_an_unknown_operation_is_refused_by_name() -> None:
    """The message gives the key, the value and the known operations."""
    with pytest.raises(
        PhazeError, match=r"vector_cycles: forward.glue: .* got 3.0; known are .*forward.gelu"
    ):
        cycle_figures(FIGURES, {"forward.glue": 3.0})


def test_the_last_elements_take_a_whole_cycle() -> None:
    """Elements are distributed over lanes, and the busiest lane counts."""
    found = vector_cycles(np.array([1000.0, 0.0]), np.array([10.0, 1.0]), np.array([128, 256, 4096]))
    assert found.tolist() == [[80, 40, 10], [0, 0, 0]]
