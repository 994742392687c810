"""Rows of a mapping study's tables: stages mapped to a topology, and a model's plans on networks.

Each topology is mapped by every method and for every seed. The search-gap rows compare the local search alone
with the exact search that starts from its result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.base.progress import counted
from phaze.base.ranking import tied
from phaze.base.store import Plain, Store, digest_of
from phaze.cost.network.topologies import make_network
from phaze.map.annealing import stage_task
from phaze.map.ensemble import Chains, Mapped, MappingCandidate, MapSettings, best_of_chains, map_stages
from phaze.map.heuristics import compact_maps
from phaze.map.objective import INSTANTIATIONS, MappingProblem, choose_instantiation
from phaze.map.schemes import near_devices
from phaze.map.search import SearchLimits, SearchResult, proves, search
from phaze.pipeline.gpipe import held_step_s, shared_step_s, simulate_step
from phaze.spec.map_study import MapTopology, StagesPoint
from phaze.spec.network import Matrix
from phaze.spec.settings import PlanMapSettings
from phaze.spec.stages import StoredStages
from phaze.spec.system import Cluster
from phaze.spec.topology import MatrixFile
from phaze.tables import MappedDevices, Mappings, PlanDevices, PlanMaps, PlanStages
from phaze.tables.plans import PLAN, TIMED
from phaze.workload.operator_graphs import stage_graph

Row = dict[str, str | int | float | bool]
MapTables = dict[str, pd.DataFrame]
IN_MEMORY = {"recomputed", "in_flight", "memory_bytes", "headroom_bytes"}
WORKING = ["stage", *(name for name in PlanStages.columns if name not in IN_MEMORY)]
"""Columns of table `plan_stages` that affect the simulation, without the memory columns."""
PLACES = ["stage", "replica", "slice", "device"]


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


@dataclass(frozen=True)
class MapQuestion:
    """Mapping request: the plans to map, and the systems to map them to."""

    systems: Mapping[str, Cluster | Matrix]
    """Systems by name."""
    devices: int
    """K, the number of devices of the plans."""
    search: PlanMapSettings
    """Planners whose plans are mapped, and search limits."""

    @classmethod
    def of(
        cls, networks: Mapping[str, Mapping[str, object]], devices: int, search: PlanMapSettings
    ) -> MapQuestion:
        """Build the mapping request of a study; networks are plain values."""
        systems = {
            name: (Cluster if "device" in fields else Matrix).parse(fields, name)
            for name, fields in networks.items()
        }
        return cls(systems, devices, search)

    @property
    def content(self) -> Plain:
        """Settings that are part of the cache key, in addition to the plan and the system."""
        return [self.devices, self.search.steps, self.search.seed]


def map_plans(
    plans: pd.DataFrame, stages: pd.DataFrame, question: MapQuestion, store: Store
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables `plan_maps` and `plan_devices` of a model, from its tables `plans` and `plan_stages`.

    The plans of the accelerator with the fastest Phaze plan are mapped, on ties those of all such
    accelerators. Equal plans are simulated once. A plan of unequal tensor-parallel widths whose units do not
    fit is omitted with a warning.
    """
    maps, places = [PlanMaps.empty()], [PlanDevices.empty()]
    contents = {name: digest_of(system.model_dump(mode="json")) for name, system in question.systems.items()}
    cases = [(*chosen, name) for chosen in _chosen(plans, stages, question) for name in question.systems]
    answers = store.each(
        [[row, working.to_numpy().tolist(), contents[name]] for _, row, working, name in cases],
        lambda fresh: [_map(*cases[k][1:], question) for k in counted(fresh, "plan on a network")],
        about=question.content,
    )
    for (key, _, _, name), mapped in zip(cases, answers, strict=True):
        if mapped is None:
            log.warning("%s has too few devices for the units of plan %s", name, key)
            continue
        rows, devices = mapped
        about = {**key, "system": name}
        maps.append(pd.DataFrame(rows).assign(**about))
        places.append(pd.DataFrame(_places(devices), columns=PLACES).assign(**about))
    return pd.concat(maps, ignore_index=True), pd.concat(places, ignore_index=True)


def _chosen(
    plans: pd.DataFrame, stages: pd.DataFrame, question: MapQuestion
) -> Iterator[tuple[Row, Row, pd.DataFrame]]:
    """Yield each plan to map: its key, and the parts of its rows that affect the simulation."""
    placed = plans[plans["status"] == "placed"]
    by_phaze = placed[placed["planner"] == "phaze"]
    times = tied(by_phaze["time_per_sample_s"].to_numpy())
    best = by_phaze[times == times.min(initial=np.inf)]
    chips = set(zip(best["architecture"], best["hbm_gib"], strict=True))
    by_plan = dict(list(stages.groupby(list(PLAN))))
    for row in placed[placed["planner"].isin(question.search.planners)].to_dict("records"):
        if (row["architecture"], row["hbm_gib"]) in chips:
            key = {name: row[name] for name in PLAN}
            working = by_plan[tuple(key.values())].sort_values("stage")[WORKING]
            yield key, {name: row[name] for name in TIMED}, working


def _map(
    row: Row, stages: pd.DataFrame, system: str, question: MapQuestion
) -> tuple[list[Row], list[list[list[int]]]] | None:
    """Rows of table `plan_maps` and devices of a plan on a system; None if the system has too few devices."""
    from phaze.map.plan_maps import map_rows  # compiled loops load slowly, and most plans are cached

    return map_rows(row, stages, question.systems[system], question.devices, question.search)


def _places(devices: Iterable[Iterable[Iterable[int]]]) -> list[tuple[int, int, int, int]]:
    """Rows of table `plan_devices` without the plan's key: stage, replica, rank and device."""
    return [
        (stage, replica, number, device)
        for stage, replicas in enumerate(devices)
        for replica, slices in enumerate(replicas)
        for number, device in enumerate(slices)
    ]
