"""How far the local search alone stays from the best mappings: no search before it, no mapping by hand."""

from __future__ import annotations

import time
from dataclasses import dataclass

from phaze.cost.network.topologies import make_network
from phaze.map.annealing import stage_task
from phaze.map.chains import Chains, best_of_chains
from phaze.map.heuristics import compact_maps
from phaze.map.objective import INSTANTIATIONS, Problem
from phaze.map.schemes import near_devices
from phaze.map.search import Found, Limits, search
from phaze.spec.map_study import MapTopology, StagesPoint
from phaze.spec.stages import StoredStages
from phaze.spec.topology import MatrixFile
from phaze.workload.stored_graphs import stage_graph

Row = dict[str, object]


@dataclass(frozen=True, eq=False)
class Gap:
    """What the local search reaches for an instantiation, and what is known of better mappings."""

    local_s: float
    seconds: float
    found: Found
    """Of Algorithm 1, which begins with the mapping of the local search."""


def find_gap(problem: Problem, chains: Chains, limits: Limits) -> Gap:
    """Return how far the local search alone stays from the least longest stage time."""
    began = time.perf_counter()
    starts = sorted(compact_maps(problem), key=problem.value_s)
    _, mapping = best_of_chains(stage_task(problem), starts, near_devices(problem, 0), chains)
    seconds = time.perf_counter() - began
    return Gap(problem.value_s(mapping), seconds, search(problem, limits, chains.seed, (mapping,)))


def gap_rows(
    stored: StoredStages,
    point: StagesPoint,
    topology: tuple[str, MapTopology],
    chains: Chains,
    limits: Limits,
) -> tuple[list[Row], list[Row]]:
    """Return rows of tables search_gaps and gap_durations, for the first seed of a topology with its name."""
    name, sizes = topology
    seed, made = sizes.drawn(point.stages * point.replicas)[0]
    assert not isinstance(made, MatrixFile)
    stages, network = stage_graph(stored), make_network(made)
    gaps, durations = [], []
    for counted in INSTANTIATIONS:
        one = find_gap(Problem(stages, network, counted), chains, limits)
        key: Row = {**point.model_dump(), "topology": name, "seed": seed, "counted": counted}
        known = {"local_s": one.local_s, "least_s": one.found.value_s, "bound_s": one.found.bound_s}
        gaps.append({**key, **known, "proven": one.found.proven})
        durations.append({**key, "seconds": one.seconds})
    return gaps, durations
