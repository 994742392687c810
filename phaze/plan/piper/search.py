r"""Fewest devices with which every stage meets a time limit: Piper's dynamic program for a threshold.

For a time τ let f(D, s) be the fewest devices that run the downset D in stages of at most τ each whose
data-parallel degrees sum to exactly s. With Piper's recursion (Section 4),

    f(∅, 0) = 0,    f(D, s) = min of f(D', s - d) + d t  over downsets D' of D, t, d
                              with TPS(D \ D', t, d, s) <= τ,

and a plan within τ exists if f(V, s) <= K for an s that the batch allows. A table of times for every k is not
needed. s is the exact sum, so no monotonicity of TPS in s is assumed: with the rule of `knapsack` a stage may
take less time with more microbatches in flight.

The search prunes two kinds of states without losing the optimum:

- A stage on d devices of width t has d t τ >= Σ t (X.p + transfers): d·t devices can do no more in a time per
  sample of τ. States are not extended if the remaining layers, with any configurations, need more than the
  K - f remaining devices. Stages are not tried if their own work exceeds d t τ or they leave too few devices
  for the rest. Every stage of a plan within τ and K devices passes both tests.
- Of two ways to reach (D, s) only the one with fewer devices is kept: the rest depends only on D, s and the
  remaining devices. A way that is no better is not priced at all.

Downsets are sorted by work, which respects inclusion. Candidate supersets then lie in windows: for each
number q = d t of devices those with between W(V) - (K - f - q) τ and W(D') + q τ of work.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Floats, Ints
from phaze.base.bitsets import holds
from phaze.base.compiled import njit
from phaze.base.deadline import Deadline, slices
from phaze.plan.piper.prices import SLACK, Known, SearchTables, meets, price_wanted, stage_base
from phaze.plan.piper.stages import ConfigurationCosts
from phaze.plan.piper.sums import MISSING

Table = NDArray[np.int32]

NONE = 2**30
"""Value of f(D, s) for a state that no plan reaches."""


FIRST_PAIRS = 100_000
"""Number of downset pairs in the first slice, enough for small searches to need only one slice."""


class States(NamedTuple):
    """Search states (D, s): the fewest devices of each state, and the range of s with a plan."""

    fewest: Table
    """(m, S + 1) f(D, s), NONE if no plan is known."""
    low: Ints
    """(m,) smallest s with a plan."""
    high: Ints
    """(m,) largest s with a plan."""


def fewest_devices(
    problem: SearchTables,
    costs: ConfigurationCosts,
    known: Known,
    devices: int,
    threshold_s: float,
    fewest: Table,
) -> Known:
    """Compute f(D, s), the fewest devices by downset and degree sum, (m, S + 1); NONE above `devices`.

    The search stops at a downset with stages whose price needs an exact knapsack or all layers, and continues
    from it once they are priced. It runs in slices, between which Ctrl-C is handled. Returns the updated
    cache of prices.
    """
    count = len(fewest)
    rest = np.ceil(np.minimum(problem.sums.rest_s / threshold_s / SLACK, NONE)).astype(np.int64)
    states = States(fewest, np.full(count, fewest.shape[1]), np.full(count, -1))
    known.stage[:] = -1
    fewest[:] = NONE
    fewest[0, 0] = states.low[0] = states.high[0] = 0
    for begin, end in slices(count - 1, Deadline(), max(1, FIRST_PAIRS // count)):
        i = begin
        while i < end:
            i = _search(problem, known, states, rest, devices, threshold_s, i, end)
            known = price_wanted(problem, costs, known)
    return known


@njit
def _search(
    problem: SearchTables,
    known: Known,
    states: States,
    rest: Ints,
    devices: int,
    threshold_s: float,
    begin_with: int,
    end_before: int,
) -> int:
    """Extend the states of some downsets in order; return the first downset with stages yet to be priced.

    rest: (m,) lower bound on the devices for the layers outside each downset.
    """
    sums = problem.sums
    last = len(sums.work_s) - 1
    for i in range(begin_with, end_before):
        if states.high[i] < states.low[i]:
            continue
        used = _least_used(states, i)
        seen = i + 1
        for q in problem.products:
            if used + q > devices:
                break
            least = (sums.work_s[last] - (devices - used - q) * threshold_s) / SLACK
            begin = max(seen, _first_from(sums.work_s, least))
            most = (sums.work_s[i] + q * threshold_s) * SLACK
            seen = max(seen, _first_from(sums.work_s, most))
            for j in range(begin, seen):
                if used < devices - rest[j] and holds(sums.words, j, i):
                    room = devices - rest[j]
                    _extend(problem, known, states, room, threshold_s, i, j, used)
        if known.wanted[0, 0]:
            return i
    return end_before


@njit
def _least_used(states: States, i: int) -> int:
    """Fewest devices of any state of downset i."""
    used = NONE
    for s in range(states.low[i], states.high[i] + 1):
        used = min(used, states.fewest[i, s])
    return used


@njit
def _first_from(values: Floats, least: float) -> int:
    """Index of the first value that is at least `least`; `values` are ascending."""
    begin, end = 0, len(values)
    while begin < end:
        middle = (begin + end) // 2
        if values[middle] < least:
            begin = middle + 1
        else:
            end = middle
    return begin


@njit
def _extend(
    problem: SearchTables,
    known: Known,
    states: States,
    room: int,
    threshold_s: float,
    i: int,
    j: int,
    used: int,
) -> None:
    """Relax every state of downset j with stage (i, j), up to `room` devices in total.

    used: fewest devices of any state of i.
    """
    sums = problem.sums
    for t in range(len(problem.widths)):
        if sums.totals[t, i, MISSING] < sums.totals[t, j, MISSING]:
            continue
        base_s, weight_s = stage_base(sums, t, i, j, threshold_s)
        for index in range(len(problem.degrees)):
            d = problem.degrees[index]
            most = room - d * problem.widths[t]
            if most < used:
                break
            fast_s = base_s + problem.exchanged[index] * weight_s
            if fast_s / d <= threshold_s * SLACK:
                margin_s = threshold_s * d - fast_s
                _follow(problem, known, states, most, margin_s, (i, j, t, index))


@njit
def _follow(
    problem: SearchTables,
    known: Known,
    states: States,
    most: int,
    margin_s: float,
    stage: tuple[int, int, int, int],
) -> None:
    """Relax states of downset j with stage (i, j) at degrees t, d, from states of i with <= `most` devices.

    margin_s: allowed extra time of saving memory, for d times the time.
    """
    i, j, t, index = stage
    fewest, d = states.fewest, problem.degrees[index]
    checked, fits = -1, False
    for s in range(states.low[i] + d, min(states.high[i] + d, fewest.shape[1] - 1) + 1):
        k = fewest[i, s - d]
        if k > most or k + d * problem.widths[t] >= fewest[j, s]:
            continue
        if (s + d - 1) // d != checked:
            checked = (s + d - 1) // d
            fits = meets(problem, known, t, i, j, index, checked, margin_s)
        if fits:
            fewest[j, s] = k + d * problem.widths[t]
            states.low[j] = min(states.low[j], s)
            states.high[j] = max(states.high[j], s)


@njit
def last_stage(
    problem: SearchTables,
    known: Known,
    threshold_s: float,
    fewest: Table,
    j: int,
    s: int,
) -> tuple[int, int, int]:
    """Last stage (D', t, d) that attains f(D, s), with t and d as indices."""
    sums = problem.sums
    for i in range(j):
        if not holds(sums.words, j, i):
            continue
        for t in range(len(problem.widths)):
            if sums.totals[t, i, MISSING] < sums.totals[t, j, MISSING]:
                continue
            base_s, weight_s = stage_base(sums, t, i, j, threshold_s)
            for index in range(len(problem.degrees)):
                d = problem.degrees[index]
                if d > s:
                    break
                if fewest[i, s - d] + d * problem.widths[t] != fewest[j, s]:
                    continue
                fast_s = base_s + problem.exchanged[index] * weight_s
                margin_s, in_flight = threshold_s * d - fast_s, (s + d - 1) // d
                if meets(problem, known, t, i, j, index, in_flight, margin_s):
                    return i, t, index
    return -1, -1, -1
