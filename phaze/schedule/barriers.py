"""Barriers of a component: points in time at which the accelerator is idle, and the blocks between them.

While an operator runs on all cores, nothing else runs (Section 4). The accelerator therefore passes through
idle moments at which the finished operators form a downset. Between two such moments, either one operator or
a block of operators on single cores runs. A schedule is thus a path through the downsets, and its latency the
sum of its blocks. All data here depends on the order of the operators alone and is computed once for all
architectures.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from phaze.base.arrays import Bools, Ints
from phaze.base.compiled import njit
from phaze.schedule.graphs import FUSED, TENSOR, VECTOR, Component, downsets

Indices = npt.NDArray[np.int32]

MAX_OPERATORS = 60
"""Maximum number of operators, because sets are stored as bits of a 64-bit integer."""


class Blocks(NamedTuple):
    """All blocks of a component, and the steps between downsets in which they run.

    Every block except the first follows the block without its last operator, or an extension of that block.
    State of the shorter block is then still on a stack.
    """

    masks: Ints
    """Operators of each block as bits, shape (b,)."""
    last: Ints
    """Last operator of each block, shape (b,)."""
    size: Ints
    """Number of operators in each block, shape (b,)."""
    usable: Ints
    """1 if the block contains no barrier; other blocks only serve to build longer ones, shape (b,)."""
    widths: Ints
    """Maximum number of concurrent operators of any, tensor, vector and fused type, shape (b, 4)."""
    offsets: Ints
    """Steps into downset d are offsets[d] to offsets[d + 1], shape (d + 1,)."""
    sources: Indices
    """Downset from which a step starts, shape (steps,)."""
    steps: Indices
    """Block that a step runs, shape (steps,)."""


def make_blocks(component: Component, limit: int) -> Blocks | None:
    """Blocks of a component, or None if it has more than `limit` steps between downsets."""
    n = len(component.operators)
    sets = downsets(component.order, limit) if n <= MAX_OPERATORS else None
    if sets is None:
        return None
    states = np.array(sets, dtype=np.int64)
    offsets, sources, masks = _all_steps(states, limit)
    if len(masks) > limit:
        return None
    unique, steps = np.unique(masks, return_inverse=True)
    rank = np.argsort([int(format(int(mask), f"0{n}b")[::-1], 2) for mask in unique])  # bits reversed
    unique, steps = unique[rank], np.argsort(rank)[steps]
    apart = as_masks(~(component.order | component.order.T) & ~np.eye(n, dtype=np.bool_))
    usable = _connected(unique, apart)
    keep = usable[steps] > 0
    kinds = component.kinds
    of_type = [kinds >= 0, kinds == TENSOR, kinds == VECTOR, kinds == FUSED]
    return Blocks(
        masks=unique,
        last=np.array([int(mask).bit_length() - 1 for mask in unique], dtype=np.int64),
        size=np.array([int(mask).bit_count() for mask in unique], dtype=np.int64),
        usable=usable,
        widths=_widths(unique, _antichains(states, component), as_masks(np.array(of_type))),
        offsets=np.concatenate([[0], np.cumsum(keep)])[offsets].astype(np.int64),
        sources=sources[keep].astype(np.int32),
        steps=steps[keep].astype(np.int32),
    )


def as_masks(matrix: Bools) -> Ints:
    """Encode each row of a boolean matrix as the bits of an integer, shape (rows,)."""
    return np.array([sum(1 << int(j) for j in np.flatnonzero(row)) for row in matrix], dtype=np.int64)


def _antichains(states: Ints, component: Component) -> Ints:
    """Maximal operators of each downset, as bits, shape (d,); every antichain appears once."""
    after = as_masks(component.order)
    bits = np.arange(len(after))
    inside = (states[:, None] >> bits & 1).astype(np.bool_)
    largest: Ints = ((inside & ((states[:, None] & after) == 0)).astype(np.int64) << bits).sum(axis=1)
    return largest


@njit
def _all_steps(states: Ints, limit: int) -> tuple[Ints, Ints, Ints]:
    """All nested pairs of downsets: offsets by larger set, index of the smaller set, and difference bits."""
    offsets = np.zeros(len(states) + 1, dtype=np.int64)
    sources, masks = [0], [np.int64(0)]
    for d in range(len(states)):
        for s in range(d):
            if states[s] & states[d] == states[s]:
                sources.append(s)
                masks.append(states[d] & ~states[s])
        offsets[d + 1] = len(masks) - 1
        if len(masks) - 1 > limit:
            break
    return offsets, np.array(sources[1:], dtype=np.int64), np.array(masks[1:], dtype=np.int64)


@njit
def _connected(masks: Ints, apart: Ints) -> Ints:
    """1 for each set whose operators are connected through incomparable pairs, shape (b,)."""
    result = np.zeros(len(masks), dtype=np.int64)
    for b in range(len(masks)):
        reached = masks[b] & -masks[b]
        grown = True
        while grown:
            grown = False
            for i in range(len(apart)):
                if reached >> i & 1 and apart[i] & masks[b] & ~reached:
                    reached |= apart[i] & masks[b]
                    grown = True
        result[b] = reached == masks[b]
    return result


def _widths(masks: Ints, antichains: Ints, types: Ints) -> Ints:
    """Size of the largest antichain in each set, over all core types and for each type, shape (b, types)."""
    return np.stack([_largest(masks, _maximal(np.unique(antichains & kind))) for kind in types], axis=1)


@njit
def _maximal(sets: Ints) -> Ints:
    """Sets that no other set contains; the given sets are distinct."""
    maximal = np.ones(len(sets), dtype=np.bool_)
    for k in range(len(sets)):
        for other in range(len(sets)):
            if other != k and sets[k] & sets[other] == sets[k]:
                maximal[k] = False
                break
    return sets[maximal]


@njit
def _largest(masks: Ints, antichains: Ints) -> Ints:
    """Size of the largest intersection of each set with an antichain, shape (b,)."""
    widths = np.zeros(len(masks), dtype=np.int64)
    for b in range(len(masks)):
        for antichain in antichains:
            members, count = antichain & masks[b], 0
            while members:
                members &= members - 1
                count += 1
            widths[b] = max(widths[b], count)
    return widths
