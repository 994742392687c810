"""Section of the Parmesan paper: tables, figures, pictures, and checks of mappings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pandas as pd

from phaze.cost.network.device_networks import DeviceNetwork
from phaze.cost.network.topologies import make_network
from phaze.map.speed_ups import POINT, shapes_of, speed_ups, steps
from phaze.papers.page import Paper, checked, paper_of, part, words_of
from phaze.papers.parmesan.inputs import MapInputs, shape_names, step_of
from phaze.papers.parmesan.readings import (
    about,
    cluster_blocks,
    groups,
    nearest,
    read_figures,
    reading_blocks,
)
from phaze.papers.publications import Mapping
from phaze.papers.scores import geometric_mean
from phaze.report import map_charts
from phaze.report.case_checks import MAP_CHECKS
from phaze.report.document import Chart, Section, Sheet
from phaze.spec.map_study import MapCase
from phaze.spec.topology import MatrixFile
from phaze.tables import FiguresRead, Mappings, SpeedUps

WAYS = (
    "by_sizes_over_consecutive", "paper_over_consecutive", "over_consecutive", "paper_over_heuristics",
    "searched_over_heuristics", "over_heuristics",
)  # fmt: skip
"""Columns of table `speed_ups` that show the gain of each part of our method."""
WORDS = words_of("parmesan")


def topologies_section(inputs: MapInputs, name: str, case: MapCase) -> Section:
    """Section of Tables III and VI: speed-ups by topology, ours and printed."""
    found = speed_ups(inputs.rows(name))
    found = found.assign(shape=shapes_of(found))
    sheets = [
        _speed_up_sheet(inputs, case, found[found["graph"] == graph], key)
        for graph in case.graphs
        for key in ("over_consecutive", "over_heuristics")
    ]
    by_topology = found.groupby("topology")
    least = by_topology["least_over_heuristics"].min()
    means = by_topology[list(WAYS)].agg(geometric_mean).join(least).reindex(list(case.topologies))
    ways = WORDS.sheet("ways", means.rename_axis("topology").reset_index())
    return WORDS.section("topologies", (*sheets, ways), name=name)


def _speed_up_sheet(inputs: MapInputs, case: MapCase, found: pd.DataFrame, key: str) -> Sheet:
    """Table of speed-ups of a graph; means cover the printed shapes if there are any."""
    shapes, rows = shape_names(case), []
    for topology in case.topologies:
        mine = found[found["topology"] == topology].set_index("shape")[key]
        theirs = pd.Series(getattr(inputs.published, key, {}).get(topology, {}), dtype=float)
        both = mine.index.intersection(theirs.index).intersection(list(shapes), sort=False)
        mine["mean"] = geometric_mean(mine[both] if len(both) else mine)
        if len(both):
            theirs["mean"] = geometric_mean(theirs[both])
        for shape, ours in zip(map(str, mine.index), mine, strict=True):
            beside = f" ({theirs[shape]:.1f})" if shape in theirs else ""
            if not np.isnan(ours):
                cell = f"{ours:.2f}{beside}"
                rows.append({"topology": inputs.label(topology), "shape": shape, "cell": cell})
    of = "" if len(case.graphs) == 1 else f"{inputs.study.graphs[found['graph'].iloc[0]].label}: "
    heads = dict(zip(shapes, shapes, strict=True)) | {"mean": "geometric mean"}
    return WORDS.sheet(key, pd.DataFrame(rows), heads=heads, of=of)


SHOWN_MAPPINGS: dict[Mapping, str] = {"cs-map": "CS map", "p2p-map": "p2p map", "ours": "our map"}
REFINED = {"cs-map": "CS map for both", "ours": "our map for each"}


def partitioners_section(inputs: MapInputs, name: str, case: MapCase) -> Section:
    """Section of Tables I, II, IV and V: partitioners and mappings over the first partitioner with CS map."""
    readings, published = [inputs.rows(name)], inputs.published
    sizes = (size for topology in case.topologies for size in inputs.study.topologies[topology].sizes)
    if any(size.devices_per_port for size in sizes):
        readings.append(inputs.rows(name, "shared_step_s"))
    heads = {shape: shape for shape in shape_names(case)}
    first, sheets = (case.partitioners[0], "cs-map"), []
    for graph in case.graphs:
        told = published.over_first.get(graph, {}) if published else {}
        rows = [
            {"partitioner": by, "mapping": label, **cell}
            for by, (way, label) in product(case.partitioners, SHOWN_MAPPINGS.items())
            for cell in _ratios(readings, graph, heads, first, (by, way), told.get(by, {}).get(way, {}))
        ]
        sheets.append(WORDS.sheet("partitions", pd.DataFrame(rows), heads=heads, graph=_label(inputs, graph)))
    if {"clusters", "paper"} <= set(case.partitioners):
        told_clusters = published.over_clusters if published else {}
        rows = [
            {"graph": _label(inputs, graph), "mapping": label, **cell}
            for graph, (own, label) in product(case.graphs, REFINED.items())
            for cell in _ratios(
                readings, graph, heads, ("clusters", own), ("paper", own), told_clusters.get(graph, {})
            )
        ]
        sheets.append(WORDS.sheet("refined", pd.DataFrame(rows), heads=heads))
    return WORDS.section("partitioners", sheets, name=name)


def _label(inputs: MapInputs, graph: str) -> str:
    return inputs.study.graphs[graph].label


def _ratios(
    readings: list[pd.DataFrame],
    graph: str,
    shapes: Iterable[str],
    first: tuple[str, str],
    other: tuple[str, str],
    printed: dict[str, float],
) -> Iterator[dict[str, str]]:
    """Yield the speed-up of `other` over `first`, pairs of partitioner and mapping, by shape and reading."""
    mine = [rows[rows["graph"] == graph] for rows in readings]
    for shape in shapes:
        (one, over), (another, way) = first, other
        ratios = [step_of(rows, one, shape, over) / step_of(rows, another, shape, way) for rows in mine]
        if not np.isnan(ratios[0]):
            beside = f" ({printed[shape]:g})" if shape in printed else ""
            yield {"shape": shape, "cell": " / ".join(f"{ratio:.2f}" for ratio in ratios) + beside}


def throughput_section(inputs: MapInputs, name: str, case: MapCase) -> Section:
    """Section of Figure 4: samples per second by shape."""
    rows = inputs.rows(name)
    batch = rows["graph"].map({key: graph.microbatch for key, graph in inputs.study.graphs.items()})
    draw = partial(map_charts.throughputs, rows, batch * rows["replicas"] * rows["microbatches"])
    graphs = ", ".join(_label(inputs, graph) for graph in case.graphs)
    figure = WORDS.chart("throughput", name, draw, graphs=graphs)
    return WORDS.section("throughput", (figure,), graphs=graphs, name=name)


def clusters_section(inputs: MapInputs, name: str, case: MapCase) -> Section:
    """Section of Figure 5(a): step time by K."""
    rows = inputs.rows(name).groupby(["graph", "hyper_operators"])["ours"].min().reset_index()
    rows = rows.sort_values("graph", key=lambda graphs: graphs.map(case.graphs.index), kind="stable")
    named = rows["graph"].map(lambda graph: _label(inputs, graph))
    rows = rows.assign(graph=named, k="K = " + rows["hyper_operators"].astype(str))
    return WORDS.section("clusters", (WORDS.sheet("clusters", rows),), name=name)


COUNTED = {"p2p": "messages", "allreduce": "all-reduce", "exact": "both"}


def gaps_section(inputs: MapInputs, name: str, case: MapCase) -> Section:
    """Section of gaps between the local search alone and optima or lower bounds."""
    assert inputs.search_gaps is not None, name
    rows = inputs.search_gaps[inputs.search_gaps["graph"].isin(case.graphs)]
    above = (rows["local_s"] / rows["bound_s"] - 1.0).map("{:.2%}".format)
    rows = rows.assign(
        devices=rows["stages"] * rows["replicas"],
        label=rows["topology"].map(inputs.label),
        shape=shapes_of(rows),
        cell=rows["proven"].map({True: "=", False: "≤"}) + " " + above,
    ).sort_values(["devices", "topology", "stages"], kind="stable")
    return WORDS.section("gaps", (WORDS.sheet("gaps", rows, heads=COUNTED),))


def pictures_section(inputs: MapInputs) -> Section:
    """Section of Figures 10 and 6: bandwidths of all topologies, and a mapping on each."""
    networks = {
        one.label: _drawn(inputs, name, min(getattr(size, "devices", 0) for size in one.sizes))
        for name, one in inputs.study.topologies.items()
    }
    figure = WORDS.chart("bandwidths", "bandwidths", partial(map_charts.bandwidths, networks))
    pictures = (_picture(inputs, name) for name in dict.fromkeys(inputs.mapped_devices["topology"]))
    return WORDS.section("pictures", (figure, *pictures))


def _picture(inputs: MapInputs, topology: str) -> Chart:
    """Chart of bandwidths on a topology, with devices in the order of each mapping of its first case."""
    some = inputs.mapped_devices[inputs.mapped_devices["topology"] == topology]
    devices = some["stages"] * some["replicas"]
    some = some[devices == devices.min()]
    first = some[POINT].iloc[0]
    mine = some[(some[POINT] == first).all(axis=1)]
    draw = partial(map_charts.mappings, _drawn(inputs, topology, int(devices.min())), mine)
    return WORDS.chart("mapping", f"mapping-{topology}", draw, label=inputs.label(topology), **first)


def _drawn(inputs: MapInputs, name: str, devices: int) -> DeviceNetwork:
    """Network of a topology with the given number of devices, for its first seed."""
    _, made = inputs.study.topologies[name].drawn(devices)[0]
    assert not isinstance(made, MatrixFile)
    return make_network(made)


PARTS: dict[str, Callable[[MapInputs, str, MapCase], Section]] = {
    "topologies": topologies_section,
    "partitioners": partitioners_section,
    "throughput": throughput_section,
    "clusters": clusters_section,
    "gaps": gaps_section,
}
"""Section builders by `show` value of a case, in the order of the page."""
BESIDE = {"topologies": reading_blocks, "partitioners": cluster_blocks}
"""Blocks on readings that open a section, by `show` value of a case."""


def sections_of(inputs: MapInputs, figures: pd.DataFrame) -> Iterator[Section]:
    """Yield the sections of all cases, then the pictures; `figures` is table figures_read."""
    for show, section_of in PARTS.items():
        for name, case in inputs.of(show):
            section = section_of(inputs, name, case)
            first = BESIDE[show](inputs, figures, name, case) if show in BESIDE else ()
            yield replace(section, blocks=(*first, *section.blocks))
    yield pictures_section(inputs)


def parmesan_paper(inputs: MapInputs) -> Paper:
    """Parmesan's section, comparing the paper with the mappings of a study."""
    gains, figures = SpeedUps.check(speed_ups(steps(inputs.mappings))), read_figures(inputs)
    checks, table = checked("map-checks", MAP_CHECKS, inputs)
    return paper_of(
        "parmesan",
        inputs.published,
        answer_of(inputs, gains, figures),
        (*part(sections_of(inputs, figures)), *checks),
        {
            "mappings": (Mappings, inputs.mappings),
            "speed-ups": (SpeedUps, gains),
            "figures-read": (FiguresRead, figures),
            **table,
        },
    )


