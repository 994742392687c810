"""Partitions by the baseline planners.

- pipedream: layers in one order, messages overlapped with computation, memory ignored;
- topological: operators in one topological order, which RaNNC fixes before its dynamic program;
- piper, phaze: `formulas.piper` and `formulas.phaze` on the graph of layers, with one device per stage and
  the memory of (14), independent of in-flight microbatches. Piper may use fewer stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.errors import PhazeError
from phaze.formulas.flushing import Chain, Setting
from phaze.formulas.phaze.flush import Widths, place_within
from phaze.formulas.piper.layers import Configurations, FlatCluster, ProfiledLayers
from phaze.formulas.piper.planner import SearchOptions, plan
from phaze.layout import Layout
from phaze.partition.flow import Maker, PartitionCandidate, PartitionProblem, problem_of
from phaze.partition.intervals import cut_as_pipedream, cut_in_order, layer_weights
from phaze.partition.weights import PartitionTerms, Weights, fits, sums
from phaze.workload.operator_graphs import OperatorGraph


@dataclass(frozen=True, eq=False)
class BaselineResult:
    """Result of a baseline planner on a graph."""

    planner: Maker
    candidate: PartitionCandidate | None
    reason: str
    """Reason why there is no partition; otherwise empty."""
    fits_memory: bool


def compare_baselines(
    graph: OperatorGraph, terms: PartitionTerms, stages: int, replicas: int
) -> list[BaselineResult]:
    """Partitions of a graph by the baseline planners."""
    problem = problem_of(graph, terms, stages, replicas)
    return [_try(problem, name, cut) for name, cut in BASELINES.items()]


Cutter = Callable[[PartitionProblem], Ints]


def _try(problem: PartitionProblem, name: Maker, cut: Cutter) -> BaselineResult:
    try:
        stage_of = cut(problem)
    except PhazeError as error:
        return BaselineResult(name, None, str(error), fits_memory=False)
    return BaselineResult(name, problem.candidate(stage_of, name), "", fits(problem.weights, stage_of))


def _topological(problem: PartitionProblem) -> Ints:
    stage_of = cut_in_order(problem.weights, problem.stages)
    if stage_of is None:
        raise PhazeError("no intervals of the topological order fit in memory")
    return stage_of


def _piper(problem: PartitionProblem) -> Ints:
    layers, layer_of = layer_weights(problem.graph, problem.weights, problem.stages)
    cluster = FlatCluster(
        devices=problem.stages,
        memory_bytes=min(problem.weights.limit_bytes, 1e30),
        bandwidth_bytes_per_s=problem.terms.bandwidth_bytes_per_s,
        microbatches=problem.stages,
    )
    piper_plan = plan(piper_layers(layers), cluster, SearchOptions(most_data=1))
    if piper_plan is None:
        raise PhazeError("Piper finds no plan that fits in memory")
    stage_of = np.empty(len(layers), dtype=np.int64)
    for s, stage in enumerate(piper_plan.stages):
        stage_of[list(stage.layers)] = s
    return np.asarray(stage_of[layer_of])


def piper_layers(layers: Weights) -> ProfiledLayers:
    """Convert layers to Piper's: one single-device configuration each, without gradient synchronisation."""
    count, edges = len(layers), len(layers.edges)
    return ProfiledLayers(
        ids=tuple(range(count)),
        names=tuple(str(v) for v in range(count)),
        edges=layers.edges,
        edge_bytes=layers.edge_bytes,
        options={
            1: Configurations(
                names=("one device",) * count,
                layer=np.arange(count),
                time_s=layers.compute_s,
                weight_bytes=np.zeros(count),
                stash_bytes=np.zeros(count),
                fixed_bytes=layers.memory_bytes,
                forward_sync_bytes=np.zeros((count, edges)),
                backward_sync_bytes=np.zeros((count, edges)),
            )
        },
    )


def _phaze(problem: PartitionProblem) -> Ints:
    layers, layer_of = layer_weights(problem.graph, problem.weights, problem.stages)
    chain = Chain(
        forward_s=sums(layer_of, problem.graph.forward_s, len(layers)),
        backward_s=sums(layer_of, problem.graph.backward_s, len(layers)),
        parameter_bytes=np.zeros(len(layers)),
        static_bytes=layers.memory_bytes,
        activation_bytes=np.zeros(len(layers)),
        tensor_parallel=np.zeros(len(layers), dtype=np.bool_),
        edges=layers.edges,
        edge_bytes=layers.edge_bytes,
    )
    setting = Setting(
        devices=problem.stages,
        microbatches=problem.terms.microbatches,
        bandwidth_bytes_per_s=problem.terms.bandwidth_bytes_per_s,
        memory_bytes=problem.weights.limit_bytes,
        recompute=problem.terms.recompute,
        schedule="gpipe",
    )
    single = np.array([1])
    widths = Widths(problem.stages, problem.stages, single * problem.terms.microbatches, single)
    placement = place_within(chain, Layout(), setting, widths)
    if placement is None:
        raise PhazeError("Phaze finds no placement that fits in memory")
    ends = [stage[-1] + 1 for stage in placement.layers]
    return np.searchsorted(ends, layer_of, side="right").astype(np.int64)


BASELINES: dict[Maker, Cutter] = {
    "pipedream": lambda problem: cut_as_pipedream(problem.graph, problem.weights, problem.stages),
    "topological": _topological,
    "piper": _piper,
    "phaze": _phaze,
}
