"""Schedules that follow a sequence: operators start in a given order, each as early as it can.

Every schedule in which no operator could start earlier by itself is that of the sequence of its starts, so
looking for a good schedule is looking for a good sequence and for who runs on all cores. What is made here
can be executed under the paper's model (Section 4): an operator on all cores runs alone, a fused operator
occupies the two cores of a pair, a network operator holds the link. Cores are numbered from 0; pair c is
tensor core c with vector core c.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.schedule.graphs import ALL_CORES, FUSED, NETWORK, TENSOR, Part
from phaze.schedule.pairing import sort_stably


class State(NamedTuple):
    """Until when everything is busy while a sequence is followed."""

    cores: Floats
    """Tensor cores (row 0) and vector cores (row 1)."""
    ends: Floats
    """Computing operators, those on all cores, network operators, those alone, shape (4,)."""
    ready: Floats
    """Ends of the predecessors of every operator, shape (n,)."""


@njit
def follow_sequence(part: Part, sequence: Ints, wide: Bools, start: Floats, core: Ints) -> float:
    """Return the latency of a sequence that respects the order, and fill `start` and `core`, shape (n,)."""
    n = len(sequence)
    state = State(np.zeros((2, max(part.num_tc, part.num_vc))), np.zeros(4), np.zeros(n))
    now = 0.0
    for i in sequence:
        network = part.kinds[i] == NETWORK
        now = max(now, _earliest(state, i, network, wide[i]))
        core[i] = ALL_CORES if wide[i] else 0
        if not wide[i] and not network:
            core[i] = _choose_core(part, state.cores, part.kinds[i], now)
            for r in range(2):
                if part.kinds[i] in (r, FUSED):
                    now = max(now, state.cores[r, core[i]])
        start[i] = now
        end = now + (part.every[i] if wide[i] else part.one[i])
        _occupy(part, state, i, core[i], end)
    return float(state.ends.max())


@njit
def _earliest(state: State, i: int, network: bool, wide: bool) -> float:
    """Return when an operator can start at the earliest, whatever the cores."""
    earliest = max(state.ready[i], state.ends[3])
    if network:
        earliest = max(earliest, state.ends[2])
    if wide:
        earliest = max(earliest, state.ends[0])
    elif not network:
        earliest = max(earliest, state.ends[1])
    return float(earliest)


@njit
def _choose_core(part: Part, cores: Floats, kind: int, now: float) -> int:
    """Return a core that is free now, one without a partner if there is one, else the first to be free."""
    pairs = min(part.num_tc, part.num_vc)
    best, key = 0, np.inf
    for c in range(pairs if kind == FUSED else part.num_tc if kind == TENSOR else part.num_vc):
        free = max(cores[0, c], cores[1, c]) if kind == FUSED else cores[kind, c]
        if free <= now:
            spoilt = kind == FUSED or c >= pairs or cores[1 - kind, c] > now
            free = -np.inf if spoilt else -1.0
        if free < key:
            best, key = c, free
    return best


@njit
def _occupy(part: Part, state: State, i: int, core: int, end: float) -> None:
    """Note until when an operator occupies what it needs, and when its followers are ready."""
    network = part.kinds[i] == NETWORK
    k = 2 if network else 0
    state.ends[k] = max(state.ends[k], end)
    if core == ALL_CORES:
        state.ends[k + 1] = max(state.ends[k + 1], end)
    elif not network:
        for r in range(2):
            if part.kinds[i] in (r, FUSED):
                state.cores[r, core] = end
    for j in part.followers[part.offsets[i] : part.offsets[i + 1]]:
        state.ready[j] = max(state.ready[j], end)


@njit
def sequence_by_tail(part: Part, duration: Floats) -> Ints:
    """Return the operators by falling length of the longest path from their start, then topologically."""
    n = len(duration)
    tail = np.zeros(n)
    for i in range(n - 1, -1, -1):
        longest = 0.0
        for j in part.followers[part.offsets[i] : part.offsets[i + 1]]:
            longest = max(longest, tail[j])
        tail[i] = duration[i] + longest
    return sort_stably(-tail)
