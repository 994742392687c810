"""A plan on a system as plain values, as the study keeps it."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from phaze.map.plans.maps import Effort, PlanMap, map_plan
from phaze.map.plans.stages import lanes_of
from phaze.plan.replay import read_plan
from phaze.spec.network import Matrix
from phaze.spec.settings import PlanMapSettings
from phaze.spec.system import Cluster

Row = dict[str, str | int | float | bool]


def map_rows(
    row: Row,
    stages: pd.DataFrame,
    system: Cluster | Matrix,
    devices: int,
    search: PlanMapSettings,
) -> tuple[list[Row], list[list[list[int]]]] | None:
    """Return rows of table plan_maps from the way on, and the devices of every stage, replica and slice.

    A plan is given by its rows in tables plans and plan_stages. None if the system has too few devices.
    """
    plan = read_plan(pd.Series(row), stages)
    if lanes_of(plan).devices > system.devices:
        return None
    found = map_plan(plan, system, devices, Effort(search.steps, search.seed))
    placed = [[list(slices) for slices in replicas] for replicas in found.placed]
    return list(_rows(found)), placed


def _rows(found: PlanMap) -> Iterator[Row]:
    """Yield the rows of table plan_maps, without their key but the way."""
    workers, lanes = found.lanes.shape
    for one in found.tried:
        yield {
            "way": one.way,
            "network": found.network,
            "devices": found.devices,
            "lanes": lanes,
            "workers": workers,
            "unit": found.lanes.unit,
            "alone_s": found.alone_s,
            "estimated_s": one.estimated_s,
            "simulated_s": one.simulated_s,
            "chosen": one is found.best,
        }
