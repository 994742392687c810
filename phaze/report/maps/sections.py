"""The sections of the page of the mappings, with their pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from phaze.base.arrays import Floats
from phaze.base.units import GIB
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.cost.network.topologies import make_network
from phaze.report.document import Block, Chart, Items, Prose, Section, Sheet, sheet_of
from phaze.report.maps.inputs import (
    POINT,
    MapInputs,
    geometric_mean,
    shape_names,
    shapes_of,
    shares_ports,
    speed_ups,
    step_of,
)
from phaze.report.maps.readings import cluster_blocks, reading_blocks
from phaze.report.style import AMBER, BLUE, GREY, TEAL, WIDE, axes, legend_above, panels
from phaze.report.words import seconds
from phaze.spec.map_study import MapCase
from phaze.spec.published_maps import Mapping
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
    """Return Tables III and VI: speed-ups by topology, ours beside the printed ones."""
    found = speed_ups(inputs.rows(name))
    found = found.assign(shape=shapes_of(found))
    told = Prose("The median over the seeds of a topology; printed values in brackets.")
    sheets = [_speed_up_sheet(inputs, case, found, key, title) for key, title in TABLES.items()]
    about = "How much shorter a simulated step is than with mappings by hand, by topology and shape S x R."
    sheets.append(_ways_sheet(found, case))
    return Section(name, f"Speed-ups by topology: {name}", about, (told, *sheets))


def _speed_up_sheet(inputs: MapInputs, case: MapCase, found: pd.DataFrame, key: str, title: str) -> Sheet:
    printed = getattr(inputs.published, key) if inputs.published is not None else {}
    rows, shapes = [], shape_names(case)
    for topology in case.topologies:
        mine = found[found["topology"] == topology].set_index("shape")[key]
        theirs = pd.Series(printed.get(topology, {}), dtype=float)
        both = mine.index.intersection(theirs.index).intersection(list(shapes), sort=False)
        mean = geometric_mean(mine[both] if len(both) else mine)
        cells = [_beside(mine.get(shape), theirs.get(shape)) for shape in shapes]
        other = geometric_mean(theirs[both]) if len(both) else None
        rows.append((inputs.maps.topologies[topology].label, *cells, _beside(mean, other)))
    header = ("topology", *shapes, "geometric mean")
    return Sheet(f"Speed-up {title}", header, tuple(rows), 1, source="speed-ups")


def _beside(ours: float | None, theirs: float | None) -> str:
    if ours is None or math.isnan(ours):
        return "–"
    return f"{ours:.2f}" if theirs is None else f"{ours:.2f} ({theirs:.1f})"


def _ways_sheet(found: pd.DataFrame, case: MapCase) -> Sheet:
    """Return the geometric means of what each part of ours reaches."""
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
    """Return Tables I, II, IV and V: partitioners with each mapping, over the first one with CS map."""
    readings = [inputs.rows(name)]
    if any(shares_ports(inputs.maps, topology) for topology in case.topologies):
        readings.append(inputs.rows(name, "shared_step_s"))
    sheets = [_graph_sheet(inputs, case, readings, graph) for graph in case.graphs]
    if {"clusters", "paper"} <= set(case.partitioners):
        sheets.append(_refinement_sheet(inputs, case, readings))
    about = "What partition and mapping each give, by simulated steps of synchronous GPipe."
    blocks: tuple[Block, ...] = (Prose(SHARED), *sheets) if len(readings) > 1 else tuple(sheets)
    return Section(name, f"Partitions and mappings: {name}", about, blocks)


def _graph_sheet(inputs: MapInputs, case: MapCase, readings: list[pd.DataFrame], graph: str) -> Sheet:
    """Return the speed-ups of a graph over the first partitioner with CS map, in every reading."""
    published = inputs.published.over_first.get(graph, {}) if inputs.published is not None else {}
    first = case.partitioners[0], "cs-map"
    cells = []
    for partitioner, (way, label) in product(case.partitioners, SHOWN_MAPPINGS.items()):
        printed = published.get(partitioner, {}).get(way, {})
        values = _ratios(readings, graph, case, first, (partitioner, way), printed)
        cells.append((partitioner, label, *values))
    header = ("partition", "mapping", *shape_names(case))
    label = inputs.maps.graphs[graph].label
    return Sheet(f"{label}: throughput over the first row", header, tuple(cells), 2)


def _refinement_sheet(inputs: MapInputs, case: MapCase, readings: list[pd.DataFrame]) -> Sheet:
    """Return Table IV: how much faster refinement makes a step than clusters alone, on one mapping."""
    printed = inputs.published.over_clusters if inputs.published is not None else {}
    rows = []
    for graph, (way, words) in product(
        case.graphs, (("cs-map", "CS map for both"), ("ours", "our map for each"))
    ):
        told = printed.get(graph, {})
        cells = _ratios(readings, graph, case, ("clusters", way), ("paper", way), told)
        rows.append((inputs.maps.graphs[graph].label, words, *cells))
    caption = "The authors' partition: throughput with refinement over without (Table IV)"
    return Sheet(caption, ("graph", "mapping", *shape_names(case)), tuple(rows), 2)


def _ratios(
    readings: list[pd.DataFrame],
    graph: str,
    case: MapCase,
    first: tuple[str, str],
    other: tuple[str, str],
    printed: dict[str, float],
) -> Iterator[str]:
    """Yield by shape how much shorter steps of the other partitioner and way are, in every reading."""
    mine = [rows[rows["graph"] == graph] for rows in readings]
    for shape in shape_names(case):
        ratios = [
            step_of(rows, first[0], shape, first[1]) / step_of(rows, other[0], shape, other[1])
            for rows in mine
        ]
        ours = " / ".join(f"{ratio:.2f}" for ratio in ratios)
        beside = f" ({printed[shape]:g})" if shape in printed else ""
        yield "–" if np.isnan(ratios[0]) else f"{ours}{beside}"


def throughput_section(inputs: MapInputs, name: str, case: MapCase) -> Section:
    """Return Figure 4: samples per second under every shape."""
    rows = inputs.rows(name)
    batch = rows["graph"].map({key: graph.microbatch for key, graph in inputs.maps.graphs.items()})
    samples = batch * rows["replicas"] * rows["microbatches"]
    title = f"Throughput: {', '.join(inputs.maps.graphs[graph].label for graph in case.graphs)}"
    figure = Chart(name, title, "Simulated, by shape S x R.", partial(throughputs, rows, samples))
    return Section(name, f"{title} ({name})", "Samples per second with each mapping.", (figure,))


def clusters_section(inputs: MapInputs, name: str, case: MapCase) -> Section:
    """Return Figure 5: steps by K."""
    rows = inputs.rows(name)
    values = sorted(rows["hyper_operators"].unique())
    cells = []
    for graph in case.graphs:
        mine = rows[rows["graph"] == graph].groupby("hyper_operators")["ours"].min()
        cells.append((inputs.maps.graphs[graph].label, *(seconds(mine[k]) for k in values if k in mine)))
    header = ("graph", *(f"K = {k}" for k in values))
    sheet = Sheet("Simulated step with our mapping (Figure 5(a))", header, tuple(cells), 1)
    blocks = (sheet, *_phase_sheet(inputs, case, header))
    return Section(name, f"Hyper-operators K ({name})", "How much the clustering hides.", blocks)


PHASE_NAMES = {
    "clustering": "clustering",
    "dynamic-program": "dynamic program",
    "all-subgraphs": "the same over all fronted subgraphs",
    "refinement": "refinement",
}


def _phase_sheet(inputs: MapInputs, case: MapCase, header: tuple[str, ...]) -> Iterator[Sheet]:
    """Yield Figure 5(b): how long the steps of the paper's partition take by K, if that was measured."""
    if inputs.partition_durations is None:
        return
    measured = inputs.partition_durations.groupby(["graph", "phase", "hyper_operators"])["seconds"].min()
    cells = []
    for graph in case.graphs:
        for phase, label in PHASE_NAMES.items():
            mine = measured[graph, phase]
            cells.append((inputs.maps.graphs[graph].label, label, *map(seconds, mine)))
    caption = "Measured times of the steps, of all α together (Figure 5(b))"
    yield Sheet(caption, (header[0], "step", *header[1:]), tuple(cells), 2)


