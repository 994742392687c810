"""Checks of plans by several planners, of simulated plans, and of plans mapped to networks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from phaze.pages.page_words import words_of
from phaze.pages.verdicts import ROUNDING, Checklist, Verdicts, at_most, check_rows, close, describe
from phaze.report.anatomy import layer_chain
from phaze.report.checks import Evidence, are_layers_once
from phaze.report.findings import COMMON, PER_MODEL
from phaze.report.planners import NEAR
from phaze.report.recommend import recommend
from phaze.tables import PLANNERS
from phaze.tables.plans import PLAN

WORDS = words_of("study")
_CHIP = ("model", "architecture", "hbm_gib")
_PLAN = tuple(PLAN)
LOOSE = 1e-3
"""Tolerance of steady-state times, inexact if transfers form long cycles; includes a margin."""
PLANNER_CHECKS, SIMULATION_CHECKS = (Checklist[Evidence]() for _ in range(2))


@PLANNER_CHECKS.hold("every planner has a plan or a reason for none")
def _every_chip_is_planned_by_all(e: Evidence) -> Verdicts:
    shown = (PER_MODEL, COMMON, e.inputs.study.architectures.baseline)
    plan_counts = e.inputs.plans.groupby(list(_CHIP)).size()
    results = e.results[e.results["design"].isin(shown)] if len(e.inputs.plans) else e.results.iloc[:0]
    planned = plan_counts.reindex(pd.MultiIndex.from_frame(results[list(_CHIP)])).fillna(0)
    yield from check_rows((planned == len(PLANNERS)).to_numpy(), results, ("model", "design"))


@PLANNER_CHECKS.hold("stages of every plan are the layers, and sum to it")
def _stages_make_up_the_plan(e: Evidence) -> Verdicts:
    for plan, stages in _plans(e):
        covered = are_layers_once(stages, len(layer_chain(e.inputs, plan["model"])))
        devices = int((stages["data"] * stages["tensor"]).sum())
        sums = devices == plan["devices_used"] and stages["data"].sum() == plan["degree"]
        # devices may be left over, layers may not
        within = devices <= e.inputs.cluster.scenario.devices and len(stages) == plan["stages"]
        yield bool(covered and sums and within), describe(plan, _PLAN)


@PLANNER_CHECKS.hold("stages of every plan fit the HBM")
def _plans_fit_the_memory(e: Evidence) -> Verdicts:
    stages = e.inputs.plan_stages
    hbm = stages["hbm_gib"] * 2**30
    fits = (stages["memory_bytes"] + stages["headroom_bytes"] - hbm).abs() <= hbm * ROUNDING
    yield from check_rows(fits & (stages["headroom_bytes"] >= 0), stages, (*_PLAN, "stage"))


@PLANNER_CHECKS.hold("the slowest stage of a plan bounds its time")
def _no_plan_is_faster_than_its_stages(e: Evidence) -> Verdicts:
    for plan, stages in _plans(e):
        # without a flush the slowest stage never waits; a flush adds the time to fill and drain the pipeline
        slowest, time = stages["time_per_sample_s"].max(), plan["time_per_sample_s"]
        holds = at_most(slowest, time) if plan["flushes"] else close(slowest, time)
        yield bool(holds), describe(plan, _PLAN)


@PLANNER_CHECKS.hold("microbatches in flight follow from the data widths")
def _in_flight_follows_from_widths(e: Evidence) -> Verdicts:
    for plan, stages in _plans(e):
        if not plan["flushes"]:
            # data widths from each stage to the last: as many microbatches are in flight at or after it
            degrees = stages["data"][::-1].cumsum()[::-1]
            same = (stages["in_flight"] == np.ceil(degrees / stages["data"])).all()
            limit = e.inputs.cluster.scenario.global_batch // plan["microbatch"]
            yield bool(same and plan["degree"] <= limit), describe(plan, _PLAN)


@PLANNER_CHECKS.hold("Phaze's plan is that of the results")
def _phaze_plans_its_results(e: Evidence) -> Verdicts:
    plans, batch = e.inputs.plans, e.inputs.cluster.scenario.global_batch
    times = plans[plans["planner"] == "phaze"].set_index(list(_CHIP))["time_per_sample_s"] * batch
    placed = e.results[(e.results["planner"] == "phaze") & (e.results["status"] == "placed")]
    planned = placed.merge(times.rename("planned_s").reset_index(), on=list(_CHIP))
    yield from check_rows(close(planned["planned_s"], planned["time_per_batch_s"]), planned, _CHIP)


@PLANNER_CHECKS.hold("no equal or experts' stages beat Phaze's plan")
def _no_flushing_plan_beats_phaze(e: Evidence) -> Verdicts:
    others = e.inputs.plans[e.inputs.plans["planner"].isin(["equal", "expert"])]
    yield from _never_faster(e.inputs.plans, "phaze", others, "time_per_sample_s")


def _never_faster(plans: pd.DataFrame, planner: str, others: pd.DataFrame, time: str) -> Verdicts:
    """Check that a planner's plan takes no longer than any other plan on the same chip."""
    planner_s = plans[plans["planner"] == planner].set_index(list(_CHIP))[time].rename("ours")
    both = others.merge(planner_s.reset_index(), on=list(_CHIP))
    yield from check_rows(at_most(both["ours"], both[time]), both, _PLAN)


