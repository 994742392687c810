"""Possible cuts of a graph with branches, and the recurrence that finds the best one (Phaze, Section 5).

    dp[s][D][k] = min over downsets D' of D and devices a of max(dp[s - 1][D'][k - a], load(D minus D', a, s))

is the least worst load if downset D is cut into s stages on exactly k devices. Stages are counted from the
end; the table of s = 0 is 0 for the empty downset on no device. The load of a stage that does not fit the
memory at its position is infinite. A pipeline takes t devices per group with a tensor-parallel layer and one
per other group, so only some k are possible; k is an index into these.

Stages are the differences of nested downsets. Each has options, one for every useful number of devices. Each
option has schedules that are equally fast but differ in memory. Each schedule has groups of devices. Every
level is a flat array, with the index of the first entry of each part of the level above.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.bitsets import Words, holds
from phaze.base.compiled import njit
from phaze.base.errors import PhazeError
from phaze.cost.memory import microbatches_in_flight, most_in_flight
from phaze.formulas.cuts import PipelineCounts
from phaze.formulas.downsets import Downsets, enumerate_downsets
from phaze.formulas.flushing import Chain, Setting
from phaze.formulas.phaze.branch_passes import pass_buffers
from phaze.formulas.phaze.stages import MOST_BRANCHES, TimedLayers, all_assignments, stage_schedules, work_of
from phaze.layout import Layout

MOST_DOWNSETS = 10_000
MOST_STAGES = 1_500_000
"""Limit on the number of stages considered; each takes about 10 us, and 100 bytes per option."""
NOWHERE = -1


class NestedStages(NamedTuple):
    """All stages of a graph, sorted by their outer downset: the stage and everything after it."""

    first: Ints
    """(downsets + 1,) index of the first stage with each outer downset."""
    inner: Ints
    """(stages,) downset that remains after the stage, largest first, so the smallest stage comes first."""


@dataclass(frozen=True, eq=False)
class Options:
    """Options of every stage: number of devices, load and memory; fewest devices first."""

    first: Ints
    """(stages + 1,) index of the first option of each stage."""
    devices: Ints
    """(options,) number of devices."""
    load_s: Floats
    """(options,) load in seconds per microbatch."""
    schedule: Ints
    """(options + 1,) index of the first schedule of each option."""
    group: Ints
    """(schedules + 1,) index of the first group of each schedule."""
    constant_bytes: Floats
    """(groups,) bytes stored, independent of the microbatches in flight."""
    stashed_bytes: Floats
    """(groups,) bytes per microbatch in flight."""

    def in_flight(self, memory_bytes: float, limit: int) -> Ints:
        """Maximum microbatches in flight that each option has memory for; -1 if it does not fit at all.

        B.1 returns the largest s; under 1F1B it is one more.
        """
        fitting = most_in_flight(self.constant_bytes, self.stashed_bytes, memory_bytes, limit)
        # All groups of a schedule have to fit, and one schedule of an option is enough.
        fitting = np.minimum.reduceat(fitting, self.group[:-1])
        return np.asarray(np.maximum.reduceat(fitting, self.schedule[:-1]), np.int64)

    def peak_bytes(self, in_flight: int) -> Floats:
        """Peak memory of each option, in bytes."""
        needed = self.constant_bytes + in_flight * self.stashed_bytes
        # The peak of a schedule is that of its fullest group; an option can choose the leanest schedule.
        needed = np.maximum.reduceat(needed, self.group[:-1])
        return np.asarray(np.minimum.reduceat(needed, self.schedule[:-1]), float)


def stages_of(downsets: Downsets) -> NestedStages:
    """All stages of the graph: pairs of nested downsets."""
    first = np.concatenate(([0], np.cumsum(_inside(downsets.words))))
    return NestedStages(first, _inner(downsets.words, first))


@njit
def _inside(words: Words) -> Ints:
    """Number of smaller downsets contained in each downset."""
    count = np.zeros(len(words), np.int64)
    for outer in range(len(words)):
        for inner in range(outer):
            count[outer] += holds(words, outer, inner)
    return count


@njit
def _inner(words: Words, first: Ints) -> Ints:
    """Smaller downsets contained in each downset, the larger ones first."""
    inner = np.empty(first[-1], np.int64)
    for outer in range(len(words)):
        filled = first[outer]
        for candidate in range(outer - 1, -1, -1):
            if holds(words, outer, candidate):
                inner[filled] = candidate
                filled += 1
    return inner


@njit
def _options(
    work: TimedLayers,
    member: Bools,
    first: Ints,
    inner: Ints,
    recompute: bool,
    assignments: Ints,
    begins: Ints,
) -> tuple[Ints, Ints, Floats, Ints, Ints, Floats, Floats]:
    """Compute the arrays of `Options`; stages that end the pipeline do not recompute."""
    option_of, schedule_of, group_of = [0], [0], [0]
    devices, load_s, constant_bytes, stashed_bytes = [0][:0], [0.0][:0], [0.0][:0], [0.0][:0]
    buffers = pass_buffers(member.shape[1])
    for outer in range(len(member)):
        for stage in range(first[outer], first[outer + 1]):
            inside = member[outer] & ~member[inner[stage]]
            repeat = recompute and inner[stage] > 0
            variants = stage_schedules(work, inside, repeat, assignments, begins, buffers)
            last = 0
            for v in variants.undominated:
                # Schedules come by number of devices: a new number is a new option.
                if variants.devices[v] != last:
                    last = variants.devices[v]
                    devices.append(last)
                    load_s.append(variants.load_s[v])
                    schedule_of.append(0)
                constant_bytes.extend(variants.constant_bytes[v, : variants.groups[v]])
                stashed_bytes.extend(variants.stashed_bytes[v, : variants.groups[v]])
                group_of.append(len(constant_bytes))
                schedule_of[-1] = len(group_of) - 1
            option_of.append(len(devices))
    return (
        np.array(option_of), np.array(devices), np.array(load_s), np.array(schedule_of), np.array(group_of),
        np.array(constant_bytes), np.array(stashed_bytes),
    )  # fmt: skip


class DeviceCounts(NamedTuple):
    """Possible device counts of a pipeline, and how adding a stage changes them."""

    devices: Ints
    """(k,) possible device counts, ascending from 0."""
    step: Ints
    """(options,) index of each option's device count among the distinct counts of all options."""
    after: Ints
    """(steps, k) index of the device count after adding such a stage, NOWHERE if it is too large."""


