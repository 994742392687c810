"""Price plans from a study's tables.

A planner's time is a formula. The price simulates the plan event by event, with more detail than the formula.
Transfers are in flight while devices continue. Each stage exchanges its gradients with 2 (d - 1)/d of its
weights, in both directions at once. Tensors that enter a stage share its link. Neither links nor HBM exceed
their bandwidth (`price`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import fields

import numpy as np
import pandas as pd

from phaze.base.progress import counted
from phaze.base.store import Store
from phaze.base.units import GIB
from phaze.cost.network.network import Flat
from phaze.layout import Layout
from phaze.pipeline.schedules import SCHEDULES
from phaze.plan.plan import Claim, Execution, Machine, Plan, Stage
from phaze.plan.pricing.price import Price
from phaze.spec.rows import StageWork
from phaze.tables import PlanStages, Simulations, SimulationStages
from phaze.tables.plans import PLAN, TIMED

Row = dict[str, str | int | float | bool]


def read_plan(row: Mapping[Hashable, object] | pd.Series, stages: pd.DataFrame) -> Plan:
    """Build a plan from its row in table plans and its rows in table plan_stages."""
    rows = stages.sort_values("stage").to_dict("records")
    schedule, flat = str(row["schedule"]), float(str(row["network_bandwidth_bytes_per_s"]))
    return Plan(
        tuple(_read_stage(stage, int(str(row["microbatch"])), len(rows)) for stage in rows),
        schedule,
        int(str(row["microbatches"])),
        Execution(overlap_sync=not SCHEDULES[schedule].flushes),
        Claim(
            time_per_sample_s=float(str(row["time_per_sample_s"])),
            sync_s=float(str(row["sync_s"])),
            network=Flat(flat, float(str(row["all_reduce_factor"]))),
            hbm_bytes_per_s=float(str(row["hbm_bandwidth_bytes_per_s"])),
        ),
    )


def _read_stage(row: Mapping[Hashable, object], microbatch: int, depth: int) -> Stage:
    first, last, tensor, data = (
        int(str(row[name])) for name in ("first_layer", "last_layer", "tensor", "data")
    )
    work = StageWork(*(float(str(row[field.name])) for field in fields(StageWork)))
    layout = Layout(tp=tensor, dp=data, pp=depth, microbatch=microbatch)
    time_s = float(str(row["time_per_sample_s"]))
    return Stage(**vars(work), first_layer=first, last_layer=last, layout=layout, time_per_sample_s=time_s)


def planned_on(plan: Plan) -> Machine:
    """Flat machine that a plan was made for; an all-reduce on it takes as long as a ring all-reduce."""
    return Machine.flat(plan.claimed.network.bandwidth_bytes_per_s, plan.claimed.hbm_bytes_per_s)


def replay(plan: Plan) -> Price:
    """Price a plan on the machine that it was made for."""
    return Price(plan, planned_on(plan))


def replay_plans(
    plans: pd.DataFrame, stages: pd.DataFrame, store: Store
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables simulations and simulation_stages: one row per feasible plan, and one per stage."""
    by_plan = dict(list(stages.groupby(list(PLAN))))
    placed = plans[plans["status"] == "placed"].to_dict("records")
    keys = [{name: plan[name] for name in PLAN} for plan in placed]
    assumed = [{name: plan[name] for name in ("hbm_gib", *TIMED)} for plan in placed]
    working = [
        by_plan[tuple(key.values())].sort_values("stage")[["stage", *PlanStages.columns]] for key in keys
    ]
    simulated = store.each(
        [[row, rows.to_numpy().tolist()] for row, rows in zip(assumed, working, strict=True)],
        lambda fresh: [replayed_rows(assumed[k], working[k]) for k in counted(fresh, "plan")],
    )
    rows = [{**key, **row} for key, (row, _) in zip(keys, simulated, strict=True)]
    stage_rows = [
        {**key, **row} for key, (_, of_stages) in zip(keys, simulated, strict=True) for row in of_stages
    ]
    return (
        pd.DataFrame(rows, columns=list(Simulations.fields())),
        pd.DataFrame(stage_rows, columns=list(SimulationStages.fields())),
    )


def replayed_rows(row: Row, stages: pd.DataFrame) -> tuple[Row, list[Row]]:
    """Rows of tables simulations and simulation_stages for one plan, without their key columns.

    The plan is given by its rows in tables plans and plan_stages.
    """
    price = replay(read_plan(pd.Series(row), stages))
    return simulation_row(price), list(simulated_stages(price, float(row["hbm_gib"]) * GIB))


def simulation_row(price: Price) -> Row:
    """Row of table `simulations` for a priced plan, without its key columns."""
    peaks, bound = price.peak_bytes, price.bound_by
    return {
        "schedule": price.plan.schedule,
        "planned_s": price.plan.planned_s,
        "simulated_s": price.time_s,
        "samples_per_s": price.samples_per_s,
        "compute_share": price.compute_share,
        "exposed_communication_share": price.exposed_share,
        "bubble_share": 1.0 - price.compute_share - price.exposed_share,
        "hbm_share": price.mean(price.hbm_shares),
        "link_share": price.link_share,
        "peak_bytes": float(peaks.max()),
        "fullest_stage": int(np.argmax(peaks)),
        "bound_by": bound.resource,
        "bound_stage": bound.group,
    }


def simulated_stages(price: Price, hbm_bytes: float) -> Iterator[Row]:
    """Yield rows of table `simulation_stages` without key columns; link columns only for a flat network."""
    groups = [group for group, _ in price.timeline.pipeline.workers]
    for q, (busy, peak) in enumerate(zip(price.busy_s, price.peak_bytes.tolist(), strict=True)):
        links = {
            f"{name}link_share": getattr(price.link_shares[q], of)
            for name, of in (
                ("", "total"),
                ("slices_", "slices"),
                ("stages_", "stages"),
                ("replicas_", "replicas"),
            )
            if price.link_shares
        }
        yield {
            "stage": q,
            "busy_s": busy,
            "busy_share": busy / price.time_s,
            "hbm_share": price.hbm_shares[q],
            **links,
            "in_flight": price.timeline.most_in_flight(groups.index(q)),
            "peak_bytes": peak,
            "headroom_bytes": hbm_bytes - peak,
        }
