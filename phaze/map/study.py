"""Rows of a mapping study's tables: stages mapped to a topology.

Each topology is mapped by every method and for every seed. The search-gap rows compare the local search alone
with the exact search that starts from its result.
"""

from __future__ import annotations

import logging

import pandas as pd

from phaze.cost.network.topologies import make_network
from phaze.map.annealing import stage_task
from phaze.map.ensemble import Chains, Mapped, MappingCandidate, MapSettings, best_of_chains, map_stages
from phaze.map.heuristics import compact_maps
from phaze.map.objective import INSTANTIATIONS, MappingProblem, choose_instantiation
from phaze.map.schemes import near_devices
from phaze.map.search import SearchLimits, SearchResult, proves, search
from phaze.pipeline.gpipe import held_step_s, shared_step_s, simulate_step
from phaze.spec.map_study import MapTopology, StagesPoint
from phaze.spec.stages import StoredStages
from phaze.spec.topology import MatrixFile
from phaze.tables import MappedDevices, Mappings
from phaze.workload.operator_graphs import stage_graph

Row = dict[str, str | int | float | bool]
MapTables = dict[str, pd.DataFrame]


def map_point(
    stored: StoredStages, point: StagesPoint, topology: tuple[str, MapTopology], settings: MapSettings
) -> MapTables:
    """Map the stages of a file to a named topology; return tables `mappings` and `mapped_devices`.

    The searches start without the heuristics, so that their own results count.
    """
    name, sizes = topology
    stages = stage_graph(stored)
    samples = stored.replicas * stored.microbatches * (stored.settings.microbatch if stored.settings else 1)
    mappings: list[Row] = []
    devices: list[Row] = []
    for number, (seed, network) in enumerate(sizes.drawn(point.stages * point.replicas)):
        assert not isinstance(network, MatrixFile)
        mapped = map_stages(stages, make_network(network), settings)
        key: Row = {**point.model_dump(), "topology": name, "seed": seed}
        for candidate in (*mapped.candidates, *mapped.heuristics):
            times = _times(mapped, candidate, settings.memory_bytes_per_s, network.devices_per_port)
            rate = {"samples_per_s": samples / times["step_s"]}
            mappings.append({**key, "way": candidate.method, **times, **rate, **_proof(mapped, candidate)})
        if number == 0:
            for candidate in (mapped.best, *mapped.heuristics):
                devices += [{**key, **row} for row in device_rows(candidate)]
    return {
        "mappings": Mappings.check(pd.DataFrame(mappings)),
        "mapped_devices": MappedDevices.check(pd.DataFrame(devices)),
    }


def _times(
    mapped: Mapped, candidate: MappingCandidate, memory_bytes_per_s: float, devices_per_port: int | None
) -> dict[str, float]:
    """Step time of a mapping under each model of message transfers, and its longest stage time."""
    problem = mapped.problem
    simulated = problem.stages, candidate.mapping, problem.network
    step, shared_s = simulate_step(*simulated, memory_bytes_per_s), None
    if devices_per_port is not None:
        shared_s = shared_step_s(*simulated, devices_per_port, memory_bytes_per_s)
    return {
        "step_s": step.step_s,
        "shared_step_s": step.step_s if shared_s is None else shared_s,
        "held_step_s": held_step_s(*simulated, memory_bytes_per_s),
        "stage_time_s": problem.value_s(candidate.mapping),
        "compute_s": step.compute_s,
    }


def _proof(mapped: Mapped, candidate: MappingCandidate) -> Row:
    """Bound proven by the search that found a mapping, and how the search ended."""
    problem = mapped.problem
    result, value = candidate.search, problem.value_s(candidate.mapping)
    bound = min(mapped.bound_s, value) if result is None else result.bound_s
    value = value if result is None else result.value_s
    return {
        "counted": "exact" if result is None else candidate.method,
        "value_s": value,
        "bound_s": bound,
        "proven": proves(bound, value),
        "by_sizes": candidate.method == choose_instantiation(problem.stages),
        "searched": result is None or result.searched,
        "gave_up": result is not None and result.stopped,
        "tries": 0 if result is None else result.tries,
    }


def device_rows(candidate: MappingCandidate) -> list[Row]:
    """Rows of table `mapped_devices` for a mapping: the device of each stage and replica."""
    return [
        {"way": candidate.method, "stage": s, "replica": r, "device": device}
        for s, row in enumerate(candidate.mapping.tolist())
        for r, device in enumerate(row)
    ]


def find_gap(problem: MappingProblem, chains: Chains, limits: SearchLimits) -> tuple[float, SearchResult]:
    """Longest stage time that local search alone reaches, and the result of Algorithm 1 from that start."""
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
    """Rows of table `search_gaps` for a named topology, drawn with its first seed."""
    name, sizes = topology
    seed, drawn = sizes.drawn(point.stages * point.replicas)[0]
    assert not isinstance(drawn, MatrixFile)
    stages, network = stage_graph(stored), make_network(drawn)
    gaps = []
    for counts in INSTANTIATIONS:
        local_s, result = find_gap(MappingProblem(stages, network, counts), chains, limits)
        key: Row = {**point.model_dump(), "topology": name, "seed": seed, "counted": counts}
        values = {"local_s": local_s, "least_s": result.value_s, "bound_s": result.bound_s}
        gaps.append({**key, **values, "proven": result.proven})
    return gaps


log = logging.getLogger(__name__)
