"""Checks of the simulated plans."""

from __future__ import annotations

import numpy as np
import pandas as pd

from phaze.report.designs import NEAR
from phaze.report.evidence import Check, Evidence
from phaze.report.recommend import recommend
from phaze.report.verdicts import ROUNDING, Verdicts, each
from phaze.report.words import percent, seconds
from phaze.tables.plans import PLAN

_PLAN = tuple(PLAN)
LOOSE = 1e-3
"""What times in the long run may be off where tensors on their way make long cycles, with room."""


def every_plan_is_simulated(e: Evidence) -> Verdicts:
    """Yield for every plan that there is whether it was simulated, with the time that its planner says."""
    plans = e.inputs.plans[e.inputs.plans["status"] == "placed"]
    found = plans.merge(e.inputs.simulations[[*_PLAN, "planned_s"]], on=list(_PLAN), how="left")
    samples = found["microbatch"] * found["microbatches"]
    same = np.isclose(found["planned_s"], found["time_per_sample_s"] * samples, rtol=ROUNDING, atol=0)
    yield from each(same, found, _PLAN)


def planners_assumptions_give_their_time(e: Evidence) -> Verdicts:
    """Yield for every plan whether simulating what its planner assumes gives the planner's time."""
    rows = e.inputs.simulations
    yield from each(np.isclose(rows["assumed_s"], rows["planned_s"], rtol=1e-6, atol=0), rows, _PLAN)


def peaks_fit_the_memory(e: Evidence) -> Verdicts:
    """Yield for every simulated stage whether it never holds more than the HBM, nor than was planned."""
    rows = e.inputs.simulation_stages.merge(
        e.inputs.plan_stages[[*_PLAN, "stage", "memory_bytes"]], on=[*_PLAN, "stage"], how="left"
    )
    planned = rows["peak_bytes"] <= rows["memory_bytes"] * (1 + ROUNDING)
    hbm = rows["hbm_gib"] * 2**30
    fits = rows["headroom_bytes"] >= -hbm * ROUNDING
    yield from each(planned & fits, rows, (*_PLAN, "stage"))


def device_time_is_conserved(e: Evidence) -> Verdicts:
    """Yield for every simulated plan whether passes, communication and waits fill the devices' time.

    No stage works longer than the batch takes, and those of a plan as long as its share of compute says.
    """
    rows, stages = e.inputs.simulations, e.inputs.simulation_stages
    widths = e.inputs.plan_stages[[*_PLAN, "stage", "data", "tensor"]]
    stages = stages.merge(widths, on=[*_PLAN, "stage"])
    devices = stages["data"] * stages["tensor"]
    sums = stages[[*_PLAN]].assign(
        busy=stages["busy_s"] * devices, devices=devices, most=stages["busy_share"]
    )
    by_plan = sums.groupby(list(_PLAN)).agg({"busy": "sum", "devices": "sum", "most": "max"})
    mine = by_plan.reindex(pd.MultiIndex.from_frame(rows[list(_PLAN)])).reset_index(drop=True)
    share = mine["busy"] / (mine["devices"] * rows["simulated_s"])
    same = np.isclose(share, rows["compute_share"], rtol=ROUNDING, atol=0)
    holds = same & (mine["most"] <= 1 + LOOSE) & (rows["bubble_share"] >= -LOOSE)
    yield from each(holds, rows, _PLAN)


def no_more_is_moved_than_can_be(e: Evidence) -> Verdicts:
    """Yield for every simulated stage whether its HBM works no longer than its passes, and its link fits.

    What a link carries consists of all-reduces, tensors between stages and exchanged gradients.
    """
    rows = e.inputs.simulation_stages
    parts = rows[["slices_link_share", "stages_link_share", "replicas_link_share"]].sum(axis=1)
    whole = np.isclose(parts, rows["link_share"], rtol=ROUNDING, atol=0)
    hbm = rows["hbm_share"] <= rows["busy_share"] * (1 + ROUNDING)
    yield from each(whole & hbm & (rows["link_share"] <= 1 + ROUNDING), rows, (*_PLAN, "stage"))


def certified_plans_lose_little(e: Evidence) -> Verdicts:
    """Yield for every compared result whether its certified plan is simulated within 5 % of other stages.

    Of equal and experts' stages, the best on the same accelerator. Losing more is allowed where what the
    planner's formula leaves out accounts for it.
    """
    for _, row in recommend(e.inputs, e.results).iterrows():
        least = min(row["equal_s"], row["expert_s"])
        lost = row["certified_simulated_s"] / least - 1
        yield (
            lost <= NEAR or row["reason"] != "",
            (
                f"{row['model']}, {row['design']}: the certified plan is planned at "
                f"{seconds(row['certified_planned_s'])} and simulated at "
                f"{seconds(row['certified_simulated_s'])}, other stages at {seconds(least)}: it loses "
                f"{percent(lost)}, of which {percent(row['unexplained'])} is none of what the planner's "
                "formula leaves out"
            ),
        )


SIMULATION_CHECKS: dict[str, Check] = {
    "every plan is simulated": every_plan_is_simulated,
    "simulated under its planner's assumptions a plan takes the planner's time": (
        planners_assumptions_give_their_time
    ),
    "simulated stages hold no more than planned, and fit the HBM": peaks_fit_the_memory,
    "no simulated device works longer than the batch takes": device_time_is_conserved,
    "no simulated HBM works longer than the passes, no link more than the time": no_more_is_moved_than_can_be,
    "certified plans lose at most 5 % in the simulator, or the page says why": certified_plans_lose_little,
}
"""What must hold of simulations, as sentences."""
