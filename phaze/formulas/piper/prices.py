"""Decide whether the stage between two downsets stays within a time limit, for the search.

If the configurations of a layer differ only in X.p, X.a and X.b, a stage takes the time of its fastest
configurations plus the extra time of saving memory. The extra time follows the rule's steps of its own
layers, which are listed beforehand in their order. It does not depend on d and is cached while a stage is
examined. The steps, with the last one in part, are also the optimum of the knapsack's linear relaxation. Most
stages therefore need no exact knapsack to decide that they meet a time, or never do.

Sums computed as differences have rounding errors. A memory within 1e-12 of the limit is therefore summed
again layer by layer, as in the rule of `knapsack`, and so is a time that is the difference of sums 1e5 times
as long as the threshold. Stages whose configurations differ in more are priced as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.bitsets import Words, contains
from phaze.base.compiled import njit
from phaze.base.deadline import Deadline, slices
from phaze.formulas.piper.knapsack import choose_by_ratio, choose_exactly
from phaze.formulas.piper.stages import ConfigurationCosts, price_stage
from phaze.formulas.piper.sums import (
    BACKWARD_S,
    COMPUTE_S,
    FIXED,
    FORWARD_S,
    LEAST_FIXED,
    LEAST_STASH,
    STASH,
    UNLIKE,
    WEIGHT_S,
    SavingSteps,
    Sums,
)

SLACK = 1 + 1e-9
"""Factor by which a bound must be exceeded to rule out rounding errors."""
MOST_DIFFERENCE = 1e5
"""Ratio of a sum to the threshold above which a stage is summed layer by layer, to limit rounding errors."""


class SearchTables(NamedTuple):
    """Inputs of the search for a plan within a time threshold, except the threshold itself."""

    sums: Sums
    steps: SavingSteps
    widths: Ints
    """(T,) tensor-parallel widths t."""
    memory_bytes: Floats
    """(C, 2) X.a and X.b: memory per microbatch in flight, and fixed memory."""
    limit_bytes: float
    """Memory of each device, M."""
    degrees: Ints
    """Allowed data-parallel degrees d, ascending."""
    exchanged: Floats
    """Gradient exchange time per microbatch, multiplied by d, for each degree d, in units of 4 w/B."""
    products: Ints
    """Possible numbers d·t of devices of a stage, ascending."""
    exact: bool
    """True if an exact knapsack chooses configurations."""


class PriceCache(NamedTuple):
    """Cache of the time that memory-saving configurations add to each stage, multiplied by its degree d."""

    stage: Ints
    """(c + 1,) stage examined last, by microbatches in flight."""
    added_s: Floats
    """(c + 1,) extra time of that stage by the paper's rule."""
    bound_s: Floats
    """(c + 1,) lower bound on that stage's extra time for any choice of configurations."""
    keys: Ints
    """(k,) keys of the stages priced from all their layers, ascending."""
    prices_s: Floats
    """(k,) extra time of the stages in `keys`."""
    unpriced: Ints
    """Number of stages that wait for a price, and their keys."""


def empty_cache(problem: SearchTables) -> PriceCache:
    """Empty cache of the extra times of stages."""
    count = problem.steps.whose.shape[1]
    return PriceCache(
        stage=np.full(count, -1),
        added_s=np.empty(count),
        bound_s=np.empty(count),
        keys=np.empty(0, dtype=np.int64),
        prices_s=np.empty(0),
        unpriced=np.zeros(4096, dtype=np.int64),
    )


@njit
def stage_base(sums: Sums, t: int, i: int, j: int, threshold_s: float) -> tuple[float, float]:
    """Single-replica time and gradient exchange time 4 w/B of stage (i, j) in its fastest configurations.

    threshold_s: the time with which it will be compared.
    """
    inner, outer = sums.totals[t, i], sums.totals[t, j]
    # Subtracting sums this much larger than the threshold would leave mostly rounding error.
    largest = max(outer[COMPUTE_S] + outer[FORWARD_S] + inner[BACKWARD_S], outer[WEIGHT_S])
    if largest > MOST_DIFFERENCE * threshold_s:
        return _summed(sums, t, i, j)
    time_s = outer[COMPUTE_S] - inner[COMPUTE_S] + outer[FORWARD_S] + inner[BACKWARD_S]
    for at in range(sums.cut_first[i], sums.cut_first[i + 1]):
        e = sums.cut_edges[at]
        if not contains(sums.words, j, sums.ends[e, 0]):
            # From outside the outer downset into the inner one: the edge passes the stage by.
            time_s -= sums.edge_s[t, e, 0] + sums.edge_s[t, e, 1]
    return float(time_s), float(outer[WEIGHT_S] - inner[WEIGHT_S])


