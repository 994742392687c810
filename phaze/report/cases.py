"""Cases of a study apart from its models: plans of inputs, mappings of stages, simulations on tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.map.speed_ups import POINT, steps
from phaze.spec.map_study import MapCase, MapReading, Maps
from phaze.spec.planning import PlanCase, PlanStudy
from phaze.spec.tiled_study import TiledCase, TiledStudy

RUN = "case", "system", "model", "layout", "placed", "tensor", "microbatches"
"""Columns that identify a run."""


@dataclass(frozen=True)
class PlanCases:
    """Plans of all cases of a study."""

    study: PlanStudy
    cases: pd.DataFrame
    pipelines: pd.DataFrame
    curves: pd.DataFrame

    def of(self, show: str) -> Iterator[tuple[str, PlanCase]]:
        """The cases that are shown so."""
        yield from ((name, case) for name, case in self.study.made.items() if case.show == show)


def read_curve(curve: pd.DataFrame, devices: pd.Series | np.ndarray) -> np.ndarray:
    """Times for these numbers of devices from the steps of one planner; infinite below the first step."""
    steps = curve.sort_values("devices")
    at = np.searchsorted(steps["devices"].to_numpy(), np.asarray(devices), side="right")
    times: np.ndarray = np.concatenate(([np.inf], steps["time_per_sample"].to_numpy()))[at]
    return times


def considered(inputs: PlanCases, rows: pd.DataFrame) -> np.ndarray:
    """Numbers of devices of a panel of curves: all up to the largest, unless several are given."""
    points = inputs.study.cases[str(rows["case"].iloc[0])].points().values()
    devices = next(p.devices for p in points if p.memory_gib == rows["memory_gib"].iloc[0])
    return np.arange(1, devices[0] + 1) if len(devices) == 1 else np.array(devices)


@dataclass(frozen=True)
class MapCases:
    """Mappings of all cases of a study."""

    study: Maps
    mappings: pd.DataFrame

    def of(self, show: str) -> Iterator[tuple[str, MapCase]]:
        """The cases that are shown so."""
        yield from ((name, case) for name, case in self.study.cases.items() if case.show == show)

    def label(self, topology: str) -> str:
        """Name of a topology for readers."""
        return self.study.topologies[topology].label

    def rows(self, case: str, value: str = "step_s", reading: MapReading | None = None) -> pd.DataFrame:
        """Steps of a case or a reading, a row for stages, topology and seed; see `steps`."""
        jobs = self.study.mapped(case, reading)
        wanted = pd.DataFrame([{**job.point.model_dump(), "topology": job.topology} for job in jobs])
        return steps(self.mappings, value).merge(wanted, on=[*POINT, "topology"], how="inner")


@dataclass(frozen=True)
class TiledCases:
    """Simulations on tiles of all cases of a study."""

    study: TiledStudy
    tiled_runs: pd.DataFrame
    tiled_jobs: pd.DataFrame
    tiled_links: pd.DataFrame
    tiled_networks: pd.DataFrame

    def of(self, show: str) -> Iterator[tuple[str, TiledCase]]:
        """The cases that are shown so."""
        yield from ((name, case) for name, case in self.study.cases.items() if case.show == show)

    def rows(self, case: str) -> pd.DataFrame:
        """The runs of a case."""
        return self.tiled_runs[self.tiled_runs["case"] == case]
