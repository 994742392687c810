"""Printed speed-ups beside ours under every reading of what a paper leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from phaze.report.document import Block, Items, Prose, Sheet
from phaze.report.maps.inputs import MapInputs, geometric_mean, own_way, shape_names, step_of
from phaze.report.words import digits
from phaze.spec.map_study import Judge, MapCase, MapReading, Unexplained
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


def topologies_of(case: MapCase, reading: MapReading) -> dict[str, str]:
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


def _over_first(steps: pd.DataFrame, printed: PrintedPartitions, reading: MapReading) -> Iterator[Row]:
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
    shapes = shape_names(case, one.shapes)
    meant = figures["subject"].isin(subjects) & figures["shape"].isin(shapes) & (figures["printed"] > 0)
    return figures[meant]


FACTOR = (
    "The mean factor is by how much a figure is off the printed one at the geometric mean over figures, up "
    "or down: 1.00 where all agree, 2.00 where they are twice or half as large. Nothing is fitted to the "
    "printed figures, and no readings are combined further than is written here."
)
SEARCHED = (
    "Mappings are searched for a short simulated step, whatever they are judged by; with the authors' search "
    "they are the better of the two instantiations (6) and (7), without the exact one and local search."
)
OVER_WORDS = {"over-consecutive": "over CS map", "over-heuristics": "over CS and p2p map"}


def reading_blocks(inputs: MapInputs, figures: pd.DataFrame, name: str, case: MapCase) -> Iterator[Block]:
    """Yield the readings of a case shown by topology: means, how far off, every figure, and what is open."""
    mine = figures[figures["case"] == name]
    if not case.readings:
        return
    yield Prose(f"{FACTOR} {SEARCHED}")
    yield _means_sheet(inputs, mine, case)
    if (mine["printed"] > 0).any():
        yield _factors_sheet(inputs, mine, case)
    for figure, words in OVER_WORDS.items():
        yield _figures_sheet(inputs, mine[mine["figure"] == figure], case, words)
    if case.unexplained:
        yield Items(tuple(open_sentences(mine, case)))


def _means_sheet(inputs: MapInputs, mine: pd.DataFrame, case: MapCase) -> Sheet:
    """Return geometric means over shapes, over CS map and over both heuristics, by reading and topology."""
    shown = mine.assign(printed=mine["printed"].where(mine["printed"] > 0, 1.0))

    def cells(reading: str, column: str) -> Iterator[str]:
        found = means(shown[shown["reading"] == reading])
        for topology in case.topologies:
            own = found[found["subject"] == topology].set_index("figure")[column]
            yield " / ".join(f"{own[figure]:.2f}" for figure in OVER) if len(own) else "–"

    rows = [(one.label, *cells(key, "ours")) for key, one in case.readings.items()]
    every = next((key for key in case.readings if len(about(mine, key, case.topologies))), None)
    if every is not None and (mine["printed"] > 0).any():
        rows.append(("printed", *cells(every, "printed")))
    header = ("reading", *(inputs.maps.topologies[one].label for one in case.topologies))
    caption = "Speed-up over CS map / over the better of CS and p2p map, geometric means over shapes"
    return Sheet(caption, header, tuple(rows), 1, frozenset({len(rows) - 1}), "figures-read")


def _factors_sheet(inputs: MapInputs, mine: pd.DataFrame, case: MapCase) -> Sheet:
    grouped = groups(inputs, case)
    rows = []
    for key, one in case.readings.items():
        own = mine[(mine["reading"] == key) & (mine["printed"] > 0)]
        by_topology = (mean_factor(own[own["subject"] == topology]) for topology in case.topologies)
        by_group = (mean_factor(about(own, key, topologies)) for topologies in grouped.values())
        of_means = mean_factor(means(own))
        cells = (digits(value) for value in (*by_topology, *by_group, mean_factor(own), of_means))
        rows.append((one.label, *cells, str(len(own))))
    header = (
        "reading", *(inputs.maps.topologies[one].label for one in case.topologies), *grouped,
        "all figures", "means of topologies", "figures",
    )  # fmt: skip
    return Sheet("Mean factor off the printed figures", header, tuple(rows), 1, source="figures-read")


def _figures_sheet(inputs: MapInputs, mine: pd.DataFrame, case: MapCase, words: str) -> Sheet:
    shapes = shape_names(case)

    def cells(some: pd.DataFrame, column: str, style: str) -> Iterator[str]:
        values = dict(zip(some["shape"], some[column], strict=True))
        yield from (format(values[shape], style) if values.get(shape) else "–" for shape in shapes)

    rows = []
    for topology in case.topologies:
        label, of_topology = inputs.maps.topologies[topology].label, mine[mine["subject"] == topology]
        rows.append((label, "printed", *cells(of_topology.drop_duplicates("shape"), "printed", "g")))
        for key, one in case.readings.items():
            own = of_topology[of_topology["reading"] == key]
            if len(own):
                rows.append((label, one.label, *cells(own, "ours", ".2f")))
    return Sheet(
        f"Every figure by reading, {words}", ("topology", "reading", *shapes), tuple(rows), 2,
        source="figures-read", folded=True,
    )  # fmt: skip


def open_sentences(mine: pd.DataFrame, case: MapCase) -> Iterator[str]:
    """Yield what no reading explains, with the figures of the nearest one."""
    for one in case.unexplained:
        meant = unexplained(mine, case, one)
        subjects = sorted(set(meant["subject"]))
        key, factor = nearest(meant, case.plain_readings, subjects)
        if not key:
            continue
        own = meant[meant["reading"] == key]
        pairs = ", ".join(
            f"{ours:.2f} ({printed:g})" for ours, printed in zip(own["ours"], own["printed"], strict=True)
        )
        yield (
            f"Unexplained: {one.about} Nearest is “{case.readings[key].label}”, off by a mean factor of "
            f"{factor:.2f} over {len(own)} figures; its own, printed ones in brackets: {pairs}."
        )


def cluster_blocks(inputs: MapInputs, figures: pd.DataFrame, name: str, case: MapCase) -> Iterator[Block]:
    """Yield how far every reading of measured tables is off, every figure, and what is open."""
    mine = figures[figures["case"] == name]
    if not len(mine):
        return
    rows = []
    for key, one in case.readings.items():
        own = mine[mine["reading"] == key]
        by_graph = (mean_factor(own[own["subject"] == graph]) for graph in case.graphs)
        rows.append((one.label, *(digits(value) for value in (*by_graph, mean_factor(own))), str(len(own))))
    labelled = (inputs.maps.graphs[graph].label for graph in case.graphs)
    header = ("reading", *labelled, "all figures", "figures")
    yield Sheet("Mean factor off the printed figures", header, tuple(rows), 1, source="figures-read")
    yield _measured_sheet(inputs, mine, case)
    yield Items((_largest(inputs, mine, case), *open_sentences(mine, case)))


def _measured_sheet(inputs: MapInputs, mine: pd.DataFrame, case: MapCase) -> Sheet:
    rows = []
    for (graph, figure, shape), own in mine.groupby(["subject", "figure", "shape"]):
        ours = dict(zip(own["reading"], own["ours"], strict=True))
        cells = (f"{ours[key]:.2f}" if key in ours else "–" for key in case.readings)
        label = inputs.maps.graphs[str(graph)].label
        rows.append((label, str(figure), str(shape), f"{own['printed'].iloc[0]:g}", *cells))
    readings = (one.label for one in case.readings.values())
    header = ("graph", "partition and mapping", "shape", "printed", *readings)
    caption = "Every printed figure by reading"
    return Sheet(caption, header, tuple(rows), 3, source="figures-read", folded=True)


def _largest(inputs: MapInputs, mine: pd.DataFrame, case: MapCase) -> str:
    alone = mine[mine["figure"] == f"{FIRST} ours"]
    top = alone.sort_values("printed").iloc[-1]
    same = alone[(alone["subject"] == top["subject"]) & (alone["shape"] == top["shape"])]
    ours = dict(zip(same["reading"], same["ours"], strict=True))
    found = ", ".join(f"{ours[key]:.2f} (“{one.label}”)" for key, one in case.readings.items() if key in ours)
    return (
        f"The largest printed gain of mapping alone is {top['printed']:g}, of PipeDream's partition of "
        f"{inputs.maps.graphs[top['subject']].label} as {top['shape']}. Ours is {found}."
    )
