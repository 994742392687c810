"""Cases of a study: every planner on every cluster of a point, as rows of tables (Piper, Section 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.units import GIB
from phaze.plan.piper.baselines import Contender
from phaze.plan.piper.layers import FlatCluster, PiperPlan, PlannedStage, ProfiledLayers
from phaze.plan.piper.planner import SearchOptions
from phaze.plan.piper.repeat import repeat_layers
from phaze.spec.planning import PlanPoint
from phaze.tables import TABLES

Row = dict[str, object]


def plan_point(
    case: str, source: str, layers: ProfiledLayers, point: PlanPoint, contenders: Mapping[str, Contender]
) -> dict[str, pd.DataFrame]:
    """Tables cases, pipelines and curves of one point of a case.

    `source` is the name of the input. Raises PhazeError if its layers cannot be repeated.
    """
    sized = repeat_layers(layers, point.blocks) if point.blocks else layers
    rows: dict[str, list[Row]] = {name: [] for name in ("cases", "pipelines", "curves")}
    for mode in point.modes:
        for planner in point.planners:
            keys: Row = {
                "case": case,
                "blocks": point.blocks,
                "memory_gib": point.memory_gib,
                "microbatches": point.microbatches,
                "mode": mode,
                "planner": planner,
            }
            _record(rows, keys, source, sized, point, contenders[planner])
    return {
        name: TABLES[name].check(pd.DataFrame(found)) if found else TABLES[name].empty()
        for name, found in rows.items()
    }


def _record(
    rows: dict[str, list[Row]],
    keys: Row,
    source: str,
    layers: ProfiledLayers,
    point: PlanPoint,
    by: Contender,
) -> None:
    """Add one planner's rows, either curve points or plans."""
    given, rounds = by.restrict(layers), keys["mode"] == "table-1"
    options = SearchOptions(linear=rounds)

    def cluster(devices: int) -> FlatCluster:
        return FlatCluster(
            devices=devices,
            memory_bytes=point.memory_gib * GIB,
            bandwidth_bytes_per_s=point.bandwidth_gib * GIB,
            microbatches=point.microbatches,
            synchronisation="round" if rounds else "batch",
        )

    def plan(devices: int) -> PiperPlan | None:
        return by.plan(given, cluster(devices), options)

    def sweep(devices: int) -> Floats:
        return by.sweep(given, cluster(devices), options)

    def best_times() -> Floats:
        """Best times (K,) with at most 1, …, K devices, from one run or one plan per number of devices."""
        if len(point.devices) == 1:
            return sweep(point.devices[0])
        times = np.full(max(point.devices), np.inf)
        for devices in point.devices:
            found = plan(devices)
            times[devices - 1] = np.inf if found is None else found.time_per_sample_s
        return times

    if point.show == "curve":
        most, times = max(point.devices), best_times()
        before = np.concatenate(([np.inf], np.minimum.accumulate(times)[:-1]))
        rows["curves"] += [
            {**keys, "input": source, "most_devices": most, "devices": k + 1, "time_per_sample": times[k]}
            for k in np.flatnonzero(times < before).tolist()
        ]
        return
    asked = {"input": source, "layers": len(given), "bandwidth_gib_per_s": point.bandwidth_gib}
    for devices in point.devices:
        found = plan(devices)
        on = {**keys, "devices": devices}
        rows["cases"].append({**on, **asked, **_case(found)})
        rows["pipelines"] += [
            {**on, "stage": number, **_pipeline(given, stage)}
            for number, stage in enumerate(found.stages if found else ())
        ]


def _case(plan: PiperPlan | None) -> Row:
    if plan is None:
        none = dict.fromkeys(("devices_used", "degree", "stages"), 0)
        return {"status": "infeasible", "time_per_sample": np.inf, **none}
    return {
        "status": "planned",
        "time_per_sample": plan.time_per_sample_s,
        "devices_used": plan.devices,
        "degree": plan.degree,
        "stages": len(plan.stages),
    }


def _pipeline(layers: ProfiledLayers, stage: PlannedStage) -> Row:
    names = layers.options[stage.layout.tp].names
    counts = Counter(names[c] for c in stage.configurations)
    return {
        "layers": " ".join(str(layers.ids[v]) for v in stage.layers),
        "data": stage.layout.dp,
        "tensor": stage.layout.tp,
        "configurations": ", ".join(f"{count} × {name}" for name, count in sorted(counts.items())),
        "in_flight": stage.in_flight,
        "time_per_sample": stage.time_s,
        "memory_bytes": stage.memory_bytes,
    }
