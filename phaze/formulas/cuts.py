"""Pipeline splits of a chain with the smallest bottleneck cost, found by dynamic programming.

Index letters: i, j positions in the chain; s stages counted from the end; u stages among them on a single
device (those without a tensor-parallel layer; all others take t devices); d data-parallel width. A stage is
an interval [i, j) of the chain. Downsets, closed towards the end of the graph, are suffixes [i, n). The paper
counts devices k instead of u. This is equivalent, as s stages with u single ones take k = s t - u (t - 1)
devices, and keeps the table small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit, njit_nested
from phaze.base.room import refuse_beyond_memory
from phaze.formulas.flushing import Chain, Footprints, Room
from phaze.layout import Layout


@dataclass(frozen=True)
class Shape:
    """Limits on the number of stages of a pipeline, and the number of devices per stage."""

    wide: int
    """Number of devices of a stage that is not single-device: t, or 1 if no layer is tensor parallel."""
    stages: int
    """Largest number of stages that the devices allow."""
    singles: int
    """Largest useful number of single-device stages, 0 if all stages take the same number of devices."""


class SplitCosts(NamedTuple):
    """Costs of all possible stages of a chain of n layers, by first layer i and end j."""

    last: Floats
    """Load of the last stage [i, n), infinite where it does not fit, shape (n,)."""
    load: Floats
    """Load of a stage [i, j) that is not the last one, shape (n, n + 1)."""
    most_stages: Ints
    """Most stages from [i, j) to the end with which this stage fits in memory, shape (n, n + 1)."""
    single: Bools
    """True if a stage takes a single device, shape (n, n + 1)."""


class PipelineCounts(NamedTuple):
    """Devices per stage and in total, and the candidate numbers of pipelines, d."""

    wide: int
    """Number of devices of a stage that is not single-device."""
    devices: int
    """Number of devices for all pipelines together."""
    counts: Ints
    """Microbatches per pipeline, ceil(B/d)."""
    data: Ints
    """Numbers of pipelines d, ascending."""


def refuse_large(layers: int, shape: Shape) -> None:
    """Raise PhazeError if two tables `dp` (s, u, i) do not fit in this machine's memory."""
    refuse_beyond_memory(
        2 * 8.0 * (shape.stages + 1) * (shape.singles + 1) * (layers + 1),
        f"the tables of {layers:,} layers in up to {shape.stages:,} stages, {shape.singles:,} of them on one "
        "device where others take several,",
        "give fewer devices, or merge layers that come one after the other",
    )


def shape_of(chain: Chain, layout: Layout, devices: int) -> Shape:
    """Limits on the stages of a chain on `devices` devices, at tensor-parallel width t."""
    unsharded = int(np.count_nonzero(~chain.tensor_parallel))
    width = layout.tp if unsharded < len(chain) else 1
    singles = unsharded if width > 1 else 0
    depths = np.arange(1, len(chain) + 1)
    # The cheapest pipeline of each depth has as many single-device stages as there are.
    least = depths * width - np.minimum(depths, singles) * (width - 1)
    return Shape(width, int(np.count_nonzero(least <= devices)), singles)


@njit
def devices_of(stages: int, singles: int, wide: int) -> int:
    """Number of devices of a pipeline with `singles` single-device stages among its `stages`."""
    return stages * wide - singles * (wide - 1)


