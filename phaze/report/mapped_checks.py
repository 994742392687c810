"""Checks of the plans that are mapped to networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phaze.report.evidence import Check, Evidence
from phaze.report.simulation_checks import LOOSE
from phaze.report.verdicts import Verdicts, each
from phaze.spec.files import is_path
from phaze.tables import BY_HAND
from phaze.tables.plans import PLAN

_MAPPED = (*PLAN, "system")


def best_plans_are_mapped(e: Evidence) -> Verdicts:
    """Yield for the best plans of every workload whether they are mapped to every network of the study.

    Those of unequal tensor widths need more devices than they use, which a network may not have.
    """
    asked, placed = e.inputs.study.report.maps, e.inputs.plans[e.inputs.plans["status"] == "placed"]
    found = set(e.inputs.plan_maps[list(_MAPPED)].itertuples(index=False, name=None))
    for model, mine in placed.groupby("model"):
        phaze = mine[mine["planner"] == "phaze"]
        if phaze.empty:
            continue
        best = phaze.iloc[int(phaze["time_per_sample_s"].argmin())]
        same = mine[(mine["architecture"] == best["architecture"]) & (mine["hbm_gib"] == best["hbm_gib"])]
        same = same[same["planner"].isin(asked.planners) & ~same["tensor"].str.contains(",")]
        for key in same[list(PLAN)].itertuples(index=False, name=None):
            for system in asked.systems:
                name = Path(system).stem if is_path(system) else system
                yield (*key, name) in found, f"{model}, planner {key[-1]}, system {name}"


def mapping_is_no_slower_than_the_default_orders(e: Evidence) -> Verdicts:
    """Yield for every plan and network whether one mapping is chosen, with the least time of all orders."""
    rows = e.inputs.plan_maps
    for key, mine in rows.groupby(list(_MAPPED)):
        chosen = mine.loc[mine["chosen"], "simulated_s"].tolist()
        holds = chosen == [mine["simulated_s"].min()] and set(BY_HAND) <= set(mine["way"])
        yield holds, ", ".join(map(str, key))


def networks_take_time(e: Evidence) -> Verdicts:
    """Yield for every mapping whether no batch is shorter than one without communication."""
    rows = e.inputs.plan_maps
    holds = np.asarray(rows["simulated_s"] >= rows["alone_s"] * (1 - LOOSE))
    yield from each(holds, rows, (*_MAPPED, "way"))


MAPPED_CHECKS: dict[str, Check] = {
    "the best plans are mapped to every network": best_plans_are_mapped,
    "no mapping is slower than the default orders": mapping_is_no_slower_than_the_default_orders,
    "no batch on a network is shorter than without communication": networks_take_time,
}
"""What must hold of mapped plans, as sentences."""
