"""Choose a configuration for each layer of a stage, by the paper's rule or exactly (knapsack problem).

The rule saves the most memory for the least time (Piper, Section 4). Every layer starts with its fastest
configuration. While the stage needs too much memory, the configuration with the highest ratio of memory saved
to time added, over all layers, replaces its layer's current one. A layer's next step depends only on its
previous one, and its ratios fall from step to step. So all steps are taken in order of falling ratio, and a
stage takes the same steps with any memory limit, only more or fewer of them.

The rule is not monotone: with more microbatches in flight every configuration needs more memory, but by
different amounts, so the order of the ratios changes. A stage that needs a cheap step which overshoots the
limit with few microbatches may get by with a cheaper one with more. Therefore neither this module nor the
planner assumes that a stage which meets a time with s microbatches also meets it with fewer.

The exact choice is the fastest one that fits in memory. Layer by layer, f_v holds the outcomes of the first
v layers, as undominated pairs (memory, time):

    f_0 = {(0, 0)},   f_v = the undominated ones of {(m + X.m, t + X.t) : (m, t) in f_(v-1), X in T(v)}

The least time in f_n with memory at most M is the answer. The problem is NP-hard, but f_v stays short,
because layers are alike, and because pairs are dropped that cannot lead to a better choice than the rule's
(Piper, Section 4), which is known beforehand:

- with the least memory of the remaining layers they do not fit;
- with the Lagrangian bound of the remaining layers, sum of min (X.t + p X.m) - p (M - m) for a price p >= 0
  of memory, they take no less time. Any price gives a bound; the best one is that of the linear relaxation;
- with the fastest of the remaining layers they take no less time.

A bound may have a rounding error, so pairs within SLACK of it are kept; more if price times memory is so
large that times vanish next to it. Configurations too slow for any better choice are then ignored in the
price.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit

SLACK = 1e-9
"""Relative tolerance of bounds: (memory, time) pairs within it are not excluded."""


@njit
def choose_by_ratio(
    first: Ints, member: Bools, time_s: Floats, memory_bytes: Floats, limit_bytes: float, chosen: Ints
) -> bool:
    """Choose configurations for a stage's layers by the paper's rule; return true if they fit in memory.

    first: (n + 1,) index of a layer's first configuration; member: (n,); time_s, memory_bytes: contributions
    of each to the stage; chosen: (n,) is written for the layers of the stage.
    """
    following, ratios = np.empty(len(member), dtype=np.int64), np.empty(len(member))
    for v in range(len(member)):
        if member[v] and first[v] == first[v + 1]:
            return False
        if member[v]:
            chosen[v] = fastest(first[v], first[v + 1], time_s, memory_bytes)
            step = best_step(chosen[v], first[v], first[v + 1], time_s, memory_bytes)
            following[v], ratios[v] = step, ratio(chosen[v], step, time_s, memory_bytes)
    while True:
        # Summed anew at every step: a running difference would collect rounding errors.
        total, best, highest = 0.0, -1, -1.0
        for v in range(len(member)):
            if member[v]:
                total += memory_bytes[chosen[v]]
                if ratios[v] > highest:
                    best, highest = v, ratios[v]
        if total <= limit_bytes:
            return True
        if best < 0:
            return False
        chosen[best] = following[best]
        step = best_step(chosen[best], first[best], first[best + 1], time_s, memory_bytes)
        following[best], ratios[best] = step, ratio(chosen[best], step, time_s, memory_bytes)


@njit
def fastest(begin: int, end: int, time_s: Floats, memory_bytes: Floats) -> int:
    """Fastest configuration; ties go to the smallest memory, then to the first."""
    best = begin
    for x in range(begin + 1, end):
        smaller = time_s[x] == time_s[best] and memory_bytes[x] < memory_bytes[best]
        if time_s[x] < time_s[best] or smaller:
            best = x
    return best


@njit
def best_step(current: int, begin: int, end: int, time_s: Floats, memory_bytes: Floats) -> int:
    """Configuration that saves most memory per added time; `nearer` breaks ties; -1 if there is none."""
    best, highest = -1, -1.0
    for x in range(begin, end):
        if memory_bytes[x] >= memory_bytes[current]:
            continue
        this = ratio(current, x, time_s, memory_bytes)
        if this > highest or (this == highest and nearer(x, best, this, time_s, memory_bytes)):
            best, highest = x, this
    return best


@njit
def nearer(x: int, best: int, this: float, time_s: Floats, memory_bytes: Floats) -> bool:
    """True if configuration x is better than `best` at the same ratio of memory saved to time added.

    The larger saving is better if no time is added, otherwise the smaller saving. Configurations with the
    same time have the same ratio only because the saved memory is rounded: the smaller is better.
    """
    if time_s[x] == time_s[best]:
        return bool(memory_bytes[x] < memory_bytes[best])
    return bool((memory_bytes[x] > memory_bytes[best]) != np.isinf(this))


@njit
def ratio(current: int, other: int, time_s: Floats, memory_bytes: Floats) -> float:
    """Memory saved over time added; inf if no time is added; -1 without another configuration."""
    if other < 0:
        return -1.0
    added = time_s[other] - time_s[current]
    return float((memory_bytes[current] - memory_bytes[other]) / added) if added > 0 else np.inf


@njit
def choose_exactly(
    first: Ints, member: Bools, time_s: Floats, memory_bytes: Floats, limit_bytes: float, chosen: Ints
) -> bool:
    """Choose the fastest configurations that fit in memory; return true if feasible.

    Arguments are those of `choose_by_ratio`, whose choice remains unless another one is faster.
    """
    if not choose_by_ratio(first, member, time_s, memory_bytes, limit_bytes, chosen):
        return False
    layers = np.flatnonzero(member)
    greedy_s = 0.0
    for v in layers:
        greedy_s += time_s[chosen[v]]
    fastest_s = least_suffix_sums(first, layers, time_s, memory_bytes, 0.0)
    least_bytes = least_suffix_sums(first, layers, memory_bytes, memory_bytes, 0.0)
    # A high price of memory makes times vanish in rounding; dropping useless slow choices lowers it.
    slack, useful_s = SLACK * abs(greedy_s), time_s
    price = memory_price(first, layers, useful_s, memory_bytes, limit_bytes)
    doubt = _rounding(len(layers), price * limit_bytes)
    if doubt > slack:
        useful_s = _no_slower(first, layers, time_s, greedy_s + slack - fastest_s[0])
        price = memory_price(first, layers, useful_s, memory_bytes, limit_bytes)
        doubt = _rounding(len(layers), price * limit_bytes)
    least_s = least_suffix_sums(first, layers, useful_s, memory_bytes, price)
    if price == 0.0 or least_s[0] - price * limit_bytes >= greedy_s + (doubt if doubt > slack else 0.0):
        return True  # memory does not bind, or no choice can be faster
    memory, time = np.zeros(1), np.zeros(1)
    choices, parents = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for i, v in enumerate(layers):
        parent, choice, memory, time = _extend(first[v], first[v + 1], memory, time, time_s, memory_bytes)
        # The three bounds of the module's text, each with the tolerance that its rounding needs.
        fits = memory + least_bytes[i + 1] <= limit_bytes * (1 + SLACK)
        bound = time + least_s[i + 1] - price * (limit_bytes - memory)
        soon = time + fastest_s[i + 1] < greedy_s + slack
        useful = np.flatnonzero(fits & soon & (bound < greedy_s + max(slack, doubt)))
        memory, time = memory[useful], time[useful]
        parents.append(parent[useful])
        choices.append(choice[useful])
    fitting = np.flatnonzero((memory <= limit_bytes) & (time < greedy_s))
    if len(fitting):
        best = fitting[np.argmin(time[fitting])]
        for i in range(len(layers) - 1, -1, -1):
            chosen[layers[i]] = choices[i + 1][best]
            best = parents[i + 1][best]
    return True


@njit
def _rounding(layers: int, largest: float) -> float:
    """Bound on the rounding error of sums over layers with values up to `largest`."""
    return 1e-15 * (layers + 1) * largest


@njit
def _no_slower(first: Ints, layers: Ints, time_s: Floats, more_s: float) -> Floats:
    """Times of configurations, capped at the fastest time of their layer plus `more_s`."""
    lowered_s = time_s.copy()
    for v in layers:
        own_s = time_s[first[v] : first[v + 1]]
        lowered_s[first[v] : first[v + 1]] = np.minimum(own_s, own_s.min() + more_s)
    return lowered_s


@njit
def _extend(
    begin: int, end: int, memory: Floats, time: Floats, time_s: Floats, memory_bytes: Floats
) -> tuple[Ints, Ints, Floats, Floats]:
    """Undominated (memory, time) pairs with a layer added, ascending, and the choices that lead to them.

    Pairs are in order of ascending memory. The choices are the index of an old pair and a configuration of
    the layer.
    """
    count = end - begin
    memories, times = np.empty(len(memory) * count), np.empty(len(memory) * count)
    for i in range(len(memory)):
        for x in range(count):
            memories[i * count + x] = memory[i] + memory_bytes[begin + x]
            times[i * count + x] = time[i] + time_s[begin + x]
    order = np.argsort(memories)
    undominated = np.empty(len(order), dtype=np.int64)
    filled = 0
    for i in order:
        # In order of memory, a pair is dominated unless it is faster than the last one.
        if filled and times[i] >= times[undominated[filled - 1]]:
            continue
        # Of pairs with equal memory only the fastest stays.
        if filled and memories[i] == memories[undominated[filled - 1]]:
            filled -= 1
        undominated[filled] = i
        filled += 1
    undominated = undominated[:filled]
    return undominated // count, begin + undominated % count, memories[undominated], times[undominated]


@njit
def least_suffix_sums(first: Ints, layers: Ints, value: Floats, memory_bytes: Floats, price: float) -> Floats:
    """Suffix sums (layers + 1,) of each layer's minimum of value + price · memory."""
    sums = np.zeros(len(layers) + 1)
    for i in range(len(layers) - 1, -1, -1):
        least = np.inf
        for x in range(first[layers[i]], first[layers[i] + 1]):
            least = min(least, value[x] + price * memory_bytes[x])
        sums[i] = sums[i + 1] + least
    return sums


