"""Stage files of a mapping study, and the search for the numbers of stages and replicas, S and R."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.base.errors import PhazeError
from phaze.partition.flow import (
    SLACK,
    CutOptions,
    Partition,
    PartitionCandidate,
    PartitionProblem,
    partition,
    problem_of,
)
from phaze.partition.intervals import cut_as_pipedream, cut_in_order
from phaze.partition.weights import PartitionTerms, stage_graph_of, stage_memory, weigh
from phaze.spec.map_study import StagesPoint
from phaze.spec.operators import ProfiledModule, StoredOperators
from phaze.spec.stages import PartitionSettings, StoredStages
from phaze.workload.operator_graphs import OperatorGraph, operator_graph

ANY_SLACK = 1.0
"""Allowed excess of the slowest stage over its minimum time, as a share, for the partitioner `fastest`."""


def cut_point(stored: StoredOperators, point: StagesPoint, bandwidth_bytes_per_s: float) -> StoredStages:
    """Partition the graph of a study point into stages, with recomputation and without a memory limit."""
    graph = operator_graph(stored)
    terms = PartitionTerms(bandwidth_bytes_per_s, microbatches=point.microbatches)
    chosen = _cut(graph, terms, point)
    return stored_stages(graph, chosen, terms, stored.name, point.replicas, stored.microbatch)


def _cut(graph: OperatorGraph, terms: PartitionTerms, point: StagesPoint) -> PartitionCandidate:
    if point.partitioner in ("order", "pipedream", "pipedream-operators"):
        return _compared(problem_of(graph, terms, point.stages, point.replicas), point)
    options = CutOptions(
        point.hyper_operators,
        flow="full" if point.partitioner in ("full", "fastest") else "paper",
        slack=ANY_SLACK if point.partitioner == "fastest" else SLACK,
    )
    found_cut = partition(graph, terms, point.stages, point.replicas, options)
    if point.partitioner == "clusters":
        clustered = [candidate for candidate in found_cut.candidates if candidate.made_by == "clusters"]
        return min(clustered, key=lambda candidate: candidate.step_s)
    return found_cut.chosen


def _compared(problem: PartitionProblem, point: StagesPoint) -> PartitionCandidate:
    if point.partitioner == "pipedream":
        stage_of = cut_as_pipedream(problem.graph, problem.weights, point.stages)
        return problem.candidate(stage_of, "pipedream")
    overlapped = point.partitioner == "pipedream-operators"
    ordered = cut_in_order(problem.weights, point.stages, overlapped=overlapped)
    if ordered is None:
        raise PhazeError(f"{point.name}: no partition in topological order fits")
    return problem.candidate(ordered, "pipedream" if overlapped else "order")


def stored_stages(
    graph: OperatorGraph,
    chosen: PartitionCandidate,
    terms: PartitionTerms,
    model: str,
    replicas: int,
    microbatch: int,
    profiled: ProfiledModule | None = None,
) -> StoredStages:
    """Build the stage file of a partition; PhazeError if numbers exceed the limits of the file format."""
    stages = stage_graph_of(graph, chosen.stage_of, terms, replicas)
    rows = np.stack([stages.forward_s, stages.backward_s, stages.parameter_bytes], axis=1).tolist()
    memory = stage_memory(weigh(graph, terms), chosen.stage_of).tolist()
    limit = terms.device_memory_bytes
    content = {
        "format": "phaze-stages",
        "version": 1,
        "model": model,
        "replicas": replicas,
        "microbatches": terms.microbatches,
        "recompute": terms.recompute,
        "device_memory_bytes": limit if np.isfinite(limit) else None,
        "stages": [
            {
                "operators": [graph.names[v] for v in np.flatnonzero(chosen.stage_of == s)],
                "forward_s": forward,
                "backward_s": backward,
                "parameter_bytes": parameters,
                "memory_bytes": memory[s],
            }
            for s, (forward, backward, parameters) in enumerate(rows)
        ],
        "edges": [{"source": i, "target": j, "bytes": size} for i, j, size in stages.tensors],
        "stage_time_s": chosen.time_s,
        "step_time_s": chosen.step_s,
        "settings": _settings(chosen, terms, microbatch),
        "profiled": profiled,
    }
    return StoredStages.parse(content, model)


def _settings(chosen: PartitionCandidate, terms: PartitionTerms, microbatch: int) -> PartitionSettings:
    return PartitionSettings(
        partitioner=chosen.made_by,
        microbatch=microbatch,
        bandwidth_bytes_per_s=terms.bandwidth_bytes_per_s,
        hyper_operators=chosen.hyper_operators,
        alpha=chosen.alpha,
        moves=chosen.moves or None,
    )


@dataclass(frozen=True, eq=False)
class ShapeResult:
    """Result of partitioning into a given number of stages and replicas."""

    stages: int
    replicas: int
    partition: Partition | None
    """None if there is none for these numbers."""
    reason: str
    """Reason why there is no partition; otherwise empty."""
    microbatches_per_s: float
    """Throughput of all replicas, 0 without a partition."""


Shape = tuple[int | None, int | None, int | None]
"""Numbers of stages, replicas and devices; None where the number is to be searched."""


def search(
    graph: OperatorGraph, terms: PartitionTerms, shape: Shape, options: CutOptions
) -> list[ShapeResult]:
    """Partitions for all configurations of a cluster, the best first (Parmesan, Appendix B).

    Each S that divides the devices is partitioned and simulated with R = D / S replicas, including pipeline
    bubbles and the all-reduce. The configuration with the most samples per second is the best. The microbatch
    and MB stay the same, so that the batch grows with R. Raises PhazeError if the shape is inconsistent, or
    if there is no partition at all.
    """
    results = [
        _result_of(graph, terms, stages, replicas, options)
        for stages, replicas in shapes(*shape, most=len(graph.names))
    ]
    ordered = sorted(results, key=lambda one: (-one.microbatches_per_s, one.stages))
    if ordered[0].partition is None:
        raise PhazeError(results[-1].reason)
    return ordered


def _result_of(
    graph: OperatorGraph, terms: PartitionTerms, stages: int, replicas: int, options: CutOptions
) -> ShapeResult:
    try:
        result = partition(graph, terms, stages, replicas, options)
    except PhazeError as error:
        return ShapeResult(stages, replicas, None, str(error), 0.0)
    rate = replicas * terms.microbatches / result.chosen.step_s
    return ShapeResult(stages, replicas, result, "", rate)


def shapes(stages: int | None, replicas: int | None, devices: int | None, most: int) -> list[tuple[int, int]]:
    """All possible pairs (S, R); if both are searched, S is at most `most`."""
    if stages is not None and replicas is not None:
        if devices is not None and devices < stages * replicas:
            raise PhazeError(
                f"partition: {stages} stages of {replicas} replicas need {stages * replicas} devices, "
                f"there are {devices}"
            )
        return [(stages, replicas)]
    if devices is None:
        raise PhazeError("partition: needs the stages and the replicas, or the devices to search them for")
    for name, value in (("stages", stages), ("replicas", replicas)):
        if value is not None and devices % value:
            raise PhazeError(f"partition: {devices} devices cannot be shared evenly by {value} {name}")
    if stages is not None:
        return [(stages, devices // stages)]
    if replicas is not None:
        return [(devices // replicas, replicas)]
    counts = range(1, min(devices, most) + 1)
    return [(count, devices // count) for count in counts if devices % count == 0]
