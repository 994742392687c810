"""From tables to layers: one graph of operators with its latencies on every architecture that is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats, Ints
from phaze.cost.designs import designs_of_operators, gather_latencies
from phaze.schedule.graphs import Edges, Layer
from phaze.tables.columns import POINT

PASS = ["layer", "direction"]
"""Columns that say which graph of operators it is."""
KEY = [*POINT, "architecture", *PASS]
"""Columns that say which layer on which architecture it is."""


@dataclass(frozen=True)
class Case:
    """One pass of a layer on one architecture, with the values of KEY."""

    key: tuple[object, ...]
    layer: Layer
    operators: Ints
    """Numbers of the operators in the tables."""


def read_cases(
    operators: pd.DataFrame,
    edges: pd.DataFrame,
    estimates: pd.DataFrame,
    architectures: pd.DataFrame,
    *,
    overlap_communication: bool,
) -> Iterator[Case]:
    """Yield every pass of every layer on every architecture."""
    links = dict(list(edges.groupby([*POINT, *PASS])))
    counts = architectures[["num_tc", "num_vc"]].to_numpy(np.int64)
    for (*point, layer, direction), group in operators.groupby([*POINT, *PASS]):
        mine = group.sort_values("operator")
        numbers = mine["operator"].to_numpy(np.int64)
        core = tuple(str(kind) for kind in mine["core"])
        found = _edges(links.get((*point, layer, direction)), numbers)
        one, every = _latencies(mine, estimates, architectures)
        for a, name in enumerate(architectures["architecture"]):
            num_tc, num_vc = (int(count) for count in counts[a])
            single = Layer(core, one[a], every[a], found, num_tc, num_vc, overlap_communication)
            yield Case((*point, name, layer, direction), single, numbers)


def _edges(links: pd.DataFrame | None, numbers: Ints) -> Edges:
    """Return the edges between positions of operators."""
    if links is None:
        return ()
    place = {number: position for position, number in enumerate(numbers)}
    pairs = zip(links["source"], links["target"], strict=True)
    return tuple(sorted((place[source], place[target]) for source, target in pairs))


def _latencies(
    operators: pd.DataFrame, estimates: pd.DataFrame, architectures: pd.DataFrame
) -> tuple[Floats, Floats]:
    """Return ℓ and ℓ̂ of every operator on every architecture, shape (A, n)."""
    designs = designs_of_operators(
        list(operators["core"]),
        *(architectures[f"{core}_design"].to_numpy(np.int64) for core in ("tensor", "vector", "fused")),
    )
    works = operators["work"].to_numpy(np.int64)
    at = estimates["work"].to_numpy(np.int64), estimates["design"].to_numpy(np.int64)
    one, every = (
        gather_latencies(works, designs, *at, estimates[name].to_numpy(np.float64))
        for name in ("latency_s", "latency_all_s")
    )
    return one, every