def gaps_section(inputs: MapInputs, name: str, case: MapCase) -> Section:
    """Return how far the local search alone stays from optima and bounds."""
    assert inputs.gaps is not None, name
    assert inputs.gap_durations is not None, name
    rows = inputs.gaps[inputs.gaps["graph"].isin(case.graphs)].merge(inputs.gap_durations)
    devices = rows["stages"] * rows["replicas"]
    ordered = rows.assign(devices=devices, shape=shapes_of(rows)).sort_values(["devices", "topology"])
    cells = []
    for _, mine in ordered.groupby(["devices", "topology", "stages"]):
        first, by_kind = mine.iloc[0], {row["counted"]: row for _, row in mine.iterrows()}
        gaps = [_gap(by_kind[kind]) for kind in ("p2p", "allreduce", "exact")]
        label = inputs.maps.topologies[first["topology"]].label
        longest = seconds(mine["seconds"].max())
        cells.append((label, first["shape"], f"{first['devices']:,}", *gaps, longest))
    header = ("topology", "shape", "devices", "messages", "all-reduce", "both", "longest time")
    sheet = Sheet("Local search above the optimum, or above the bound (≤)", header, tuple(cells), 3)
    about = (
        "The longest stage time that the local search finds by itself, without Algorithm 1 and mappings by "
        "hand, for both instantiations of the paper and the exact one; = where the optimum is proven."
    )
    return Section(name, "The local search alone", about, (sheet,))


