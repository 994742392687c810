"""A model's plans on the networks of a study: rows of tables plan_maps and plan_devices."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.base.progress import counted
from phaze.base.ranking import tied
from phaze.base.store import Plain, Store, digest_of
from phaze.spec.network import Matrix
from phaze.spec.settings import PlanMapSettings
from phaze.spec.system import Cluster
from phaze.tables import PlanDevices, PlanMaps, PlanStages
from phaze.tables.plans import PLAN, TIMED

log = logging.getLogger(__name__)

Row = dict[str, str | int | float | bool]

IN_MEMORY = {"recomputed", "in_flight", "memory_bytes", "headroom_bytes"}
WORKING = ["stage", *(name for name in PlanStages.columns if name not in IN_MEMORY)]
"""Columns of table `plan_stages` that affect the simulation, without the memory columns."""
PLACES = ["stage", "replica", "slice", "device"]


@dataclass(frozen=True)
class MapQuestion:
    """Plans to map and the systems to map them to."""

    systems: Mapping[str, Cluster | Matrix]
    """Systems by name."""
    devices: int
    """K, the number of devices of the plans."""
    search: PlanMapSettings
    """Planners whose plans are mapped, and search limits."""

    @classmethod
    def of(
        cls,
        networks: Mapping[str, Mapping[str, object]],
        devices: int,
        search: PlanMapSettings,
    ) -> MapQuestion:
        """Question of a study; networks are plain values."""
        systems = {
            name: (Cluster if "device" in one else Matrix).parse(one, name) for name, one in networks.items()
        }
        return cls(systems, devices, search)

    @property
    def content(self) -> Plain:
        """Settings that are part of the cache key, in addition to the plan and the system."""
        return [self.devices, self.search.steps, self.search.seed]


def map_plans(
    plans: pd.DataFrame, stages: pd.DataFrame, asked: MapQuestion, store: Store
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables plan_maps and plan_devices of a model from its tables plans and plan_stages.

    The plans of the accelerator with the fastest Phaze plan are mapped, on ties those of all such
    accelerators. Equal plans are simulated once. A plan of unequal tensor-parallel widths whose units do not
    fit is omitted with a warning.
    """
    maps, places = [PlanMaps.empty()], [PlanDevices.empty()]
    contents = {name: digest_of(system.model_dump(mode="json")) for name, system in asked.systems.items()}
    cases = [(*chosen, name) for chosen in _chosen(plans, stages, asked) for name in asked.systems]
    found = store.each(
        [[row, working.to_numpy().tolist(), contents[name]] for _, row, working, name in cases],
        lambda fresh: [_map(*cases[k][1:], asked) for k in counted(fresh, "plan on a network")],
        about=asked.content,
    )
    for (key, _, _, name), mapped in zip(cases, found, strict=True):
        if mapped is None:
            log.warning("%s has too few devices for the units of plan %s", name, key)
            continue
        ways, devices = mapped
        about = {**key, "system": name}
        maps.append(pd.DataFrame(ways).assign(**about))
        places.append(pd.DataFrame(_places(devices), columns=PLACES).assign(**about))
    return pd.concat(maps, ignore_index=True), pd.concat(places, ignore_index=True)


def _chosen(
    plans: pd.DataFrame, stages: pd.DataFrame, asked: MapQuestion
) -> Iterator[tuple[Row, Row, pd.DataFrame]]:
    """Yield the plans to map: their key, and the parts of their rows that affect the simulation."""
    placed = plans[plans["status"] == "placed"]
    by_phaze = placed[placed["planner"] == "phaze"]
    times = tied(by_phaze["time_per_sample_s"].to_numpy())
    best = by_phaze[times == times.min(initial=np.inf)]
    chips = set(zip(best["architecture"], best["hbm_gib"], strict=True))
    by_plan = dict(list(stages.groupby(list(PLAN))))
    for row in placed[placed["planner"].isin(asked.search.planners)].to_dict("records"):
        if (row["architecture"], row["hbm_gib"]) in chips:
            key = {name: row[name] for name in PLAN}
            working = by_plan[tuple(key.values())].sort_values("stage")[WORKING]
            yield key, {name: row[name] for name in TIMED}, working


def _map(
    row: Row, stages: pd.DataFrame, system: str, asked: MapQuestion
) -> tuple[list[Row], list[list[list[int]]]] | None:
    """Rows and devices of a plan on a system; None if the system has too few devices."""
    from phaze.map.plan_maps import map_rows  # compiled loops load slowly, and most plans are cached

    return map_rows(row, stages, asked.systems[system], asked.devices, asked.search)


def _places(devices: Iterable[Iterable[Iterable[int]]]) -> list[tuple[int, int, int, int]]:
    """Rows of table `plan_devices`, from the stage on."""
    return [
        (stage, replica, number, device)
        for stage, replicas in enumerate(devices)
        for replica, slices in enumerate(replicas)
        for number, device in enumerate(slices)
    ]
