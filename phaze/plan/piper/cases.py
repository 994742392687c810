"""The cases of a study: every planner on every cluster of a point, as rows of tables (Piper, Section 5)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.units import GIB
from phaze.plan.piper.baselines import without_recomputation, without_tensor_parallelism
from phaze.plan.piper.equal import plan_equally
from phaze.plan.piper.layers import Cluster, Layers, Plan, PlannedStage
from phaze.plan.piper.planner import plan, plan_over_devices
from phaze.plan.piper.repeat import repeat_layers
from phaze.spec.names import Planner
from phaze.spec.planning import Mode, PlanPoint
from phaze.tables import TABLES

Row = dict[str, object]
T = TypeVar("T")
RUNS = 3
"""How often a running time is measured."""
_WARM_DEVICES = 16
"""Sweeping over so few devices first compiles what is timed afterwards; plans are warmed by the smallest."""


@dataclass(frozen=True)
class Contender:
    """A planner, in the two ways that it is asked."""

    restrict: Callable[[Layers], Layers]
    """What it is given of the layers: the configurations that it may choose."""
    plan: Callable[[Layers, Cluster, Mode], Plan | None]
    """The best plan, None if nothing fits."""
    sweep: Callable[[Layers, Cluster, Mode], Floats]
    """(K,) the best time with at most 1, …, K devices, infinite where nothing fits, from a single run."""


@dataclass
class Record:
    """Rows of the tables of a point, as they are found."""

    rows: dict[str, list[Row]] = field(
        default_factory=lambda: {name: [] for name in ("cases", "pipelines", "curves", "durations")}
    )

    def frame(self, table: str) -> pd.DataFrame:
        """Return a table."""
        rows = self.rows[table]
        return TABLES[table].check(pd.DataFrame(rows)) if rows else TABLES[table].empty()


def plan_point(
    case: str, source: str, layers: Layers, point: PlanPoint, contenders: dict[Planner, Contender]
) -> Record:
    """Return tables cases, pipelines, curves and durations of one point of a case.

    `source` is the name of the input. Raises PhazeError where its layers cannot be repeated.
    """
    sized = repeat_layers(layers, point.blocks) if point.blocks else layers
    record = Record()
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
            by = contenders[planner]
            _Asked(by.restrict(sized), point, mode, by).record(record.rows, keys, source)
    return record


@dataclass(frozen=True)
class _Asked:
    """One planner on the clusters of a point."""

    layers: Layers
    """What it may choose of."""
    point: PlanPoint
    mode: Mode
    by: Contender

    def record(self, rows: dict[str, list[Row]], keys: Row, source: str) -> None:
        """Add rows of a curve, or of plans; what is timed is compiled first."""
        one_run = self.point.show == "curve" and len(self.point.devices) == 1
        _ = self._sweep(_WARM_DEVICES) if one_run else self._plan(min(self.point.devices))
        ask = self._record_curve if self.point.show == "curve" else self._record_plans
        ask(rows, keys, source)

    def _cluster(self, devices: int) -> Cluster:
        return Cluster(
            devices=devices,
            memory_bytes=self.point.memory_gib * GIB,
            bandwidth_bytes_per_s=self.point.bandwidth_gib * GIB,
            microbatches=self.point.microbatches,
            synchronisation="round" if self.mode == "table-1" else "batch",
        )

    def _plan(self, devices: int) -> Plan | None:
        return self.by.plan(self.layers, self._cluster(devices), self.mode)

    def _sweep(self, devices: int) -> Floats:
        return self.by.sweep(self.layers, self._cluster(devices), self.mode)

    def _record_plans(self, rows: dict[str, list[Row]], keys: Row, source: str) -> None:
        """Record the plans for every number of devices, their stages, and how long planning took."""
        bandwidth = self.point.bandwidth_gib
        given = {"input": source, "layers": len(self.layers), "bandwidth_gib_per_s": bandwidth}
        for devices in self.point.devices:
            on = {**keys, "devices": devices}
            plan, seconds = self._timed(partial(self._plan, devices))
            rows["cases"].append({**on, **given, **_result(plan)})
            rows["pipelines"] += [{**on, **row} for row in _stages(self.layers, plan)]
            rows["durations"] += [{**on, "run": run, "seconds": s} for run, s in enumerate(seconds)]

    def _record_curve(self, rows: dict[str, list[Row]], keys: Row, source: str) -> None:
        """Record the best times for every number of devices, where they change."""
        most = max(self.point.devices)
        times, seconds = self._timed(self._times)
        on = {**keys, "input": source, "most_devices": most}
        rows["curves"] += [{**on, "devices": k, "time_per_sample": value} for k, value in _steps(times)]
        rows["durations"] += [
            {**keys, "devices": most, "run": run, "seconds": s} for run, s in enumerate(seconds)
        ]

    def _times(self) -> Floats:
        """Return (K,) the best times with at most 1, …, K devices: a single run, or plans for those asked."""
        if len(self.point.devices) == 1:
            return self._sweep(self.point.devices[0])
        times = np.full(max(self.point.devices), np.inf)
        for devices in self.point.devices:
            plan = self._plan(devices)
            times[devices - 1] = np.inf if plan is None else plan.time_per_sample_s
        return times

    def _timed(self, act: Callable[[], T]) -> tuple[T, list[float]]:
        """Return what some equal runs give, and how much processor time each took."""
        seconds = []
        for _ in range(RUNS if self.point.show == "runtime" else 1):
            started = time.process_time()
            found = act()
            seconds.append(time.process_time() - started)
        return found, seconds


def _steps(times: Floats) -> Iterator[tuple[int, float]]:
    """Yield the numbers of devices at which the time becomes less, with the time."""
    before = np.concatenate(([np.inf], np.minimum.accumulate(times)[:-1]))
    for k in np.flatnonzero(times < before):
        yield int(k) + 1, float(times[k])


def _result(plan: Plan | None) -> Row:
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


def _stages(layers: Layers, plan: Plan | None) -> Iterator[Row]:
    for number, stage in enumerate(plan.stages if plan else ()):
        yield {
            "stage": number,
            "layers": " ".join(str(layers.ids[v]) for v in stage.layers),
            "data": stage.layout.dp,
            "tensor": stage.layout.tp,
            "configurations": _configurations(layers, stage),
            "in_flight": stage.in_flight,
            "time_per_sample": stage.time_s,
            "memory_bytes": stage.memory_bytes,
        }


def _configurations(layers: Layers, stage: PlannedStage) -> str:
    """Return how many layers run in each configuration, as `12 × vanilla, 1 × recompute`."""
    names = layers.options[stage.layout.tp].names
    counts = Counter(names[c] for c in stage.configurations)
    return ", ".join(f"{count} × {name}" for name, count in sorted(counts.items()))


def _all(layers: Layers) -> Layers:
    return layers


def _plan(layers: Layers, cluster: Cluster, mode: Mode, *, most_data: int | None = None) -> Plan | None:
    return plan(layers, cluster, linear=mode == "table-1", most_data=most_data)


def _sweep(layers: Layers, cluster: Cluster, mode: Mode, *, most_data: int | None = None) -> Floats:
    times = plan_over_devices(layers, cluster, linear=mode == "table-1", most_data=most_data)
    return times[1:]


def _plan_equally(layers: Layers, cluster: Cluster, mode: Mode) -> Plan | None:
    del mode  # equal stages are cut from one order of the layers anyway
    return plan_equally(layers, cluster)


def _sweep_equally(layers: Layers, cluster: Cluster, mode: Mode) -> Floats:
    """Return the times from the largest number of devices down: a plan is the best down to what it uses."""
    times = np.full(cluster.devices, np.inf)
    most = cluster.devices
    while most > 0:
        found = _plan_equally(layers, replace(cluster, devices=most), mode)
        if found is None:
            break
        times[found.devices - 1 : most] = found.time_per_sample_s
        most = found.devices - 1
    return times


def _search(restrict: Callable[[Layers], Layers], most_data: int | None = None) -> Contender:
    return Contender(restrict, partial(_plan, most_data=most_data), partial(_sweep, most_data=most_data))


CONTENDERS: dict[Planner, Contender] = {
    "piper": _search(_all),
    "no-dp": _search(_all, most_data=1),
    "no-tp": _search(without_tensor_parallelism),
    "no-ar": _search(without_recomputation),
    "equi": Contender(_all, _plan_equally, _sweep_equally),
    "equi-no-tp": Contender(without_tensor_parallelism, _plan_equally, _sweep_equally),
}
"""Piper and what it is compared with, by name: what each is given, and how it plans."""
