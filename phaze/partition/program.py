"""Dynamic program over fronted subgraphs, one stage boundary after the other (Parmesan, Section IV-A).

With R devices for every stage, (2) becomes (13):

    T[F, s] = min over fronted subgraphs F' of F, F' != F, of max(T[F', s - 1], t(F - F'))

where t is the time (3) of a stage, infinite if its memory (14) exceeds a device. R scales all times equally
and is omitted. All S stages have operators: the paper's table allows empty stages, but S R devices are
reserved.

For a pair, (3) and (14) follow from sums of F and F' alone, except for the messages that bypass the stage:

    border(F - F') = border(F') + border(F) - 2 · bytes of edges from F' to nodes outside F

Only the slowest stage determines the optimum. A second pass therefore minimises the messages among all
partitions whose stages take no longer than the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.bitsets import Words, contains, unpack
from phaze.base.compiled import njit
from phaze.partition.fronted import LIMIT, SetFamily, Windows, family, windows_within
from phaze.partition.weights import NONE, ROUNDING, Weights, quotient, stage_times


@dataclass(frozen=True, eq=False)
class Cut:
    """A partition of a graph into stages, with the time of the slowest stage."""

    stage_of: Ints
    """Stage of each node, shape (n,)."""
    time_s: float
    """Time of the slowest stage, equation (3)."""


def cut_within(
    weights: Weights, stages: int, limit_s: float = np.inf, most_sets: int = LIMIT, *, thrifty: bool = False
) -> Cut | None:
    """Best partition with no stage slower than a limit; None if infeasible.

    `thrifty` minimises the messages instead, within the limit. Raises TooManyError if a boundary has more
    than `most_sets` fronted subgraphs.
    """
    windows = windows_within(weights, stages, limit_s)
    if windows.contradictory:
        return None
    smaller, group = quotient(weights, windows.groups)
    stage_of = cut_between(
        smaller, windows_within(smaller, stages, limit_s), limit_s, most_sets, thrifty=thrifty
    )
    return None if stage_of is None else cut_of(weights, stage_of[group])


def cut_of(weights: Weights, stage_of: Ints) -> Cut:
    """Partition with the time of its slowest stage."""
    return Cut(stage_of, float(stage_times(weights, stage_of).max()))


def cut_between(
    weights: Weights, windows: Windows, limit_s: float, most_sets: int, *, thrifty: bool
) -> Ints | None:
    """Stage of each node (n,) in the best partition that respects the stage ranges; None if infeasible."""
    stages = len(windows.least_s) + 1
    families = [family(weights, windows, border, most_sets, limit_s) for border in range(stages + 1)]
    return best_chain(weights, families, limit_s, thrifty=thrifty)


def best_chain(
    weights: Weights, families: Sequence[SetFamily], limit_s: float, *, thrifty: bool = False
) -> Ints | None:
    """Stage of each node (n,) for the best chain of nested sets F_0, F_1, ..., F_S, one from each family."""
    target, most_memory = weights.targets, weights.limit_bytes * (1 + ROUNDING)
    most_time = limit_s * (1 + ROUNDING)
    costs = _Costs(target, weights.edge_bytes, weights.seconds_per_byte, most_memory, most_time, thrifty)
    values, choices = [np.zeros(len(families[0].words))], []
    for inner, outer in pairwise(families):
        order = np.argsort(values[-1], kind="stable")
        order = order[np.isfinite(values[-1][order])]
        ranked = inner._replace(
            words=inner.words[order],
            compute_s=inner.compute_s[order],
            memory_bytes=inner.memory_bytes[order],
            sent_bytes=inner.sent_bytes[order],
        )
        grown, choice = _one_more_stage(order, values[-1][order], ranked, outer, costs)
        values.append(grown)
        choices.append(choice)
    if not np.isfinite(values[-1]).any():
        return None
    return _trace(families, choices, int(np.argmin(values[-1])), len(weights))


def _trace(families: Sequence[SetFamily], choices: Sequence[Ints], last: int, nodes: int) -> Ints:
    """Trace back the stage of each node (n,) for the chain that ends with set `last`."""
    stage_of = np.zeros(nodes, dtype=np.int64)
    row = last
    for border in range(len(choices) - 1, 0, -1):
        row = int(choices[border][row])
        stage_of[~unpack(families[border].words[row : row + 1], nodes)[0]] += 1
    return stage_of


class _Costs(NamedTuple):
    """Costs and limits of a stage between two boundaries."""

    target: Ints
    """Target node of each edge, (e,)."""
    size: Floats
    """Bytes of each edge, (e,)."""
    seconds_per_byte: float
    most_memory: float
    most_time: float
    thrifty: bool
    """True to minimise messages instead of the time."""


@njit
def _one_more_stage(
    order: Ints, value: Floats, inner: SetFamily, outer: SetFamily, costs: _Costs
) -> tuple[Floats, Ints]:
    """Minimum cost T[F, s] of the first s stages for each set F of `outer`, and its best inner set F'.

    `value` has T[F', s - 1] in ascending order. The sets of `inner` are in that order, but the offsets of
    their crossing edges are not. T is in bytes if `thrifty`.
    """
    best, choice = np.full(len(outer.words), np.inf), np.full(len(outer.words), NONE, np.int64)
    rounding = ROUNDING * inner.compute_s.sum()
    for row in range(len(outer.words)):
        compute_of, sent_of = outer.compute_s[row], outer.sent_bytes[row]
        for k in range(len(order)):
            if value[k] >= best[row]:
                break
            compute = compute_of - inner.compute_s[k]
            # The bypassing bytes are at most the bytes over either border.
            least = compute + costs.seconds_per_byte * abs(inner.sent_bytes[k] - sent_of)
            too_long = least > costs.most_time or (not costs.thrifty and least >= best[row])
            if compute < -rounding or too_long or not _smaller(inner.words, k, outer.words, row):
                continue
            over = inner.sent_bytes[k] + sent_of - 2.0 * _passing(outer.words, row, inner, order[k], costs)
            time = compute + costs.seconds_per_byte * over
            memory = outer.memory_bytes[row] - inner.memory_bytes[k] + over
            if time > costs.most_time or memory > costs.most_memory:
                continue
            reached = value[k] + over if costs.thrifty else max(value[k], time)
            if reached < best[row]:
                best[row], choice[row] = reached, order[k]
    return best, choice


@njit
def _passing(outer: Words, row: int, inner: SetFamily, k: int, costs: _Costs) -> float:
    """Bytes from inner set k to nodes outside outer set `row`."""
    passing = 0.0
    for c in range(inner.first[k], inner.first[k + 1]):
        edge = inner.crossing[c]
        if not contains(outer, row, costs.target[edge]):
            passing += costs.size[edge]
    return passing


@njit
def _smaller(inner: Words, k: int, outer: Words, row: int) -> bool:
    """True if set k is a proper subset of set `row`."""
    differs = False
    for w in range(inner.shape[1]):
        if inner[k, w] & ~outer[row, w] != 0:
            return False
        differs = differs or inner[k, w] != outer[row, w]
    return differs
