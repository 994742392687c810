"""Networks from tables and graphs; an invalid file gives one message."""

from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.map.networks import read_topology

NO_BANDWIDTH = '{"nodes": [{"id": 0}, {"id": 1}], "edges": [{"source": 0, "target": 1}]}'
TWICE = (
    '{"multigraph": true, "nodes": [{"id": 0}, {"id": 1}], "edges": ['
    '{"source": 0, "target": 1, "key": 0, "bandwidth": 1}, '
    '{"source": 1, "target": 0, "key": 1, "bandwidth": 2}]}'
)
UNKNOWN_NODE = '{"nodes": [{"id": 0}, {"id": 1}], "edges": [{"source": 0, "target": 2, "bandwidth": 1}]}'
SAME_NODES = '{"nodes": [{"id": 0}, {"id": 0}], "edges": []}'
NO_LINKS = "kind: levels\nlevels: [{devices: 4, bandwidth_gib_per_s: 0}]\n"


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_absent_links_are_as_wide_as_the_widest_path(tmp_path: Path) -> None:
    table = written(tmp_path, "links.csv", ",5,1\n5,,3\n1,3,\n")
    assert read_topology(table).bandwidth_bytes_per_s[0].tolist()[1:] == [5, 1]
    line = written(tmp_path, "line.csv", ",5,\n5,,3\n,3,\n")
    found = read_topology(line).bandwidth_bytes_per_s
    assert found[0, 2] == found[2, 0] == 3


def test_directions_may_differ(tmp_path: Path) -> None:
    found = read_topology(written(tmp_path, "links.csv", ",5,1\n2,,3\n4,6,\n")).bandwidth_bytes_per_s
    assert (found[0, 1], found[1, 0], found[2, 0]) == (5, 2, 4)


def test_graphs_bring_latencies_and_units_come_from_the_topology(tmp_path: Path) -> None:
    graph = nx.path_graph(["a", "b", "c"])
    nx.set_edge_attributes(graph, {("a", "b"): 4.0, ("b", "c"): 2.0}, "bandwidth")
    nx.set_edge_attributes(graph, {("a", "b"): 0.5}, "latency")
    nx.write_graphml(graph, tmp_path / "line.graphml")
    topology = written(
        tmp_path, "net.yaml", "kind: file\npath: line.graphml\nunit_bytes_per_s: 10\nlatency_s: 0.25\n"
    )
    network = read_topology(topology)
    assert network.bandwidth_bytes_per_s[0, 2] == 20
    assert network.latency_s[0, 2] == 0.75


def test_node_link_graphs_are_read_as_matrices_are(tmp_path: Path) -> None:
    text = (
        '{"directed": true, "multigraph": false, "graph": {}, "nodes": [{"id": 0}, {"id": 1}],'
        '"edges": [{"source": 0, "target": 1, "bandwidth": 3}, {"source": 1, "target": 0, "bandwidth": 2}]}'
    )
    network = read_topology(written(tmp_path, "two.json", text))
    assert network.bandwidth_bytes_per_s[0, 1] == 3
    assert network.bandwidth_bytes_per_s[1, 0] == 2


def test_node_link_graphs_of_older_networkx_have_links(tmp_path: Path) -> None:
    text = '{"nodes": [{"id": "a"}, {"id": "b"}], "links": [{"source": "a", "target": "b", "bandwidth": 3}]}'
    network = read_topology(written(tmp_path, "two.json", text))
    assert network.bandwidth_bytes_per_s[0, 1] == network.bandwidth_bytes_per_s[1, 0] == 3


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", ",1,\n1,,\n,,\n", "is not connected: there is no path from 0 to 2"),
        ("a.csv", ",1\n0,\n", "bandwidth from 1 to 0 must be > 0, or empty for no link, got 0"),
        ("a.csv", ",-2\n1,\n", "bandwidth from 0 to 1 must be > 0, or empty for no link, got -2"),
        ("a.csv", ",x\n1,\n", "must be > 0, or empty for no link, got x"),
        ("a.csv", ",1\n1,,3\n", "row 1 must have 2 numbers, one per device, got 3"),
        ("a.csv", "", "must hold a square matrix, got no rows"),
        ("a.csv", "," + "1" * 140_000 + "\n1,\n", "cannot be read: field larger than field limit"),
        ("a.csv", "," + "x" * 9000 + "\n1,\n", "must be > 0, or empty for no link, got " + "x" * 80),
        ("a.json", "[]", "is not a graph in node-link JSON or GraphML"),
        ("a.json", NO_BANDWIDTH, "edge 0 -> 1: bandwidth must be a number > 0, got None"),
        ("a.json", "[" * 100_000, "is not valid JSON"),
        ("a.json", TWICE, "must have at most one edge from a node to another"),
        ("a.json", UNKNOWN_NODE, "nodes must be different, and edges must name them"),
        ("a.json", SAME_NODES, "nodes must be different, and edges must name them"),
        ("a.yaml", "kind: file\npath: ../a.csv\n", "may only name files in its own folder"),
        ("a.graphml", "<", "is not a graph in node-link JSON or GraphML"),
        ("a.yaml", "kind: mesh\nsides: [2, 2]\n", "give hops or link_gib_per_s"),
        ("a.yaml", NO_LINKS, "levels.levels.0.bandwidth_gib_per_s: should be greater than 0"),
        ("a.yaml", "kind: cube\n", "kind"),
        ("a.yaml", "kind: file\npath: b.txt\n", "must end with .csv, .json or .graphml"),
        ("a.yaml", "kind: file\npath: b.csv\n", "cannot be read"),
        ("a.yaml", "kind: uniform-dist\ndevices: 100000\n", "must have at most 8192 devices, got 100000"),
    ],
)  # fmt: skip
def test_mistakes_are_told(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(PhazeError, match=name) as caught:
        read_topology(written(tmp_path, name, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_absent_links_can_be_refused(tmp_path: Path) -> None:
    written(tmp_path, "line.csv", ",5,\n5,,3\n,3,\n")
    topology = written(tmp_path, "net.yaml", "kind: file\npath: line.csv\nabsent: refuse\n")
    with pytest.raises(PhazeError, match="no link from 0 to 2, and absent is refuse"):
        read_topology(topology)


@pytest.mark.parametrize("path", sorted(Path("config/topologies").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_topology_of_the_configuration_can_be_read(path: Path) -> None:
    network = read_topology(path)
    assert network.symmetric
    assert np.isfinite(network.bandwidth_bytes_per_s).all()
