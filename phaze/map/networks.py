"""Networks for mapping problems: the part of a system that a plan needs, and user-defined topologies.

A message over h hops of a torus occupies h links, so a mapping problem uses 1/h of a link's bandwidth for it.
The simulator models the links themselves, each with one message at a time. In a tree the bandwidth between
two devices is the lowest of the levels between them, and latencies add up. A user's topology is a CSV matrix,
a graph in a NetworkX format, or a YAML file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
from pydantic import ValidationError

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.cost.network.device_networks import DeviceNetwork, complete_network
from phaze.cost.network.topologies import hops_of_grid, make_network
from phaze.spec.files import within
from phaze.spec.network import is_link_table, read_bandwidths, read_links
from phaze.spec.noun import describe
from phaze.spec.plain import read_json, read_yaml
from phaze.spec.system import Cluster
from phaze.spec.topology import MOST_DEVICES, TOPOLOGY, MatrixFile

_NO_GRAPH = (ValueError, KeyError, TypeError, AttributeError, SyntaxError, RecursionError, nx.NetworkXError)
"""Exceptions that the JSON and NetworkX readers raise for an invalid graph."""


def device_network(system: Cluster) -> DeviceNetwork:
    """Bandwidth and latency between all pairs of devices of a system."""
    return _of_levels(system) if system.torus is None else _of_torus(system)


def _of_torus(system: Cluster) -> DeviceNetwork:
    assert system.torus is not None
    hops = hops_of_grid(system.torus.shape, torus=system.torus.wrap).astype(np.float64)
    bandwidth = system.torus.bandwidth_bytes_per_s / np.maximum(hops, 1.0)
    return DeviceNetwork(bandwidth, hops * system.torus.latency_s)


def _of_levels(system: Cluster) -> DeviceNetwork:
    devices = np.arange(system.devices)
    bandwidth = np.full((len(devices), len(devices)), np.inf)
    latency = np.zeros_like(bandwidth)
    apart = ~np.eye(len(devices), dtype=bool)
    for level in system.levels:
        bandwidth[apart] = np.minimum(bandwidth[apart], level.collective_bytes_per_s)
        latency[apart] += level.ring_step_s
        group = devices // level.devices
        apart = group[:, None] != group[None, :]
    return DeviceNetwork(bandwidth, latency)


def units_of(network: DeviceNetwork, width: int) -> DeviceNetwork:
    """Network between units of `width` consecutive devices.

    The k-th devices of two units communicate; the slowest of these pairs sets the speed. Devices that do not
    fill a unit are omitted.
    """
    if width == 1:
        return network
    seconds = _slowest(network.seconds_per_byte, width)
    bandwidth = 1.0 / np.where(seconds > 0, seconds, np.inf)
    np.fill_diagonal(bandwidth, np.inf)
    speeds = network.speeds
    if speeds is not None:
        speeds = speeds[: len(bandwidth) * width].reshape(-1, width).min(axis=1)
    return DeviceNetwork(bandwidth, _slowest(network.waits_s, width), speeds)


def _slowest(matrix: Floats, width: int) -> Floats:
    """Maximum of a matrix over the pairs of devices at equal positions in two units, shape (U, U)."""
    units = len(matrix) // width
    places = [np.arange(units) * width + k for k in range(width)]
    return np.asarray(np.max([matrix[np.ix_(at, at)] for at in places], axis=0))


def read_topology(path: Path) -> DeviceNetwork:
    """Network of a topology file; PhazeError describes an invalid file."""
    if path.suffix in (".csv", ".json", ".graphml"):
        return _of_file(MatrixFile(kind="file", path=path.name), path.parent)
    try:
        topology = TOPOLOGY.validate_python(read_yaml(path))
    except ValidationError as error:
        raise PhazeError(describe(error, str(path))) from error
    if isinstance(topology, MatrixFile):
        network = _of_file(topology, path.parent)
    else:
        check_devices(topology.devices, path)
        network = make_network(topology)
    if not topology.speeds:
        return network
    if len(topology.speeds) != network.devices:
        raise PhazeError(
            f"{path}: speeds: must have {network.devices} numbers, one per device, got {len(topology.speeds)}"
        )
    return replace(network, speeds=np.array(topology.speeds))


def refuse_speeds(network: DeviceNetwork, source: Path | str) -> None:
    """Raise PhazeError if devices have several speeds, which plans cannot use."""
    if network.has_speeds:
        raise PhazeError(
            f"{source}: speeds: apply to stages of `phaze partition`; plans assume equal devices",
            "remove speeds, or map stages",
        )


def check_devices(devices: int, source: Path | str) -> None:
    """Raise PhazeError if there are too many devices for matrices of all pairs."""
    if devices > MOST_DEVICES:
        raise PhazeError(f"{source}: must have at most {MOST_DEVICES} devices, got {devices}")


def _of_file(file: MatrixFile, folder: Path) -> DeviceNetwork:
    path = within(folder, folder / file.path)
    read = {".csv": _read_table, ".json": _read_graph, ".graphml": _read_graph}.get(path.suffix)
    if read is None:
        raise PhazeError(f"{path}: must end with .csv, .json or .graphml")
    bandwidth, latency = read(path)
    check_devices(len(bandwidth), path)
    bandwidth = bandwidth * file.unit_bytes_per_s
    latency = np.where(np.isnan(latency), file.latency_s, latency)
    if (latency < 0).any():
        raise PhazeError(f"{path}: latencies must be >= 0, got {latency.min():g}")
    return complete_network(bandwidth, latency, file.absent, path)


def _read_table(path: Path) -> tuple[Floats, Floats]:
    """Read bandwidths from a table, 0 where there is no link; latencies of a matrix are unknown (NaN)."""
    if is_link_table(path):
        links = read_links(path)
        devices = 1 + max(max(link.source, link.target) for link in links)
        bandwidth, latency = np.zeros((devices, devices)), np.full((devices, devices), np.nan)
        for link in links:
            bandwidth[link.source, link.target] = link.bandwidth_bytes_per_s
            latency[link.source, link.target] = link.latency_s
        return bandwidth, latency
    values = np.array(read_bandwidths(path))
    return values, np.full_like(values, np.nan)


def _read_graph(path: Path) -> tuple[Floats, Floats]:
    """Read bandwidths and latencies from a graph, in node order; an undirected edge is two directed ones."""
    graph = _load_graph(path)
    index = {node: k for k, node in enumerate(graph.nodes)}
    if not index:
        raise PhazeError(f"{path}: must have nodes")
    bandwidth = np.zeros((len(index), len(index)))
    latency = np.full_like(bandwidth, np.nan)
    for source, target, about in graph.edges(data=True):
        value, wait = (_attribute(about, key, path, source, target) for key in ("bandwidth", "latency"))
        ends = [(index[source], index[target])]
        for a, b in ends if graph.is_directed() else [*ends, ends[0][::-1]]:
            bandwidth[a, b], latency[a, b] = value, wait
    return bandwidth, latency


def _load_graph(path: Path) -> nx.Graph[object]:
    try:
        graph = nx.read_graphml(path) if path.suffix == ".graphml" else _node_link(path)
    except OSError as error:
        raise PhazeError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _NO_GRAPH as error:
        raise PhazeError(f"{path}: is not a graph in node-link JSON or GraphML: {error}") from error
    if len(set(graph.edges())) < graph.number_of_edges():
        raise PhazeError(f"{path}: must have at most one edge from a node to another")
    return graph


def _node_link(path: Path) -> nx.Graph[object]:
    """Read a graph from a NetworkX JSON file; before version 3.4 NetworkX named `edges` `links`."""
    loaded = read_json(path)
    nodes = loaded.get("nodes") if isinstance(loaded, dict) else None
    if not isinstance(loaded, dict) or not isinstance(nodes, list):
        raise ValueError("must be an object with a list of nodes")
    graph = nx.node_link_graph(loaded, edges="edges" if "edges" in loaded else "links")
    if len(graph) != len(nodes):
        raise ValueError("nodes must be different, and edges must name them")
    return graph


def _attribute(about: dict[str, object], key: str, path: Path, source: object, target: object) -> float:
    """Bandwidth or latency of an edge; a missing latency is NaN."""
    value = about.get(key)
    if value is None and key == "latency":
        return float("nan")
    least = 0 if key == "latency" else 5e-324
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < float("inf"):
        rule = "a number >= 0" if key == "latency" else "a number > 0"
        raise PhazeError(f"{path}: edge {source} -> {target}: {key} must be {rule}, got {value!r}")
    return float(value)
