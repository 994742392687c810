"""Printed speed-ups compared with ours, under each reading of the paper's open points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd

from phaze.base.units import digits
from phaze.papers.page import words_of
from phaze.papers.parmesan.inputs import MapInputs, shape_names, step_of
from phaze.papers.scores import geometric_mean, mean_factor
from phaze.report.document import Block, Items, Prose, Sheet
from phaze.spec.map_study import Judge, MapCase, MapReading, Search
from phaze.spec.topology import MeshOrTorus, RandomBlocks, UniformDist
from phaze.tables import FiguresRead

Row = dict[str, object]
WORDS = words_of("parmesan")

JUDGED: dict[Judge, str] = {
    "step": "step_s",
    "shared-step": "shared_step_s",
    "held-step": "held_step_s",
    "stage-time": "stage_time_s",
}
"""Column of table `mappings`, by the criterion that mappings are compared by."""
OWN: dict[Search, str] = {"ours": "ours", "authors": "paper"}
"""Column of `phaze.map.speed_ups.steps` with the result of a search."""
OVER = {"over-consecutive": "cs-map", "over-heuristics": "heuristics"}
"""Baseline column of `phaze.map.speed_ups.steps`, by speed-up by topology."""
FIRST = "pipedream"
"""Partitioner that, with CS map, is the baseline of printed speed-ups by partitioner."""


def read_figures(inputs: MapInputs) -> pd.DataFrame:
    """Table `figures_read`: speed-ups under each reading, with the printed ones."""
    rows = [
        {"case": name, "reading": key, **row}
        for show, read in (("topologies", _by_topology), ("partitioners", _by_partitioner))
        for name, case in inputs.of(show)
        for key, one in case.readings.items()
        for row in read(inputs, case, one, inputs.rows(name, JUDGED[one.judge], one))
    ]
    return FiguresRead.check(pd.DataFrame(rows)) if rows else FiguresRead.empty()


def _by_topology(inputs: MapInputs, case: MapCase, reading: MapReading, rows: pd.DataFrame) -> Iterator[Row]:
    """Yield the speed-ups by topology under a reading, medians over seeds."""
    topologies = reading.topologies or {topology: topology for topology in case.topologies}
    for (topology, used), (over, column) in product(topologies.items(), OVER.items()):
        printed = getattr(inputs.published, over.replace("-", "_"), {}).get(topology, {})
        for shape, some in rows[rows["topology"] == used].groupby("shape"):
            ours = float(np.median(some[column] / some[OWN[reading.search]]))
            about = {"subject": topology, "figure": over, "shape": shape}
            yield {**about, "ours": ours, "printed": float(printed.get(shape, 0.0))}


def _by_partitioner(
    inputs: MapInputs, case: MapCase, reading: MapReading, rows: pd.DataFrame
) -> Iterator[Row]:
    """Yield speed-ups over PipeDream's partition with CS map under a reading, except the baseline's own."""
    first = reading.partitioner
    for graph in case.graphs:
        steps = rows[rows["graph"] == graph]
        printed = inputs.published.over_first.get(graph, {}) if inputs.published is not None else {}
        for partitioner, ways in printed.items():
            cut_by = first if partitioner == FIRST else partitioner
            for way, by_shape in ways.items():
                column = OWN[reading.search] if way == "ours" else way
                for shape, figure in by_shape.items():
                    ours = step_of(steps, first, shape, "cs-map") / step_of(steps, cut_by, shape, column)
                    if (cut_by, way) != (first, "cs-map") and not np.isnan(ours):
                        about = {"subject": graph, "figure": f"{partitioner} {way}", "shape": shape}
                        yield {**about, "ours": ours, "printed": figure}


def groups(inputs: MapInputs, case: MapCase) -> dict[str, list[str]]:
    """Topologies of a case by group: meshes and tori, random, and other topologies; no empty groups."""
    found: dict[str, list[str]] = {"meshes and tori": [], "random topologies": [], "other topologies": []}
    for topology in case.topologies:
        kind = inputs.study.topologies[topology].sizes[0]
        grid, drawn = isinstance(kind, MeshOrTorus), isinstance(kind, (RandomBlocks, UniformDist))
        found["meshes and tori" if grid else "random topologies" if drawn else "other topologies"].append(
            topology
        )
    return {name: topologies for name, topologies in found.items() if topologies}


def about(figures: pd.DataFrame, reading: str, subjects: Sequence[str]) -> pd.DataFrame:
    """Figures of a reading on the given subjects; empty if any of them is missing."""
    mine = figures[(figures["reading"] == reading) & figures["subject"].isin(subjects)]
    return mine if set(mine["subject"]) == set(subjects) else mine.iloc[:0]


def nearest(figures: pd.DataFrame, readings: Iterable[str], subjects: Sequence[str]) -> tuple[str, float]:
    """Reading with the smallest mean factor over all subjects, and the factor; ("", NaN) if none has all."""
    factors = {one: mean_factor(about(figures, one, subjects)) for one in readings}
    known = {one: factor for one, factor in factors.items() if np.isfinite(factor)}
    return min(known.items(), key=lambda pair: pair[1]) if known else ("", float("nan"))


OVER_WORDS = {"over-consecutive": "over CS map", "over-heuristics": "over CS and p2p map"}


def reading_blocks(inputs: MapInputs, figures: pd.DataFrame, name: str, case: MapCase) -> Iterator[Block]:
    """Yield the blocks on readings by topology: means, deviations, all figures, and unexplained figures."""
    mine = figures[figures["case"] == name]
    if not case.readings:
        return
    labels = {topology: inputs.label(topology) for topology in case.topologies}
    known = (mine["printed"] > 0).any()
    yield Prose(WORDS.sentences["factor"])
    yield _means_sheet(mine, case, labels)
    if known:
        parts = {label: [topology] for topology, label in labels.items()} | groups(inputs, case)
        yield _factors_sheet(mine[mine["printed"] > 0], case, parts, means=True)
    heads = {shape: shape for shape in shape_names(case)}
    for figure, over in OVER_WORDS.items():
        rows = _with_printed(mine[mine["figure"] == figure], case, labels)
        yield WORDS.sheet("figures", rows, heads=heads, over=over)
    if case.unexplained:
        yield Items(tuple(open_sentences(mine, case)))


def _with_printed(mine: pd.DataFrame, case: MapCase, labels: Mapping[str, str]) -> pd.DataFrame:
    """Cells of the figures by topology: printed figures first, then each reading."""
    order = {key: place for place, key in enumerate(("", *case.readings))}
    printed = mine[mine["printed"] > 0].drop_duplicates(["subject", "shape"])
    rows = pd.concat(
        [
            printed.assign(reading="", cell=printed["printed"].map("{:g}".format)),
            mine.assign(cell=mine["ours"].map("{:.2f}".format)),
        ]
    )
    places = rows["reading"].map(order) + len(order) * rows["subject"].map(list(labels).index)
    rows = rows.iloc[places.argsort(kind="stable")]
    named = {"": "printed"} | {key: one.label for key, one in case.readings.items()}
    return rows.assign(label=rows["subject"].map(labels), reading=rows["reading"].map(named))


def _means(figures: pd.DataFrame) -> pd.DataFrame:
    """Geometric means over shapes of our and printed figures, by subject and figure."""
    return figures.groupby(["subject", "figure"])[["ours", "printed"]].agg(geometric_mean).reset_index()


def _means_sheet(mine: pd.DataFrame, case: MapCase, labels: Mapping[str, str]) -> Sheet:
    """Geometric means over shapes, over CS map and over both heuristics, by reading and topology."""
    shown = mine.assign(printed=mine["printed"].where(mine["printed"] > 0, 1.0))
    asked = {key: (one.label, key, "ours") for key, one in case.readings.items()}
    every = next((key for key in case.readings if len(about(mine, key, case.topologies))), None)
    if every is not None and (mine["printed"] > 0).any():
        asked[""] = "printed", every, "printed"
    rows = []
    for label, key, column in asked.values():
        found = _means(shown[shown["reading"] == key]).pivot(index="subject", columns="figure", values=column)
        pairs = found.reindex(columns=list(OVER))
        cells = pairs.apply(lambda row: " / ".join(f"{value:.2f}" for value in row), axis=1)
        rows += [{"reading": label, "subject": of, "cell": cell} for of, cell in cells.items()]
    sheet = WORDS.sheet("means", pd.DataFrame(rows), heads=dict(labels))
    return replace(sheet, marked=frozenset({len(sheet.rows) - 1}))


def _factors_sheet(
    mine: pd.DataFrame, case: MapCase, parts: Mapping[str, Sequence[str]], *, means: bool
) -> Sheet:
    """Table of mean factors by reading: on each part, on all figures, and with `means` on topology means."""
    rows = []
    for key, one in case.readings.items():
        own = mine[mine["reading"] == key]
        factors = {part: mean_factor(about(own, key, subjects)) for part, subjects in parts.items()}
        factors |= {"all figures": mean_factor(own)}
        factors |= {"means of topologies": mean_factor(_means(own))} if means else {}
        cells = {part: digits(factor) for part, factor in factors.items()} | {"figures": str(len(own))}
        rows += [{"reading": one.label, "part": part, "cell": cell} for part, cell in cells.items()]
    return WORDS.sheet("factors", pd.DataFrame(rows))


def open_sentences(mine: pd.DataFrame, case: MapCase) -> Iterator[str]:
    """Yield a sentence per unexplained figure, with the figures of the closest reading."""
    for one in case.unexplained:
        subjects = one.topologies or one.graphs or (*case.topologies, *case.graphs)
        meant = mine["subject"].isin(subjects) & mine["shape"].isin(shape_names(case, one.shapes))
        printed = mine[meant & (mine["printed"] > 0)]
        key, factor = nearest(printed, case.plain_readings, sorted(set(printed["subject"])))
        if not key:
            continue
        own = printed[printed["reading"] == key]
        pairs = ", ".join(f"{a:.2f} ({b:g})" for a, b in zip(own["ours"], own["printed"], strict=True))
        told = {"label": case.readings[key].label, "factor": factor, "figures": len(own), "pairs": pairs}
        yield WORDS.sentence("unexplained", about=one.about, **told)


def cluster_blocks(inputs: MapInputs, figures: pd.DataFrame, name: str, case: MapCase) -> Iterator[Block]:
    """Yield the blocks on readings by partitioner: deviations, all figures, and unexplained figures."""
    mine = figures[figures["case"] == name]
    if not len(mine):
        return
    labels = {graph: inputs.study.graphs[graph].label for graph in case.graphs}
    readings = {key: one.label for key, one in case.readings.items()}
    yield _factors_sheet(mine, case, {label: [graph] for graph, label in labels.items()}, means=False)
    rows = pd.concat(
        [
            mine.assign(reading="printed", cell=mine["printed"].map("{:g}".format)),
            mine.assign(cell=mine["ours"].map("{:.2f}".format)),
        ]
    )
    rows = rows.assign(label=rows["subject"].map(labels)).sort_values(
        ["subject", "figure", "shape"], kind="stable"
    )
    yield WORDS.sheet("printed", rows, heads={"printed": "printed"} | readings)
    alone = mine[mine["figure"] == f"{FIRST} ours"]
    top = alone.sort_values("printed").iloc[-1]
    same = alone[(alone["subject"] == top["subject"]) & (alone["shape"] == top["shape"])]
    ours = dict(zip(same["reading"], same["ours"], strict=True))
    gained = ", ".join(f"{ours[key]:.2f} (“{label}”)" for key, label in readings.items() if key in ours)
    largest = WORDS.sentence("largest", **{**top, "label": labels[top["subject"]], "gained": gained})
    yield Items((largest, *open_sentences(mine, case)))