@njit
def least_worst(
    last: Floats, cost: Floats, growth: Floats, most_stages: Ints, single: Bools, stages: int, singles: int
) -> Floats:
    """Table dp[s, u, i]: smallest bottleneck cost of splitting [i, n) into s stages, u of them single-device.

    Phaze, Section 5, with downset D = [i, n), next stage D minus D' = [i, j) and u for the devices:

        dp[1][u][i] = last[i]                                        if u = single[i, n]
        dp[s][u][i] = min over j > i with most_stages[i, j] >= s of
                          max(dp[s - 1][u - single[i, j]][j], cost[i, j] + (s - 1) growth[i, j])

    `last` (n,) is infinite where the last stage does not fit; infinite results are infeasible splits. The
    cost is a stage's load (growth 0) or its memory. If a stage [i, j) does not fit, no longer one fits, as
    memory grows with j.
    """
    n = len(last)
    dp = np.full((stages + 1, singles + 1, n + 1), np.inf)
    for i in range(n if stages > 0 else 0):
        dp[1, min(int(single[i, n]), singles), i] = last[i]
    for s in range(2, stages + 1):
        for i in range(n - s + 1):
            for j in range(i + 1, n - s + 2):
                if most_stages[i, j] < s:
                    break
                here = cost[i, j] + (s - 1) * growth[i, j]
                # If all stages are equally wide, `singles` is 0 and the table has one column, u = 0.
                step = min(int(single[i, j]), singles)
                for u in range(step, min(s, singles) + 1):
                    dp[s, u, i] = min(dp[s, u, i], max(dp[s - 1, u - step, j], here))
    return dp


def possible_cuts(footprints: Footprints, fitting: Room, shape: Shape) -> tuple[Bools, Ints]:
    """Mask of feasible splits into s stages, u of them single-device, and device counts, both (s, u)."""
    last, free = np.where(fitting.last_fits, 0.0, np.inf), np.zeros_like(footprints.constant_bytes)
    dp = least_worst(last, free, free, fitting.most_stages, footprints.single, shape.stages, shape.singles)
    stages, singles = np.indices(dp.shape[:2])
    devices = np.asarray(stages * shape.wide - singles * (shape.wide - 1), np.int64)
    return np.isfinite(dp[:, :, 0]), devices


@njit_nested
def best_first_stage(
    dp: Floats, costs: SplitCosts, first_sync: Floats, pipelines: PipelineCounts, fewest: int, most: int
) -> tuple[float, int, int, int, int]:
    """Best time per batch, with its d pipelines, s stages (u of them single-device) and first stage [0, j).

        min over d, s, u, j of (ceil(B/d) + s - 1) max(load[0, j], dp[s - 1][u'][j]) + (d - 1)/d
        first_sync[j]

    with d (s t - u (t - 1)) <= K, for `fewest` <= s <= `most`. `first_sync` is the exchange of infinitely
    many replicas, in seconds. Ties go to the fewest devices, then the smallest d, s and j. The time is
    infinite if nothing fits (Phaze, Section 5).
    """
    counts, data = pipelines.counts, pipelines.data
    n, singles = dp.shape[2] - 1, dp.shape[1] - 1
    best, answer = (np.inf, 0, 0, 0, 0), (np.inf, 0, 0, 0, 0)
    for s in range(fewest, most + 1):
        for u in range(min(s, singles) + 1):
            used = devices_of(s, u, pipelines.wide)
            # Widths ascend, so that the devices have room for the first ones, up to `top`.
            top = len(data) - 1
            while top >= 0 and data[top] > pipelines.devices // used:
                top -= 1
            for j in range(1 if s > 1 else n, n + 1):
                if s > 1 and costs.most_stages[0, j] < s:
                    break
                step = min(int(costs.single[0, j]), singles)
                if s > 1 and step > u:
                    continue
                worst = max(costs.load[0, j], dp[s - 1, u - step, j]) if s > 1 else dp[1, u, 0]
                for w in range(top, -1, -1):
                    busy = (counts[w] + s - 1) * worst
                    # A smaller d has more microbatches per pipeline: its compute takes even longer.
                    if not busy <= best[0] or busy == np.inf:
                        break
                    d = data[w]
                    time = busy + (d - 1) / d * first_sync[j]
                    rank = (time, used * d, d, s, j)
                    if rank < best:
                        best, answer = rank, (time, d, s, u, j)
    return answer


def limits_of(exchange: Floats) -> Floats:
    """Distinct gradient exchange times of all stages [i, j), ascending, from an array (n, n + 1).

    They are the only values of the limit W that matter in `best_cut`.
    """
    return np.unique(exchange[np.triu_indices(len(exchange), 1, len(exchange) + 1)])


