"""Least time in which the ranks of a pipeline have room and time for all layers, for many layouts at once.

Figures of a layout are: microbatches; seconds of the embedding and of the head for one; bytes of both;
forward seconds of the embedding; whether a rank waits for the last microbatch's way back. Those of a kind of
layers: seconds for a microbatch; of these forward; again, if it runs forward again; of the update; bytes
there all the time; bytes kept of a microbatch; fewer by running forward again. `held` are the microbatches of
ranks, see `bounds`.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit

STEPS = 40
"""Halvings of the range in which the least time lies."""


@njit
def least_times(
    figures: Floats, by_kind: Floats, shapes: Ints, held: Floats, before: Ints, limit: float
) -> tuple[Floats, Floats]:
    """Least seconds of a step (N,), and bytes that a rank lacks (N,), of layouts with figures (N, 7), figures
    of kinds of layers (N, K, 7), and ranks, chunks and first row of `held` (N, 3).

    The columns are those that `bound_layouts` puts together; `before` are layers by kind, (L + 1, K).
    """
    found, lacking = np.empty(len(figures)), np.zeros(len(figures))
    totals = before[-1]
    for i in range(len(figures)):
        row, kinds, depth, chunks = figures[i], by_kind[i], shapes[i, 0], shapes[i, 1]
        own = held[shapes[i, 2] :]
        if not holds_all(row, kinds, depth, chunks, own, before, limit, np.inf):
            low, high = 0.0, row[3] + row[4]
            for kind in range(len(totals)):
                high += totals[kind] * (kinds[kind, 4] + kinds[kind, 5] * own[0, 2])
            for _ in range(STEPS):
                middle = (low + high) / 2
                if holds_all(row, kinds, depth, chunks, own, before, limit + middle, np.inf):
                    high = middle
                else:
                    low = middle
            found[i], lacking[i] = np.inf, max(low, 1.0)
            continue
        all_s, again_s = row[0] * (row[1] + row[2]), 0.0
        for kind in range(len(totals)):
            all_s += totals[kind] * (row[0] * kinds[kind, 0] + kinds[kind, 3])
            again_s += totals[kind] * row[0] * kinds[kind, 2]
        low, high = 0.0, 2 * (all_s + again_s)
        for _ in range(STEPS):
            middle = (low + high) / 2
            if holds_all(row, kinds, depth, chunks, own, before, limit, middle):
                high = middle
            else:
                low = middle
            if high - low <= 1e-4 * low:
                break
        found[i] = low
    return found, lacking


@njit
def holds_all(
    row: Floats,
    kinds: Floats,
    depth: int,
    chunks: int,
    held: Floats,
    before: Ints,
    limit: float,
    seconds: float,
) -> bool:
    """Whether all ranks together have room and time for all layers."""
    count, first, last = row[0], row[1], row[2]
    layers, totals = len(before) - 1, before[-1]
    work = 0.0
    for kind in range(len(totals)):
        work += totals[kind] * kinds[kind, 0]
    placed, taken, done = 0, layers // depth, 0.0
    for rank in range(depth):
        start, end = rank == 0, rank == depth - 1
        room = limit - start * row[3] - end * row[4]
        if room < 0:
            return False
        there, back = passed_s(row, kinds, before, placed, rank, chunks)
        spare = (seconds - there) / count - start * first - end * last
        if spare < back / count:
            continue
        if chunks == 1:
            end_of = next_layers(kinds, before, placed, placed + taken, held[rank], room, spare, back, count)
            taken, placed = end_of - placed, end_of
            if placed == layers:
                return True
        else:
            done += work_of_rank(kinds, totals, held[rank], room, spare, back, count)
            if done >= work * (1 - 1e-9):
                return True
    return False


@njit
def passed_s(
    row: Floats, kinds: Floats, before: Ints, placed: int, rank: int, chunks: int
) -> tuple[float, float]:
    """Seconds until the first microbatch is at a rank, and for the last one from there to the embedding."""
    if rank == 0:
        return 0.0, 0.0
    there, back = row[5], row[1] - row[5]
    if chunks == 1:
        for kind in range(len(kinds)):
            there += before[placed, kind] * kinds[kind, 1]
            back += before[placed, kind] * (kinds[kind, 0] - kinds[kind, 1])
    else:  # of the first chunks, each but the one with the embedding has a layer
        forward = backward = np.inf
        for kind in range(len(kinds)):
            forward = min(forward, kinds[kind, 1])
            backward = min(backward, kinds[kind, 0] - kinds[kind, 1])
        there += (rank - 1) * forward
        back += (rank - 1) * backward
    return there, row[6] * back


@njit
def next_layers(
    kinds: Floats,
    before: Ints,
    placed: int,
    near: int,
    held: Floats,
    room: float,
    spare_s: float,
    back_s: float,
    count: float,
) -> int:
    """The layer behind the last one that a rank has room and seconds of a microbatch for, if it begins with
    layer `placed`; it is looked for from `near` on.
    """
    layers = len(before) - 1
    end = min(near, layers)
    while end > placed and not fits(kinds, before, placed, end, held, room, spare_s, back_s, count):
        end -= 1
    if end < near:
        return end
    while end < layers and fits(kinds, before, placed, end + 1, held, room, spare_s, back_s, count):
        end += 1
    return end


@njit
def fits(
    kinds: Floats,
    before: Ints,
    start: int,
    end: int,
    held: Floats,
    room: float,
    spare_s: float,
    back_s: float,
    count: float,
) -> bool:
    """Whether a rank has room and seconds of a microbatch for the layers from `start` to `end`."""
    work, update, kept, saved, cheapest = 0.0, 0.0, 0.0, 0.0, np.inf
    for kind in range(len(kinds)):
        n, own = before[end, kind] - before[start, kind], kinds[kind]
        if n:
            work += n * own[0]
            update += n * own[3]
            kept += n * (own[4] + own[5] * held[0])
            saved += n * own[6] * held[0]
            if own[6] > 0:
                cheapest = min(cheapest, own[2] / own[6])
    over = kept - room
    if over > saved:
        return False
    again = over * cheapest / held[2] if over > 0 else 0.0
    slack = 1 + 1e-9
    return (
        work + again + update / count <= spare_s * slack
        and work + again <= (spare_s - back_s / count) * slack
    )


@njit
def work_of_rank(
    kinds: Floats, totals: Ints, held: Floats, room: float, spare_s: float, back_s: float, count: float
) -> float:
    """Most seconds of a microbatch that a rank has room and time to spend on layers of any kinds."""
    kept, bare = kinds[:, 0].copy(), kinds[:, 0].copy()
    cheapest, share = np.inf, 0.0
    for kind in range(len(kinds)):
        own = kinds[kind]
        kept[kind] = own[4] + own[5] * held[0]
        bare[kind] = own[4] + (own[5] - own[6]) * held[0]
        share = max(share, own[0] / (own[0] + own[3] / count))
        if own[6] > 0:
            cheapest = min(cheapest, own[2] / (own[6] * held[2]))
    # Of layers that are held of more or fewer microbatches than others, those that keep the least or most.
    extra, lean = held[1] * kinds[0, 5], held[1] * (kinds[0, 5] - kinds[0, 6])
    for kind in range(1, len(kinds)):
        extra = min(extra, held[1] * kinds[kind, 5])
        lean = min(lean, held[1] * (kinds[kind, 5] - kinds[kind, 6]))
    kept_room, bare_room = max(room - extra, 0.0), max(room - lean, 0.0)
    found = min(spare_s * share, spare_s - back_s / count, most_work(kinds, bare, totals, bare_room))
    if cheapest == np.inf:
        found = min(found, most_work(kinds, kept, totals, kept_room))
    elif spare_s < np.inf:
        both = kinds[:, 0] + cheapest * kept
        found = min(found, most_work(kinds, both, totals, spare_s + cheapest * kept_room))
    if len(kinds) == 1:  # whole layers
        found = np.floor(found / kinds[0, 0] + 1e-9) * kinds[0, 0]
    return float(found)


@njit
def most_work(kinds: Floats, each: Floats, totals: Ints, room: float) -> float:
    """Most seconds of layers of which one of each kind needs so much of a room: those that need the least for
    a second first, and parts of the last one.
    """
    found, used = 0.0, np.zeros(len(kinds), np.bool_)
    for _ in range(len(kinds)):
        best, ratio = -1, np.inf
        for kind in range(len(kinds)):
            if not used[kind] and each[kind] / kinds[kind, 0] < ratio:
                best, ratio = kind, each[kind] / kinds[kind, 0]
        used[best] = True
        number = totals[best] if len(kinds) > 1 else np.inf
        if each[best] * number > room:
            return found + room / ratio
        found += number * kinds[best, 0]
        room -= number * each[best]
    return found
