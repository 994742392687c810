"""Best split of a layer sequence into pipeline stages, for many architectures one after another.

Stages are numbered from the end: the last is 1, the first is s. For one architecture and every depth s, the
time of a cut, at its best data width d, is

    (ceil(B/d) + s - 1) * max over stages of load + (d - 1)/d * exchange

Only loads up to a limit can be better than the best time found so far. Within it no stage reaches farther
than a stage that starts later. Two passes therefore give the window of every stage: one from the front gives
`latest(p)`, the last layer at which stage p can start, and one from the end `earliest(p)`, the first. Usually
the pass from the front fails early, and no cut of that depth is better. Otherwise the recurrence of
`formulas.cuts`, inside the windows, gives the best of them:

    worst(1, i) = load of [i, n)
    worst(p, i) = min over j in window(p - 1) of max(worst(p - 1, j), load of [i, j))    for i in window(p)

If the batch waits for the longest exchange of any stage, this is repeated for shorter and shorter exchanges,
while their loads can be better. Consecutive architectures are often similar, so each starts from the cut of
the previous one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit

SLACK = 1e-12
"""Relative rounding tolerance of a load: cuts excluded by a smaller margin are still searched."""


class LayerSequence(NamedTuple):
    """Architecture-independent inputs of the search: a chain of n layers, its memory and the network."""

    kinds: Ints
    """(n,): kind of every layer."""
    fullest: Floats
    """(s, kinds): with s stages, some stage has at least this many layers of the kind, ceil(total / s)."""
    transfer_s: Floats
    """(n + 1,): transfer time between layers i - 1 and i, 0 at both ends."""
    shortest_s: float
    """Shortest transfer time."""
    exchange_s: Floats
    """(n + 1,): time to exchange the gradients of all layers before i, in the limit of many replicas."""
    every_stage: bool
    """True if the batch waits for the longest gradient exchange of any stage, not just the first stage's."""
    recompute: bool
    alone: Ints
    """(n,): end of the longest stage that starts at i and needs only one device, i if there is none."""
    singles: Ints
    """(n,): largest number of single-device stages that layers from i on can form."""
    reach: Ints
    """(s, n): end of the longest stage that starts at i and fits as the s-th from the end."""
    farthest: Ints
    """(s, n): maximum of `reach` over stages that start at i or before."""
    last_start: int
    """First layer of the longest last stage that fits."""


class DataWidths(NamedTuple):
    """Data-parallel widths d to choose from, ascending, each with its number of microbatches ceil(B/d)."""

    counts: Ints
    widths: Ints
    widest: Ints
    """(s, u): index of the widest d that the devices allow with u single-device stages, -1 for none."""
    least: Floats
    """(s,): least ceil(B/d) + s - 1, inf where no cut fits."""
    most: Ints
    """(s,): index of the widest d with any number of single-device stages."""
    wait_s: Floats
    """(s,): lower bound on the gradient exchange time of a batch, in the limit of many replicas."""


class _Space(NamedTuple):
    """Scratch buffers reused across architectures."""

    before_s: Floats
    """(n + 1,): time of both passes of all layers before i."""
    forward_s: Floats
    earliest: Ints
    """(s,): range of possible first layers of every stage, from `earliest` to `latest`."""
    latest: Ints
    worst: Floats
    """(s, u, n): least bottleneck load of the last s stages from layer n on, u of them on one device."""
    end: Ints
    """(s, u, n): end of the first of the last s stages in the cut with that load."""
    tried: Ints
    """(s,): start of every stage of the cut under test."""
    cut: Ints
    """(s,): start of every stage of the most recent best cut; entry 0 is its depth."""


@njit
def search(
    forward: Floats, backward: Floats, sequence: LayerSequence, choices: DataWidths, times: Floats
) -> None:
    """Lower each architecture's time (A,) to that of the best cut found; layer latencies are (A, kinds)."""
    n, (depths, singles) = len(sequence.kinds), choices.widest.shape
    space = _Space(
        np.zeros(n + 1), np.zeros(n + 1), np.zeros(depths, np.int64), np.zeros(depths, np.int64),
        np.empty((depths, singles, n + 1)), np.empty((depths, singles, n + 1), np.int64),
        np.zeros(depths, np.int64), np.zeros(depths, np.int64),
    )  # fmt: skip
    for a in range(len(times)):
        space.forward_s[1:] = np.cumsum(forward[a][sequence.kinds])
        space.before_s[1:] = np.cumsum((forward[a] + backward[a])[sequence.kinds])
        times[a] = _search_one(forward[a], backward[a], sequence, choices, space, times[a])


