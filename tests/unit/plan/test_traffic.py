"""Traffic of layers equals that of their schedules, for any energy per byte; traffic of stages that of their
layers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from phaze.formulas.planners import PlansAsked, read_tasks
from phaze.formulas.side_by_side import plan_model
from phaze.spec.architecture import EnergyFigures
from phaze.tables import PLANNERS
from phaze.tables.columns import widths_of
from tests.unit.formulas.test_side_by_side import EXPERT, SMALL, model

HBM_BYTES, REDUCED_BYTES = 3e9, 5e8
"""Of a forward pass of a layer at b = 1; backward passes move twice as much."""
ASKED = [PlansAsked("a0", 2.0, PLANNERS)]
WAYS = ("forward", "recompute", "backward")


def moving() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return the tables of three blocks whose schedules move these bytes."""
    layers, graph, solves, architectures = model()
    times = widths_of(solves, "microbatch") * np.where(solves["direction"] == "forward", 1, 2)
    moved = {
        "hbm_bytes": times * HBM_BYTES,
        "reduced_bytes": times * REDUCED_BYTES * (widths_of(solves, "tp") == 2),
    }
    return layers, graph, solves.assign(**moved), architectures


FREE = SMALL.energy.model_copy(
    update=dict.fromkeys(("hbm_j_per_byte", "link_j_per_byte", "leakage_w_per_mm2"), 0.0)
)


@pytest.mark.parametrize("energy", [SMALL.energy, FREE], ids=["energy", "no-energy"])
def test_layers_move_what_their_schedules_move_whatever_a_byte_costs(energy: EnergyFigures) -> None:
    ((_, task),) = read_tasks(*moving(), ASKED, replace(SMALL, energy=energy), EXPERT)
    for one in task.prospects:
        b, slices = one.point.layout.microbatch, one.point.layout.tp > 1
        found = one.traffic
        assert found.forward_hbm_bytes == pytest.approx(np.full(5, b * HBM_BYTES))
        assert found.backward_hbm_bytes == pytest.approx(np.full(5, 2 * b * HBM_BYTES))
        assert found.forward_reduced_bytes == pytest.approx(np.full(5, slices * b * REDUCED_BYTES))
        assert found.backward_reduced_bytes == pytest.approx(np.full(5, slices * 2 * b * REDUCED_BYTES))


def test_stages_move_what_their_layers_move() -> None:
    """Recomputed layers run forward twice; with one tensor-parallel rank there is no reduction."""
    plans, stages = plan_model(read_tasks(*moving(), ASKED, SMALL, EXPERT))
    rows = stages.merge(plans[["planner", "microbatch"]], on="planner")
    layers = rows["last_layer"] - rows["first_layer"] + 1
    times = dict(zip(WAYS, (layers, rows["recomputed"], 2 * layers), strict=True))
    for way, count in times.items():
        expected = count * rows["microbatch"]
        assert rows[f"{way}_hbm_bytes"].to_numpy() == pytest.approx((expected * HBM_BYTES).to_numpy())
        reduced = expected * REDUCED_BYTES * (rows["tensor"] > 1)
        assert rows[f"{way}_reduced_bytes"].to_numpy() == pytest.approx(reduced.to_numpy())