def answer_of(inputs: MapInputs, gains: pd.DataFrame, figures: pd.DataFrame) -> str:
    """Summary: speed-up by mapping, and the readings closest to the printed figures."""
    printed = figures[figures["printed"] > 0]
    for name, case in inputs.of("topologies"):
        mine = printed[printed["case"] == name]
        if case.readings and len(mine):
            return _beside(inputs, case, mine)
    mean = geometric_mean(gains["over_consecutive"])
    return WORDS.sentence("gain", mean=mean, cases=len(gains))


def _beside(inputs: MapInputs, case: MapCase, mine: pd.DataFrame) -> str:
    """Sentences on the gain of mapping, printed and ours, and on the closest reading, by kind of topology."""
    over = mine[mine["figure"] == "over-consecutive"]
    first, graph = next(iter(case.readings)), inputs.study.graphs[case.graphs[0]].label
    gained, near = [], []
    for group, topologies in groups(inputs, case).items():
        means = about(over, first, topologies)[["ours", "printed"]].agg(geometric_mean)
        gained.append(WORDS.sentence("gained", group=group, **means))
        key, factor = nearest(mine, case.plain_readings, topologies)
        near.append(WORDS.sentence("near", group=group, factor=factor, label=case.readings[key].label))
    several = {"gained": " and ".join(gained), "near": " and ".join(near)}
    return WORDS.sentence("answer", graph=graph, readings=len(case.plain_readings), **several)
