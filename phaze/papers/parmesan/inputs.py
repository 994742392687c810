"""What the page of the mappings is made from, and speed-ups over mappings by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pandas as pd

from phaze.papers.parmesan.published import PublishedMaps
from phaze.spec.map_study import MapCase, MapReading, Maps, StagesPoint
from phaze.tables import OWN_WAYS, WAYS

POINT = [*StagesPoint.model_fields]
NETWORK = ["topology", "seed"]


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


def steps(mappings: pd.DataFrame, value: str = "step_s") -> pd.DataFrame:
    """The step of every way in a column of its own, and of what is compared, with the shape.

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
    """Stages x replicas of every row, as in 4x2."""
    return rows["stages"].astype(str) + "x" + rows["replicas"].astype(str)


def shape_names(case: MapCase, some: Iterable[tuple[int, int]] | None = None) -> tuple[str, ...]:
    """The shapes of a case, or some of them, as `shapes_of` has them."""
    return tuple(f"{stages}x{replicas}" for stages, replicas in some or case.shapes)


def step_of(rows: pd.DataFrame, partitioner: str, shape: str, way: str) -> float:
    """A step of rows of one graph on one topology, NaN where there is none."""
    same = rows[(rows["shape"] == shape) & (rows["partitioner"] == partitioner)]
    return float(same[way].iloc[0]) if len(same) else float("nan")


SPEED_UPS = {
    "over_consecutive": ("cs-map", "ours"),
    "over_heuristics": ("heuristics", "ours"),
    "paper_over_consecutive": ("cs-map", "paper"),
    "paper_over_heuristics": ("heuristics", "paper"),
    "searched_over_heuristics": ("heuristics", "searched"),
    "by_sizes_over_consecutive": ("cs-map", "by-sizes"),
}
"""Steps that speed-ups are ratios of, columns of `steps`."""


def speed_ups(rows: pd.DataFrame) -> pd.DataFrame:
    """Table speed_ups: ours over CS map and over the heuristics, the median over seeds."""
    rows = rows[rows["ours"].notna()]
    ratios = rows.assign(**{name: rows[over] / rows[own] for name, (over, own) in SPEED_UPS.items()})
    grouped = ratios.groupby([*POINT, "topology"])
    least = grouped["over_heuristics"].min().rename("least_over_heuristics")
    return grouped[list(SPEED_UPS)].median().join(least).join(grouped.size().rename("seeds")).reset_index()