@njit
def _search_one(
    forward: Floats,
    backward: Floats,
    sequence: LayerSequence,
    choices: DataWidths,
    space: _Space,
    best: float,
) -> float:
    """Best time of an architecture, or `best` if no cut is faster.

    The slowest of s stages takes at least the mean, and at least the time of its layers of the most frequent
    kind. `share` bounds the forward part of the last stage's load, which is not recomputed, unlike that of
    the others.
    """
    # The best cut of the previous architecture, priced for this one, is the first bound.
    if space.cut[0] > 0:
        best = _price(space.cut[0], sequence, choices, space, best)
    work, recompute_s, share = space.before_s[-1], space.forward_s[-1], 0.0
    transfer, least, fullest = sequence.shortest_s, choices.least, sequence.fullest
    for k in range(len(forward)):
        if forward[k] > 0.0:
            share = max(share, forward[k] / (forward[k] + backward[k]))
    for s in range(1, len(least)):
        # Each of the s - 1 borders costs a transfer in both of its stages.
        load = (work + 2 * (s - 1) * transfer) / s
        if s > 1 and sequence.recompute:
            # All loads sum to work, recomputation and transfers, less the last stage's forward part. That is
            # at most `share` of its load, so (s + share) times the longest load is no less than the others.
            load = max(load, (work + recompute_s + (s - 1) * transfer) / (s + share))
        for k in range(len(forward)):
            load = max(load, fullest[s, k] * (forward[k] + backward[k]) + (transfer if s > 1 else 0.0))
        if least[s] * load * (1.0 - SLACK) < best:
            best = _search_depth(s, sequence, choices, space, best)
    return best


@njit
def _price(s: int, sequence: LayerSequence, choices: DataWidths, space: _Space, best: float) -> float:
    """Time of the stored cut at its best data-parallel width, or `best` if it is not faster."""
    end, load, wait, singles = len(sequence.kinds), 0.0, 0.0, 0
    for p in range(1, s + 1):
        i = space.cut[p]
        load = max(load, _load_s(i, end, sequence, space))
        wait = max(wait, _exchange_s(i, end, sequence)) if sequence.every_stage or p == s else 0.0
        singles += _single(i, end, sequence)
        end = i
    widest = choices.widest[s, min(singles, choices.widest.shape[1] - 1)]
    return _offer(load, wait, s, widest, choices, best)


@njit
def _load_s(i: int, j: int, sequence: LayerSequence, space: _Space) -> float:
    """Time of the stage [i, j) for one microbatch; the last stage never recomputes."""
    out: float = sequence.transfer_s[j]
    if sequence.recompute and j < len(sequence.kinds):
        out = max(out, space.forward_s[j] - space.forward_s[i])
    load: float = sequence.transfer_s[i] + (space.before_s[j] - space.before_s[i]) + out
    return load


@njit
def _exchange_s(i: int, j: int, sequence: LayerSequence) -> float:
    exchange: float = sequence.exchange_s[j] - sequence.exchange_s[i]
    return exchange


@njit
def _single(i: int, j: int, sequence: LayerSequence) -> int:
    return 1 if j <= sequence.alone[i] else 0


@njit
def _offer(load: float, wait: float, s: int, widest: int, choices: DataWidths, best: float) -> float:
    """Time of s stages at their best data-parallel width, or `best` if it is not faster."""
    if widest < 0 or load >= _longest_s(wait, s, widest, choices, best):
        return best
    for w in range(widest, -1, -1):
        busy, d = (choices.counts[w] + s - 1) * load, choices.widths[w]
        # Narrower widths have more microbatches per pipeline and take even longer.
        if busy >= best:
            break
        best = min(best, busy + (d - 1) / d * wait)
    return best


