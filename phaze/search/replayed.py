"""Every plan of a model simulated event by event: tables plans and plan_stages in, simulations out."""

from __future__ import annotations

from functools import partial

import pandas as pd

from phaze.base.progress import counted
from phaze.tables import PlanStages, Simulations, SimulationStages
from phaze.tables.plans import PLAN, TIMED
from phaze.tables.store import Plain, Recalled

Row = dict[str, str | int | float | bool]

WORKING = ["stage", *PlanStages.columns]


def replay_plans(
    plans: pd.DataFrame, stages: pd.DataFrame, recalled: Recalled
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return tables simulations and simulation_stages: a row for every plan that there is, and its stages."""
    by_plan = dict(list(stages.groupby(list(PLAN))))
    rows: list[Row] = []
    stage_rows: list[Row] = []
    for plan in counted(plans[plans["status"] == "placed"].to_dict("records"), "plan"):
        key = {name: plan[name] for name in PLAN}
        row = {name: plan[name] for name in ("hbm_gib", *TIMED)}
        working = by_plan[tuple(key.values())].sort_values("stage")[WORKING]
        content: Plain = [row, working.to_numpy().tolist()]
        found, of_stages = recalled.of(content, partial(_replay, row, working))
        rows.append({**key, **found})
        stage_rows += [{**key, **stage} for stage in of_stages]
    return (
        pd.DataFrame(rows, columns=list(Simulations.fields())),
        pd.DataFrame(stage_rows, columns=list(SimulationStages.fields())),
    )


def _replay(row: Row, stages: pd.DataFrame) -> tuple[Row, list[Row]]:
    """Return what `plan.replay` says of a plan."""
    from phaze.plan.replay import replayed_rows  # the simulator takes its time: most plans are known

    return replayed_rows(row, stages)
