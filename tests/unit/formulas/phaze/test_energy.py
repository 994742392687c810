"""Energy of the layers of a placement in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from phaze.formulas.phaze.chains import Runs
from phaze.formulas.phaze.energy import LayerEnergy, dynamic_j
from phaze.layout import Layout
from phaze.tables.columns import ENERGIES

NONE = np.zeros(3)


@pytest.mark.parametrize(("last_start", "again"), [(0, 0), (1, 1), (4, 1 + 3 * 2 * 10), (5, 1 + 4 * 2 * 10)])
def test_the_last_stage_does_not_recompute(last_start: int, again: float) -> None:
    """Embedding of 1 J forward and 3 J backward, four blocks on two ranks of 10 and 30 J, head of 100 and
    300 J.
    """
    runs = Runs((1, 4, 1), NONE, NONE, NONE, NONE, np.array([False, True, False]))
    forward = np.outer([1.0, 10.0, 100.0], np.arange(len(ENERGIES)))
    work, layout, once = LayerEnergy(forward, 3 * forward), Layout(tp=2), 1 + 4 * 2 * 10 + 100
    for recompute in (False, True):
        joules = dynamic_j(runs, work, layout, last_start, recompute)
        assert joules == pytest.approx((4 * once + again * recompute) * np.arange(len(ENERGIES)))
