"""Tables of plans: what every planner makes of a model on the architectures asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from phaze.layout import Layout
from phaze.plan.phaze.point import Conditions
from phaze.plan.piper.batches import Planner
from phaze.plan.plan_rows import Row, plan_row, stages_of
from phaze.plan.planners import Asked, plan_as, read_tasks
from phaze.tables import Plans, PlanStages


def plan_model(
    layers: pd.DataFrame,
    graph: pd.DataFrame,
    solves: pd.DataFrame,
    architectures: pd.DataFrame,
    asked: Sequence[Asked],
    conditions: Conditions,
    expert: Layout | None,
    piper: Planner,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables of plans and of their stages; layers and solves are of all points of one model."""
    model = str(graph["model"].iloc[0])
    assumed = {
        "network_bandwidth_bytes_per_s": conditions.bandwidth_bytes_per_s,
        "hbm_bandwidth_bytes_per_s": conditions.hbm_bandwidth_bytes_per_s,
    }
    plans: list[Row] = []
    stages: list[Row] = []
    for one, task in read_tasks(layers, graph, solves, architectures, asked, conditions, expert):
        for planner in one.planners:
            found = plan_as(planner, task, piper)
            key = {
                "model": model,
                "architecture": one.architecture,
                "hbm_gib": one.hbm_gib,
                "planner": planner,
            }
            cut = stages_of(found, task)
            plans.append({**key, **assumed, **plan_row(found, cut, task)})
            stages.extend({**key, "stage": s, **stage.as_row()} for s, stage in enumerate(cut))
    return (
        pd.DataFrame(plans, columns=list(Plans.fields())),
        pd.DataFrame(stages, columns=list(PlanStages.fields())),
    )
