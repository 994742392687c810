"""Checks of the plans of several planners, each by other means than it was found."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from phaze.report.anatomy import layer_chain
from phaze.report.evidence import Check, Evidence
from phaze.report.verdicts import ROUNDING, Verdicts, each
from phaze.report.winners import COMMON, PER_MODEL

_CHIP = ("model", "architecture", "hbm_gib")
_PLAN = (*_CHIP, "planner")


def every_chip_is_planned_by_all(e: Evidence) -> Verdicts:
    """Yield for every result of a compared design whether all planners have a plan for it or a reason."""
    shown = (PER_MODEL, COMMON, e.inputs.study.architectures.baseline)
    known = e.inputs.plans.groupby(list(_CHIP)).size()
    results = e.results[e.results["design"].isin(shown)] if len(e.inputs.plans) else e.results.iloc[:0]
    planned = known.reindex(pd.MultiIndex.from_frame(results[list(_CHIP)])).fillna(0) == 4
    yield from each(planned.to_numpy(), results, ("model", "design"))


def stages_make_up_the_plan(e: Evidence) -> Verdicts:
    """Yield for every plan whether its stages are the layers once and sum to its devices and degree."""
    for plan, stages in _plans(e):
        ends = [-1, *stages["last_layer"]]
        follows = [first == end + 1 for first, end in zip(stages["first_layer"], ends, strict=False)]
        whole = all(follows) and ends[-1] == len(layer_chain(e.inputs, plan["model"])) - 1
        devices = int((stages["data"] * stages["tensor"]).sum())
        sums = devices == plan["devices_used"] and stages["data"].sum() == plan["degree"]
        within = devices <= e.inputs.cluster.scenario.devices and len(stages) == plan["stages"]
        yield bool(whole and sums and within), _name(plan)


def plans_fit_the_memory(e: Evidence) -> Verdicts:
    """Yield for every stage of a plan whether its memory and headroom are the HBM."""
    stages = e.inputs.plan_stages
    hbm = stages["hbm_gib"] * 2**30
    fits = (stages["memory_bytes"] + stages["headroom_bytes"] - hbm).abs() <= hbm * ROUNDING
    yield from each(fits & (stages["headroom_bytes"] >= 0), stages, (*_PLAN, "stage"))


def no_plan_is_faster_than_its_stages(e: Evidence) -> Verdicts:
    """Yield for every plan whether its time is its slowest stage's, or with a flush at least that."""
    for plan, stages in _plans(e):
        slowest, time = stages["time_per_sample_s"].max(), plan["time_per_sample_s"]
        same = np.isclose(slowest, time, rtol=ROUNDING, atol=0)
        yield bool(slowest <= time * (1 + ROUNDING) if plan["flushes"] else same), _name(plan)


def in_flight_follows_from_widths(e: Evidence) -> Verdicts:
    """Yield for every plan of Piper's whether ceil(s/d) are in flight, and s at most N."""
    for plan, stages in _plans(e):
        if plan["flushes"]:
            continue
        degrees = stages["data"][::-1].cumsum()[::-1]
        same = (stages["in_flight"] == np.ceil(degrees / stages["data"])).all()
        limit = e.inputs.cluster.scenario.global_batch // plan["microbatch"]
        yield bool(same and plan["degree"] <= limit), _name(plan)


def phaze_plans_its_results(e: Evidence) -> Verdicts:
    """Yield for every result by Phaze's planner whether the plan on the same chip takes as long."""
    plans = e.inputs.plans[e.inputs.plans["planner"] == "phaze"].set_index(list(_CHIP))
    batch = e.inputs.cluster.scenario.global_batch
    for _, row in e.results[(e.results["planner"] == "phaze") & (e.results["status"] == "placed")].iterrows():
        key = tuple(row[name] for name in _CHIP)
        if key in plans.index:
            time = float(plans.loc[key, "time_per_sample_s"]) * batch
            yield bool(np.isclose(time, row["time_per_batch_s"], rtol=ROUNDING, atol=0)), f"{key}"


def no_flushing_plan_beats_phaze(e: Evidence) -> Verdicts:
    """Yield for every plan with equal or experts' stages whether Phaze's is as fast."""
    plans = e.inputs.plans
    yield from _never_faster(
        plans, "phaze", plans[plans["planner"].isin(["equal", "expert"])], "time_per_sample_s"
    )


def no_plan_of_pipers_space_beats_piper(e: Evidence) -> Verdicts:
    """Yield for every other plan that is one of Piper's space whether Piper's is as fast under its model."""
    plans = e.inputs.plans
    others = plans[(plans["planner"] != "piper") & (plans["piper_reason"] == "")]
    yield from _never_faster(plans, "piper", others, "piper_time_per_sample_s")


def _never_faster(plans: pd.DataFrame, planner: str, others: pd.DataFrame, time: str) -> Verdicts:
    """Yield for other plans whether the planner's on the same chip, if it has one, takes no longer."""
    mine = plans[plans["planner"] == planner].set_index(list(_CHIP))[time]
    ours = mine.reindex(pd.MultiIndex.from_frame(others[list(_CHIP)])).to_numpy()
    known = ~np.isnan(ours)
    holds = ours[known] <= others[time].to_numpy()[known] * (1 + ROUNDING)
    yield from each(holds, others[known], _PLAN)


def _plans(e: Evidence) -> Iterator[tuple[pd.Series, pd.DataFrame]]:
    """Yield every plan that there is, with its stages."""
    by_plan = dict(list(e.inputs.plan_stages.groupby(list(_PLAN))))
    for _, plan in e.inputs.plans[e.inputs.plans["status"] == "placed"].iterrows():
        yield plan, by_plan[tuple(plan[name] for name in _PLAN)]


def _name(plan: pd.Series) -> str:
    return ", ".join(f"{key} {plan[key]}" for key in _PLAN)


PLANNER_CHECKS: dict[str, Check] = {
    "every planner has a plan or a reason for none": every_chip_is_planned_by_all,
    "stages of every plan are the layers, and sum to it": stages_make_up_the_plan,
    "stages of every plan fit the HBM": plans_fit_the_memory,
    "the slowest stage of a plan bounds its time": no_plan_is_faster_than_its_stages,
    "microbatches in flight follow from the data widths": in_flight_follows_from_widths,
    "Phaze's plan is that of the results": phaze_plans_its_results,
    "no equal or experts' stages beat Phaze's plan": no_flushing_plan_beats_phaze,
    "no plan of Piper's space beats Piper's": no_plan_of_pipers_space_beats_piper,
}
"""What must hold of plans, as sentences."""
