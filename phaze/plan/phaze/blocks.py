"""Search over the cuts of an embedding, L equal blocks and a head; `chains` says why these are enough.

Stages are numbered from the end: the last is 1, the middle ones are 2 .. s - 1, the first is s. Memory limits
come as numbers of blocks by position; every function below looks at one architecture and returns the best
time so far.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit

Layer = tuple[float, float, float, float, float, float]
"""Latencies of embedding, block and head: three forward, three backward."""


class Model(NamedTuple):
    """What of a model, a width and a cluster does not depend on the architecture."""

    blocks: int
    stages: int
    """Largest number of stages."""
    recompute: bool
    from_embedding_s: float
    """Transfer of the embedding's output."""
    between_blocks_s: float
    """Transfer of a block's output."""
    embedding_s: float
    """Exchange of its gradients over very many replicas."""
    block_s: float
    head_s: float
    every_stage: bool
    """The batch waits for the longest exchange of any stage, not for that of the first."""


class Memory(NamedTuple):
    """How many blocks fit a stage, by its position from the end; -1 if it does not even fit without any."""

    whole: bool
    """The whole model fits one stage."""
    first: Ints
    """With the embedding."""
    second: Ints
    """In the stage that follows a first stage of the embedding alone."""
    middle: Ints
    last: int
    """With the head, as the last stage."""
    reach: Ints
    """(x, s): blocks that positions 2 .. s hold with at most x each."""


class Options(NamedTuple):
    """Data widths to choose from, ascending, with ceil(B/d)."""

    counts: Ints
    widths: Ints
    top: Ints
    """(s, variant): index of the widest d that the devices allow, -1 for none. The variant is 1 if the first
    stage is the embedding alone, plus 2 if the last is the head alone."""
    least: Floats
    """(s,): least ceil(B/d) + s - 1 over the variants, infinite if none is possible."""


SAFE = 1.0 - 1e-12
"""Factor on a bound whose rounding could otherwise cut off what is better by the last digit."""
PLAN = 6
"""Length of a plan: s, d, blocks of the first stage, at most of the second, of a middle one, of the last."""


@njit
def search(
    forward: Floats,
    backward: Floats,
    model: Model,
    memory: Memory,
    options: Options,
    times: Floats,
) -> None:
    """Improve the times (A,) of all architectures, whose latencies are arrays (A, 3).

    Neighbours in the list are often alike: each search starts from the last plan that was found, which fits
    for all.
    """
    hint = np.zeros(PLAN, np.int64)
    found = np.zeros(PLAN, np.int64)
    for a in range(len(times)):
        f, b = forward[a], backward[a]
        layer = (f[0], f[1], f[2], b[0], b[1], b[2])
        best = times[a]
        found[0] = 0
        if hint[0] > 0:
            best = _retry(layer, model, options, hint, best, found)
        best = _search_one(layer, model, memory, options, best, found)
        if found[0] > 0:
            times[a] = best
            hint[:] = found


@njit
def _search_one(
    layer: Layer, model: Model, memory: Memory, options: Options, best: float, plan: Ints
) -> float:
    work = _work(layer, model)
    if memory.whole:
        best = _offer(work, _all_s(model), 1, 0, options, best, plan, (model.blocks, 0, 0, 0))
    for s in range(2, model.stages + 1):
        least = options.least[s]
        if least * _least_load(s, work, layer, model) * SAFE >= best:
            continue
        if memory.first[s] >= 0:
            best = _embedding_alone(s, least, layer, model, memory, options, best, plan)
        if memory.first[s] >= 1:
            best = _embedding_with_blocks(s, least, layer, model, memory, options, best, plan)
    return best


@njit
def _work(layer: Layer, model: Model) -> float:
    """Return the work of all layers."""
    ends = layer[0] + layer[2] + layer[3] + layer[5]
    return ends + model.blocks * (layer[1] + layer[4])


@njit
def _all_s(model: Model) -> float:
    """Return the exchange of the whole model as one stage."""
    return model.embedding_s + model.blocks * model.block_s + model.head_s


@njit
def _exchange_s(c: int, x: int, last: int, model: Model) -> float:
    """Return the exchange that the batch waits for: first stage with c blocks, x in the middle, last."""
    first = model.embedding_s + c * model.block_s
    if not model.every_stage:
        return first
    return max(first, x * model.block_s, last * model.block_s + model.head_s)


