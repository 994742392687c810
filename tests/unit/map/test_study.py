"""Rows of a study's tables, including steps with shared node ports if the topology defines them."""

from __future__ import annotations

import numpy as np
import pytest

from phaze.cost.network.device_networks import DeviceNetwork
from phaze.cost.network.topologies import make_network
from phaze.map.ensemble import Chains, MapSettings
from phaze.map.heuristics import consecutive_map, p2p_map
from phaze.map.objective import INSTANTIATIONS, MappingProblem
from phaze.map.search import SearchLimits
from phaze.map.study import MapTables, find_gap, map_point
from phaze.pipeline.gpipe import held_step_s, shared_step_s
from phaze.spec.map_study import MapTopology, StagesPoint
from phaze.spec.names import Instantiation
from phaze.spec.stages import StoredStages
from phaze.spec.topology import LevelTopology
from phaze.workload.operator_graphs import stage_graph
from tests.unit.map.cases import drawn_network, drawn_stages, least_by_trying_all

LEVELS = [{"devices": 2, "bandwidth_gib_per_s": 11}, {"devices": 4, "bandwidth_gib_per_s": 1.1}]
STAGE = {"forward_s": 0.01, "backward_s": 0.03, "parameter_bytes": 1e7}
STAGES = StoredStages.parse(
    {
        "format": "phaze-stages", "version": 1, "model": "small", "replicas": 2, "microbatches": 4,
        "recompute": True, "stages": [STAGE] * 2, "edges": [{"source": 0, "target": 1, "bytes": 2e7}],
    },
    "stages",
)  # fmt: skip
POINT = StagesPoint(
    graph="small", partitioner="full", hyper_operators=4, stages=2, replicas=2, microbatches=4
)


def topology(*, shared: bool) -> MapTopology:
    sizes = [{"kind": "levels", "levels": LEVELS, "shared_port": shared}]
    return MapTopology.parse({"label": "nodes", "sizes": sizes}, "topology")


def read_network(*, shared: bool) -> DeviceNetwork:
    _, size = topology(shared=shared).drawn(4)[0]
    assert isinstance(size, LevelTopology)
    return make_network(size)


def record(*, shared: bool) -> MapTables:
    settings = MapSettings(heuristics=False, limits=SearchLimits(tries=1000), steps=100)
    return map_point(STAGES, POINT, ("nodes", topology(shared=shared)), settings)


@pytest.mark.parametrize("shared", [False, True])
def test_steps_with_shared_ports_are_those_of_the_simulator(*, shared: bool) -> None:
    found = record(shared=shared)
    rows = found["mappings"].set_index("way")
    devices = found["mapped_devices"]
    network = read_network(shared=shared)
    for way, mine in devices.groupby("way"):
        mapping = mine.pivot_table(index="stage", columns="replica", values="device").to_numpy(np.int64)
        again = shared_step_s(stage_graph(STAGES), mapping, network, 2)
        own = rows["shared_step_s"].loc[str(way)]
        assert own == pytest.approx(again if shared else rows["step_s"].loc[str(way)])
    gain = rows["shared_step_s"] / rows["step_s"]
    assert (gain["cs-map"] > 1.01) == shared


def test_rows_have_the_step_with_held_devices_and_the_longest_stage_time() -> None:
    found = record(shared=False)
    rows, network = found["mappings"].set_index("way"), read_network(shared=False)
    stages = stage_graph(STAGES)
    for way, mapping in (("cs-map", consecutive_map(2, 2)), ("p2p-map", p2p_map(2, 2))):
        row = rows.loc[way]
        assert row["held_step_s"] == pytest.approx(held_step_s(stages, mapping, network))
        assert row["stage_time_s"] == pytest.approx(MappingProblem(stages, network, "exact").value_s(mapping))


def test_the_authors_search_has_their_two_instantiations_and_no_local_search() -> None:
    settings = MapSettings("authors", heuristics=False, limits=SearchLimits(tries=1000))
    rows = map_point(STAGES, POINT, ("nodes", topology(shared=False)), settings)["mappings"]
    assert set(rows["way"]) == {"p2p", "allreduce", "cs-map", "p2p-map"}


@pytest.mark.parametrize("instantiation", INSTANTIATIONS)
def test_what_is_known_beside_the_local_search_alone_is_the_optimum(instantiation: Instantiation) -> None:
    """A search that starts from the local search's mapping proves the brute-force optimum."""
    problem = MappingProblem(drawn_stages(3, 3, 2), drawn_network(3, 7, "directed"), instantiation)
    least, reached = least_by_trying_all(problem), []
    for steps in (3000, 10):
        local_s, found = find_gap(problem, Chains(1, steps), SearchLimits())
        assert found.proven
        assert found.value_s == pytest.approx(least)
        assert local_s >= least * (1 - 1e-12)
        reached.append(local_s)
    assert reached[0] <= reached[1]
