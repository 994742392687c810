"""The sections of the page of the mappings, with their pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pandas as pd

from phaze.cost.network.device_networks import DeviceNetwork
from phaze.cost.network.topologies import make_network
from phaze.papers.parmesan.inputs import (
    POINT,
    MapInputs,
    shape_names,
    shapes_of,
    speed_ups,
    step_of,
)
from phaze.papers.parmesan.published import Mapping
from phaze.papers.parmesan.readings import cluster_blocks, reading_blocks
from phaze.papers.scores import geometric_mean
from phaze.report import map_charts
from phaze.report.document import Block, Chart, Prose, Section, Sheet, sheet_of
from phaze.report.pages import wide
from phaze.report.words import seconds
from phaze.spec.map_study import MapCase
from phaze.spec.topology import MatrixFile

TABLES = {"over_consecutive": "over CS map (Table III)", "over_heuristics": "over CS and p2p map (Table VI)"}
WAYS = {
    "by_sizes_over_consecutive": "one instantiation by sizes, over CS",
    "paper_over_consecutive": "both of the paper, over CS",
    "over_consecutive": "ours, over CS",
    "paper_over_heuristics": "both of the paper, over CS and p2p",
    "searched_over_heuristics": "with the exact one, over CS and p2p",
    "over_heuristics": "ours, over CS and p2p",
}
"""What each part of ours reaches."""


def topologies_section(inputs: MapInputs, name: str, case: MapCase) -> Section:
    """Tables III and VI: speed-ups by topology, ours beside the printed ones."""
    found = speed_ups(inputs.rows(name))
    found = found.assign(shape=shapes_of(found))
    told = Prose("The median over the seeds of a topology; printed values in brackets.")
    sheets = [
        _speed_up_sheet(inputs, case, found[found["graph"] == graph], key, title)
        for graph in case.graphs
        for key, title in TABLES.items()
    ]
    about = "How much shorter a simulated step is than with mappings by hand, by topology and shape S x R."
    sheets.append(_ways_sheet(found, case))
    return Section(name, f"Speed-ups by topology: {name}", about, (told, *sheets))


def _speed_up_sheet(inputs: MapInputs, case: MapCase, found: pd.DataFrame, key: str, title: str) -> Sheet:
    """Speed-ups of a graph; means are over the shapes that are printed, where some are."""
    shapes = shape_names(case)
    rows = []
    for topology in case.topologies:
        mine = found[found["topology"] == topology].set_index("shape")[key]
        theirs = pd.Series(getattr(inputs.published, key, {}).get(topology, {}), dtype=float)
        both = mine.index.intersection(theirs.index).intersection(list(shapes), sort=False)
        mine["mean"] = geometric_mean(mine[both] if len(both) else mine)
        if len(both):
            theirs["mean"] = geometric_mean(theirs[both])
        beside = {shape: f" ({printed:.1f})" for shape, printed in theirs.items()}
        cells = {str(s): f"{ours:.2f}{beside.get(s, '')}" for s, ours in mine.items() if ours == ours}
        rows.append(((inputs.label(topology),), cells))
    of = "" if len(case.graphs) == 1 else f"{inputs.study.graphs[found['graph'].iloc[0]].label}: "
    columns = dict(zip(shapes, shapes, strict=True)) | {"mean": "geometric mean"}
    return wide(f"{of}Speed-up {title}", ("topology",), columns, rows, "speed-ups")


def _ways_sheet(found: pd.DataFrame, case: MapCase) -> Sheet:
    """Geometric means of what each part of ours reaches."""
    by_topology = found.groupby("topology")
    least = by_topology["least_over_heuristics"].min()
    means = by_topology[list(WAYS)].agg(geometric_mean).join(least).reindex(list(case.topologies))
    columns = {"topology": "{topology}", **{title: f"{{{key}:.2f}}" for key, title in WAYS.items()}}
    columns |= {"ours at worst, over CS and p2p": "{least_over_heuristics:.3f}"}
    caption = (
        "Geometric means over shapes of what each part of the ensemble reaches, without heuristics in it"
    )
    return sheet_of(caption, means.rename_axis("topology").reset_index(), columns, source="speed-ups")


SHOWN_MAPPINGS: dict[Mapping, str] = {"cs-map": "CS map", "p2p-map": "p2p map", "ours": "our map"}
SHARED = (
    "Two values: first with a link for every pair of devices, as bandwidths are measured and searches count, "
    "then with one port for all devices of a node, as clusters have; printed values, measured on clusters, "
    "in brackets."
)


def partitioners_section(inputs: MapInputs, name: str, case: MapCase) -> Section:
    """Tables I, II, IV and V: partitioners with each mapping, over the first one with CS map."""
    readings, published = [inputs.rows(name)], inputs.published
    sizes = (size for topology in case.topologies for size in inputs.study.topologies[topology].sizes)
    if any(size.devices_per_port for size in sizes):
        readings.append(inputs.rows(name, "shared_step_s"))
    shapes = shape_names(case)
    columns = dict(zip(shapes, shapes, strict=True))
    first = case.partitioners[0], "cs-map"
    sheets = []
    for graph in case.graphs:
        told = published.over_first.get(graph, {}) if published else {}
        rows = []
        for partitioner, (way, label) in product(case.partitioners, SHOWN_MAPPINGS.items()):
            printed = told.get(partitioner, {}).get(way, {})
            ratios = _ratios(readings, graph, shapes, first, (partitioner, way), printed)
            rows.append(((partitioner, label), ratios))
        caption = f"{inputs.study.graphs[graph].label}: throughput over the first row"
        sheets.append(wide(caption, ("partition", "mapping"), columns, rows))
    if {"clusters", "paper"} <= set(case.partitioners):
        refined = []
        told_clusters = published.over_clusters if published else {}
        by_hand_and_ours = (("cs-map", "CS map for both"), ("ours", "our map for each"))
        for graph, (own, words) in product(case.graphs, by_hand_and_ours):
            pair, printed = (("clusters", own), ("paper", own)), told_clusters.get(graph, {})
            ratios = _ratios(readings, graph, shapes, *pair, printed)
            refined.append(((inputs.study.graphs[graph].label, words), ratios))
        caption = "The authors' partition: throughput with refinement over without (Table IV)"
        sheets.append(wide(caption, ("graph", "mapping"), columns, refined))
    about = "What partition and mapping each give, by simulated steps of synchronous GPipe."
    blocks: tuple[Block, ...] = (Prose(SHARED), *sheets) if len(readings) > 1 else tuple(sheets)
    return Section(name, f"Partitions and mappings: {name}", about, blocks)


def _ratios(
    readings: list[pd.DataFrame],
    graph: str,
    shapes: tuple[str, ...],
    first: tuple[str, str],
    other: tuple[str, str],
    printed: dict[str, float],
) -> dict[str, str]:
    """How much shorter steps of the other partitioner and way are by shape, in every reading."""
    mine = [rows[rows["graph"] == graph] for rows in readings]
    found = {}
    for shape in shapes:
        (one, over), (another, way) = first, other
        ratios = [step_of(rows, one, shape, over) / step_of(rows, another, shape, way) for rows in mine]
        if not np.isnan(ratios[0]):
            beside = f" ({printed[shape]:g})" if shape in printed else ""
            found[shape] = " / ".join(f"{ratio:.2f}" for ratio in ratios) + beside
    return found


def throughput_section(inputs: MapInputs, name: str, case: MapCase) -> Section:
    """Figure 4: samples per second under every shape."""
    rows = inputs.rows(name)
    batch = rows["graph"].map({key: graph.microbatch for key, graph in inputs.study.graphs.items()})
    samples = batch * rows["replicas"] * rows["microbatches"]
    title = f"Throughput: {', '.join(inputs.study.graphs[graph].label for graph in case.graphs)}"
    figure = Chart(name, title, "Simulated, by shape S x R.", partial(map_charts.throughputs, rows, samples))
    return Section(name, f"{title} ({name})", "Samples per second with each mapping.", (figure,))


def clusters_section(inputs: MapInputs, name: str, case: MapCase) -> Section:
    """Figure 5(a): steps by K."""
    rows = inputs.rows(name)
    columns = {k: f"K = {k}" for k in sorted(rows["hyper_operators"].unique())}
    labels = {graph: inputs.study.graphs[graph].label for graph in case.graphs}
    steps = rows.groupby(["graph", "hyper_operators"])["ours"].min().map(seconds)
    cells = [((label,), dict(steps[graph])) for graph, label in labels.items()]
    blocks = [wide("Simulated step with our mapping (Figure 5(a))", ("graph",), columns, cells)]
    return Section(name, f"Hyper-operators K ({name})", "How much the clustering hides.", tuple(blocks))


def gaps_section(inputs: MapInputs, name: str, case: MapCase) -> Section:
    """How far the local search alone stays from optima and bounds."""
    assert inputs.search_gaps is not None, name
    rows = inputs.search_gaps[inputs.search_gaps["graph"].isin(case.graphs)]
    devices = rows["stages"] * rows["replicas"]
    sign = rows["proven"].map({True: "=", False: "≤"})
    above = (rows["local_s"] / rows["bound_s"] - 1.0).map("{:.2%}".format)
    rows = rows.assign(devices=devices, shape=shapes_of(rows), gap=sign + " " + above)
    cells = []
    for (number, topology, _), mine in rows.groupby(["devices", "topology", "stages"]):
        gaps = dict(zip(mine["counted"], mine["gap"], strict=True))
        words = inputs.label(str(topology)), mine["shape"].iloc[0], f"{number:,}"
        cells.append((words, gaps))
    columns = {"p2p": "messages", "allreduce": "all-reduce", "exact": "both"}
    caption = "Local search above the optimum, or above the bound (≤)"
    sheet = wide(caption, ("topology", "shape", "devices"), columns, cells)
    about = (
        "The longest stage time that the local search finds by itself, without Algorithm 1 and mappings by "
        "hand, for both instantiations of the paper and the exact one; = where the optimum is proven."
    )
    return Section(name, "The local search alone", about, (sheet,))


def pictures_section(inputs: MapInputs) -> Section:
    """Figures 10 and 6: bandwidths of all topologies, and the mapping that gains most on each."""
    networks = {
        one.label: _drawn(inputs, name, min(getattr(size, "devices", 0) for size in one.sizes))
        for name, one in inputs.study.topologies.items()
    }
    figure = Chart(
        "bandwidths",
        "Bandwidth between any two devices (Figure 10)",
        "The smallest size of every topology, for its first seed; rows send, columns receive.",
        partial(map_charts.bandwidths, networks),
    )
    pictures = tuple(_picture(inputs, name) for name in dict.fromkeys(inputs.mapped_devices["topology"]))
    return Section("pictures", "Topologies and mappings", "What is mapped to what.", (figure, *pictures))


def _picture(inputs: MapInputs, topology: str) -> Chart:
    """The bandwidths as the mappings of one case order the devices."""
    some = inputs.mapped_devices[inputs.mapped_devices["topology"] == topology]
    devices = some["stages"] * some["replicas"]
    some = some[devices == devices.min()]
    first = some[POINT].iloc[0]
    mine = some[(some[POINT] == first).all(axis=1)]
    network = _drawn(inputs, topology, int(devices.min()))
    shape = f"{first['graph']}, {first['stages']} stages x {first['replicas']} replicas"
    label = inputs.label(topology)
    return Chart(
        f"mapping-{topology}",
        f"{shape}, on {label} (Figure 6)",
        "Bandwidths with the devices in the order of stages and replicas: bright along the diagonal inside a "
        "square are fast links between the stages of a replica.",
        partial(map_charts.mappings, network, mine),
    )


def _drawn(inputs: MapInputs, name: str, devices: int) -> DeviceNetwork:
    """The network of a topology for its first seed."""
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
"""How cases are shown, in the order of the page."""
BESIDE = {"topologies": reading_blocks, "partitioners": cluster_blocks}
"""What stands first in the sections that are beside a publication."""


def sections_of(inputs: MapInputs, figures: pd.DataFrame) -> Iterator[Section]:
    """The sections of all cases, what is missing, and the pictures; `figures` is table figures_read."""
    for show, part in PARTS.items():
        for name, case in inputs.of(show):
            section = part(inputs, name, case)
            first = BESIDE[show](inputs, figures, name, case) if show in BESIDE else ()
            yield replace(section, blocks=(*first, *section.blocks))
    yield pictures_section(inputs)
