"""The dynamic program with a number of devices for each stage (Parmesan, (2) and (3)).

    T[F, d, s] = min over fronted subgraphs F' of F, F' != F, and d' < d of
                 max(T[F', d', s - 1], t(F - F', d - d'))

A stage on a devices takes 1/a of its time, and has the memory of a devices. Parmesan gives all stages R
devices instead (13), as different numbers make replicas exchange tensors in costly ways; this is what that
gives away in the slowest stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.bitsets import Words, contains, unpack
from phaze.base.compiled import njit
from phaze.partition.flow import FEW_SETS
from phaze.partition.fronted import Family, family, windows_within
from phaze.partition.weights import ROUNDING, Weights


@dataclass(frozen=True, eq=False)
class FreeCut:
    """A partition with its own number of devices for each stage."""

    stage_of: Ints
    """Shape (n,)."""
    devices: Ints
    """Of each stage, shape (S,)."""
    time_s: float
    """Of the slowest stage."""


def cut_freely(weights: Weights, stages: int, devices: int, most_sets: int = FEW_SETS) -> FreeCut | None:
    """Return the best partition into stages on so many devices in all, None if none fits the memory.

    TooManyError if the graph has more than `most_sets` fronted subgraphs.
    """
    if devices < stages:
        return None
    inner = family(weights, windows_within(weights, 2, np.inf), 1, most_sets)
    sets = _in_order(inner)
    target = np.ascontiguousarray(weights.edges[:, 1])
    time, memory = _stages(
        inner.words[sets], inner.compute_s[sets], inner.memory_bytes[sets], inner.sent_bytes[sets],
        sets, inner.first, inner.crossing, target, weights.edge_bytes, weights.seconds_per_byte,
    )  # fmt: skip
    values, before, used = _fill(time, memory, weights.limit_bytes * (1 + ROUNDING), stages, devices)
    if not np.isfinite(values[stages, -1, devices]):
        return None
    stage_of, shares = np.zeros(len(weights), dtype=np.int64), []
    row, left = len(sets) - 1, devices
    for s in range(stages, 0, -1):
        shares.append(int(used[s, row, left]))
        row, left = int(before[s, row, left]), left - shares[-1]
        stage_of[~unpack(inner.words[sets[row] : sets[row] + 1], len(weights))[0]] += 1
    return FreeCut(stage_of - 1, np.array(shares[::-1]), float(values[stages, -1, devices]))


def _in_order(sets: Family) -> Ints:
    """Return the sets, smaller ones first."""
    return np.argsort(np.bitwise_count(sets.words).sum(axis=1), kind="stable").astype(np.int64)


@njit
def _stages(
    words: Words,
    compute: Floats,
    memory: Floats,
    sent: Floats,
    place: Ints,
    first: Ints,
    crossing: Ints,
    target: Ints,
    size: Floats,
    seconds_per_byte: float,
) -> tuple[Floats, Floats]:
    """Return the time and the memory of the stage between any two sets (outer, inner), infinite for none."""
    count = len(words)
    time, held = np.full((count, count), np.inf), np.full((count, count), np.inf)
    for row in range(count):
        for k in range(row):
            inside = True
            for w in range(words.shape[1]):
                inside = inside and words[k, w] & ~words[row, w] == 0
            if not inside:
                continue
            over = sent[k] + sent[row]
            for c in range(first[place[k]], first[place[k] + 1]):
                v = target[crossing[c]]
                if not contains(words, row, v):
                    over -= 2.0 * size[crossing[c]]
            time[row, k] = compute[row] - compute[k] + seconds_per_byte * over
            held[row, k] = memory[row] - memory[k] + over
    return time, held


@njit
def _fill(time: Floats, memory: Floats, limit: float, stages: int, devices: int) -> tuple[Floats, Ints, Ints]:
    """Return T[s, F, d], and the best F' and the devices of the last stage for each."""
    count = len(time)
    value = np.full((stages + 1, count, devices + 1), np.inf)
    before = np.zeros(value.shape, np.int64)
    used = np.zeros(value.shape, np.int64)
    value[0, 0, 0] = 0.0
    for s in range(1, stages + 1):
        for row in range(1, count):
            for k in range(row):
                if time[row, k] == np.inf:
                    continue
                for a in range(1, devices + 1):
                    if memory[row, k] > a * limit:
                        continue
                    for d in range(devices - a + 1):
                        reached = max(value[s - 1, k, d], time[row, k] / a)
                        if reached < value[s, row, d + a]:
                            value[s, row, d + a] = reached
                            before[s, row, d + a], used[s, row, d + a] = k, a
    return value, before, used
