"""Instances of the authors' program are parsed strictly, with a message for each error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.formulas.piper.instance import _bad_syncs, read_instance, write_instance
from phaze.formulas.piper.layers import FlatCluster
from phaze.spec.documents import LayerEdge
from tests.unit.formulas.phaze.files import Change, Plain, drop, edge, put, saved
from tests.unit.formulas.piper.chains import layers_of, repeated
from tests.unit.formulas.piper.instances import example


def test_layers_stand_by_their_ids_and_edges_as_given(tmp_path: Path) -> None:
    layers = read_instance(saved(tmp_path, example())).layers()
    assert layers.ids == (2, 5, 9)
    assert layers.names == ("block", "embedding", "head")
    assert layers.pairs == ((1, 0), (0, 2), (1, 2))
    assert layers.edge_bytes.tolist() == [100, 200, 50]


def test_configurations_stand_by_width_and_layer(tmp_path: Path) -> None:
    layers = read_instance(saved(tmp_path, example())).layers()
    assert list(layers.options) == [1, 2]
    assert layers.options[1].layer.tolist() == [0, 0, 1, 1, 2, 2]
    assert layers.options[2].first(3).tolist() == [0, 2, 2, 4]
    two = layers.options[2]
    assert two.names == ("vanilla", "activation recomp") * 2
    assert two.time_s.tolist() == [1.5, 2, 1.5, 2]
    assert two.weight_bytes.tolist() == [250] * 4
    assert two.stash_bytes.tolist() == [400, 100] * 2
    assert two.fixed_bytes.tolist() == [500] * 4


def test_synchronised_bytes_stand_at_the_edges_of_the_layer(tmp_path: Path) -> None:
    two = read_instance(saved(tmp_path, example())).layers().options[2]
    assert two.forward_sync_bytes.tolist() == [[100, 0, 0]] * 2 + [[0, 200, 50]] * 2
    assert two.backward_sync_bytes.tolist() == [[0, 100, 0]] * 2 + [[0, 0, 0]] * 2


def test_the_order_of_the_nodes_in_the_file_does_not_matter(tmp_path: Path) -> None:
    turned = {**example(), "nodes": example()["nodes"][::-1]}
    one, other = (read_instance(saved(tmp_path, content)).layers() for content in (example(), turned))
    assert one.ids == other.ids
    np.testing.assert_array_equal(one.options[2].time_s, other.options[2].time_s)


def test_a_width_with_empty_lists_only_is_none(tmp_path: Path) -> None:
    content = example()
    for node in content["nodes"]:
        node["TMPCs"]["4"] = []
    assert list(read_instance(saved(tmp_path, content)).layers().options) == [1, 2]


def test_a_single_layer_without_edges_is_an_instance(tmp_path: Path) -> None:
    content = {**example(), "nodes": example()["nodes"][:1], "edges": []}
    for configuration in content["nodes"][0]["TMPCs"]["1"]:
        configuration["syncTimeBw"] = {}
    assert len(read_instance(saved(tmp_path, content)).layers()) == 1


@pytest.mark.parity
@pytest.mark.parametrize(("name", "layers"), [("bert32a100", 37), ("gnmt", 78), ("resnet", 177)])
def test_the_authors_inputs_are_read(name: str, layers: int, shared_data: Path) -> None:
    instance = read_instance(shared_data / "piper" / f"{name}.json")
    assert len(instance.layers()) == layers
    assert instance.max_devices == 10


FIRST = ("nodes", 0, "TMPCs", "1", 0)


def close_a_cycle(content: Plain) -> Plain:
    content["edges"][2] = edge(9, 5)
    return content


def spoil_many(content: Plain) -> Plain:
    for node in content["nodes"]:
        for given in node["TMPCs"].values():
            for one in given:
                one["syncTimeFw"] = {"77": 1}
    return content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: "{", "is not valid JSON"),
        (lambda _: [1], "must hold a JSON object, got list"),
        (lambda _: '{"bandwidth": NaN}', "bandwidth: should be a finite number, got nan"),
        (put("gpus", value=3), "gpus: is not a known key, got 3"),
        (drop("bandwidth"), "bandwidth: Field required"),
        (put("bandwidth", value=0), "bandwidth: should be greater than 0, got 0"),
        (put("maxDevices", value=-4), "maxDevices: should be greater than 0, got -4"),
        (
            put("maxMemoryPerDevice", value="80 GB"),
            "maxMemoryPerDevice: must be a number, got '80 GB'",
        ),
        (put("mbsInBatch", value=0), "mbsInBatch: should be greater than 0, got 0"),
        (put("nodes", value=[]), "nodes: List should have at least 1 item"),
        (
            put(*FIRST, "timePerSample", value=-1),
            "timePerSample: should be greater than or equal to 0, got -1",
        ),
        (
            put(*FIRST, "parameterSize", value=-1),
            "parameterSize: should be greater than or equal to 0, got -1",
        ),
        (
            put(*FIRST, "memoryUsageA", value=True),
            "nodes.0.TMPCs.1.0.memoryUsageA: must be a number, got True",
        ),
        (put(*FIRST, "memoryUsageB", value=-8), "memoryUsageB: should be greater than or equal to 0, got -8"),
        (
            put(*FIRST, "syncTimeBw", "2", value=-8),
            "syncTimeBw.2: should be greater than or equal to 0, got -8",
        ),
        (put(*FIRST, "id", value=1), "nodes.0.TMPCs.1.0.id: must be text, got 1"),
        (put(*FIRST, "flops", value=1), "nodes.0.TMPCs.1.0.flops: is not a known key, got 1"),
        (put(*FIRST, "memoryUsageA", value=1e31), "memoryUsageA: must be from 1e-30 to 1e+30, got 1e+31"),
        (put("bandwidth", value=1e-320), "bandwidth: must be from 1e-30 to 1e+30"),
        (put("mbsInBatch", value=10**30), "mbsInBatch: should be less than or equal to 1048576"),
        (put("nodes", 0, "TMPCs", str(10**20), value=[]), "must be a positive whole number up to 1048576"),
        (put(*FIRST, "memoryUsageA", value=10**400), "memoryUsageA: must be a number"),
        (drop(*FIRST, "memoryUsageA"), "nodes.0.TMPCs.1.0.memoryUsageA: Field required"),
        (put("nodes", 0, "TMPCs", "two", value=[]), "id 5: TMPCs: TMP width 'two' must be a positive whole"),
        (put("nodes", 0, "TMPCs", "-2", value=[]), "id 5: TMPCs: TMP width '-2' must be a positive whole"),
        (
            put(*FIRST, "id", value="activation recomp"),
            "nodes: id 5: TMPCs: width 1: id 'activation recomp' is given 2 times; ids of a list",
        ),
        (put("nodes", 0, "TMPCs", value={}), "nodes: id 5: TMPCs: at least one configuration is needed"),
        (
            put("nodes", 0, "TMPCs", "1", value=[]),
            "nodes: id 5: TMPCs: at least one configuration is needed at some width, got none",
        ),
        (put("nodes", 0, "id", value=2), "nodes: id 2 is given 2 times; ids must be unique"),
        (put("edges", 0, "communicationCost", value=-1), "edges.0.communicationCost: should be greater than"),
        (put("edges", 0, "destId", value=99), "edges: edge 5 -> 99: destId 99 is not the id of a node"),
        (put("edges", 0, "sourceId", value=99), "edges: edge 99 -> 2: sourceId 99 is not the id of a node"),
        (put("edges", 0, value=edge(2, 2)), "edges: edge 2 -> 2: connects a layer to itself"),
        (put("edges", 1, value=edge(5, 2)), "edges: edge 5 -> 2 is given 2 times"),
        (close_a_cycle, "is a cycle; the graph must have none"),
        (
            drop(*FIRST, "syncTimeBw", "2"),
            "nodes: id 5: TMPCs: width 1: 'vanilla': syncTimeBw: lacks 2; each other end of an edge out of",
        ),
        (
            put(*FIRST, "syncTimeFw", "2", value=0),
            "nodes: id 5: TMPCs: width 1: 'vanilla': syncTimeFw: has 2, not the other end",
        ),
        (put(*FIRST, "syncTimeBw", "x", value=0), "syncTimeBw: has x, not the other end of an edge out of"),
        (spoil_many, "and 8 more mistakes"),
    ],
)
def test_bad_input_is_refused_with_the_file_the_key_the_value_and_what_is_allowed(
    change: Change, message: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, change(example()))
    with pytest.raises(PhazeError) as error:
        read_instance(path)
    assert all(line.startswith(f"{path}: ") for line in str(error.value).splitlines())
    assert message in str(error.value)


def test_several_mistakes_have_a_line_each(tmp_path: Path) -> None:
    content = put("edges", 0, "destId", value=99)(put("edges", 1, "destId", value=98)(example()))  # type: ignore[arg-type]
    with pytest.raises(PhazeError) as error:
        read_instance(saved(tmp_path, content))
    assert len(str(error.value).splitlines()) == 2


def test_edges_are_looked_at_once_and_not_for_every_layer(tmp_path: Path) -> None:
    instance = read_instance(saved(tmp_path, example()))
    edges = Counting(instance.edges)
    assert not list(_bad_syncs(instance.model_copy(update={"edges": edges})))
    assert edges.looked == 1


class Counting(list[LayerEdge]):
    """Edges that count their iterations."""

    looked = 0

    def __iter__(self) -> Iterator[LayerEdge]:
        """Count, and iterate."""
        self.looked += 1
        return super().__iter__()


def test_exchanges_beyond_the_memory_of_the_machine_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phaze.base.room.machine_bytes", lambda: 1000)
    with pytest.raises(PhazeError, match="the exchanges of 10 configurations over 3 edges need"):
        read_instance(saved(tmp_path, example())).layers()


def test_an_instance_reads_back_as_it_was_written(tmp_path: Path) -> None:
    layers = layers_of(repeated(), tmp_path)
    write_instance(tmp_path / "again.json", layers, FlatCluster(8, 1 / 3, 25 * 2**30, 7))
    read = read_instance(tmp_path / "again.json")
    again = read.layers()
    assert (read.max_devices, read.max_memory_per_device, read.mbs_in_batch) == (8, 1 / 3, 7)
    assert (again.ids, again.names, again.tensors) == (layers.ids, layers.names, layers.tensors)
    assert list(again.options) == list(layers.options)
    for width, options in layers.options.items():
        for column, values in vars(options).items():
            np.testing.assert_array_equal(getattr(again.options[width], column), values)