@njit
def _summed(sums: Sums, t: int, i: int, j: int) -> tuple[float, float]:
    """Same as `stage_base`, but summed layer by layer, which avoids cancellation."""
    time_s, weight_s = 0.0, 0.0
    for v in range(sums.layer_s.shape[1]):
        if _between(sums.words, i, j, v):
            time_s += sums.layer_s[t, v, 0]
            weight_s += sums.layer_s[t, v, 1]
    for e in range(len(sums.ends)):
        sends = _between(sums.words, i, j, sums.ends[e, 0])
        receives = _between(sums.words, i, j, sums.ends[e, 1])
        if receives and not sends:
            time_s += sums.edge_s[t, e, 0]
        if sends and not receives:
            time_s += sums.edge_s[t, e, 1]
    return time_s, weight_s


@njit
def meets(
    problem: SearchTables,
    cache: PriceCache,
    t: int,
    i: int,
    j: int,
    index: int,
    in_flight: int,
    margin_s: float,
) -> bool:
    """True if a stage with `in_flight` microbatches fits in memory with at most `margin_s` extra time.

    margin_s applies to d times the time, beyond that of the fastest configurations. If the extra time is
    unknown, the stage is added to `unpriced`, and the result is false.
    """
    if in_flight >= len(cache.stage):
        return False
    if _unlike(problem.sums, t, i, j):
        return _price(problem, cache, t, i, j, index, in_flight) <= margin_s
    stage = _stage(len(problem.sums.work_s), len(problem.widths), t, i, j)
    if cache.stage[in_flight] != stage:
        cache.stage[in_flight] = stage
        cache.added_s[in_flight], cache.bound_s[in_flight] = _added(problem, t, i, j, in_flight)
    if problem.exact and cache.bound_s[in_flight] <= margin_s < cache.added_s[in_flight]:
        return _price(problem, cache, t, i, j, 0, in_flight) <= margin_s
    return bool(cache.added_s[in_flight] <= margin_s)


@njit
def _price(
    problem: SearchTables, cache: PriceCache, t: int, i: int, j: int, index: int, in_flight: int
) -> float:
    """Look up the extra time of a stage priced from all its layers; if missing, queue it and return inf."""
    stage = _stage(len(problem.sums.work_s), len(problem.widths), t, i, j)
    key = (stage * len(problem.degrees) + index) * len(cache.stage) + in_flight
    at = np.searchsorted(cache.keys, key)
    if at < len(cache.keys) and cache.keys[at] == key:
        return float(cache.prices_s[at])
    # A full queue drops the stage: the search asks for it again once the others have a price.
    if cache.unpriced[0] < len(cache.unpriced) - 1:
        cache.unpriced[0] += 1
        cache.unpriced[cache.unpriced[0]] = key
    return np.inf


@njit
def _stage(downsets: int, widths: int, t: int, i: int, j: int) -> int:
    """Unique number that identifies a stage and its width."""
    return (i * downsets + j) * widths + t


def price_queue(problem: SearchTables, costs: ConfigurationCosts, cache: PriceCache) -> PriceCache:
    """Price the stages that wait for it; return the cache with them."""
    if not cache.unpriced[0]:
        return cache
    keys = np.unique(cache.unpriced[1 : cache.unpriced[0] + 1])
    cache.unpriced[0] = 0
    prices_s = np.empty(len(keys))
    exact = True if problem.exact else None
    for begin, end in slices(len(keys), Deadline(), first=16):
        _price_stages(problem, costs, keys[begin:end], prices_s[begin:end], len(cache.stage), exact)
    at = np.searchsorted(cache.keys, keys)
    return cache._replace(
        keys=np.insert(cache.keys, at, keys), prices_s=np.insert(cache.prices_s, at, prices_s)
    )


