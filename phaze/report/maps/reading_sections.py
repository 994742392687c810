"""Blocks of the page that show every reading of a publication beside its figures, and how far off it is."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from phaze.report.document import Block, Items, Prose, Section, Sheet
from phaze.report.maps.inputs import MapInputs, shape_names, shares_ports, step_of
from phaze.report.maps.readings import FIRST, OVER, about, groups, mean_factor, means, nearest, unexplained
from phaze.report.words import digits
from phaze.spec.map_study import MapCase

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
    """Return the mean factor of every reading by topology, of groups of them, and of all it is about."""
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
    """Return every figure of a printed table by topology and reading."""
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
    """Return every printed figure of measured tables, and what each reading gives."""
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
    """Return what every reading gives for the largest printed gain of a mapping alone."""
    alone = mine[mine["figure"] == f"{FIRST} ours"]
    top = alone.sort_values("printed").iloc[-1]
    same = alone[(alone["subject"] == top["subject"]) & (alone["shape"] == top["shape"])]
    ours = dict(zip(same["reading"], same["ours"], strict=True))
    found = ", ".join(f"{ours[key]:.2f} (“{one.label}”)" for key, one in case.readings.items() if key in ours)
    return (
        f"The largest printed gain of mapping alone is {top['printed']:g}, of PipeDream's partition of "
        f"{inputs.maps.graphs[top['subject']].label} as {top['shape']}. Ours is {found}."
    )


def refinement_sheet(inputs: MapInputs, name: str, case: MapCase) -> Iterator[Sheet]:
    """Yield Table IV: how much faster refinement makes a step than clusters alone, on one mapping."""
    if not {"clusters", "paper"} <= set(case.partitioners):
        return
    printed = inputs.published.over_clusters if inputs.published is not None else {}
    shapes = shape_names(case)
    readings = ["step_s"]
    if any(shares_ports(inputs.maps, topology) for topology in case.topologies):
        readings.append("shared_step_s")
    steps = [inputs.rows(name, value) for value in readings]
    rows = []
    for graph in case.graphs:
        own = [found[found["graph"] == graph] for found in steps]
        for way, label in (("cs-map", "CS map for both"), ("ours", "our map for each")):
            cells = (_refined(own, shape, way, printed.get(graph, {})) for shape in shapes)
            rows.append((inputs.maps.graphs[graph].label, label, *cells))
    caption = "The authors' partition: throughput with refinement over without (Table IV)"
    yield Sheet(caption, ("graph", "mapping", *shapes), tuple(rows), 2)


def _refined(steps: list[pd.DataFrame], shape: str, way: str, printed: dict[str, float]) -> str:
    """Return by how much refinement makes steps of one graph shorter, in every reading, beside print."""
    ratios = (step_of(own, "clusters", shape, way) / step_of(own, "paper", shape, way) for own in steps)
    text = " / ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"{text} ({printed[shape]:g})" if shape in printed else text


def missing_section(inputs: MapInputs) -> Iterator[Section]:
    """Yield what is printed and cannot be compared."""
    if inputs.published is not None and inputs.published.missing:
        items = Items(inputs.published.missing)
        yield Section("missing", "Missing", "What is printed and has nothing here to stand beside.", (items,))
