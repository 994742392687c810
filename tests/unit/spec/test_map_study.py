"""Readings of mapping studies: their jobs, their searches, and refused values."""

from __future__ import annotations

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.map_study import Maps

GRAPH = {"label": "Net", "model": "m", "microbatch": 2, "system": "s", "hyper_operators": 8}
TOPOLOGY = {"label": "pairs", "sizes": [{"kind": "uniform-dist", "devices": 4}]}
CASE = {"graphs": ["net"], "topologies": ["a", "b"], "shapes": [[2, 2]], "show": "topologies"}


def maps(readings: dict[str, object], **changed: object) -> Maps:
    graphs = {"net": GRAPH, "half": {**GRAPH, "compute_factor": 0.5}}
    cases = {"table": {**CASE, "readings": readings, **changed}}
    fields = {"graphs": graphs, "topologies": dict.fromkeys(("a", "b", "c"), TOPOLOGY), "cases": cases}
    return Maps.parse(fields, "maps")


def test_a_reading_maps_with_its_own_graph_partitioner_and_topology() -> None:
    study = maps({"x": {"label": "x", "graph": "half", "partitioner": "paper", "topologies": {"b": "c"}}})
    ((point, topology),) = study.mapped("table", study.cases["table"].readings["x"])
    assert (point.graph, point.partitioner, topology) == ("half", "paper", "c")
    assert point.name in study.stages


def test_only_what_no_other_reading_needs_is_searched_by_the_authors_alone() -> None:
    study = maps(
        {
            "authors": {"label": "x", "search": "authors"},
            "paper": {"label": "x", "search": "authors", "partitioner": "paper"},
            "ours": {"label": "x", "partitioner": "paper", "topologies": {"a": "a"}},
        }
    )
    found = study.searches(["table"]).items()
    assert {(name.split("-")[1], topology): who for (name, topology), who in found} == {
        ("full", "a"): "ours", ("full", "b"): "ours", ("paper", "a"): "ours", ("paper", "b"): "authors",
    }  # fmt: skip


def test_readings_by_partitioner_map_all_partitions_of_the_case() -> None:
    study = maps(
        {"x": {"label": "x", "partitioner": "pipedream", "topologies": {"a": "c"}}},
        show="partitioners", partitioners=["pipedream", "paper"], topologies=["a"],
    )  # fmt: skip
    jobs = list(study.mapped("table", study.cases["table"].readings["x"]))
    assert [(point.partitioner, topology) for point, topology in jobs] == [("pipedream", "c"), ("paper", "c")]


@pytest.mark.parametrize(
    ("reading", "changed", "message"),
    [
        ({"graph": "none"}, {}, "cases.table.readings.x.graph: 'none' is not among"),
        ({"topologies": {"a": "z"}}, {}, "cases.table.readings.x.topologies: 'z' is not among"),
        ({"topologies": {"c": "a"}}, {}, "readings.x.topologies: 'c' is not among"),
        ({}, {"show": "throughput"}, "must be empty for show throughput"),
        ({}, {"graphs": ["net", "half"]}, "by topology need exactly one graph"),
        ({}, {"show": "partitioners", "partitioners": ["paper"]}, "partitioner: 'full' is not among"),
        ({}, {"unexplained": [{"about": "x", "shapes": [[4, 4]]}]}, "is not in the case's shapes"),
    ],
)
def test_what_cannot_be_read_is_refused(
    reading: dict[str, object], changed: dict[str, object], message: str
) -> None:
    with pytest.raises(PhazeError, match=message.replace("(", r"\(")):
        maps({"x": {"label": "x", **reading}}, **changed)
