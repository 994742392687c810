"""Networks from files: a matrix in CSV, or a graph that NetworkX reads; and any topology by its YAML file."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
from pydantic import ValidationError

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.cost.network.device_networks import DeviceNetwork, complete_network
from phaze.cost.network.topologies import make_network
from phaze.spec.files import within
from phaze.spec.network import read_bandwidths
from phaze.spec.noun import describe
from phaze.spec.plain import read_json, read_yaml
from phaze.spec.topology import MOST_DEVICES, TOPOLOGY, MatrixFile, Topology


def read_topology(path: Path) -> DeviceNetwork:
    """Return the network of a topology file, or raise PhazeError naming what is wrong in it."""
    if path.suffix in (".csv", ".json", ".graphml"):
        return _of_file(MatrixFile(kind="file", path=path.name), path.parent)
    try:
        topology = TOPOLOGY.validate_python(read_yaml(path))
    except ValidationError as error:
        raise PhazeError(describe(error, str(path))) from error
    return network_of(topology, str(path), path.parent)


def network_of(topology: Topology, source: str, folder: Path) -> DeviceNetwork:
    """Return the network of a topology; `folder` is where paths of files start."""
    if isinstance(topology, MatrixFile):
        return _of_file(topology, folder)
    _check_devices(topology.devices, source)
    return make_network(topology)


def _check_devices(devices: int, source: str | Path) -> None:
    if devices > MOST_DEVICES:
        raise PhazeError(f"{source}: must have at most {MOST_DEVICES} devices, got {devices}")


def _of_file(file: MatrixFile, folder: Path) -> DeviceNetwork:
    path = within(folder, folder / file.path)
    read = {".csv": _read_table, ".json": _read_graph, ".graphml": _read_graph}.get(path.suffix)
    if read is None:
        raise PhazeError(f"{path}: must end with .csv, .json or .graphml")
    bandwidth, latency = read(path)
    _check_devices(len(bandwidth), path)
    bandwidth = bandwidth * file.unit_bytes_per_s
    latency = np.where(np.isnan(latency), file.latency_s, latency)
    if (latency < 0).any():
        raise PhazeError(f"{path}: latencies must be >= 0, got {latency.min():g}")
    return complete_network(bandwidth, latency, file.absent, path)


def _read_table(path: Path) -> tuple[Floats, Floats]:
    """Return the bandwidths of a table, 0 where there is none, and unknown latencies."""
    values = np.array(read_bandwidths(path))
    return values, np.full_like(values, np.nan)


def _read_graph(path: Path) -> tuple[Floats, Floats]:
    """Return bandwidths and latencies of a graph, nodes in its order; undirected edges go both ways."""
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


_NO_GRAPH = (ValueError, KeyError, TypeError, AttributeError, SyntaxError, RecursionError, nx.NetworkXError)
"""What the readers of json and NetworkX raise for what is no graph."""


def _node_link(path: Path) -> nx.Graph[object]:
    """Return the graph of a file of NetworkX, which called `edges` `links` before version 3.4."""
    loaded = read_json(path)
    nodes = loaded.get("nodes") if isinstance(loaded, dict) else None
    if not isinstance(loaded, dict) or not isinstance(nodes, list):
        raise ValueError("must be an object with a list of nodes")
    graph = nx.node_link_graph(loaded, edges="edges" if "edges" in loaded else "links")
    if len(graph) != len(nodes):
        raise ValueError("nodes must be different, and edges must name them")
    return graph


def _attribute(about: dict[str, object], key: str, path: Path, source: object, target: object) -> float:
    """Return bandwidth or latency of an edge; a latency may be missing, NaN then."""
    value = about.get(key)
    if value is None and key == "latency":
        return float("nan")
    least = 0 if key == "latency" else 5e-324
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < float("inf"):
        rule = "a number >= 0" if key == "latency" else "a number > 0"
        raise PhazeError(f"{path}: edge {source} -> {target}: {key} must be {rule}, got {value!r}")
    return float(value)