def _gap(row: pd.Series) -> str:
    """Return how far the local search is above the optimum, or at most above the bound."""
    gap = row["local_s"] / row["bound_s"] - 1.0
    return f"= {gap:.2%}" if row["proven"] else f"≤ {gap:.2%}"


def pictures_section(inputs: MapInputs) -> Section:
    """Return Figures 10 and 6: bandwidths of all topologies, and the mapping that gains most on each."""
    networks = {
        one.label: _drawn(inputs, name, min(getattr(size, "devices", 0) for size in one.sizes))
        for name, one in inputs.maps.topologies.items()
    }
    figure = Chart(
        "bandwidths",
        "Bandwidth between any two devices (Figure 10)",
        "The smallest size of every topology, for its first seed; rows send, columns receive.",
        partial(bandwidths, networks),
    )
    pictures = tuple(_picture(inputs, name) for name in dict.fromkeys(inputs.devices["topology"]))
    return Section("pictures", "Topologies and mappings", "What is mapped to what.", (figure, *pictures))


def _picture(inputs: MapInputs, topology: str) -> Chart:
    """Return the bandwidths as the mappings of one case order the devices."""
    some = inputs.devices[inputs.devices["topology"] == topology]
    devices = some["stages"] * some["replicas"]
    some = some[devices == devices.min()]
    first = some[POINT].iloc[0]
    mine = some[(some[POINT] == first).all(axis=1)]
    network = _drawn(inputs, topology, int(devices.min()))
    shape = f"{first['graph']}, {first['stages']} stages x {first['replicas']} replicas"
    label = inputs.maps.topologies[topology].label
    return Chart(
        f"mapping-{topology}",
        f"{shape}, on {label} (Figure 6)",
        "Bandwidths with the devices in the order of stages and replicas: bright along the diagonal inside a "
        "square are fast links between the stages of a replica.",
        partial(mappings, network, mine),
    )


