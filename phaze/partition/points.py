"""Partitions of a study of mappings: the flows, and what they are compared with."""

from __future__ import annotations

from phaze.base.errors import PhazeError
from phaze.partition.flow import SLACK, Candidate, Options, Problem, partition, problem_of
from phaze.partition.intervals import cut_in_order
from phaze.partition.layers import cut_as_pipedream
from phaze.partition.storing import stored_stages
from phaze.partition.weights import Terms
from phaze.spec.map_study import StagesPoint
from phaze.spec.operators import StoredOperators
from phaze.spec.stages import StoredStages
from phaze.workload.operator_graphs import OperatorGraph
from phaze.workload.stored_graphs import operator_graph

ANY_SLACK = 1.0
"""By how much the slowest stage may be above the least time for the fastest step."""


def cut_point(stored: StoredOperators, point: StagesPoint, bandwidth_bytes_per_s: float) -> StoredStages:
    """Return the stages of a point, without a limit of memory, with recomputation."""
    graph = operator_graph(stored)
    terms = Terms(bandwidth_bytes_per_s, microbatches=point.microbatches)
    found = _cut(graph, terms, point)
    return stored_stages(graph, found, terms, stored.name, point.replicas, stored.microbatch)


def _cut(graph: OperatorGraph, terms: Terms, point: StagesPoint) -> Candidate:
    if point.partitioner in ("order", "pipedream", "pipedream-operators"):
        return _compared(problem_of(graph, terms, point.stages, point.replicas), point)
    options = Options(
        point.hyper_operators,
        flow="full" if point.partitioner in ("full", "fastest") else "paper",
        slack=ANY_SLACK if point.partitioner == "fastest" else SLACK,
    )
    found = partition(graph, terms, point.stages, point.replicas, options)
    if point.partitioner == "clusters":
        clustered = [one for one in found.met if one.made_by == "clusters"]
        return min(clustered, key=lambda one: one.step_s)
    return found.chosen


def _compared(problem: Problem, point: StagesPoint) -> Candidate:
    if point.partitioner == "pipedream":
        stage_of = cut_as_pipedream(problem.graph, problem.weights, point.stages)
        return problem.candidate(stage_of, "pipedream")
    overlapped = point.partitioner == "pipedream-operators"
    ordered = cut_in_order(problem.weights, point.stages, overlapped=overlapped)
    if ordered is None:
        raise PhazeError(f"{point.name}: no partition in topological order fits")
    return problem.candidate(ordered, "pipedream" if overlapped else "order")
