"""Sums of layer costs over downsets, from which a few subtractions give the cost of any stage.

A stage is a downset D without a smaller one D'. The contribution of its layers to time and memory is a sum
over D minus a sum over D'. Its incoming edges are those into D from outside, minus those that lead on into
D'; its outgoing edges are those into D' from outside, minus those that come from outside D. All sums are for
the fastest configuration of every layer. For stages of layers whose configurations differ only in X.p, X.a
and X.b they are exact; for stages with other layers (`UNLIKE`) they are lower bounds on the time.

A difference of large sums is inaccurate for small terms: next to a layer that takes 1e20 s at a width that no
plan uses, all others would appear to take nothing. Where that could matter a stage is summed layer by layer.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.bitsets import Words
from phaze.base.compiled import njit
from phaze.base.room import refuse_beyond_memory
from phaze.formulas.downsets import Downsets
from phaze.formulas.piper.knapsack import best_step, ratio
from phaze.formulas.piper.stages import ConfigurationCosts

MISSING, UNLIKE, COMPUTE_S, WEIGHT_S, STASH, FIXED, LEAST_STASH, LEAST_FIXED, FORWARD_S, BACKWARD_S = range(
    10
)
"""Columns of `Sums.totals`.

They are: layers without a configuration, layers whose configurations differ in more than X.p, X.a and X.b,
X.p, 4 X.w / B, X.a, X.b, the least X.a and X.b of any configuration, and the edges into the downset from
outside, at their heads and at their tails.
"""


STEP_BYTES = 88
"""Memory per memory-saving step while the steps are sorted, in bytes."""


class Sums(NamedTuple):
    """Sums of layer costs over m downsets, for T widths."""

    words: Words
    """(m, words) bits of the downsets."""
    totals: Floats
    """(T, m, 10) sums of every downset, by column."""
    fast: Ints
    """(T, n) fastest configuration of each layer; arbitrary if it has none."""
    layer_s: Floats
    """(T, n, 2) X.p of the fastest configuration and the least 4 X.w / B; 0 if there is none."""
    edge_s: Floats
    """(T, E, 2) cost of an edge at its head and at its tail."""
    ends: Ints
    """(E, 2) source and target of an edge."""
    cut_first: Ints
    """(m + 1,) index in `cut_edges` of the first edge into each downset from outside."""
    cut_edges: Ints
    work_s: Floats
    """(m,) lower bound on the device-seconds of each downset's layers on any devices."""
    rest_s: Floats
    """(m,) lower bound on the device-seconds of all other layers, with transfers over edges into the set."""


class SavingSteps(NamedTuple):
    """Memory-saving steps of the paper's rule, by width and microbatches in flight, in the order taken."""

    whose: Ints
    """(T, c + 1, P, 2) layer, -1 after the last step, and its new configuration."""
    effect: Floats
    """(T, c + 1, P, 2) seconds added to X.p, and bytes saved."""


def sum_up(costs: ConfigurationCosts, downsets: Downsets) -> Sums:
    """Sum up the costs of the layers of each downset (Piper, Appendix D: contributions are additive)."""
    member = downsets.membership
    inside = member.astype(np.float64).T
    first, last = costs.first[:, :-1], costs.first[:, 1:]
    fast = fastest_of(costs)
    has = first < last
    least = partial(_least, first=costs.first)
    forward_s = _at(least(costs.forward_s), costs.targets)
    backward_s = _at(least(costs.backward_s), costs.sources)
    cut = member[:, costs.targets] & ~member[:, costs.sources]
    work_s, sent_s = _least_work(costs, has, least(costs.time_s), backward_s)
    weight_s = least(costs.weight_s)
    per_layer = (
        costs.time_s[fast],
        weight_s,
        costs.stash_bytes[fast],
        costs.fixed_bytes[fast],
        least(costs.stash_bytes),
        least(costs.fixed_bytes),
    )
    totals = [layers.astype(np.float64) @ inside for layers in (~has, _unlike(costs))]
    totals += [np.where(has, values, 0.0) @ inside for values in per_layer]
    totals += [edges @ cut.T.astype(np.float64) for edges in (forward_s, backward_s)]
    return Sums(
        words=downsets.words,
        totals=np.stack(totals, axis=2),
        fast=np.ascontiguousarray(fast),
        layer_s=np.where(has[..., None], np.stack([costs.time_s[fast], weight_s], axis=2), 0.0),
        edge_s=np.ascontiguousarray(np.stack([forward_s, backward_s], axis=2)),
        ends=np.stack([costs.sources, costs.targets], axis=1),
        cut_first=np.concatenate([[0], np.cumsum(cut.sum(axis=1))]).astype(np.int64),
        cut_edges=np.nonzero(cut)[1].astype(np.int64),
        work_s=work_s @ inside,
        rest_s=work_s @ (1 - inside) + sent_s @ cut.T.astype(np.float64),
    )


def downset_bytes(layers: int, edges: int, widths: int) -> int:
    """Memory that `sum_up` needs per downset, in bytes."""
    return 18 * layers + 9 * edges + 2 * 8 * widths * (BACKWARD_S + 1)