@njit
def _price_stages(
    problem: SearchTables,
    costs: ConfigurationCosts,
    keys: Ints,
    prices_s: Floats,
    counts: int,
    exact: bool | None,
) -> None:
    """Price the stages with the given keys, of `counts` possible numbers of microbatches in flight.

    `exact` is True or None so that Numba compiles only one rule.
    """
    degrees, widths, downsets = len(problem.degrees), len(problem.widths), len(problem.sums.work_s)
    for at in range(len(keys)):
        stage, index = divmod(keys[at] // counts, degrees)
        ends, t = divmod(stage, widths)
        i, j = divmod(ends, downsets)
        prices_s[at] = _added_in_all(problem, costs, t, i, j, index, keys[at] % counts, exact)


@njit
def saving_s(
    problem: SearchTables, costs: ConfigurationCosts, t: int, i: int, j: int, index: int, in_flight: int
) -> float:
    """Extra time of a stage's memory-saving configurations by the paper's rule; inf if infeasible."""
    if _unlike(problem.sums, t, i, j):
        return _added_in_all(problem, costs, t, i, j, index, in_flight, None)
    return float(_added(problem, t, i, j, in_flight)[0])


@njit
def _unlike(sums: Sums, t: int, i: int, j: int) -> bool:
    """True if configurations of a layer of the stage differ in more than X.p, X.a and X.b."""
    return bool(sums.totals[t, i, UNLIKE] < sums.totals[t, j, UNLIKE])


@njit
def _added(problem: SearchTables, t: int, i: int, j: int, in_flight: int) -> tuple[float, float]:
    """Extra time of the greedy choice, and a lower bound for any choice; inf if infeasible."""
    sums, steps, limit = problem.sums, problem.steps, problem.limit_bytes
    inner, outer = sums.totals[t, i], sums.totals[t, j]
    # Sums within this of the limit are too close to call and are added up again exactly.
    doubtful = 1e-12 * (limit + outer[STASH] * in_flight + outer[FIXED])
    least = (outer[LEAST_STASH] - inner[LEAST_STASH]) * in_flight + outer[LEAST_FIXED] - inner[LEAST_FIXED]
    if least > limit + doubtful:
        return np.inf, np.inf
    excess = (outer[STASH] - inner[STASH]) * in_flight + outer[FIXED] - inner[FIXED] - limit
    added_s, bound_s = 0.0, 0.0
    for at in range(steps.whose.shape[2] + 1):
        if excess < -doubtful or (excess <= doubtful and _fits_after(problem, t, i, j, in_flight, at)):
            return added_s, min(bound_s, added_s)
        v = steps.whose[t, in_flight, at, 0] if at < steps.whose.shape[2] else -1
        if v < 0:
            break
        if _between(sums.words, i, j, v):
            more_s, saved = steps.effect[t, in_flight, at, 0], steps.effect[t, in_flight, at, 1]
            # The last step in part is the optimum of the linear relaxation, hence a bound for any choice.
            bound_s = added_s + more_s * min(max(excess - doubtful, 0.0) / saved, 1.0) / SLACK
            added_s += more_s
            excess -= saved
    return np.inf, np.inf


@njit
def _fits_after(problem: SearchTables, t: int, i: int, j: int, in_flight: int, taken: int) -> bool:
    """True if a stage fits after `taken` memory-saving steps, with its memory summed layer by layer."""
    whose, total = problem.steps.whose, 0.0
    for v in range(problem.sums.fast.shape[1]):
        if _between(problem.sums.words, i, j, v):
            x = problem.sums.fast[t, v]
            for at in range(taken):
                if whose[t, in_flight, at, 0] == v:
                    x = whose[t, in_flight, at, 1]
            total += problem.memory_bytes[x, 0] * in_flight + problem.memory_bytes[x, 1]
    return bool(total <= problem.limit_bytes)


@njit
def _between(words: Words, i: int, j: int, v: int) -> bool:
    """True if layer v is in downset j and not in i."""
    return contains(words, j, v) and not contains(words, i, v)


@njit
def _added_in_all(
    problem: SearchTables,
    costs: ConfigurationCosts,
    t: int,
    i: int,
    j: int,
    index: int,
    in_flight: int,
    exact: bool | None,
) -> float:
    """Exact extra time of the chosen configurations over the fastest ones, computed layer by layer.

    Costs common to all configurations of a layer are already in these sums, so only the difference is added.
    """
    member = np.zeros(costs.first.shape[1] - 1, dtype=np.bool_)
    for v in range(len(member)):
        member[v] = _between(problem.sums.words, i, j, v)
    own_s, memory_bytes, _ = price_stage(costs, member, t, problem.exchanged[index], in_flight)
    chosen = np.zeros(len(member), dtype=np.int64)
    if exact is None:
        fits = choose_by_ratio(costs.first[t], member, own_s, memory_bytes, costs.limit_bytes, chosen)
    else:
        fits = choose_exactly(costs.first[t], member, own_s, memory_bytes, costs.limit_bytes, chosen)
    if not fits:
        return np.inf
    added_s = 0.0
    for v in range(len(member)):
        if member[v]:
            added_s += own_s[chosen[v]] - problem.sums.layer_s[t, v, 0]
    return added_s
