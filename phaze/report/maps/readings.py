"""Printed speed-ups beside ours under every reading of what a paper leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from phaze.report.maps.inputs import MapInputs, geometric_mean, own_way, step_of
from phaze.spec.map_study import Judge, MapCase, Reading, Unexplained
from phaze.spec.published_maps import PrintedPartitions
from phaze.spec.topology import MeshOrTorus, RandomBlocks, UniformDist
from phaze.tables import FiguresRead

Row = dict[str, object]

JUDGED: dict[Judge, str] = {
    "step": "step_s",
    "shared-step": "shared_step_s",
    "held-step": "held_step_s",
    "stage-time": "stage_time_s",
}
"""Columns of table mappings that mappings are compared by."""
OVER = {"over-consecutive": "cs-map", "over-heuristics": "heuristics"}
"""What a speed-up by topology is over, and its column of `inputs.steps`."""
FIRST = "pipedream"
"""Whose partition with CS map a publication's speed-ups by partitioner are over."""


def read_figures(inputs: MapInputs) -> pd.DataFrame:
    """Return table figures_read: what every reading gives, beside what is printed."""
    rows = [
        row
        for show, read in (("topologies", _by_topology), ("partitioners", _by_partitioner))
        for name, case in inputs.of(show)
        for row in read(inputs, name, case)
    ]
    return FiguresRead.check(pd.DataFrame(rows) if rows else FiguresRead.empty())


def _by_topology(inputs: MapInputs, name: str, case: MapCase) -> Iterator[Row]:
    """Yield the speed-ups of a case's readings, medians over seeds."""
    for key, reading in case.readings.items():
        rows = inputs.rows(name, JUDGED[reading.judge], reading)
        for topology, used in topologies_of(case, reading).items():
            mine = rows[rows["topology"] == used]
            for over, column in OVER.items():
                for shape, ours in _medians(mine, column, own_way(reading.search)):
                    printed = _printed(inputs, over, topology, shape)
                    about = {"case": name, "reading": key, "subject": topology, "figure": over}
                    yield {**about, "shape": shape, "ours": ours, "printed": printed}


def _medians(rows: pd.DataFrame, over: str, own: str) -> Iterator[tuple[str, float]]:
    """Yield shapes and the median over seeds of how much shorter a step of our own is."""
    for _, some in rows.groupby(["stages", "replicas"]):
        yield some["shape"].iloc[0], float(np.median(some[over] / some[own]))


def topologies_of(case: MapCase, reading: Reading) -> dict[str, str]:
    """Return the topologies that a reading is about, and which stand for them."""
    return reading.topologies or {topology: topology for topology in case.topologies}


def _printed(inputs: MapInputs, over: str, topology: str, shape: str) -> float:
    if inputs.published is None:
        return 0.0
    by_topology = getattr(inputs.published, over.replace("-", "_"))
    return float(by_topology.get(topology, {}).get(shape, 0.0))


def _by_partitioner(inputs: MapInputs, name: str, case: MapCase) -> Iterator[Row]:
    """Yield what is printed over PipeDream's partition with CS map, by graph."""
    for key, reading in case.readings.items():
        rows = inputs.rows(name, JUDGED[reading.judge], reading)
        for graph in case.graphs:
            printed = inputs.published.over_first.get(graph, {}) if inputs.published is not None else {}
            found = _over_first(rows[rows["graph"] == graph], printed, reading)
            yield from ({"case": name, "reading": key, "subject": graph, **row} for row in found)


def _over_first(steps: pd.DataFrame, printed: PrintedPartitions, reading: Reading) -> Iterator[Row]:
    """Yield the printed figures of a graph but the first row of its table, to which they are relative."""
    first = reading.partitioner
    for partitioner, ways in printed.items():
        cut_by = first if partitioner == FIRST else partitioner
        for way, by_shape in ways.items():
            column = own_way(reading.search) if way == "ours" else way
            for shape, figure in by_shape.items():
                ours = step_of(steps, first, shape, "cs-map") / step_of(steps, cut_by, shape, column)
                if (cut_by, way) != (first, "cs-map") and not np.isnan(ours):
                    name = f"{partitioner} {way}"
                    yield {"figure": name, "shape": shape, "ours": ours, "printed": figure}


def mean_factor(figures: pd.DataFrame) -> float:
    """Return by which factor figures are off the printed ones at the geometric mean, 1 where all agree."""
    printed = figures[figures["printed"] > 0]
    if not len(printed):
        return float("nan")
    ours, theirs = (printed[key].to_numpy(np.float64) for key in ("ours", "printed"))
    return float(np.exp(np.abs(np.log(ours / theirs)).mean()))


def means(figures: pd.DataFrame) -> pd.DataFrame:
    """Return the geometric means over shapes, by subject and figure, of ours and of what is printed."""
    grouped = figures[figures["printed"] > 0].groupby(["subject", "figure"])[["ours", "printed"]]
    return grouped.agg(geometric_mean).reset_index()


def groups(inputs: MapInputs, case: MapCase) -> dict[str, list[str]]:
    """Return the topologies of a case in groups: grids, those drawn at random, and others."""
    found: dict[str, list[str]] = {"meshes and tori": [], "random topologies": [], "other topologies": []}
    for topology in case.topologies:
        kind = inputs.maps.topologies[topology].sizes[0]
        grid, drawn = isinstance(kind, MeshOrTorus), isinstance(kind, (RandomBlocks, UniformDist))
        found["meshes and tori" if grid else "random topologies" if drawn else "other topologies"].append(
            topology
        )
    return {name: topologies for name, topologies in found.items() if topologies}


def about(figures: pd.DataFrame, reading: str, subjects: Sequence[str]) -> pd.DataFrame:
    """Return the figures of a reading on some subjects, none if it is not about all of them."""
    mine = figures[(figures["reading"] == reading) & figures["subject"].isin(subjects)]
    return mine if set(mine["subject"]) == set(subjects) else mine.iloc[:0]


def nearest(figures: pd.DataFrame, readings: Iterable[str], subjects: Sequence[str]) -> tuple[str, float]:
    """Return the reading with the least mean factor of those that are about all subjects, and the factor."""
    factors = {one: mean_factor(about(figures, one, subjects)) for one in readings}
    known = {one: factor for one, factor in factors.items() if np.isfinite(factor)}
    return min(known.items(), key=lambda pair: pair[1]) if known else ("", float("nan"))


def unexplained(figures: pd.DataFrame, case: MapCase, one: Unexplained) -> pd.DataFrame:
    """Return the printed figures that are meant, under every reading of a case."""
    subjects = one.topologies or one.graphs or (*case.topologies, *case.graphs)
    shapes = [f"{stages}x{replicas}" for stages, replicas in one.shapes or case.shapes]
    meant = figures["subject"].isin(subjects) & figures["shape"].isin(shapes) & (figures["printed"] > 0)
    return figures[meant]