def list_steps(costs: ConfigurationCosts, most_in_flight: int) -> SavingSteps:
    """Memory-saving steps of the paper's rule for up to `most_in_flight` microbatches, at `alike` widths."""
    widest = int(np.ptp(costs.first, axis=1).max())
    shape = (len(costs.widths), most_in_flight + 1, widest)
    refuse_beyond_memory(
        STEP_BYTES * prod(shape),
        f"configurations to choose from with up to {most_in_flight} microbatches in flight",
        "plan for fewer devices or microbatches",
    )
    steps = SavingSteps(np.full((*shape, 2), -1, dtype=np.int64), np.zeros((*shape, 2)))
    ratios = np.full(shape, -1.0)
    _follow(costs, fastest_of(costs), steps, ratios)
    # Stable: steps of equal ratio stay in the order of layers, as the rule takes them.
    order = np.argsort(-ratios, axis=2, kind="stable")[..., None]
    return SavingSteps(
        np.ascontiguousarray(np.take_along_axis(steps.whose, order, axis=2)),
        np.ascontiguousarray(np.take_along_axis(steps.effect, order, axis=2)),
    )


def fastest_of(costs: ConfigurationCosts) -> Ints:
    """Fastest configuration of each layer, (T, n), ties by least memory; undefined if a layer has none."""
    first = costs.first
    # Rows sorted within each layer: its first row is then at the same index as before, and fastest.
    group = np.repeat(np.arange(first[:, :-1].size), np.diff(first, axis=1).ravel())
    order = np.lexsort((costs.fixed_bytes, costs.stash_bytes, costs.time_s, group))
    return order[np.minimum(first[:, :-1], len(order) - 1)]


def most_in_flight(costs: ConfigurationCosts, degree: int) -> int:
    """Upper bound on the microbatches in flight with which any single layer fits on a device."""
    room = costs.limit_bytes - costs.fixed_bytes
    with np.errstate(divide="ignore", invalid="ignore"):
        count = np.where(room < 0, 0, np.nan_to_num(room / costs.stash_bytes, nan=np.inf))
    return int(min(degree, count.max(initial=0) + 1))


@njit
def _follow(costs: ConfigurationCosts, fast: Ints, steps: SavingSteps, ratios: Floats) -> None:
    """Write every layer's memory-saving steps and their ratios, (T, c + 1, P).

    The ratios are -1 for missing steps. Ratios of a layer fall from step to step; if rounding would raise
    one, the previous ratio is kept.
    """
    for t in range(len(costs.widths)):
        for c in range(1, ratios.shape[1]):
            memory_bytes = costs.stash_bytes * c + costs.fixed_bytes
            at = 0
            for v in range(fast.shape[1]):
                begin, end = costs.first[t, v], costs.first[t, v + 1]
                current, last = (fast[t, v] if begin < end else -1), np.inf
                while current >= 0:
                    step = best_step(current, begin, end, costs.time_s, memory_bytes)
                    if step >= 0:
                        steps.whose[t, c, at, 0], steps.whose[t, c, at, 1] = v, step
                        steps.effect[t, c, at, 0] = costs.time_s[step] - costs.time_s[current]
                        steps.effect[t, c, at, 1] = memory_bytes[current] - memory_bytes[step]
                        last = min(last, ratio(current, step, costs.time_s, memory_bytes))
                        ratios[t, c, at] = last
                        at += 1
                    current = step


def _least(values: Floats, first: Ints) -> Floats:
    """Minimum of a cost over each layer's configurations, (T, n, ...); undefined for a layer without any."""
    # `reduceat` needs an index below the end even for a last layer without configurations.
    padded = np.concatenate([values, np.full((1, *values.shape[1:]), np.inf)])
    least = np.minimum.reduceat(padded, first[:, :-1].ravel(), axis=0)
    return np.asarray(least).reshape(*first[:, :-1].shape, *values.shape[1:])


def _at(values: Floats, ends: Ints) -> Floats:
    """Select each edge's cost for the layer at one end, (T, E), from (T, n, E); 0 without a configuration."""
    chosen = values[:, ends, np.arange(len(ends))]
    return np.where(np.isfinite(chosen), chosen, 0.0)


def _least_work(
    costs: ConfigurationCosts, has: Bools, least_time_s: Floats, least_sent_s: Floats
) -> tuple[Floats, Floats]:
    """Minimum device-seconds of layers (n,) and of transfers over edges (E,), over all widths."""
    widths = costs.widths[:, None]
    work_s = np.where(has, widths * least_time_s, np.inf).min(axis=0)
    sent_s = np.where(has[:, costs.sources], widths * least_sent_s, np.inf).min(axis=0)
    return _coarse(np.nan_to_num(work_s, posinf=0.0)), np.nan_to_num(sent_s, posinf=0.0)


def _coarse(values: Floats) -> Floats:
    """Round values down so that their sums are exact: a larger set never has a smaller sum."""
    # Multiples of the quantum sum to less than 2^48 of it, which a double holds exactly.
    quantum = 2.0 ** (np.frexp(values.sum())[1] - 48)
    return np.asarray(np.floor(values / quantum) * quantum)


def _unlike(costs: ConfigurationCosts) -> Bools:
    """Mask (T, n) of the layers whose configurations differ in more than X.p, X.a and X.b."""
    # Every configuration is compared with the first of its layer.
    counts = np.diff(costs.first, axis=1)
    group = np.repeat(np.arange(counts.size), counts.ravel())
    begin = costs.first[:, :-1].ravel()[group]
    differs = np.zeros(len(begin), dtype=np.bool_)
    for values in (costs.weight_s[:, None], costs.forward_s, costs.backward_s):
        differs |= (values != values[begin]).any(axis=1)
    return np.bincount(group, differs, counts.size).reshape(counts.shape) > 0
