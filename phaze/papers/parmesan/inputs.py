"""Mappings of a study beside Parmesan's publication."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pandas as pd

from phaze.map.speed_ups import POINT, steps
from phaze.papers.parmesan.published import PublishedMaps
from phaze.spec.map_study import MapCase, MapReading, Maps


@dataclass(frozen=True)
class MapInputs:
    """Tables of all cases of a study."""

    study: Maps
    mappings: pd.DataFrame
    mapped_devices: pd.DataFrame
    published: PublishedMaps | None = None
    search_gaps: pd.DataFrame | None = None
    """Of cases that are shown as gaps."""

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


def shape_names(case: MapCase, some: Iterable[tuple[int, int]] | None = None) -> tuple[str, ...]:
    """The shapes of a case, or some of them, as `shapes_of` has them."""
    return tuple(f"{stages}x{replicas}" for stages, replicas in some or case.shapes)


def step_of(rows: pd.DataFrame, partitioner: str, shape: str, way: str) -> float:
    """A step of rows of one graph on one topology, NaN where there is none."""
    same = rows[(rows["shape"] == shape) & (rows["partitioner"] == partitioner)]
    return float(same[way].iloc[0]) if len(same) else float("nan")
