"""Minimum step time at which the ranks of a pipeline can store and compute all layers, for many layouts.

Columns per layout: microbatches; seconds of the embedding and of the head per microbatch; bytes of both;
forward seconds of the embedding; 1 if the last microbatch's backward passes on earlier ranks count, else 0;
fixed seconds after the updates of a rank. Columns per kind of layer: seconds per microbatch; of these
forward; recompute seconds; update seconds; static bytes; bytes stored per microbatch; bytes saved by
recompute; least working memory of a stage with the layer. `in_flight` are the microbatches in flight per rank
(`bounds.layouts`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit, njit_inlined, njit_nested

CLOSEST = 1e-4
"""Tolerance of the bisection for the memory shortfall, relative to the available memory."""
CLOSE = 1e-4
"""Relative tolerance of the bisection for the minimum step time."""
GROWTH = 8.0
"""Growth factor of the steps that bracket the minimum step time."""


def least_times(
    figures: Floats,
    by_kind: Floats,
    shapes: Ints,
    in_flight: Floats,
    before: Ints,
    limits: Floats,
    on_average: bool,
) -> tuple[Floats, Floats]:
    """Minimum step time and memory shortfall per rank of every layout, (N,) each.

    Inputs are the layouts' columns (N, 8); columns per kind of layer (N, K, 8); ranks, chunks, first row of
    `in_flight` and rank with the head (N, 4); and the memory limit of a rank (N,). `bound_layouts` builds the
    columns; `before` are layers by kind, (L + 1, K). With `on_average` the time is the mean over ranks, a
    lower bound. The lacking memory is exact for the smallest value with one chunk and with several chunks,
    and at least as large as that value elsewhere.
    """
    time_s, lacking = np.empty(len(figures)), np.zeros(len(figures))
    filled = time_s, lacking, np.full(2, np.inf)
    _fill_times(figures, by_kind, shapes, in_flight, before, limits, on_average, filled)
    return time_s, lacking


@njit
def _fill_times(
    figures: Floats,
    by_kind: Floats,
    shapes: Ints,
    in_flight: Floats,
    before: Ints,
    limits: Floats,
    on_average: bool,
    filled: tuple[Floats, Floats, Floats],
) -> None:
    """Fill arrays with minimum step times, memory shortfalls where nothing fits, and the least shortfalls."""
    time_s, lacking, fewest = filled
    # Neighbouring layouts have similar ratios of least to mean time: the search starts at the last one.
    above = 1.0
    for i in range(len(figures)):
        row, kinds, shape, limit = figures[i], by_kind[i], shapes[i], limits[i]
        ranks_in_flight = in_flight[shape[2] :]
        if not holds_all(row, kinds, shape, ranks_in_flight, before, limit, np.inf):
            time_s[i] = np.inf
            several = int(shape[1] > 1)
            fewest[several] = least_lacking(
                row, kinds, shape, ranks_in_flight, before, limit, fewest[several]
            )
            lacking[i] = fewest[several]
        elif on_average:
            time_s[i] = max(average_time(row, kinds, shape, before), way_time(row, kinds, before))
        else:
            time_s[i], above = least_time(row, kinds, shape, ranks_in_flight, before, limit, above)


@njit_inlined
def least_lacking(
    row: Floats, kinds: Floats, shape: Ints, in_flight: Floats, before: Ints, limit: float, lacking: float
) -> float:
    """Smallest extra memory per rank with which all layers would fit, or `lacking` if that is smaller."""
    if lacking < np.inf and not holds_all(row, kinds, shape, in_flight, before, limit + lacking, np.inf):
        return lacking
    # All layers on one rank, with the most microbatches in flight: enough for any split.
    low, high = 0.0, row[3] + row[4]
    for kind in range(len(kinds)):
        high += before[-1, kind] * (kinds[kind, 4] + kinds[kind, 5] * in_flight[0, 2]) + kinds[kind, 7]
    high = min(high, lacking)
    while high - low > CLOSEST * max(low, limit):
        middle = (low + high) / 2
        if holds_all(row, kinds, shape, in_flight, before, limit + middle, np.inf):
            high = middle
        else:
            low = middle
    # A byte at least: 0 would mean that the layout fits.
    return max(low, 1.0)


@njit_nested
def average_time(row: Floats, kinds: Floats, shape: Ints, before: Ints) -> float:
    """Time of all layers divided by the number of ranks, in seconds."""
    all_s = row[0] * (row[1] + row[2])
    for kind in range(len(kinds)):
        all_s += before[-1, kind] * (row[0] * kinds[kind, 0] + kinds[kind, 3])
    return float(all_s / shape[0] * (1 - 1e-9) + row[7])


@njit_nested
def way_time(row: Floats, kinds: Floats, before: Ints) -> float:
    """Time for one microbatch to pass forward and backward through all layers, for any number of ranks.

    Only the forward pass counts if weight gradients are deferred.
    """
    # A schedule that defers weight gradients may have returned the last gradient long before.
    way_s = row[1] + row[2] if row[6] else row[5]
    for kind in range(len(kinds)):
        way_s += before[-1, kind] * kinds[kind, 0 if row[6] else 1]
    return float(way_s * (1 - 1e-9))


@njit_inlined
def least_time(
    row: Floats, kinds: Floats, shape: Ints, in_flight: Floats, before: Ints, limit: float, above: float
) -> tuple[float, float]:
    """Minimum step time of a layout, in seconds, and its ratio to the mean time of the ranks.

    The search starts at the ratio `above`, because neighbouring layouts are similar.
    """
    average, through_s = average_time(row, kinds, shape, before), way_time(row, kinds, before)
    if through_s > average and holds_all(row, kinds, shape, in_flight, before, limit, through_s):
        return through_s, above
    least = max(average, through_s)
    low, step = max(least, average * above * (1 - CLOSE / 2)), CLOSE * least
    high = low + step
    if holds_all(row, kinds, shape, in_flight, before, limit, high):
        while low > least and holds_all(row, kinds, shape, in_flight, before, limit, low):
            high, step = low, GROWTH * step
            low = max(low - step, least)
    else:
        low, step, high = high, GROWTH * step, high + GROWTH * step
        while not holds_all(row, kinds, shape, in_flight, before, limit, high):
            low, step, high = high, GROWTH * step, high + GROWTH * step
    while high - low > CLOSE * low:
        middle = (low + high) / 2
        if holds_all(row, kinds, shape, in_flight, before, limit, middle):
            high = middle
        else:
            low = middle
    return low, low / average


@njit_nested
def holds_all(
    row: Floats, kinds: Floats, shape: Ints, in_flight: Floats, before: Ints, limit: float, seconds: float
) -> bool:
    """True if the ranks together can hold all layers in memory and compute them within `seconds`."""
    count, first, last, seconds = row[0], row[1], row[2], seconds - row[7]
    depth, chunks, head = shape[0], shape[1], shape[3]
    layers, totals = len(before) - 1, before[-1]
    work = 0.0
    usual = 0
    for kind in range(len(totals)):
        work += totals[kind] * kinds[kind, 0]
        if totals[kind] > totals[usual]:
            usual = kind
    placed, taken, done, number = 0, layers // depth, 0.0, 0.0
    # Ranks in the order of the layers: each takes all that it can, which leaves the fewest to later ranks.
    for rank in range(depth):
        start, end = rank == 0, rank == head
        room = limit - start * row[3] - end * row[4]
        if room < 0:
            return False
        # A rank without layers needs no working memory.
        room = max(room - least_work(kinds, before, int(in_flight[rank, 3])), 0.0)
        reached_s, returned_s = passed_s(row, kinds, before, placed, rank, chunks)
        spare = (seconds - reached_s) / count - start * first - end * last
        if spare < returned_s / count:
            # The rank has no time for a layer after its ends and the passes before it.
            continue
        if chunks == 1:
            end_of = next_layers(
                kinds,
                before,
                placed,
                placed + taken,
                RankLimits(in_flight[rank], room, spare, returned_s, count),
            )
            taken, placed = end_of - placed, end_of
            if placed == layers:
                return True
        else:
            # Chunks of a rank are spread over the model: any kinds of layers may be on it.
            extra = least_extra(kinds, in_flight[rank])
            done += work_of_rank(kinds, totals, in_flight[rank], extra, room, spare, returned_s, count)
            if len(kinds) > 1:
                usual_kind, total = kinds[usual : usual + 1], totals[usual : usual + 1]
                usual_s = work_of_rank(
                    usual_kind, total, in_flight[rank], extra, room, spare, returned_s, count
                )
                number += np.floor(usual_s / usual_kind[0, 0] + 1e-9)
            if done >= work * (1 - 1e-9) and (len(kinds) == 1 or number >= totals[usual]):
                return True
    return False


@njit_inlined
def least_work(kinds: Floats, before: Ints, first: int) -> float:
    """Minimum working memory of a stage that starts at layer `first` or later; 0 if `first` is -1."""
    if first < 0:
        return 0.0
    least = np.inf
    for kind in range(len(kinds)):
        if before[-1, kind] > before[min(first, len(before) - 2), kind]:
            least = min(least, kinds[kind, 7])
    return least


@njit_inlined
def passed_s(
    row: Floats, kinds: Floats, before: Ints, placed: int, rank: int, chunks: int
) -> tuple[float, float]:
    """Time for the first microbatch to reach a rank, and for the last one to return to the embedding."""
    if rank == 0:
        return 0.0, 0.0
    reached_s, returned_s = row[5], row[1] - row[5]
    if chunks == 1:
        for kind in range(len(kinds)):
            reached_s += before[placed, kind] * kinds[kind, 1]
            returned_s += before[placed, kind] * (kinds[kind, 0] - kinds[kind, 1])
    else:  # each first chunk has a layer, except the one with the embedding
        forward = backward = np.inf
        for kind in range(len(kinds)):
            forward = min(forward, kinds[kind, 1])
            backward = min(backward, kinds[kind, 0] - kinds[kind, 1])
        reached_s += (rank - 1) * forward
        returned_s += (rank - 1) * backward
    return reached_s, row[6] * returned_s


class RankLimits(NamedTuple):
    """Memory and time available on a rank for its layers."""

    in_flight: Floats
    """Microbatches in flight, as a row of `in_flight_by_rank`."""
    room: float
    """Bytes available for layers."""
    spare_s: float
    """Time available for layers per microbatch, in seconds."""
    back_s: float
    """Time for the last microbatch to return to the embedding, in seconds."""
    microbatches: float


@njit_inlined
def next_layers(kinds: Floats, before: Ints, placed: int, near: int, limits: RankLimits) -> int:
    """End of the longest run of layers from `placed` that fits a rank's memory and time per microbatch.

    The search starts at `near`.
    """
    layers = len(before) - 1
    end = min(near, layers)
    while end > placed and not fits(kinds, before, placed, end, limits):
        end -= 1
    if end < near:
        return end
    while end < layers and fits(kinds, before, placed, end + 1, limits):
        end += 1
    return end


@njit_nested
def fits(kinds: Floats, before: Ints, start: int, end: int, limits: RankLimits) -> bool:
    """True if the layers from `start` to `end` fit a rank's memory and time per microbatch."""
    in_flight, count = limits.in_flight, limits.microbatches
    work, update, stored, saved, cheapest = 0.0, 0.0, 0.0, 0.0, np.inf
    for kind in range(len(kinds)):
        n, costs = before[end, kind] - before[start, kind], kinds[kind]
        if n:
            work += n * costs[0]
            update += n * costs[3]
            stored += n * (costs[4] + costs[5] * in_flight[0])
            saved += n * costs[6] * in_flight[0]
            if costs[6] > 0:
                cheapest = min(cheapest, costs[2] / costs[6])
    # Recompute as few bytes as must be saved, at the cheapest rate per byte of these layers.
    over = stored - limits.room
    if over > saved:
        return False
    recompute_s = over * cheapest / in_flight[2] if over > 0 else 0.0
    slack = 1 + 1e-9
    return (
        work + recompute_s + update / count <= limits.spare_s * slack
        and work + recompute_s <= (limits.spare_s - limits.back_s / count) * slack
    )