@dataclass(frozen=True, eq=False)
class Cutting:
    """Layer graph for one TMP width, with its downsets, possible stages and their options."""

    graph: Chain
    layout: Layout
    work: TimedLayers
    downsets: Downsets
    stages: NestedStages
    options: Options

    def room(self, setting: Setting) -> Ints:
        """Number of microbatches in flight that each option has memory for."""
        limit = max(len(self.graph), setting.microbatches)
        return self.options.in_flight(setting.memory_bytes, limit)

    def in_flight(self, setting: Setting, microbatches: int) -> list[int]:
        """Microbatches in flight that the s-th stage from the end must hold in memory, for s = 1, 2, ..."""
        depths = range(1, len(self.graph) + 1)
        return [microbatches_in_flight(setting.schedule, s, microbatches) for s in depths]

    def widths(self, devices: int) -> DeviceCounts:
        """Device counts that a pipeline can have, up to a limit."""
        split = int(np.count_nonzero(self.graph.tensor_parallel))
        # At most one group of t devices per tensor-parallel layer, and one single device per other layer.
        groups = np.arange(split + 1)[:, None] * self.layout.tp + np.arange(len(self.graph) - split + 1)
        possible = np.unique(groups[groups <= devices])
        steps, step = np.unique(self.options.devices, return_inverse=True)
        totals = steps[:, None] + possible
        after = np.searchsorted(possible, totals)
        reachable = possible[np.minimum(after, len(possible) - 1)] == totals
        return DeviceCounts(possible, step.astype(np.int64), np.where(reachable, after, NOWHERE))

    def behind(self, option: int) -> int:
        """Downset that remains once the option's stage is removed."""
        return int(self.stages.inner[np.searchsorted(self.options.first, option, side="right") - 1])

    def tables(self, widths: DeviceCounts, costs: Iterator[Floats]) -> Iterator[Floats]:
        """Yield tables dp[0], dp[1], ... from the stage costs at s = 1, 2, ..., while any downset fits."""
        dp = np.full((len(self.downsets), len(widths.devices)), np.inf)
        dp[0, 0] = 0.0
        yield dp
        for cost in costs:
            dp = _one_more_stage(dp, self.stages, self.options.first, widths, cost)
            if not np.isfinite(dp).any():
                return
            yield dp


def cutting_of(graph: Chain, layout: Layout, setting: Setting) -> Cutting:
    """Downsets and stages of a graph; PhazeError if there are too many."""
    downsets = few_downsets(graph)
    stages = stages_of(downsets)
    work = work_of(graph, layout, setting.bandwidth_bytes_per_s)
    assignments = all_assignments(MOST_BRANCHES)
    arrays = _options(work, downsets.membership, *stages, setting.recompute, *assignments)
    return Cutting(graph, layout, work, downsets, stages, Options(*arrays))


