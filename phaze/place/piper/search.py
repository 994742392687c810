r"""The fewest devices that keep every stage within a time: Piper's dynamic program for a threshold.

For a time τ let f(D, s) be the fewest devices that run the downset D in stages of at most τ each whose data
parallel degrees sum up to exactly s. With Piper's recursion (Section 4),

    f(∅, 0) = 0,    f(D, s) = min of f(D', s - d) + d t  over downsets D' of D, t, d
                              with TPS(D \ D', t, d, s) <= τ,

and a plan within τ exists if f(V, s) <= K for an s that the batch allows. A table of times for every k is not
needed. s is the true sum, so that nothing is assumed of how TPS changes with s: with the rule of `ratio` a
stage may take less time with more in flight.

What is left out, and why the optimum stays:

- A stage on d devices of width t has d t τ >= Σ t (X.p + what is sent): d·t devices can do no more in a time
  per sample of τ. States from which the layers left, their configurations chosen freely, need more than the
  K - f devices left are not extended, nor are stages whose own work exceeds d t τ or that leave too few
  devices for the rest. Every stage of a plan within τ and K devices passes both tests.
- Of two ways to reach (D, s) only that with fewer devices is kept: what follows depends on D and s, and it
  can only use devices that are left. A way that is no better is not priced at all.

Downsets are sorted by work, which respects inclusion; the supersets worth a look then lie in windows: for
each number q = d t of devices those with between W(V) - (K - f - q) τ and W(D') + q τ of work.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phaze.place.piper.layers import Counts, Reals
from phaze.place.piper.ratio import choose_by_ratio
from phaze.place.piper.stages import Costs, price_stage
from phaze.place.piper.sums import Steps, Sums
from phaze.theory.compiled import njit
from phaze.theory.downsets import BITS

Table = NDArray[np.int32]

NONE = 2**30
"""Devices of a state that no plan reaches."""
SLACK = 1 + 1e-9
"""Bounds are only believed beyond rounding."""


class Problem(NamedTuple):
    """What the search for a threshold needs beside it."""

    costs: Costs
    sums: Sums
    steps: Steps
    degrees: Counts
    """Data parallel degrees d allowed, rising."""
    exchanged: Reals
    """For each, how often a microbatch pays 4 w/B on all replicas."""
    products: Counts
    """Devices d·t that a stage may have, rising."""


class States(NamedTuple):
    """What the search has found."""

    fewest: Table
    """(m, S + 1) f(D, s), NONE where no plan is known."""
    low: Counts
    """(m,) the smallest s with a plan."""
    high: Counts
    """(m,) the largest."""


@njit
def fewest_devices(problem: Problem, devices: int, threshold_s: float, fewest: Table) -> None:
    """Write f(D, s) for all downsets, (m, S + 1), NONE where more than `devices` are needed."""
    sums = problem.sums
    last = len(sums.words) - 1
    rest = np.ceil(sums.rest_s / threshold_s / SLACK).astype(np.int64)
    states = States(fewest, np.full(last + 1, fewest.shape[1]), np.full(last + 1, -1))
    fewest[:] = NONE
    fewest[0, 0] = states.low[0] = states.high[0] = 0
    for i in range(last):
        if states.high[i] < states.low[i]:
            continue
        used = fewest[i, states.low[i] : states.high[i] + 1].min()
        seen = i + 1
        for q in problem.products:
            if used + q > devices:
                break
            least = (sums.work_s[last] - (devices - used - q) * threshold_s) / SLACK
            begin = max(seen, np.searchsorted(sums.work_s, least))
            most = (sums.work_s[i] + q * threshold_s) * SLACK
            seen = max(seen, np.searchsorted(sums.work_s, most, side="right"))
            for j in range(begin, seen):
                if used < devices - rest[j] and _inside(sums, i, j):
                    _extend(problem, states, devices - rest[j] - used, threshold_s, i, j, used)


@njit
def _inside(sums: Sums, inner: int, outer: int) -> bool:
    """Return whether downset `inner` lies in downset `outer`."""
    missing = np.uint64(0)
    for w in range(sums.words.shape[1]):
        missing |= sums.words[inner, w] & ~sums.words[outer, w]
    return bool(missing == 0)


@njit
def _extend(
    problem: Problem, states: States, most: int, threshold_s: float, i: int, j: int, used: int
) -> None:
    """Let the stage between downsets i and j, on up to `most` devices, follow the states of i.

    used: the fewest devices of a state of i.
    """
    sums = problem.sums
    for t in range(len(problem.costs.widths)):
        if sums.missing[t, i] < sums.missing[t, j]:
            continue
        base_s = stage_base(sums, t, i, j)
        weight_s = sums.weight_s[t, j] - sums.weight_s[t, i]
        for index in range(len(problem.degrees)):
            d = problem.degrees[index]
            spare = most - d * problem.costs.widths[t]
            if spare < 0:
                break
            if (base_s + problem.exchanged[index] * weight_s) / d <= threshold_s * SLACK:
                _follow(problem, states, used + spare, threshold_s, i, j, t, index)


@njit
def _follow(
    problem: Problem, states: States, most: int, threshold_s: float, i: int, j: int, t: int, index: int
) -> None:
    """Let the stage with t and d follow the states of downset i that use up to `most` devices."""
    fewest, d = states.fewest, problem.degrees[index]
    checked, meets = -1, False
    for s in range(states.low[i] + d, min(states.high[i] + d, fewest.shape[1] - 1) + 1):
        k = fewest[i, s - d]
        if k > most or k + d * problem.costs.widths[t] >= fewest[j, s]:
            continue
        if -(-s // d) != checked:
            checked = -(-s // d)
            meets = stage_time(problem, t, i, j, index, checked) <= threshold_s
        if meets:
            fewest[j, s] = k + d * problem.costs.widths[t]
            states.low[j] = min(states.low[j], s)
            states.high[j] = max(states.high[j], s)


@njit
def stage_base(sums: Sums, t: int, i: int, j: int) -> float:
    """Return d times the time of the stage between downsets i and j, all layers fastest, d = 1."""
    time_s = sums.compute_s[t, j] - sums.compute_s[t, i] + sums.forward_s[t, j] + sums.backward_s[t, i]
    for at in range(sums.cut_first[i], sums.cut_first[i + 1]):
        e = sums.cut_edges[at]
        u = sums.edge_source[e]
        if not sums.words[j, u // BITS] >> np.uint64(u % BITS) & np.uint64(1):
            time_s -= sums.edge_forward_s[t, e] + sums.edge_backward_s[t, e]
    return float(time_s)


@njit
def stage_time(problem: Problem, t: int, i: int, j: int, index: int, in_flight: int) -> float:
    """Return TPS of the stage between downsets i and j with `in_flight` microbatches; infinite: no room."""
    sums, costs = problem.sums, problem.costs
    if in_flight >= problem.steps.layer.shape[1]:
        return np.inf
    limit = costs.limit_bytes
    doubtful = 1e-12 * (limit + sums.stash_bytes[t, j] * in_flight + sums.fixed_bytes[t, j])
    least = (sums.least_stash_bytes[t, j] - sums.least_stash_bytes[t, i]) * in_flight
    if least + sums.least_fixed_bytes[t, j] - sums.least_fixed_bytes[t, i] > limit + doubtful:
        return np.inf
    if not sums.alike[t]:
        return _priced(problem, t, i, j, index, in_flight)
    memory = (sums.stash_bytes[t, j] - sums.stash_bytes[t, i]) * in_flight
    memory += sums.fixed_bytes[t, j] - sums.fixed_bytes[t, i]
    added_s = _added(problem, t, i, j, in_flight, memory - limit, doubtful)
    if added_s < 0:
        return _priced(problem, t, i, j, index, in_flight)
    weight_s = sums.weight_s[t, j] - sums.weight_s[t, i]
    base_s = stage_base(sums, t, i, j) + problem.exchanged[index] * weight_s
    return float((base_s + added_s) / problem.degrees[index])


@njit
def _added(problem: Problem, t: int, i: int, j: int, in_flight: int, excess: float, doubtful: float) -> float:
    """Return what saving `excess` bytes adds to d times the time; infinite: too few; -1: too close to say."""
    words, steps = problem.sums.words, problem.steps
    added_s = 0.0
    for at in range(steps.layer.shape[2] + 1):
        if excess <= doubtful:
            return added_s if excess < -doubtful else -1.0
        v = steps.layer[t, in_flight, at] if at < steps.layer.shape[2] else -1
        if v < 0:
            break
        if (words[j, v // BITS] & ~words[i, v // BITS]) >> np.uint64(v % BITS) & np.uint64(1):
            added_s += steps.added_s[t, in_flight, at]
            excess -= steps.saved_bytes[t, in_flight, at]
    return np.inf


@njit
def _priced(problem: Problem, t: int, i: int, j: int, index: int, in_flight: int) -> float:
    """Return the same as `stage_time` by pricing all layers of the stage."""
    costs, words = problem.costs, problem.sums.words
    member = np.zeros(costs.first.shape[1] - 1, dtype=np.bool_)
    for v in range(len(member)):
        stage = words[j, v // BITS] & ~words[i, v // BITS]
        member[v] = stage >> np.uint64(v % BITS) & np.uint64(1) != np.uint64(0)
    own_s, memory_bytes, time_s = price_stage(costs, member, t, problem.exchanged[index], in_flight)
    chosen = np.zeros(len(member), dtype=np.int64)
    if not choose_by_ratio(costs.first[t], member, own_s, memory_bytes, costs.limit_bytes, chosen):
        return np.inf
    for x in chosen[member]:
        time_s += own_s[x]
    return float(time_s / problem.degrees[index])


@njit
def last_stage(problem: Problem, threshold_s: float, fewest: Table, j: int, s: int) -> tuple[int, int, int]:
    """Return (D', t, d) with which f(D, s) came about, t and d by position."""
    sums = problem.sums
    for i in range(j):
        if not _inside(sums, i, j):
            continue
        for t in range(len(problem.costs.widths)):
            for index in range(len(problem.degrees)):
                d = problem.degrees[index]
                if d > s or sums.missing[t, i] < sums.missing[t, j]:
                    break
                if fewest[i, s - d] + d * problem.costs.widths[t] != fewest[j, s]:
                    continue
                if stage_time(problem, t, i, j, index, -(-s // d)) <= threshold_s:
                    return i, t, index
    return -1, -1, -1
