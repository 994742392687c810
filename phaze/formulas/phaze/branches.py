"""Best placement of a layer graph with branches (Phaze, Section 5 and Appendix B).

`formulas.phaze.flush` places chains, whose stages are intervals on t devices or one. This module places any
directed acyclic graph: stages are differences of nested downsets, and a stage may have more devices and run
branches concurrently. Times, memory and tie-breaking are those of chains; a chain gets the same placement
from both modules. With N downsets, S nested pairs of them, n layers and up to n stages with k possible
numbers of devices, it takes

    N^2      to find the pairs
    S n      for the loads, times the assignments of a stage's branches: 2 for two branches, 15 for four
    S n k    for the recurrence; k is at most n + 1 if all layers, or none, are tensor parallel

A chain has N = n + 1 and S = n (n + 1) / 2; two towers of n/2 layers have N = (n/2 + 1)^2 and S of about
N^2 / 4. Under GPipe memory depends on the microbatches of a pipeline. The recurrence is then repeated for
ranges of data widths, with the memory needs of the widest, until the best placement fits with its own needs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.formulas.cuts import PipelineCounts
from phaze.formulas.flushing import Chain, Setting, batch_time_s, sync_s, useful_widths
from phaze.formulas.phaze.cuttings import (
    Cutting,
    DeviceCounts,
    FirstStage,
    FirstStageCosts,
    best_first_stage,
    cutting_of,
)
from phaze.formulas.phaze.flush import Infeasible, Placement
from phaze.formulas.phaze.reasons import Leanest, min_devices, pipelines, too_few_devices, too_little_memory
from phaze.layout import Layout

Answer = TypeVar("Answer")
Rank = tuple[float, ...]


@dataclass(frozen=True)
class _Pipeline:
    """Tables of the recurrence for a range of data-parallel widths, and the best pipeline they yield."""

    tables: list[Floats]
    """Tables dp[0], dp[1], ... of the recurrence, by number of stages."""
    costs: list[Floats]
    """Load of every option, one array per stage position from the end; inf where memory does not suffice."""
    first: FirstStage


@dataclass(frozen=True)
class RangeBest(Generic[Answer]):
    """Best answer for a range of choices, under the loosest constraint of any choice in the range."""

    rank: Rank
    answer: Answer
    holds: bool
    """True if the answer is valid for a choice of the range, and therefore the best in the range."""


def place_graphs(graphs: dict[Layout, Chain], setting: Setting) -> Placement | Infeasible:
    """Best placement over all TMP widths, or the reason why there is none.

    The layers of all graphs have the same topological order. PhazeError if there are too many downsets.
    """
    cuttings = [cutting_of(graphs[layout], layout, setting) for layout in sorted(graphs)]
    placed = [placement for cut in cuttings if (placement := place_cutting(cut, setting)) is not None]
    return min(placed, key=Placement.rank) if placed else Infeasible(why_infeasible(cuttings, setting))


def place_cutting(cut: Cutting, setting: Setting) -> Placement | None:
    """Best placement of a graph, or None if nothing fits.

    Ties go to the fewest devices, then to the smallest d, s and first stage. ValueError if the gradients of
    all stages count: the instances of this planner charge those of the first stage (18).
    """
    if setting.gradients != "first-stage":
        raise ValueError("a graph that is not a chain is placed with the gradients of its first stage alone")
    room, widths = cut.room(setting), cut.widths(setting.devices)
    counts, data = useful_widths(setting.microbatches, setting.devices)

    def bound(lo: int, hi: int) -> RangeBest[Placement] | None:
        # The fewest microbatches of the range decide about memory, so nothing that fits is missed.
        pipeline = _best_pipeline(cut, setting, room, widths, counts[lo:hi], data[lo:hi])
        if pipeline is None:
            return None
        options = _trace_back(cut, widths, pipeline)
        layout = replace(cut.layout, dp=pipeline.first.rank[2], pp=len(options))
        placement = _placement(cut, layout, setting, options)
        in_flight = cut.in_flight(setting, setting.in_pipeline(layout))
        holds = all(room[o] >= count for o, count in zip(reversed(options), in_flight, strict=False))
        return RangeBest(placement.rank(), placement, holds)

    return best_choice(len(data), bound)


def _best_pipeline(
    cut: Cutting, setting: Setting, room: Ints, widths: DeviceCounts, counts: Ints, data: Ints
) -> _Pipeline | None:
    """Best pipeline over all depths, or None if nothing fits.

    Under GPipe all data widths are assumed to have the fewest microbatches, so this is a bound for the
    others.
    """
    before_bytes = np.asarray(~cut.downsets.membership @ np.asarray(cut.graph.parameter_bytes, float))
    first_sync = setting.exchange_s(before_bytes)
    size = len(cut.graph) - cut.downsets.sizes
    pipelines = PipelineCounts(cut.layout.tp, setting.devices, counts, data)
    in_flight = cut.in_flight(setting, int(counts[-1]))
    costs = [np.where(room >= count, cut.options.load_s, np.inf) for count in in_flight]
    tables: list[Floats] = []
    best: FirstStage | None = None
    for s, (dp, load_s) in enumerate(zip(cut.tables(widths, iter(costs)), costs, strict=False), 1):
        tables.append(dp)
        first_costs = FirstStageCosts(load_s, first_sync, size)
        fields = best_first_stage(dp, s, cut.stages, cut.options.first, widths, first_costs, pipelines)
        first = FirstStage(*fields)
        if first.option >= 0 and (best is None or first.rank < best.rank):
            best = first
    return None if best is None else _Pipeline(tables, costs, best)


def _placement(cut: Cutting, layout: Layout, setting: Setting, options: list[int]) -> Placement:
    """Placement whose stages are the given options, first stage first."""
    behind = [cut.behind(option) for option in options]
    outers = [len(cut.downsets) - 1, *behind]
    layers = tuple(cut.downsets.difference(*ends) for ends in zip(outers, behind, strict=False))
    worst = float(np.max(cut.options.load_s[options]))
    weights = np.asarray(cut.graph.parameter_bytes, float)
    sync = sync_s(np.array([weights[list(stage)].sum() for stage in layers]), layout, setting)
    time = batch_time_s(worst, layout, setting.microbatches, sync)
    return Placement(layout, layers, tuple(cut.options.devices[options].tolist()), time, worst, sync)


def _trace_back(cut: Cutting, widths: DeviceCounts, pipeline: _Pipeline) -> list[int]:
    """Option chosen for each stage, first stage first; ties go to the smallest stage."""
    options, k = [pipeline.first.option], pipeline.first.k
    for s in range(pipeline.first.rank[3] - 1, 0, -1):
        k = int(np.searchsorted(widths.devices, widths.devices[k] - cut.options.devices[options[-1]]))
        options.append(_attaining(cut, widths, pipeline, s, cut.behind(options[-1]), k))
    return options


def _attaining(cut: Cutting, widths: DeviceCounts, pipeline: _Pipeline, s: int, outer: int, k: int) -> int:
    """Option (a stage with a number of devices) that attains the value of dp[s][outer][k]."""
    target = pipeline.tables[s][outer, k]
    for stage in range(cut.stages.first[outer], cut.stages.first[outer + 1]):
        inner = cut.stages.inner[stage]
        for option in range(cut.options.first[stage], cut.options.first[stage + 1]):
            # At most one count leads to k, since a step adds the same number of devices to each.
            counts = np.flatnonzero(widths.after[widths.step[option]] == k)
            before = pipeline.tables[s - 1][inner, counts]
            if len(counts) and max(before[0], pipeline.costs[s - 1][option]) == target:
                return option
    raise AssertionError("an entry of the table comes from a stage")


def best_choice(choices: int, bound: Callable[[int, int], RangeBest[Answer] | None]) -> Answer | None:
    """Best answer by branch and bound, None if there is none; `bound(lo, hi)` relaxes choices lo to hi - 1.

    The range with the best bound is halved until an answer holds; the answer of a single choice always holds.
    """
    waiting: list[tuple[Rank, int, int, RangeBest[Answer]]] = []
    ranges = [(0, choices)]
    while True:
        for lo, hi in ranges:
            if lo < hi and (best := bound(lo, hi)) is not None:
                heapq.heappush(waiting, (best.rank, lo, hi, best))
        if not waiting:
            return None
        _, lo, hi, best = heapq.heappop(waiting)
        if best.holds:
            return best.answer
        ranges = [(lo, (lo + hi) // 2), ((lo + hi) // 2, hi)]


def why_infeasible(cuttings: list[Cutting], setting: Setting) -> str:
    """Limit that every placement of these graphs violates, and by how much."""
    formed = [cut for cut in cuttings if min_devices(cut.graph, cut.layout) <= setting.devices]
    if not formed:
        return too_few_devices({cut.layout: cut.graph for cut in cuttings}, setting)
    lean = min((leanest(cut, setting) for cut in formed), key=lambda lean: lean.memory_bytes)
    return too_little_memory(lean, min(_enough_devices(cut, setting) for cut in cuttings), setting)


def leanest(cut: Cutting, setting: Setting) -> Leanest:
    """Placement with the lowest peak memory."""
    choices = pipelines(setting, setting.devices // min_devices(cut.graph, cut.layout))

    def bound(lo: int, hi: int) -> RangeBest[Leanest] | None:
        # Most devices and fewest microbatches of any choice in the range: a bound for all of them.
        widths = cut.widths(setting.devices // choices[lo][1])
        peaks = map(cut.options.peak_bytes, cut.in_flight(setting, choices[hi - 1][0]))
        tables = enumerate(cut.tables(widths, peaks))
        candidates = [Leanest(float(dp[-1].min()), cut.layout, s) for s, dp in tables]
        lean = min(candidates, key=lambda lean: (lean.memory_bytes, lean.stages))
        return RangeBest((lean.memory_bytes, lean.stages), lean, hi - lo == 1)

    lean = best_choice(len(choices), bound)
    assert lean is not None, "one stage can always be formed"
    return lean


def _enough_devices(cut: Cutting, setting: Setting) -> float:
    """Smallest number of devices on which the graph fits in memory; inf if none."""
    widths, choices = cut.widths(cut.layout.tp * len(cut.graph)), pipelines(setting, setting.microbatches)
    room = cut.room(setting)

    def bound(lo: int, hi: int) -> RangeBest[int] | None:
        in_flight = cut.in_flight(setting, choices[hi - 1][0])
        costs = (np.where(room >= count, 0.0, np.inf) for count in in_flight)
        # Any depth will do: only the number of devices counts.
        possible = np.any([np.isfinite(dp[-1]) for dp in cut.tables(widths, costs)], axis=0)
        if not possible.any():
            return None
        enough = choices[lo][1] * int(widths.devices[np.argmax(possible)])
        return RangeBest((enough,), enough, hi - lo == 1)

    enough = best_choice(len(choices), bound)
    return np.inf if enough is None else enough
