"""Possible stages of a graph with branches, with one option per candidate number of devices.

Stages are the differences of nested downsets. Each has options, one for every useful number of devices. Each
option has schedules that are equally fast but differ in memory. Each schedule has groups of devices. Every
level is a flat array, with the index of the first entry of each part of the level above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.bitsets import Words, holds
from phaze.base.compiled import njit
from phaze.cost.memory import most_in_flight
from phaze.plan.downsets import Downsets
from phaze.plan.phaze.branch_passes import pass_buffers
from phaze.plan.phaze.stages import TimedLayers, all_assignments, stage_schedules

Values = TypeVar("Values", Ints, Floats)


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
        fitting = np.minimum.reduceat(fitting, self.group[:-1])
        return np.asarray(np.maximum.reduceat(fitting, self.schedule[:-1]), np.int64)

    def peak_bytes(self, in_flight: int) -> Floats:
        """Peak memory of each option, in bytes."""
        needed = self.constant_bytes + in_flight * self.stashed_bytes
        needed = np.maximum.reduceat(needed, self.group[:-1])
        return np.asarray(np.minimum.reduceat(needed, self.schedule[:-1]), float)


def count_stages(downsets: Downsets) -> int:
    """Number of possible stages of a graph."""
    return int(_inside(downsets.words).sum())


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


def options_of(
    work: TimedLayers, downsets: Downsets, stages: NestedStages, recompute: bool, most_branches: int
) -> Options:
    """Options of every stage; stages that end the pipeline do not recompute."""
    ways, begins = all_assignments(most_branches)
    return Options(*_options(work, downsets.membership, stages.first, stages.inner, recompute, ways, begins))


@njit
def _options(
    work: TimedLayers, member: Bools, first: Ints, inner: Ints, recompute: bool, ways: Ints, begins: Ints
) -> tuple[Ints, Ints, Floats, Ints, Ints, Floats, Floats]:
    """Compute the arrays of `Options`."""
    option_of, schedule_of, group_of = np.zeros(len(inner) + 1, np.int64), _whole(), _whole()
    devices, load, constant, stashed = _whole(), _real(), _real(), _real()
    inside, buffers = np.zeros(member.shape[1], np.bool_), pass_buffers(member.shape[1])
    options = schedules = groups = 0
    for outer in range(len(member)):
        for stage in range(first[outer], first[outer + 1]):
            for v in range(len(inside)):
                inside[v] = member[outer, v] and not member[inner[stage], v]
            found = stage_schedules(work, inside, recompute and inner[stage] > 0, ways, begins, buffers)
            last = 0
            for v in found.kept:
                if found.devices[v] != last:
                    devices, load = _grown(devices, options), _grown(load, options)
                    schedule_of = _grown(schedule_of, options + 1)
                    devices[options], load[options] = found.devices[v], found.load_s[v]
                    options, last = options + 1, found.devices[v]
                for g in range(found.groups[v]):
                    constant, stashed = _grown(constant, groups), _grown(stashed, groups)
                    constant[groups], stashed[groups] = found.constant_bytes[v, g], found.stashed_bytes[v, g]
                    groups += 1
                schedules += 1
                schedule_of[options] = schedules
                group_of = _grown(group_of, schedules)
                group_of[schedules] = groups
            option_of[stage + 1] = options
    return (
        option_of, devices[:options], load[:options], schedule_of[: options + 1], group_of[: schedules + 1],
        constant[:groups], stashed[:groups],
    )  # fmt: skip


@njit
def _whole() -> Ints:
    return np.zeros(1024, np.int64)


@njit
def _real() -> Floats:
    return np.zeros(1024)


@njit
def _grown(values: Values, position: int) -> Values:
    """Return the array, enlarged if it is too short for a position."""
    if position < len(values):
        return values
    longer = np.zeros(2 * len(values), values.dtype)
    longer[: len(values)] = values
    return longer