def few_downsets(
    graph: Chain, most_downsets: int = MOST_DOWNSETS, most_stages: int = MOST_STAGES
) -> Downsets:
    """Downsets of a graph; PhazeError if there are too many downsets or possible stages."""
    try:
        downsets = enumerate_downsets(len(graph), graph.pairs, most_downsets)
    except PhazeError as error:
        raise PhazeError(_too_many(f"more than {most_downsets} downsets", f"{most_downsets}")) from error
    if (stages := int(_inside(downsets.words).sum())) > most_stages:
        size = f"{len(downsets)} downsets and {stages} possible stages"
        raise PhazeError(_too_many(size, f"{most_stages} stages"))
    return downsets


def _too_many(size: str, allowed: str) -> str:
    return (
        f"the layer graph has {size}, allowed are {allowed}: merge layers that run beside each "
        "other, or add edges of 0 bytes that say which comes first"
    )


@njit
def _one_more_stage(
    dp: Floats, stages: NestedStages, option: Ints, widths: DeviceCounts, cost: Floats
) -> Floats:
    """Compute dp[s] from dp[s - 1]; `cost` (options,) is inf for options that do not fit."""
    grown = np.full(dp.shape, np.inf)
    lowest, highest = _finite(dp)
    for outer in range(len(dp)):
        for stage in range(stages.first[outer], stages.first[outer + 1]):
            inner = stages.inner[stage]
            if highest[inner] < 0:
                continue
            for o in range(option[stage], option[stage + 1]):
                if cost[o] == np.inf:
                    continue
                for k in range(lowest[inner], highest[inner] + 1):
                    total = widths.after[widths.step[o], k]
                    if total >= 0:
                        # The worst stage decides: that of the rest or the new one.
                        grown[outer, total] = min(grown[outer, total], max(dp[inner, k], cost[o]))
    return grown


@njit
def _finite(dp: Floats) -> tuple[Ints, Ints]:
    """Indices of the first and the last finite entry of each row, -1 if there is none."""
    lowest, highest = np.full(len(dp), -1, np.int64), np.full(len(dp), -1, np.int64)
    for row in range(len(dp)):
        for k in range(dp.shape[1]):
            if dp[row, k] < np.inf:
                highest[row] = k
                if lowest[row] < 0:
                    lowest[row] = k
    return lowest, highest


@dataclass(frozen=True)
class FirstStage:
    """First stage of the best pipeline of a given depth."""

    rank: tuple[float, int, int, int, int]
    """Sort key: (time per batch, devices of all pipelines, d, s, number of layers in the first stage)."""
    option: int
    k: int
    """Index of the pipeline's device count."""


class FirstStageCosts(NamedTuple):
    """Costs of every possible first stage of a pipeline."""

    load_s: Floats
    """Load of each option, infinite if it does not fit, (options,)."""
    sync_s: Floats
    """Gradient exchange time in the limit of many replicas, by the downset that remains after the stage."""
    size: Ints
    """Number of layers in the stage, by the downset that remains after it."""


@njit
def best_first_stage(
    dp: Floats,
    s: int,
    stages: NestedStages,
    option: Ints,
    widths: DeviceCounts,
    costs: FirstStageCosts,
    pipelines: PipelineCounts,
) -> tuple[tuple[float, int, int, int, int], int, int]:
    """First stage of the best pipeline with s stages; the rest comes from dp[s - 1] (Phaze, Section 5).

        min over d, D', a, k of (ceil(B/d) + s - 1) max(dp[s - 1][D'][k - a], load) + (d - 1)/d
        first_sync[D']

    with d k <= K. Ties go to the fewest devices, then the smallest d and first stage. The result has the
    fields of `FirstStage`; `option` (stages + 1,) is the first option of every stage.
    """
    best, chosen, devices = (np.inf, 0, 0, 0, 0), -1, -1
    for stage in range(stages.first[-2], stages.first[-1]):
        inner = stages.inner[stage]
        for o in range(option[stage], option[stage + 1]):
            for k in range(dp.shape[1]):
                total = widths.after[widths.step[o], k]
                worst = max(dp[inner, k], costs.load_s[o])
                if total < 0 or worst == np.inf:
                    continue
                used = widths.devices[total]
                top = np.searchsorted(pipelines.data, pipelines.devices // used, side="right") - 1
                for w in range(top, -1, -1):
                    busy = (pipelines.counts[w] + s - 1) * worst
                    # Fewer replicas have more microbatches each, so no narrower width can be faster.
                    if not busy <= best[0] or busy == np.inf:
                        break
                    d = pipelines.data[w]
                    time = busy + (d - 1) / d * costs.sync_s[inner]
                    rank = (time, used * d, d, s, costs.size[inner])
                    if rank < best:
                        best, chosen, devices = rank, o, total
    return best, chosen, devices
