"""Inputs of Parmesan's section: mappings of a study, and the publication."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from phaze.papers.publications import PublishedMaps
from phaze.report.cases import MapCases
from phaze.spec.map_study import MapCase


@dataclass(frozen=True)
class MapInputs(MapCases):
    """Mappings of a study, with Parmesan's publication to compare with."""

    published: PublishedMaps | None = None


def shape_names(case: MapCase, some: Iterable[tuple[int, int]] | None = None) -> tuple[str, ...]:
    """Names of the shapes of a case, or of the given shapes, in the format of `shapes_of`."""
    return tuple(f"{stages}x{replicas}" for stages, replicas in some or case.shapes)


def step_of(rows: pd.DataFrame, partitioner: str, shape: str, way: str) -> float:
    """Step time of one partitioner, shape and mapping; NaN if missing. `rows` have one graph and topology."""
    same = rows[(rows["shape"] == shape) & (rows["partitioner"] == partitioner)]
    return float(same[way].iloc[0]) if len(same) else float("nan")
