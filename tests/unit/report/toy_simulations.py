"""Prices of the toy placements, with invented deviations from the formula."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from phaze.search.winners import Outcome, compared_placements
from phaze.spec.study import Study
from phaze.tables import Simulations
from tests.unit.report.toy_placements import BATCH

DIFFERENCES = {"phaze": 0.11, "expert": -0.10, "expert-even": -0.20}
"""Relative deviation of the simulated from the planned time."""


def simulations(cluster: Outcome, study: Study) -> pd.DataFrame:
    """Return the table of prices of all models."""
    rows = []
    for model in study.models:
        placements = cluster.placements[cluster.placements["model"] == model]
        of_model = replace(cluster, placements=placements)
        compared = compared_placements(of_model, study.architectures.baseline, study.screen.tolerance)
        rows += [priced(placement) for placement in compared.to_dict("records")]
    return Simulations.check(pd.DataFrame(rows)[list(Simulations.fields())])


def priced(placement: dict[str, object]) -> dict[str, object]:
    """Return the row of a placement."""
    planned_s = float(str(placement["time_per_batch_s"]))
    simulated_s = planned_s * (1 + DIFFERENCES[str(placement["planner"])])
    return {
        **placement, "schedule": "1f1b", "planned_s": planned_s, "simulated_s": simulated_s,
        "samples_per_s": BATCH / simulated_s, "passes_share": 0.5, "communication_share": 0.25,
        "update_share": 0.125, "bubble_share": 0.125, "peak_bytes": 2.0**34, "fullest_stage": 0,
        "fits": True, "bound_by": "compute", "bound_stage": 0,
    }  # fmt: skip
