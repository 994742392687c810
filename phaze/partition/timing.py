"""How long the steps of the paper's flow take by K (Parmesan, Figure 5(b))."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from phaze.base.arrays import Ints
from phaze.partition.clustering import ALPHAS, cluster
from phaze.partition.intervals import cut_in_order
from phaze.partition.program import cut_of, cut_within
from phaze.partition.refinement import distances, refine
from phaze.partition.weights import Terms, Weights, quotient, weigh
from phaze.spec.map_study import StagesPoint
from phaze.spec.operators import StoredOperators
from phaze.workload.stored_graphs import operator_graph

REPEATS = 3
"""Runs of which the fastest counts; the first also loads what is compiled."""


def time_phases(
    stored: StoredOperators, point: StagesPoint, bandwidth_bytes_per_s: float
) -> dict[str, float]:
    """Return the seconds of every phase, of all α together, the least of several runs.

    The dynamic program is timed as we run it, where the best partition along one order leaves out what cannot
    be faster, and as the paper states it, over all fronted subgraphs.
    """
    weights = weigh(operator_graph(stored), Terms(bandwidth_bytes_per_s, microbatches=point.microbatches))
    runs = [_once(weights, point) for _ in range(REPEATS)]
    return {phase: min(run[phase] for run in runs) for phase in runs[0]}


def _once(weights: Weights, point: StagesPoint) -> dict[str, float]:
    """Return the seconds of every phase."""
    seconds: dict[str, float] = defaultdict(float)
    far, most = distances(weights), max(point.hyper_operators, point.stages)
    for alpha in ALPHAS:
        with _timed(seconds, "clustering"):
            labels = cluster(weights, most, alpha)
        smaller, group = quotient(weights, labels)
        with _timed(seconds, "dynamic-program"):
            cut = _cut(smaller, point.stages)
        with _timed(seconds, "all-subgraphs"):
            cut_within(smaller, point.stages)
        with _timed(seconds, "refinement"):
            refine(weights, cut[group], far)
    return seconds


def _cut(smaller: Weights, stages: int) -> Ints:
    """Return the best partition of clusters, as the flow finds it."""
    ordered = cut_in_order(smaller, stages)
    found = cut_within(smaller, stages, np.inf if ordered is None else cut_of(smaller, ordered).time_s)
    assert found is not None, "without a limit of memory any partition fits"
    return found.stage_of


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[phase] += time.perf_counter() - began
