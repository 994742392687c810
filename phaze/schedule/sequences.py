"""Schedules that follow a sequence: operators start in a given order, each as early as possible.

Every schedule in which no operator alone could start earlier follows from the sequence of its starts. A
search for a good schedule is therefore a search for a good sequence and a choice of operators on all cores.
The schedules are executable under the paper's model (Section 4): an operator on all cores runs alone, a fused
operator occupies the two cores of a pair, a network operator occupies the link. Cores are numbered from 0;
pair c is tensor core c with vector core c.

For components too wide for a proof, simulated annealing over sequences finds short schedules. A state is a
sequence of the operators and the choice of operators on all cores. A move changes this choice for one
operator, or its place in the sequence. Worse states are accepted with a probability that falls with the
temperature. The random numbers are the same in every run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.schedule.clock import bound_by_weights
from phaze.schedule.graphs import (
    ALL_CORES,
    FUSED,
    NETWORK,
    TENSOR,
    ComponentArrays,
    ComponentDesigns,
    OrderArrays,
)
from phaze.schedule.pairing import sort_stably

HOT, COLD = 0.1, 0.001
"""First and last temperature of the simulated annealing, relative to the latency."""
STARTS = 5
"""Number of initial states, each with its own threshold for running operators on all cores."""


class SequenceState(NamedTuple):
    """State of a partly scheduled sequence: end times by core and kind, and when operators are ready."""

    cores: Floats
    """End of the current work on each tensor core (row 0) and vector core (row 1)."""
    ends: Floats
    """Latest end of compute operators, those on all cores, network operators and exclusive ones, (4,)."""
    ready: Floats
    """Latest end of the predecessors of each operator, shape (n,)."""


@njit
def follow_sequence(part: ComponentArrays, sequence: Ints, wide: Bools, start: Floats, core: Ints) -> float:
    """Latency of the schedule that follows a sequence; fills `start` and `core`, shape (n,)."""
    n = len(sequence)
    state = SequenceState(np.zeros((2, max(part.num_tc, part.num_vc))), np.zeros(4), np.zeros(n))
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
def _earliest(state: SequenceState, i: int, network: bool, wide: bool) -> float:
    """Earliest start of an operator, ignoring core limits."""
    earliest = max(state.ready[i], state.ends[3])
    if network:
        earliest = max(earliest, state.ends[2])
    if wide:
        earliest = max(earliest, state.ends[0])
    elif not network:
        earliest = max(earliest, state.ends[1])
    return float(earliest)


@njit
def _choose_core(part: ComponentArrays, cores: Floats, kind: int, now: float) -> int:
    """Free core, preferably without a free partner; otherwise the first to become free."""
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
def _occupy(part: ComponentArrays, state: SequenceState, i: int, core: int, end: float) -> None:
    """Update when the resources of an operator become free, and when its successors are ready."""
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
def sequence_by_tail(part: ComponentArrays, duration: Floats) -> Ints:
    """Operators sorted by descending length of the longest path from their start, then topologically."""
    n = len(duration)
    tail = np.zeros(n)
    for i in range(n - 1, -1, -1):
        longest = 0.0
        for j in part.followers[part.offsets[i] : part.offsets[i + 1]]:
            longest = max(longest, tail[j])
        tail[i] = duration[i] + longest
    return sort_stably(-tail)


Randoms = npt.NDArray[np.uint64]


@njit
def bound_wide_all(arrays: OrderArrays, designs: ComponentDesigns, moves: int) -> tuple[Floats, Floats]:
    """Lower bounds from weights and feasible latencies from annealing, on all architectures, shape (A,)."""
    kinds, order, offsets, followers = arrays
    one_core_s, every, num_tc, num_vc = designs
    lower, feasible = np.zeros(len(one_core_s)), np.zeros(len(one_core_s))
    for a in range(len(one_core_s)):
        part = ComponentArrays(
            kinds, order, offsets, followers, one_core_s[a], every[a], num_tc[a], num_vc[a]
        )
        feasible[a] = search_sequences(part, moves)[0]
        lower[a] = min(bound_by_weights(part), feasible[a])
    return lower, feasible


@njit
def search_sequences(part: ComponentArrays, moves: int) -> tuple[float, Floats, Ints]:
    """Latency, start times and cores of the best schedule that simulated annealing finds in `moves` moves."""
    n = len(part.kinds)
    start, core = np.zeros(n), np.zeros(n, dtype=np.int64)
    sequence, wide = _first_state(part, start, core)
    latency = follow_sequence(part, sequence, wide, start, core)
    best, best_sequence, best_wide = latency, sequence.copy(), wide.copy()
    random = np.full(1, 88172645463325252, dtype=np.uint64)
    for move in range(moves):
        limit = latency + best * HOT * (COLD / HOT) ** (move / moves) * -np.log(_draw(random) + 1e-12)
        i, p, q = _propose(part, sequence, wide, random)
        new = follow_sequence(part, sequence, wide, start, core)
        if new > limit:
            _undo(sequence, wide, i, p, q)
            continue
        latency = new
        if latency < best * (1 - 1e-12):
            best, best_sequence[:], best_wide[:] = latency, sequence, wide
    return follow_sequence(part, best_sequence, best_wide, start, core), start, core


@njit
def _first_state(part: ComponentArrays, start: Floats, core: Ints) -> tuple[Ints, Bools]:
    """Best of several initial states, each with all cores for operators that gain more than a threshold."""
    n = len(part.kinds)
    gain, duration, wide = np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.bool_)
    for i in range(n):
        gain[i] = part.one[i] / part.every[i] if part.every[i] > 0 else np.inf if part.one[i] > 0 else 1.0
    ranked = sort_stably(gain)
    best, best_sequence, best_wide = np.inf, np.arange(n), wide.copy()
    for k in range(STARTS):
        for i in range(n):
            wide[i] = gain[i] > 1 and gain[i] >= gain[ranked[(n - 1) * k // (STARTS - 1)]]
            wide[i] = wide[i] or part.one[i] == np.inf
            duration[i] = part.every[i] if wide[i] else part.one[i]
        sequence = sequence_by_tail(part, duration)
        latency = follow_sequence(part, sequence, wide, start, core)
        if latency < best:
            best, best_sequence, best_wide[:] = latency, sequence, wide
    return best_sequence, best_wide


@njit
def _propose(part: ComponentArrays, sequence: Ints, wide: Bools, random: Randoms) -> tuple[int, int, int]:
    """Apply a random move: toggle all cores for operator i, or move place p to q; -1 for unused indices."""
    n = len(sequence)
    p = int(_draw(random) * n)
    i = sequence[p]
    if _draw(random) < 0.4 and part.one[i] < np.inf and part.every[i] < part.one[i]:
        wide[i] = not wide[i]
        return i, -1, -1
    first, last = p, p
    while first > 0 and not part.order[sequence[first - 1], i]:
        first -= 1
    while last < n - 1 and not part.order[i, sequence[last + 1]]:
        last += 1
    q = first + int(_draw(random) * (last - first + 1))
    _shift(sequence, p, q)
    return -1, p, q


@njit
def _undo(sequence: Ints, wide: Bools, i: int, p: int, q: int) -> None:
    """Revert the change of `_propose`."""
    if i >= 0:
        wide[i] = not wide[i]
    else:
        _shift(sequence, q, p)


@njit
def _shift(sequence: Ints, p: int, q: int) -> None:
    """Move the operator at place p to place q."""
    i, step = sequence[p], 1 if q > p else -1
    while p != q:
        sequence[p] = sequence[p + step]
        p += step
    sequence[q] = i


@njit
def _draw(random: Randoms) -> float:
    """Next random number from 0 to 1 (xorshift, Marsaglia 2003)."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return float(x >> np.uint64(11)) / 9007199254740992.0