@njit
def _longest_s(wait: float, s: int, widest: int, choices: DataWidths, best: float) -> float:
    """Largest bottleneck load with which s stages can still beat `best`."""
    d, steps = choices.widths[widest], s - 1.0
    alone = best / (choices.counts[0] + steps)
    # With ceil(B/d) >= B/d the limit is a ratio of linear functions of 1/d, thus monotone in it: the
    # highest is at one replica or at the most.
    longest: float = max(alone, (best - (d - 1) / d * wait) / (choices.counts[0] / d + steps))
    longest = min(longest, best / (choices.counts[widest] + steps))
    return longest * (1.0 + SLACK)


@njit
def _search_depth(s: int, sequence: LayerSequence, choices: DataWidths, space: _Space, best: float) -> float:
    """Best time with s stages, or `best` if no such cut is faster."""
    n = len(sequence.kinds)
    if s == 1:
        widest = choices.widest[1, min(_single(0, n, sequence), choices.widest.shape[1] - 1)]
        time = _offer(space.before_s[n], sequence.exchange_s[n], 1, widest, choices, best)
        if time < best:
            space.cut[0], space.cut[1] = 1, 0
        return time
    cap = np.inf
    while cap > 0.0:
        limit = _longest_s(choices.wait_s[s], s, choices.most[s], choices, best)
        if not _find_windows(limit, cap, s, sequence, space):
            break
        _fill_windows(limit, cap, s if sequence.every_stage else s - 1, sequence, space)
        if not sequence.every_stage:
            return _best_first_stage(limit, s, sequence, choices, space, best)
        best, cap = _best_of_cap(limit, s, sequence, choices, space, best)
    return best


@njit
def _find_windows(limit: float, cap: float, s: int, sequence: LayerSequence, space: _Space) -> bool:
    """Set every stage's range of first layers from the load and exchange limits; False if none exists."""
    last = _earliest_last(limit, cap, s, sequence, space)
    if not _find_latest(limit, cap, last, s, sequence, space) or space.latest[1] < last:
        return False
    space.earliest[1], space.earliest[s] = last, 0
    for p in range(2, s):
        end = space.earliest[p - 1]
        # A stage of more layers is no shorter, so starts are extended until one does not fit.
        start = min(space.latest[p], end - 1)
        while start > s - p and sequence.farthest[p, start - 1] >= end:
            if not _fits(start - 1, end, limit, cap, sequence, space):
                break
            start -= 1
        space.earliest[p] = start
    return True


@njit
def _earliest_last(limit: float, cap: float, s: int, sequence: LayerSequence, space: _Space) -> int:
    """First layer at which the last stage can start; n if there is none."""
    n = last = len(sequence.kinds)
    while last > max(sequence.last_start, s - 1):
        load = sequence.shortest_s + space.before_s[n] - space.before_s[last - 1]
        if load > limit or _exchange_s(last - 1, n, sequence) >= cap:
            break
        last -= 1
    return last


@njit
def _find_latest(limit: float, cap: float, last: int, s: int, sequence: LayerSequence, space: _Space) -> bool:
    """Set the latest layer at which each stage can start; False if the last stage cannot be reached."""
    start, n = 0, len(sequence.kinds)
    if last == n:
        return False
    space.latest[s] = 0
    for p in range(s, 1, -1):
        end, farthest = start, min(sequence.farthest[p, start], n - p + 1)
        while end < farthest and _fits(start, end + 1, limit, cap, sequence, space):
            end += 1
        if end == start:
            return False
        space.latest[p - 1] = start = end
    return True


@njit
def _fits(i: int, j: int, limit: float, cap: float, sequence: LayerSequence, space: _Space) -> bool:
    """True if stage [i, j), not the last, may meet the load limit and exchange cap; monotone in length."""
    out = sequence.shortest_s
    if sequence.recompute:
        out = max(out, space.forward_s[j] - space.forward_s[i])
    # The shortest transfer, not the stage's own, keeps the test monotone in the length.
    into = sequence.shortest_s if i > 0 else 0.0
    if into + space.before_s[j] - space.before_s[i] + out > limit:
        return False
    return not sequence.every_stage or _exchange_s(i, j, sequence) < cap