def _drawn(inputs: MapInputs, name: str, devices: int) -> DeviceNetwork:
    """Return the network of a topology for its first seed."""
    _, made = inputs.maps.topologies[name].drawn(devices)[0]
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
    """Yield the sections of all cases, what is missing, and the pictures; `figures` is table figures_read."""
    for show, part in PARTS.items():
        for name, case in inputs.of(show):
            section = part(inputs, name, case)
            first = BESIDE[show](inputs, figures, name, case) if show in BESIDE else ()
            yield replace(section, blocks=(*first, *section.blocks))
    if inputs.published is not None and inputs.published.missing:
        about = "What is printed and has nothing here to stand beside."
        yield Section("missing", "Missing", about, (Items(inputs.published.missing),))
    yield pictures_section(inputs)


COLUMNS = 4
WAY_NAMES = {
    "cs-map": "CS map",
    "p2p-map": "p2p map",
    "p2p": "search, messages",
    "allreduce": "search, all-reduce",
    "exact": "search, both",
    "local-search": "local search",
}


def bandwidths(networks: dict[str, DeviceNetwork]) -> Figure:
    """Draw Figure 10: the bandwidth between any two devices of every topology."""
    figure, every = panels(len(networks), COLUMNS, 0.3, 2.5)
    for ax, (label, network) in zip(every, networks.items(), strict=True):
        _matrix(figure, ax, _gib(network))
        ax.set_title(label)
    return figure


def _gib(network: DeviceNetwork) -> Floats:
    """Return the bandwidths in GiB/s, nothing on the diagonal."""
    own = np.eye(network.devices, dtype=bool)
    return np.where(own, np.nan, network.bandwidth_bytes_per_s / GIB)


def _matrix(figure: Figure, ax: Axes, values: Floats) -> None:
    low, high = np.nanmin(values), np.nanmax(values)
    image = ax.imshow(values, norm=LogNorm(low, high if high > low else 2 * low), cmap="viridis")
    bar = figure.colorbar(image, ax=ax, shrink=0.75)
    bar.minorticks_off()
    bar.set_ticks([low, high], labels=[f"{low:.2g}", f"{high:.3g}"])
    bar.set_label("GiB/s", fontsize=8)
    ax.set_xticks([])
    ax.set_yticks([])


def mappings(network: DeviceNetwork, devices: pd.DataFrame) -> Figure:
    """Draw Figure 6: for every way the devices in order, with stage and replica, over their bandwidths."""
    ways = list(dict.fromkeys(devices["way"]))
    figure, every = axes(WIDE, 4.1, 1, len(ways))
    values = _gib(network)
    for ax, way in zip(every, ways, strict=True):
        mine = devices[devices["way"] == way].sort_values(["replica", "stage"])
        order = mine["device"].to_numpy()
        _matrix(figure, ax, values[np.ix_(order, order)])
        for replica in range(1, mine["replica"].max() + 1):
            at = (mine["replica"] < replica).sum() - 0.5
            ax.axhline(at, color="white", lw=1)
            ax.axvline(at, color="white", lw=1)
        ax.set_title(WAY_NAMES[way])
        ax.set_xlabel("replica by replica")
    return figure


def throughputs(rows: pd.DataFrame, samples: pd.Series) -> Figure:
    """Draw Figure 4: samples per second by shape with CS map, p2p map, and ours."""
    figure, (ax,) = axes(WIDE, 3.4)
    labels = [f"{r.graph}\n{r.stages}x{r.replicas}, MB {r.microbatches}" for r in rows.itertuples()]
    shown = {"cs-map": GREY, "p2p-map": AMBER, "by-sizes": TEAL, "ours": BLUE}
    names = {**WAY_NAMES, "by-sizes": "search, by sizes", "ours": "ours"}
    for number, (way, colour) in enumerate(shown.items()):
        at = np.arange(len(rows)) + (number - 1.5) * 0.2
        ax.bar(at, samples / rows[way], 0.19, color=colour, label=names[way])
    ax.set_xticks(range(len(rows)), labels, rotation=60 if len(rows) > 6 else 0, fontsize=7.5)
    ax.set_ylabel("samples per second")
    ax.grid(axis="y")
    return legend_above(figure, ax)
