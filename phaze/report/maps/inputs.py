"""What the page of the mappings is made from, and speed-ups over mappings by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.spec.map_study import MapCase, MapReading, Maps, Search, StagesPoint
from phaze.spec.published_maps import PublishedMaps
from phaze.tables import OWN_WAYS, WAYS

POINT = [*StagesPoint.model_fields]
NETWORK = ["topology", "seed"]


@dataclass(frozen=True)
class MapInputs:
    """Tables of all cases of a study."""

    maps: Maps
    mappings: pd.DataFrame
    devices: pd.DataFrame
    durations: pd.DataFrame
    published: PublishedMaps | None = None
    gaps: pd.DataFrame | None = None
    """Table search_gaps, of cases that are shown as gaps."""
    gap_durations: pd.DataFrame | None = None
    partition_durations: pd.DataFrame | None = None
    """Of cases that are shown by K."""

    def of(self, show: str) -> Iterator[tuple[str, MapCase]]:
        """Yield the cases that are shown so."""
        yield from ((name, case) for name, case in self.maps.cases.items() if case.show == show)

    def rows(self, case: str, value: str = "step_s", reading: MapReading | None = None) -> pd.DataFrame:
        """Return the steps of a case or a reading, a row for stages, topology and seed; see `steps`."""
        jobs = self.maps.mapped(case, reading)
        wanted = pd.DataFrame([{**job.point.model_dump(), "topology": job.topology} for job in jobs])
        return steps(self.mappings, value).merge(wanted, on=[*POINT, "topology"], how="inner")


def steps(mappings: pd.DataFrame, value: str = "step_s") -> pd.DataFrame:
    """Return the step of every way in a column of its own, and of what is compared, with the shape.

    ours: the shortest of the searches and the local search; searched: of the searches alone, as the paper's
    ensemble with the exact instantiation; by-sizes: the paper's choice of one; paper: of the two
    instantiations; heuristics: of CS map and p2p map. Where the authors alone searched, ours and searched are
    missing.
    """
    wide = mappings.pivot_table(index=[*POINT, *NETWORK], columns="way", values=value, aggfunc="min")
    wide = wide.reindex(columns=WAYS)
    chosen = mappings[mappings["by_sizes"]].set_index([*POINT, *NETWORK])[value]
    found = wide.assign(
        **{
            "ours": wide[list(OWN_WAYS)].min(axis=1, skipna=False),
            "searched": wide[["p2p", "allreduce", "exact"]].min(axis=1, skipna=False),
            "paper": wide[["p2p", "allreduce"]].min(axis=1),
            "by-sizes": chosen,
            "heuristics": wide[["cs-map", "p2p-map"]].min(axis=1),
        }
    ).reset_index()
    return found.assign(shape=shapes_of(found))


def shapes_of(rows: pd.DataFrame) -> pd.Series:
    """Return stages x replicas of every row, as in 4x2."""
    return rows["stages"].astype(str) + "x" + rows["replicas"].astype(str)


def shape_names(case: MapCase, some: Iterable[tuple[int, int]] | None = None) -> tuple[str, ...]:
    """Return the shapes of a case, or some of them, as `shapes_of` has them."""
    return tuple(f"{stages}x{replicas}" for stages, replicas in some or case.shapes)


def step_of(rows: pd.DataFrame, partitioner: str, shape: str, way: str) -> float:
    """Return a step of rows of one graph on one topology, NaN where there is none."""
    same = rows[(rows["shape"] == shape) & (rows["partitioner"] == partitioner)]
    return float(same[way].iloc[0]) if len(same) else float("nan")


def own_way(search: Search) -> str:
    """Return the column of `steps` with what a search found."""
    return "ours" if search == "ours" else "paper"


def shares_ports(maps: Maps, topology: str) -> bool:
    """Return whether the devices of a node share its port in some size of a topology."""
    return any(size.devices_per_port for size in maps.topologies[topology].sizes)


def speed_ups(rows: pd.DataFrame) -> pd.DataFrame:
    """Return table speed_ups: ours over CS map and over the heuristics, the median over seeds."""
    rows = rows[rows["ours"].notna()]
    ratios = rows.assign(
        over_consecutive=rows["cs-map"] / rows["ours"],
        over_heuristics=rows["heuristics"] / rows["ours"],
        paper_over_consecutive=rows["cs-map"] / rows["paper"],
        paper_over_heuristics=rows["heuristics"] / rows["paper"],
        searched_over_heuristics=rows["heuristics"] / rows["searched"],
        by_sizes_over_consecutive=rows["cs-map"] / rows["by-sizes"],
    )
    columns = [str(name) for name in ratios.columns if "over_" in str(name)]
    grouped = ratios.groupby([*POINT, "topology"])
    medians = grouped[columns].median()
    least = grouped["over_heuristics"].min().rename("least_over_heuristics")
    return medians.join(least).join(grouped.size().rename("seeds")).reset_index()


def geometric_mean(values: pd.Series) -> float:
    """Return the geometric mean, NaN of nothing."""
    return float(np.exp(np.log(values.to_numpy(np.float64)).mean())) if len(values) else float("nan")
