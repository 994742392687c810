"""Simulations that agree with the toy plans, with invented deviations from the planners."""

from __future__ import annotations

import pandas as pd

from phaze.tables import Simulations, SimulationStages
from phaze.tables.plans import PLAN

DIFFERENCES = {"phaze": 0.11, "equal": -0.10, "expert": -0.10, "piper": -0.20}
"""Relative deviation of the simulated from the planned time."""

LINKS = {"slices_link_share": 0.25, "stages_link_share": 0.125, "replicas_link_share": 0.0625}


def simulations(plans: pd.DataFrame, stages: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables of simulations and their stages."""
    rows, cut = [], []
    for _, plan in plans[plans["status"] == "placed"].iterrows():
        key = {name: plan[name] for name in PLAN}
        mine = stages[(stages[list(PLAN)] == pd.Series(key)).all(axis=1)]
        found, of_stages = _simulated(plan, mine)
        rows.append({**key, **found})
        cut.extend({**key, **stage} for stage in of_stages)
    return Simulations.check(pd.DataFrame(rows)), SimulationStages.check(pd.DataFrame(cut))


def _simulated(plan: pd.Series, stages: pd.DataFrame) -> tuple[dict[str, object], list[dict[str, object]]]:
    samples = plan["microbatch"] * plan["microbatches"]
    planned = plan["time_per_sample_s"] * samples
    simulated = planned * (1 + DIFFERENCES[plan["planner"]])
    work = stages["forward_s"] + stages["recompute_s"] + stages["backward_s"]
    busy = work * plan["microbatches"] / stages["data"]
    devices = stages["data"] * stages["tensor"]
    compute = float((busy * devices).sum() / (devices.sum() * simulated))
    fullest = int(stages["memory_bytes"].argmax())
    row = {
        "schedule": plan["schedule"], "planned_s": planned, "simulated_s": simulated,
        "samples_per_s": samples / simulated, "compute_share": compute,
        "exposed_communication_share": (1 - compute) / 2, "bubble_share": (1 - compute) / 2,
        "hbm_share": compute / 2, "link_share": sum(LINKS.values()),
        "peak_bytes": stages["memory_bytes"].max(), "fullest_stage": fullest, "bound_by": "compute",
        "bound_stage": 0,
    }  # fmt: skip
    return row, [
        {
            "stage": stage["stage"], "busy_s": seconds, "busy_share": seconds / simulated,
            "hbm_share": seconds / simulated / 2, "link_share": sum(LINKS.values()), **LINKS,
            "in_flight": stage["in_flight"], "peak_bytes": stage["memory_bytes"],
            "headroom_bytes": stage["headroom_bytes"],
        }
        for (_, stage), seconds in zip(stages.iterrows(), busy, strict=True)
    ]  # fmt: skip
