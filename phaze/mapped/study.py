"""The plans of a model on the networks that a study names: rows of tables plan_maps and plan_devices."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.mapped.maps import Effort, PlanMap, map_plan
from phaze.mapped.stages import lanes_of
from phaze.progress import counted
from phaze.simulate.plan import Bandwidths, Plan, read_plan
from phaze.spec.network import Matrix
from phaze.spec.settings import PlanMapSettings
from phaze.spec.system import Cluster
from phaze.tables import PlanDevices, PlanMaps
from phaze.tables.plans import PLAN
from phaze.theory.ranking import tied

log = logging.getLogger(__name__)

Row = dict[str, object]


Plain = Mapping[str, object]


@dataclass(frozen=True)
class Asked:
    """Which plans are mapped, and to what."""

    planners: tuple[str, ...]
    systems: Mapping[str, Cluster | Matrix]
    """By name."""
    devices: int
    """K, devices that the plans had."""
    bandwidths: Bandwidths
    """That the planners assumed."""
    effort: Effort

    @classmethod
    def of(
        cls, networks: Mapping[str, Plain], devices: int, bandwidths: Sequence[float], search: PlanMapSettings
    ) -> Asked:
        """Return what a study asks for, its networks as plain values; bandwidths are of network and HBM."""
        systems = {
            name: (Cluster if "device" in one else Matrix).parse(one, name) for name, one in networks.items()
        }
        network, hbm = bandwidths
        effort = Effort(search.steps, search.seed)
        return cls(search.planners, systems, devices, Bandwidths(network, hbm), effort)


def map_plans(plans: pd.DataFrame, stages: pd.DataFrame, asked: Asked) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return tables plan_maps and plan_devices of a model from its tables plans and plan_stages.

    Mapped are the plans of the accelerator on which Phaze's is the fastest, of several with equal times all;
    plans that are equal are simulated once. One of unequal tensor widths whose units do not fit is left out.
    """
    rows: list[Row] = []
    places: list[Row] = []
    known: dict[tuple[Plan, str], PlanMap] = {}
    for key, plan in counted(list(_chosen(plans, stages, asked)), "plan"):
        for name, system in asked.systems.items():
            if lanes_of(plan).devices > system.devices:
                log.warning("%s has too few devices for the units of plan %s", name, key)
                continue
            if (plan, name) not in known:
                known[plan, name] = map_plan(plan, system, asked.devices, asked.effort)
            found = known[plan, name]
            rows += [{**key, "system": name, **row} for row in map_rows(found)]
            places += [{**key, "system": name, **row} for row in device_rows(found)]
    return (
        pd.DataFrame(rows, columns=list(PlanMaps.fields())),
        pd.DataFrame(places, columns=list(PlanDevices.fields())),
    )


def _chosen(plans: pd.DataFrame, stages: pd.DataFrame, asked: Asked) -> Iterator[tuple[Row, Plan]]:
    """Yield the plans to map, each with its key."""
    placed = plans[plans["status"] == "placed"]
    by_phaze = placed[placed["planner"] == "phaze"]
    times = tied(by_phaze["time_per_sample_s"].to_numpy())
    best = by_phaze[times == times.min(initial=np.inf)]
    chips = set(zip(best["architecture"], best["hbm_gib"], strict=True))
    by_plan = dict(list(stages.groupby(list(PLAN))))
    for row in placed[placed["planner"].isin(asked.planners)].to_dict("records"):
        if (row["architecture"], row["hbm_gib"]) in chips:
            key: Row = {name: row[name] for name in PLAN}
            yield key, read_plan(row, by_plan[tuple(key.values())], asked.bandwidths)


def map_rows(found: PlanMap) -> Iterator[Row]:
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


def device_rows(found: PlanMap) -> Iterator[Row]:
    """Yield the rows of table plan_devices, without their key up to the system."""
    for stage, replicas in enumerate(found.placed):
        for replica, slices in enumerate(replicas):
            yield from _slice_rows(stage, replica, slices)


def _slice_rows(stage: int, replica: int, slices: Sequence[int]) -> Iterator[Row]:
    for number, device in enumerate(slices):
        yield {"stage": stage, "replica": replica, "slice": number, "device": device}
