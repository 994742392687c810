"""Rows of a mapping study's tables: stages mapped to a topology.

Each topology is mapped by every method and for every seed. The search-gap rows compare the local search alone
with the exact search that starts from its result.
"""

import pandas as pd

from phaze.cost.network.topologies import make_network
from phaze.map.annealing import stage_task
from phaze.map.ensemble import Chains, FoundMapping, Mapped, MapSettings, best_of_chains, map_stages
from phaze.map.heuristics import compact_maps
from phaze.map.objective import INSTANTIATIONS, MappingProblem, choose_instantiation
from phaze.map.schemes import near_devices
from phaze.map.search import SearchLimits, SearchResult, proves, search
from phaze.pipeline.gpipe import held_step_s, simulate_step
from phaze.pipeline.shared_ports import shared_step_s
from phaze.spec.map_study import MapTopology, StagesPoint
from phaze.spec.stages import StoredStages
from phaze.spec.topology import MatrixFile
from phaze.tables import MappedDevices, Mappings
from phaze.workload.operator_graphs import stage_graph

Row = dict[str, object]
MapTables = dict[str, pd.DataFrame]


def map_point(
    stored: StoredStages, point: StagesPoint, topology: tuple[str, MapTopology], settings: MapSettings
) -> MapTables:
    """Tables of the stages of a file mapped to a topology, which is given with its name.

    The searches start without the heuristics, so that their own results count.
    """
    name, sizes = topology
    stages = stage_graph(stored)
    samples = stored.replicas * stored.microbatches * (stored.settings.microbatch if stored.settings else 1)
    mappings: list[Row] = []
    devices: list[Row] = []
    for number, (seed, made) in enumerate(sizes.drawn(point.stages * point.replicas)):
        assert not isinstance(made, MatrixFile)
        mapped = map_stages(stages, make_network(made), settings)
        key: Row = {**point.model_dump(), "topology": name, "seed": seed}
        for one in (*mapped.ways, *mapped.heuristics):
            times = _times(mapped, one, settings.memory_bytes_per_s, made.devices_per_port)
            rate = {"samples_per_s": samples / times["step_s"]}
            mappings.append({**key, "way": one.way, **times, **rate, **_proof(mapped, one)})
        if number == 0:
            for one in (mapped.best, *mapped.heuristics):
                devices += [{**key, **row} for row in device_rows(one)]
    return {
        "mappings": Mappings.check(pd.DataFrame(mappings)),
        "mapped_devices": MappedDevices.check(pd.DataFrame(devices)),
    }


def _times(
    mapped: Mapped, one: FoundMapping, memory_bytes_per_s: float, devices_per_port: int | None
) -> dict[str, float]:
    """Step time of a mapping under each message rule, and its longest stage time."""
    problem = mapped.problem
    given = problem.stages, one.mapping, problem.network
    step, shared_s = simulate_step(*given, memory_bytes_per_s), None
    if devices_per_port is not None:
        shared_s = shared_step_s(*given, devices_per_port, memory_bytes_per_s)
    return {
        "step_s": step.step_s,
        "shared_step_s": step.step_s if shared_s is None else shared_s,
        "held_step_s": held_step_s(*given, memory_bytes_per_s),
        "stage_time_s": problem.value_s(one.mapping),
        "compute_s": step.compute_s,
    }


def _proof(mapped: Mapped, one: FoundMapping) -> Row:
    """Bound proven by the search that found a mapping, and how the search ended."""
    problem = mapped.problem
    found, value = one.found, problem.value_s(one.mapping)
    bound = min(mapped.bound_s, value) if found is None else found.bound_s
    value = value if found is None else found.value_s
    return {
        "counted": "exact" if found is None else one.way,
        "value_s": value,
        "bound_s": bound,
        "proven": proves(bound, value),
        "by_sizes": one.way == choose_instantiation(problem.stages),
        "searched": found is None or found.searched,
        "gave_up": found is not None and found.stopped,
        "tries": 0 if found is None else found.tries,
    }


def device_rows(one: FoundMapping) -> list[Row]:
    """Devices of a mapping by stage and replica."""
    return [
        {"way": one.way, "stage": s, "replica": r, "device": device}
        for s, row in enumerate(one.mapping.tolist())
        for r, device in enumerate(row)
    ]


def find_gap(problem: MappingProblem, chains: Chains, limits: SearchLimits) -> tuple[float, SearchResult]:
    """Objective of the local search alone, and the result of Algorithm 1 started from there."""
    starts = sorted(compact_maps(problem), key=problem.value_s)
    _, mapping = best_of_chains(stage_task(problem), starts, near_devices(problem, 0), chains)
    return problem.value_s(mapping), search(problem, limits, chains.seed, (mapping,))


def gap_rows(
    stored: StoredStages,
    point: StagesPoint,
    topology: tuple[str, MapTopology],
    chains: Chains,
    limits: SearchLimits,
) -> list[Row]:
    """Rows of table `search_gaps`, for the first seed of a topology with its name."""
    name, sizes = topology
    seed, made = sizes.drawn(point.stages * point.replicas)[0]
    assert not isinstance(made, MatrixFile)
    stages, network = stage_graph(stored), make_network(made)
    gaps = []
    for counted in INSTANTIATIONS:
        local_s, found = find_gap(MappingProblem(stages, network, counted), chains, limits)
        key: Row = {**point.model_dump(), "topology": name, "seed": seed, "counted": counted}
        known = {"local_s": local_s, "least_s": found.value_s, "bound_s": found.bound_s}
        gaps.append({**key, **known, "proven": found.proven})
    return gaps
