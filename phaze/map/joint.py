"""Stages, replicas and mapping chosen together for a network of devices.

Parmesan cuts a graph for one bandwidth between all devices and maps the stages afterwards (Sections IV to
VI). Here every S that divides the devices is cut, mapped and priced on the network itself. The graph is cut
for several flat bandwidths. All partitions that the flow found are priced with heuristic mappings, and the
best of them are mapped by search. The stages are then cut again for the devices and links of the best mapping
and mapped again, as long as the step gets faster. The partition that `phaze partition` would choose is always
mapped as well, with the same settings as by `phaze map`: the result is never slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.errors import PhazeError
from phaze.base.progress import counted
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.map.ensemble import Mapped, MapSettings, map_stages
from phaze.map.heuristics import consecutive_map, near_maps, p2p_map
from phaze.map.objective import MappingProblem
from phaze.partition.flow import CutOptions, PartitionCandidate, PartitionProblem, partition, problem_of
from phaze.partition.intervals import StagePaces, cut_at_paces
from phaze.partition.study import Shape, shapes
from phaze.partition.weights import PartitionTerms, fits, stage_graph_of
from phaze.pipeline.gpipe import step_times_s
from phaze.workload.operator_graphs import OperatorGraph, StageGraph

FINALISTS = 4
"""Number of partitions of a shape that are mapped by a short search."""
SHORT = 20
"""Factor by which a short search has fewer steps and tries."""
ROUNDS = 4
"""Maximum number of times that stages are cut again for a mapping."""


@dataclass(frozen=True, eq=False)
class JointPlan:
    """Partition and mapping for a number of stages and replicas, with its simulated step."""

    stages: int
    replicas: int
    candidate: PartitionCandidate | None
    """Chosen partition; None if there is none for these numbers."""
    terms: PartitionTerms
    """Flat bandwidth and latency that the partition was cut for."""
    mapped: Mapped | None
    reason: str = ""
    """Reason why there is no partition; otherwise empty."""

    @property
    def step_s(self) -> float:
        """Simulated step time on the network; inf without a partition."""
        return np.inf if self.mapped is None else self.mapped.best.step_s

    @property
    def microbatches_per_s(self) -> float:
        """Throughput of all replicas, 0 without a partition."""
        return self.replicas * self.terms.microbatches / self.step_s


def search_jointly(
    graph: OperatorGraph,
    terms: PartitionTerms,
    shape: Shape,
    options: CutOptions,
    network: DeviceNetwork,
    settings: MapSettings,
) -> list[JointPlan]:
    """Best partition and mapping for every possible S and R, the highest throughput first.

    Raises PhazeError if the shape is inconsistent, needs more devices than the network has, or if no shape
    has a partition.
    """
    pairs = shapes(*shape, most=len(graph.names))
    plans = [_plan_of(graph, terms, pair, options, network, settings) for pair in counted(pairs, "stages")]
    ordered = sorted(plans, key=lambda plan: (-plan.microbatches_per_s, plan.stages))
    if ordered[0].candidate is None:
        raise PhazeError(plans[-1].reason)
    return ordered


def flat_terms(terms: PartitionTerms, network: DeviceNetwork) -> list[PartitionTerms]:
    """Terms to cut a graph for: as given, and with the mean and the fastest link of a network."""
    if network.devices == 1:
        return [terms]
    apart = ~np.eye(network.devices, dtype=bool)
    seconds, latency_s = network.seconds_per_byte[apart], float(network.waits_s[apart].mean())
    bandwidths = dict.fromkeys((1.0 / float(seconds.mean()), 1.0 / float(seconds.min())))
    return [terms, *(replace(terms, bandwidth_bytes_per_s=b, latency_s=latency_s) for b in bandwidths)]


@dataclass(frozen=True, eq=False)
class _Cut:
    """A partition with the stage graph to map, and the terms that it was cut for."""

    candidate: PartitionCandidate
    stages: StageGraph
    terms: PartitionTerms


def _plan_of(
    graph: OperatorGraph,
    terms: PartitionTerms,
    pair: tuple[int, int],
    options: CutOptions,
    network: DeviceNetwork,
    settings: MapSettings,
) -> JointPlan:
    stages, replicas = pair
    try:
        cuts = list(_cuts(graph, flat_terms(terms, network), pair, options))
    except PhazeError as error:
        return JointPlan(stages, replicas, None, terms, None, str(error))
    # The first one is what `phaze partition` chooses; it is mapped in full whatever the others promise.
    quick_s = [_quick_step_s(cut, network) for cut in cuts]
    limits = replace(settings.limits, tries=max(1, settings.limits.tries // SHORT))
    short = replace(settings, steps=settings.steps // SHORT, limits=limits)
    finalists = [cuts[k] for k in np.argsort(quick_s, kind="stable")[:FINALISTS].tolist()]
    ranked = sorted(finalists, key=lambda cut: map_stages(cut.stages, network, short).best.step_s)
    chosen = [(cut, map_stages(cut.stages, network, settings)) for cut in dict.fromkeys([cuts[0], ranked[0]])]
    cut, mapped = min(chosen, key=lambda pair: pair[1].best.step_s)
    problem = problem_of(graph, cut.terms, stages, replicas)
    for _ in range(ROUNDS):
        fitted = _cut_for(problem, network, mapped.best.mapping)
        if fitted is None:
            break
        remapped = map_stages(fitted.stages, network, settings)
        if remapped.best.step_s >= mapped.best.step_s:
            break
        cut, mapped = fitted, remapped
    return JointPlan(stages, replicas, cut.candidate, cut.terms, mapped)


def _cuts(
    graph: OperatorGraph, flat: list[PartitionTerms], pair: tuple[int, int], options: CutOptions
) -> Iterator[_Cut]:
    """Distinct partitions of the flow for all flat bandwidths; the choice for the first one comes first."""
    seen: set[bytes] = set()
    for terms in flat:
        problem = problem_of(graph, terms, *pair)
        cut = partition(graph, terms, *pair, options)
        for candidate in (cut.chosen, *cut.candidates):
            key = candidate.stage_of.astype(np.int64).tobytes()
            if key not in seen and fits(problem.weights, candidate.stage_of):
                seen.add(key)
                yield _cut_of(problem, candidate)


def _cut_of(problem: PartitionProblem, candidate: PartitionCandidate) -> _Cut:
    stages = stage_graph_of(problem.graph, candidate.stage_of, problem.terms, problem.replicas)
    return _Cut(candidate, stages, problem.terms)


def _quick_step_s(cut: _Cut, network: DeviceNetwork) -> float:
    """Shortest step of a partition with mappings that need no search."""
    problem = MappingProblem(cut.stages, network, "exact")
    maps = [consecutive_map(*problem.shape), p2p_map(*problem.shape), *near_maps(problem)]
    return float(step_times_s(cut.stages, np.array(maps), network).min())


def _cut_for(problem: PartitionProblem, network: DeviceNetwork, mapping: Ints) -> _Cut | None:
    """Partition into intervals for the devices and links of a mapping (S, R); None if none fits in memory."""
    seconds, waits = network.both_ways
    links = mapping[:-1], mapping[1:]
    paces = StagePaces(
        network.slowness[mapping].max(axis=1),
        np.pad(seconds[links].max(axis=1), 1),
        np.pad(waits[links].max(axis=1), 1),
    )
    stage_of = cut_at_paces(problem.weights, paces)
    return None if stage_of is None else _cut_of(problem, problem.candidate(stage_of, "paces"))