@njit
def _least_load(s: int, work: float, layer: Layer, model: Model) -> float:
    """Return what the slowest of s stages takes at least: the mean, and the stage with the most blocks."""
    transfer = min(model.from_embedding_s, model.between_blocks_s)
    most = -(-model.blocks // s) * (layer[1] + layer[4]) + transfer
    return max(most, (work + 2 * (s - 1) * transfer) / s)


@njit
def _least_time(load: float, weights_s: float, s: int, variant: int, options: Options) -> float:
    """Return a lower bound on the time with any data width: B/d for ceil(B/d) makes it linear in 1/d."""
    top = options.top[s, variant]
    if top < 0:
        return np.inf
    batch = options.counts[0]
    gain = batch * load - weights_s
    least: float = (s - 1) * load + weights_s + (gain / options.widths[top] if gain > 0 else gain)
    return SAFE * least


@njit
def _offer(
    load: float,
    weights_s: float,
    s: int,
    variant: int,
    options: Options,
    best: float,
    plan: Ints,
    cut: tuple[int, int, int, int],
) -> float:
    """Give the cut its best data width; note it in the plan if it is better than the best."""
    if _least_time(load, weights_s, s, variant, options) >= best:
        return best
    for w in range(options.top[s, variant], -1, -1):
        busy, d = (options.counts[w] + s - 1) * load, options.widths[w]
        if busy >= best:
            break
        time = busy + (d - 1) / d * weights_s
        if time < best:
            best = time
            plan[0], plan[1] = s, d
            plan[2], plan[3], plan[4], plan[5] = cut
    return best


@njit
def _first_load(c: int, layer: Layer, model: Model) -> float:
    """Return the load of the embedding with c blocks, followed by other stages."""
    forward, backward = layer[0] + c * layer[1], layer[3] + c * layer[4]
    out = model.between_blocks_s if c > 0 else model.from_embedding_s
    return forward + backward + (max(forward, out) if model.recompute else out)


@njit
def _middle_load(c: int, into: float, layer: Layer, model: Model) -> float:
    """Return the load of c blocks between other stages."""
    forward, out = c * layer[1], model.between_blocks_s
    return into + forward + c * layer[4] + (max(forward, out) if model.recompute else out)


@njit
def _last_load(c: int, layer: Layer, model: Model) -> float:
    """Return the load of c blocks with the head, after other stages."""
    into = model.between_blocks_s if c < model.blocks else model.from_embedding_s
    return into + c * (layer[1] + layer[4]) + layer[2] + layer[5]


@njit
def _embedding_with_blocks(
    s: int,
    least: float,
    layer: Layer,
    model: Model,
    memory: Memory,
    options: Options,
    best: float,
    plan: Ints,
) -> float:
    """Try first stages of the embedding with one block or more."""
    middles = s - 2
    if middles > 0 and memory.middle[s - 1] < 1:
        return best
    heaviest = min(memory.last, _blocks_within(best / least, layer[2] + layer[5], layer, model))
    longest = min(memory.first[s], _blocks_within(best / least, layer[0] + layer[3], layer, model))
    missing = model.blocks - heaviest - longest
    lightest = max(1, -(-missing // middles)) if middles > 0 else 1
    for x in range(lightest, (memory.middle[2] if middles > 0 else 1) + 1):
        middle = _middle_load(x, model.between_blocks_s, layer, model) if middles > 0 else 0.0
        if least * middle >= best:
            break
        rest = model.blocks - (memory.reach[x, s - 1] if middles > 0 else 0)
        if rest <= 1:
            if middles + 1 <= model.blocks and memory.last >= 0:
                best = _share(s, 1, 0, x, middle, layer, model, options, best, plan)
            break
        for c in range(max(1, rest - heaviest), min(longest, rest) + 1):
            load = max(middle, _first_load(c, layer, model))
            if _least_time(load, model.embedding_s + c * model.block_s, s, 2, options) >= best:
                break
            best = _share(s, c, rest - c, x, middle, layer, model, options, best, plan)
    return best


@njit
def _blocks_within(load: float, end: float, layer: Layer, model: Model) -> int:
    """Return at least as many blocks as a stage with this load can have beside the embedding or the head."""
    block = layer[1] + layer[4]
    if not block > 0.0 or load == np.inf:
        return model.blocks
    most = (load - end) / block
    return model.blocks if most >= model.blocks else int(max(most, 0.0)) + 1


@njit
def _share(
    s: int,
    c: int,
    last: int,
    x: int,
    middle: float,
    layer: Layer,
    model: Model,
    options: Options,
    best: float,
    plan: Ints,
) -> float:
    """Offer c blocks for the first stage, at most x for each middle one, the others for the last."""
    load = max(middle, _first_load(c, layer, model), _last_load(last, layer, model))
    weights_s = _exchange_s(c, x if s > 2 else 0, last, model)
    return _offer(load, weights_s, s, 2 if last == 0 else 0, options, best, plan, (c, x, x, last))


@njit
def _embedding_alone(
    s: int,
    least: float,
    layer: Layer,
    model: Model,
    memory: Memory,
    options: Options,
    best: float,
    plan: Ints,
) -> float:
    """Try first stages of the embedding alone; the second stage then starts at the first block."""
    first = _first_load(0, layer, model)
    if s == 2:
        if memory.last < model.blocks:
            return best
        load = max(first, _last_load(model.blocks, layer, model))
        weights_s = _exchange_s(0, 0, model.blocks, model)
        return _offer(load, weights_s, s, 1, options, best, plan, (0, 0, 0, model.blocks))
    if memory.second[s - 1] < 1 or (s > 3 and memory.middle[s - 2] < 1):
        return best
    for leader in range(2):
        best = _fill(s, leader == 0, least, first, layer, model, memory, options, best, plan)
    return best


@njit
def _fill(
    s: int,
    by_second: bool,
    least: float,
    first: float,
    layer: Layer,
    model: Model,
    memory: Memory,
    options: Options,
    best: float,
    plan: Ints,
) -> float:
    """Try every number of blocks for the second stage, or for the others in the middle."""
    ours, theirs = model.between_blocks_s, model.from_embedding_s
    equal = ours == theirs
    if by_second:
        ours, theirs = theirs, ours
    elif equal or s == 3:
        return best
    heaviest = min(memory.last, _blocks_within(best / least, layer[2] + layer[5], layer, model))
    lightest = max(1, -(-(model.blocks - heaviest) // (s - 2))) if equal else 1
    follow = 0
    for lead in range(lightest, model.blocks + 1):
        middle = _middle_load(lead, ours, layer, model)
        if least * max(middle, first) >= best:
            break
        if equal:
            follow = lead
        while follow < model.blocks and _middle_load(follow + 1, theirs, layer, model) <= middle:
            follow += 1
        # Where the largest stage's gradients count, as many as fit the load need not be the best.
        fewest = lead if model.every_stage and lead < follow else follow
        rest = 1
        for other in range(fewest, follow + 1):
            second, x = (lead, other) if by_second else (other, lead)
            if second < 1 or (s > 3 and x < 1):
                continue
            second = min(second, memory.second[s - 1])
            rest = model.blocks - second - (memory.reach[x, s - 2] if s > 3 else 0)
            load, last = max(middle, first), max(rest, 0)
            best = _end(s, second, x, last, load, layer, model, memory, options, best, plan)
        if rest <= 0:
            break
    return best


@njit
def _end(
    s: int,
    second: int,
    x: int,
    last: int,
    load: float,
    layer: Layer,
    model: Model,
    memory: Memory,
    options: Options,
    best: float,
    plan: Ints,
) -> float:
    """Offer the embedding alone, the second stage, at most x blocks for each after it, and the last stage."""
    if last > memory.last or s - 2 + last > model.blocks:
        return best
    load = max(load, _last_load(last, layer, model))
    weights_s = _exchange_s(0, max(second, x if s > 3 else 0), last, model)
    variant, cut = 3 if last == 0 else 1, (0, second, x, last)
    return _offer(load, weights_s, s, variant, options, best, plan, cut)


@njit
def _retry(layer: Layer, model: Model, options: Options, hint: Ints, best: float, plan: Ints) -> float:
    """Offer the plan that was best for another architecture."""
    s, c, second, x, last = hint[0], hint[2], hint[3], hint[4], hint[5]
    if s == 1:
        load = _work(layer, model)
        return _offer(load, _all_s(model), 1, 0, options, best, plan, (c, 0, 0, 0))
    load = max(_first_load(c, layer, model), _last_load(last, layer, model))
    if c > 0 and s > 2:
        load = max(load, _middle_load(x, model.between_blocks_s, layer, model))
    if c == 0 and s > 2:
        load = max(load, _middle_load(second, model.from_embedding_s, layer, model))
    if c == 0 and s > 3:
        load = max(load, _middle_load(x, model.between_blocks_s, layer, model))
    variant = (1 if c == 0 else 0) + (2 if last == 0 else 0)
    most = max(second if c == 0 and s > 2 else 0, x if s > (3 if c == 0 else 2) else 0)
    weights_s = _exchange_s(c, most, last, model)
    return _offer(load, weights_s, s, variant, options, best, plan, (c, second, x, last))
