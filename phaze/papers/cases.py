"""Cases of a study apart from its models: plans for profiled inputs, stage mappings, tile simulations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.papers.speed_ups import POINT, steps
from phaze.spec.map_study import MapCase, MapReading, Maps
from phaze.spec.planning import PlanCase, PlanStudy
from phaze.spec.tiled_study import TiledCase, TiledStudy

RUN = "case", "system", "model", "layout", "placed", "tensor", "microbatches"
"""Key columns of a simulated run on tiles."""


@dataclass(frozen=True)
class PlanCases:
    """Tables with the plans of all planning cases of a study."""

    study: PlanStudy
    cases: pd.DataFrame
    pipelines: pd.DataFrame
    curves: pd.DataFrame

    def showing(self, show: str) -> Iterator[tuple[str, PlanCase]]:
        """Yield the cases with the given `show` value, with their names."""
        yield from ((name, case) for name, case in self.study.made.items() if case.show == show)


def read_curve(curve: pd.DataFrame, devices: pd.Series | np.ndarray) -> np.ndarray:
    """Times per sample at given device counts, from one planner's step curve; inf below its first step."""
    steps = curve.sort_values("devices")
    # side="right": a step also counts at exactly its number of devices
    at = np.searchsorted(steps["devices"].to_numpy(), np.asarray(devices), side="right")
    times: np.ndarray = np.concatenate(([np.inf], steps["time_per_sample"].to_numpy()))[at]
    return times


def considered(inputs: PlanCases, rows: pd.DataFrame) -> np.ndarray:
    """Device counts for a panel of curves: all up to the largest, unless the case lists several."""
    points = inputs.study.cases[str(rows["case"].iloc[0])].points().values()
    devices = next(p.devices for p in points if p.memory_gib == rows["memory_gib"].iloc[0])
    return np.arange(1, devices[0] + 1) if len(devices) == 1 else np.array(devices)


@dataclass(frozen=True)
class MapCases:
    """Table with the mappings of all mapping cases of a study."""

    study: Maps
    mappings: pd.DataFrame

    def showing(self, show: str) -> Iterator[tuple[str, MapCase]]:
        """Yield the cases with the given `show` value, with their names."""
        yield from ((name, case) for name, case in self.study.cases.items() if case.show == show)

    def label(self, topology: str) -> str:
        """Display name of a topology."""
        return self.study.topologies[topology].label

    def rows(self, case: str, value: str = "step_s", reading: MapReading | None = None) -> pd.DataFrame:
        """Step times of a case or interpretation, one row per stage count, topology and seed; see `steps`."""
        jobs = self.study.mapped(case, reading)
        points = pd.DataFrame([{**job.point.model_dump(), "topology": job.topology} for job in jobs])
        return steps(self.mappings, value).merge(points, on=[*POINT, "topology"], how="inner")


@dataclass(frozen=True)
class TiledCases:
    """Tables with the tile simulations of all cases of a study."""

    study: TiledStudy
    tiled_runs: pd.DataFrame
    tiled_jobs: pd.DataFrame
    tiled_links: pd.DataFrame
    tiled_networks: pd.DataFrame

    def showing(self, show: str) -> Iterator[tuple[str, TiledCase]]:
        """Yield the cases with the given `show` value, with their names."""
        yield from ((name, case) for name, case in self.study.cases.items() if case.show == show)

    def rows(self, case: str) -> pd.DataFrame:
        """Simulated runs of a case."""
        return self.tiled_runs[self.tiled_runs["case"] == case]