@njit
def memory_price(
    first: Ints, layers: Ints, time_s: Floats, memory_bytes: Floats, limit_bytes: float
) -> float:
    """Price of memory, in seconds per byte, that gives the highest Lagrangian bound.

    The bound is the lower envelope of a line for each choice, T + p (memory - M). Its highest point lies
    between a falling and a rising line; their crossing is that point, or shows a lower line.
    """
    fast_s, fast_bytes = cheapest(first, layers, time_s, memory_bytes, 0.0)
    small_bytes, small_s = cheapest(first, layers, memory_bytes, time_s, 0.0)
    price = 0.0
    while fast_bytes > limit_bytes >= small_bytes:
        price = (small_s - fast_s) / (fast_bytes - small_bytes)
        now_s, now_bytes = cheapest(first, layers, time_s, memory_bytes, price)
        crossing = fast_s + price * fast_bytes
        # No line is below the crossing: it is the highest point of the envelope.
        if now_s + price * now_bytes >= crossing - 1e-12 * abs(crossing):
            break
        if now_bytes > limit_bytes:
            fast_s, fast_bytes = now_s, now_bytes
        else:
            small_s, small_bytes = now_s, now_bytes
    return max(price, 0.0)


@njit
def cheapest(first: Ints, layers: Ints, value: Floats, priced: Floats, price: float) -> tuple[float, float]:
    """Sums of `value` and `priced` over the configurations with the least value + price · priced."""
    total, amount = 0.0, 0.0
    for v in layers:
        best = first[v]
        for x in range(first[v] + 1, first[v + 1]):
            gain = value[x] + price * priced[x] - value[best] - price * priced[best]
            if gain < 0 or (gain == 0 and priced[x] < priced[best]):
                best = x
        total += value[best]
        amount += priced[best]
    return total, amount