@njit
def _fill_windows(limit: float, cap: float, s: int, sequence: LayerSequence, space: _Space) -> None:
    """Fill tables `worst` and `end` for the last 1 to s stages, at every first layer in their ranges."""
    n, singles = len(sequence.kinds), space.worst.shape[1]
    for i in range(space.earliest[1], space.latest[1] + 1):
        for u in range(singles):
            space.worst[1, u, i] = np.inf
        space.worst[1, min(_single(i, n, sequence), singles - 1), i] = _load_s(i, n, sequence, space)
    for p in range(2, s + 1):
        for i in range(space.earliest[p], space.latest[p] + 1):
            for u in range(singles):
                space.worst[p, u, i] = np.inf
            _fill_one(p, i, limit, cap, sequence, space)


@njit
def _fill_one(p: int, i: int, limit: float, cap: float, sequence: LayerSequence, space: _Space) -> None:
    """Fill tables `worst` and `end` for the last p stages, starting at layer i."""
    singles, worst, last = min(p, sequence.singles[i]), np.inf, space.latest[p - 1]
    for j in range(max(space.earliest[p - 1], i + 1), min(last, sequence.reach[p, i]) + 1):
        # A load above every entry of this start lowers none of them.
        if not _fits(i, j, min(limit, worst), cap, sequence, space):
            break
        load, step = _load_s(i, j, sequence, space), min(_single(i, j, sequence), singles)
        worst = 0.0
        for u in range(singles + 1):
            if u >= step:
                load_of_all = max(load, space.worst[p - 1, u - step, j])
                if load_of_all < space.worst[p, u, i]:
                    space.worst[p, u, i], space.end[p, u, i] = load_of_all, j
            worst = max(worst, space.worst[p, u, i])


@njit
def _best_first_stage(
    limit: float, s: int, sequence: LayerSequence, choices: DataWidths, space: _Space, best: float
) -> float:
    """Best time if only the first stage's gradient exchange counts, or `best` if no cut is faster."""
    singles, first_u, first = space.worst.shape[1] - 1, -1, 0
    for j in range(max(space.earliest[s - 1], 1), min(space.latest[s - 1], sequence.reach[s, 0]) + 1):
        load, step = _load_s(0, j, sequence, space), min(_single(0, j, sequence), singles)
        for u in range(step, min(s, singles) + 1):
            worst = max(load, space.worst[s - 1, u - step, j])
            if worst <= limit:
                time = _offer(worst, _exchange_s(0, j, sequence), s, choices.widest[s, u], choices, best)
                if time < best:
                    best, first_u, first = time, u - step, j
    if first_u >= 0:
        _trace(s, first_u, first, sequence, space)
        _note(s, space)
    return best


@njit
def _trace(s: int, u: int, first: int, sequence: LayerSequence, space: _Space) -> float:
    """Trace back the cut whose first stage ends at `first`; return its longest gradient exchange."""
    singles, i, j = space.worst.shape[1] - 1, 0, first
    wait = _exchange_s(0, j, sequence)
    for p in range(s, 0, -1):
        space.tried[p] = i
        if p > 1:
            i = j
            j = space.end[p - 1, u, i] if p > 2 else len(sequence.kinds)
            wait = max(wait, _exchange_s(i, j, sequence))
            u -= min(_single(i, j, sequence), singles)
    return wait


@njit
def _note(s: int, space: _Space) -> None:
    """Store the cut under test as the best one."""
    space.cut[0] = s
    for p in range(1, s + 1):
        space.cut[p] = space.tried[p]


@njit
def _best_of_cap(
    limit: float, s: int, sequence: LayerSequence, choices: DataWidths, space: _Space, best: float
) -> tuple[float, float]:
    """Best time of cuts whose gradient exchanges stay below the cap, and the next cap to try.

    The load of a cut found is the least for every cap above its own exchange, and shorter exchanges have no
    smaller loads. If these cannot be better, the cap is 0.
    """
    cap = 0.0
    for u in range(space.worst.shape[1]):
        load, widest = space.worst[s, u, 0], choices.widest[s, u]
        if load > limit or load >= _longest_s(choices.wait_s[s], s, widest, choices, best):
            continue
        step = min(_single(0, space.end[s, u, 0], sequence), space.worst.shape[1] - 1)
        wait = _trace(s, u - step, space.end[s, u, 0], sequence, space)
        time = _offer(load, wait, s, widest, choices, best)
        if time < best:
            best = time
            _note(s, space)
        # Cuts with shorter exchanges have no smaller load: search on only if that could be better.
        if load < _longest_s(choices.wait_s[s], s, widest, choices, best):
            cap = max(cap, wait)
    return best, cap
