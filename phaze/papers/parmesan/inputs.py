"""Mappings of a study beside Parmesan's publication."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from phaze.papers.parmesan.published import PublishedMaps
from phaze.report.cases import MapCases
from phaze.spec.map_study import MapCase


@dataclass(frozen=True)
class MapInputs(MapCases):
    """Mappings of a study beside Parmesan's publication."""

    published: PublishedMaps | None = None


def shape_names(case: MapCase, some: Iterable[tuple[int, int]] | None = None) -> tuple[str, ...]:
    """The shapes of a case, or some of them, as `shapes_of` has them."""
    return tuple(f"{stages}x{replicas}" for stages, replicas in some or case.shapes)


def step_of(rows: pd.DataFrame, partitioner: str, shape: str, way: str) -> float:
    """A step of rows of one graph on one topology, NaN where there is none."""
    same = rows[(rows["shape"] == shape) & (rows["partitioner"] == partitioner)]
    return float(same[way].iloc[0]) if len(same) else float("nan")