def _plans(e: Evidence) -> Iterator[tuple[pd.Series, pd.DataFrame]]:
    """Yield each feasible plan with its stages."""
    by_plan = dict(list(e.inputs.plan_stages.groupby(list(_PLAN))))
    for _, plan in e.inputs.plans[e.inputs.plans["status"] == "placed"].iterrows():
        yield plan, by_plan[tuple(plan[name] for name in _PLAN)]


@SIMULATION_CHECKS.hold("every plan is simulated")
def _every_plan_is_simulated(e: Evidence) -> Verdicts:
    plans = e.inputs.plans[e.inputs.plans["status"] == "placed"]
    simulated = plans.merge(e.inputs.simulations[[*_PLAN, "planned_s"]], on=list(_PLAN), how="left")
    planned_s = simulated["time_per_sample_s"] * simulated["microbatch"] * simulated["microbatches"]
    yield from check_rows(close(simulated["planned_s"], planned_s), simulated, _PLAN)


@SIMULATION_CHECKS.hold("simulated stages hold no more than planned, and fit the HBM")
def _peaks_fit_the_memory(e: Evidence) -> Verdicts:
    keys = [*_PLAN, "stage"]
    planned = e.inputs.plan_stages[[*keys, "memory_bytes"]]
    rows = e.inputs.simulation_stages.merge(planned, on=keys, how="left")
    fits = rows["headroom_bytes"] >= -rows["hbm_gib"] * 2**30 * ROUNDING
    yield from check_rows(at_most(rows["peak_bytes"], rows["memory_bytes"]) & fits, rows, tuple(keys))


@SIMULATION_CHECKS.hold("no simulated device works longer than the batch takes")
def _device_time_is_conserved(e: Evidence) -> Verdicts:
    """Check that passes, communication and waits add up to the devices' time.

    No stage is busy longer than the batch takes. The busy time of all stages of a plan equals its compute
    share.
    """
    rows, keys = e.inputs.simulations, list(_PLAN)
    widths = e.inputs.plan_stages[[*keys, "stage", "data", "tensor"]]
    stages = e.inputs.simulation_stages.merge(widths, on=[*keys, "stage"])
    devices = stages["data"] * stages["tensor"]
    sums = stages.assign(busy=stages["busy_s"] * devices, devices=devices).groupby(keys)
    by_plan = sums.agg({"busy": "sum", "devices": "sum", "busy_share": "max"})
    totals = by_plan.reindex(pd.MultiIndex.from_frame(rows[keys])).reset_index(drop=True)
    same = close(totals["busy"] / (totals["devices"] * rows["simulated_s"]), rows["compute_share"])
    holds = same & (totals["busy_share"] <= 1 + LOOSE) & (rows["bubble_share"] >= -LOOSE)
    yield from check_rows(holds, rows, _PLAN)


@SIMULATION_CHECKS.hold("no simulated HBM works longer than the passes, no link more than the time")
def _no_more_is_moved_than_can_be(e: Evidence) -> Verdicts:
    """Check that no HBM or link is overloaded, and that three kinds of traffic add up to a link's load."""
    rows = e.inputs.simulation_stages
    parts = rows[["slices_link_share", "stages_link_share", "replicas_link_share"]].sum(axis=1)
    fits = at_most(rows["hbm_share"], rows["busy_share"]) & at_most(rows["link_share"], 1)
    yield from check_rows(close(parts, rows["link_share"]) & fits, rows, (*_PLAN, "stage"))


@SIMULATION_CHECKS.hold("no simple plan beats the certified plan as planned and by 5 % in the simulator")
def _certified_plans_lose_little(e: Evidence) -> Verdicts:
    """Check certified plans against the better of equal and expert stages on the same accelerator.

    In the simulator, a certified plan may lose through effects that its planner's formula ignores. Such a
    loss is not a failure, but the page reports it.
    """
    for _, row in recommend(e.inputs, e.results).iterrows():
        others_s = min(row["equal_s"], row["expert_s"])
        lost = row["certified_simulated_s"] / others_s - 1
        about = WORDS.sentence("unexplained", **{**row, "others_s": others_s, "lost": lost})
        yield lost <= NEAR or row["unexplained"] == 0, about