@njit_nested
def least_extra(kinds: Floats, in_flight: Floats) -> tuple[float, float]:
    """Minimum bytes of a rank's additional activations (column b), without and with recompute.

    They count for the kind that stores the least.
    """
    extra = lean = np.inf
    for kind in range(len(kinds)):
        costs = kinds[kind]
        extra = min(extra, in_flight[1] * costs[5])
        lean = min(lean, in_flight[1] * (costs[5] - costs[6]))
    return extra, lean


@njit_nested
def work_of_rank(
    kinds: Floats,
    totals: Ints,
    in_flight: Floats,
    added: tuple[float, float],
    room: float,
    spare_s: float,
    back_s: float,
    count: float,
) -> float:
    """Maximum layer time per microbatch, in seconds, that a rank's memory and time allow.

    `added` are the activations of the additional layers, see `least_extra`.
    """
    cheapest, share = np.inf, 0.0
    extra, lean = added
    for kind in range(len(kinds)):
        costs = kinds[kind]
        # The largest share of passes in a layer's time, as updates count once per step.
        share = max(share, costs[0] / (costs[0] + costs[3] / count))
        if costs[6] > 0:
            cheapest = min(cheapest, costs[2] / (costs[6] * in_flight[2]))
    work_s = min(spare_s * share, spare_s - back_s / count)
    kept_room, lean_room = max(room - extra, 0.0), max(room - lean, 0.0)
    if cheapest == np.inf:
        work_s = min(work_s, most_work(kinds, totals, in_flight[0], 0.0, 0.0, 1.0, kept_room))
    else:
        work_s = min(work_s, most_work(kinds, totals, in_flight[0], 1.0, 0.0, 1.0, lean_room))
        if spare_s < np.inf:
            room = spare_s + cheapest * kept_room
            work_s = min(work_s, most_work(kinds, totals, in_flight[0], 0.0, 1.0, cheapest, room))
    if len(kinds) == 1:  # whole layers
        work_s = np.floor(work_s / kinds[0, 0] + 1e-9) * kinds[0, 0]
    return float(work_s)


@njit_nested
def most_work(
    kinds: Floats, totals: Ints, in_flight: float, recomputed: float, second: float, byte: float, room: float
) -> float:
    """Maximum layer time that fits into `room`, in seconds, as a fractional knapsack problem.

    A layer needs `second` for each of its seconds and `byte` for each of its bytes. The share `recomputed` of
    the layers is recomputed and stores fewer bytes.
    """
    work_s, last = 0.0, -1.0
    # Kinds by seconds per need, best first; those with equal ratios count together.
    for _ in range(len(kinds)):
        ratio, number, seconds = np.inf, 0, 0.0
        for kind in range(len(kinds)):
            costs = kinds[kind]
            needed = byte * (costs[4] + (costs[5] - recomputed * costs[6]) * in_flight) / costs[0] + second
            if last < needed < ratio:
                ratio, number, seconds = needed, totals[kind], costs[0]
            elif needed == ratio:
                number, seconds = number + totals[kind], max(seconds, costs[0])
        if number == 0:
            return work_s
        most = number * seconds if len(kinds) > 1 else np.inf
        if ratio * most > room:
            return work_s + room / ratio
        work_s, room, last = work_s + most, room - ratio * most, ratio
    return work_s