@njit
def best_cut(
    costs: SplitCosts,
    exchange: Floats,
    caps: Floats,
    pipelines: PipelineCounts,
    fewest: int,
    most: int,
    singles: int,
    limit: float,
) -> tuple[float, int, Ints]:
    """Best time per batch below `limit`, else inf; number of pipelines d; and first layer of each stage.

    `exchange` (n, n + 1) is the exchange time of each stage with infinitely many replicas, in seconds. If the
    batch waits for the slowest exchange instead of the first stage's, `caps` are its values (`limits_of`);
    otherwise `caps` is empty. With caps the time is the minimum over all limits W among them of

        min over d, s and splits whose stages all have exchange <= W of
            (ceil(B/d) + s - 1) * max over stages of load + (d - 1)/d W

    The worst load only falls as W rises. The loads of the largest W of a range with the exchange of the
    smallest therefore bound the whole range. Depths whose bound exceeds the best time are dropped, and the
    range is halved for the others. Times not below `limit` are not searched.
    """
    if len(caps) == 0:
        dp = _without_growth(costs, most, singles)
        time, d, s, u, j = best_first_stage(dp, costs, exchange[0], pipelines, fewest, most)
        return time, d, _trace_back(dp, costs, s, u, j)
    best, answer = (limit, 0, 0, 0, 0), (np.inf, 0, 0, 0, 0, np.inf)
    ranges = [(0, len(caps) - 1, fewest, most)]
    while ranges:
        low, high, fewest, most = ranges.pop()
        allowed = _capped(costs, exchange, caps[high])
        dp = _without_growth(allowed, most, singles)
        shortest, deepest = most + 1, 0
        for depth in range(fewest, most + 1):
            # Loads and exchange under the largest limit are a result; the smallest exchange bounds the range.
            for cap in (high, low):
                wait = np.full(len(costs.last) + 1, caps[cap])
                time, d, s, u, j = best_first_stage(dp, allowed, wait, pipelines, depth, depth)
                rank = (time, devices_of(s, u, pipelines.wide) * d, d, s, j)
                if cap == high and time < limit and rank < best:
                    best, answer = rank, (time, d, s, u, j, caps[high])
            if time < best[0]:
                shortest, deepest = min(shortest, depth), depth
        if low < high and deepest > 0:
            middle = (low + high) // 2
            ranges.append((low, middle, shortest, deepest))
            # The limit `high` has just been evaluated.
            if middle + 1 < high:
                ranges.append((middle + 1, high - 1, shortest, deepest))
    time, d, s, u, j, longest = answer
    allowed = _capped(costs, exchange, longest)
    return time, d, _trace_back(_without_growth(allowed, s, singles), allowed, s, u, j)


@njit_nested
def _without_growth(costs: SplitCosts, stages: int, singles: int) -> Floats:
    """Table dp[s, u, i] of smallest bottleneck loads, if a stage's load does not depend on its position."""
    growth = np.zeros(costs.load.shape)
    return least_worst(costs.last, costs.load, growth, costs.most_stages, costs.single, stages, singles)


@njit_nested
def _trace_back(dp: Floats, costs: SplitCosts, s: int, u: int, j: int) -> Ints:
    """First layers of s stages, u of them single-device, after first stage [0, j); earliest ends on ties."""
    n, singles = dp.shape[2] - 1, dp.shape[1] - 1
    starts, i = np.zeros(s, np.int64), 0
    for remaining in range(s - 1, 0, -1):
        u -= min(int(costs.single[i, j]), singles)
        i = j
        starts[s - remaining] = i
        for end in range(i + 1, n if remaining > 1 else 0):
            j, step = end, min(int(costs.single[i, end]), singles)
            possible = step <= u and costs.most_stages[i, j] >= remaining
            # Equality is exact: the table has the maximum of these very operands.
            if possible and max(dp[remaining - 1, u - step, j], costs.load[i, j]) == dp[remaining, u, i]:
                break
    return starts


@njit_nested
def _capped(costs: SplitCosts, exchange: Floats, cap: float) -> SplitCosts:
    """Stage costs with an infinite load for every stage whose gradient exchange exceeds a limit."""
    last = np.where(exchange[:, -1] > cap, np.inf, costs.last)
    load = np.where(exchange > cap, np.inf, costs.load)
    return SplitCosts(last, load, costs.most_stages, costs.single)
