"""Which architectures could still be among what the report needs, given bounds on their time per batch.

Let every architecture a of a shard have an unknown exact time T(a) with lower(a) <= T(a) <= feasible(a). The
report asks, for some HBM size, for
(1) the `best` first architectures in the order (T, area, name), and
(2) the smallest one in the order (area, T, name) with T <= theta, for the theta that 1 % (the tolerance)
    allows.

*What is dropped cannot matter.* Architecture a is dropped when both hold:

(1) `best` architectures b have (feasible(b), area(b), name(b)) before (lower(a), area(a), name(a)). Then
    (T(b), area(b), name(b)) is before (T(a), area(a), name(a)) for each of them, whatever the exact times
    are, and a is not among the first `best`.
(2) Either lower(a) > min feasible / (1 - tolerance): then T(a) is beyond every theta <= min T / (1 -
    tolerance). Or some b has a smaller area and feasible(b) <= lower(a), or the same area and feasible(b) <
    lower(a). For every theta with T(a) <= theta also T(b) <= feasible(b) <= lower(a) <= T(a) <= theta, and b
    comes before a.

*A shard is enough for the whole study.* The report takes T(a) = min over microbatches, TMP widths and
recompute of the times T_p(a) of the points p, over the architectures of all shards. Say a is part of its
answer, and T(a) = T_p(a).
(1) At point p and in a's own shard, whoever precedes a by (T_p(b), area, name) precedes it by (T(b), area,
    name) as well, because T(b) <= T_p(b). So fewer than `best` do, and a is kept there.
(2) The report's theta, from the best of all points and shards, is at most that of point p and of the shard;
    so (2) above holds for it, with T_p(b) in the place of T(b) <= T_p(b): a would not be the smallest if it
    were dropped. This is why (2) compares with every smaller architecture and not only with those surely
    within 1 % of the shard's best: another shard may hold a better best, of which b is no longer within 1 %,
    and a still is.
So the row that makes a an answer is kept. Rows that are not kept can only make others look slower than they
are, which puts none of them before an answer. The same reasoning, with HBM sizes in the place of points,
lets the report take the best over HBM sizes: rules (1) and (2) are applied to each size apart.

Times are compared on the grid of `base.ranking`, after widening the bounds by more than rounding errors
amount to.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Bools, Floats
from phaze.base.ranking import Ranks, limit_of, tied

NOISE = 1e-12
"""Relative error that sums of the same latencies in another order may have."""


def could_matter(
    lower_s: Floats, feasible_s: Floats, area_um2: Floats, name: Ranks, *, best: int, tolerance: float
) -> Bools:
    """Return which of (A,) architectures could be among the `best` best or the smallest within the tolerance.

    `name` are their `ranking.name_ranks`. An infinite lower bound (it fits nowhere) is never kept.
    """
    lower, feasible = tied(lower_s * (1.0 - NOISE)), tied(feasible_s * (1.0 + NOISE))
    first = ~_surely_behind(lower, feasible, area_um2, name, best)
    small = ~_surely_larger(lower, feasible, area_um2) & (lower <= limit_of(feasible, tolerance))
    result: Bools = np.isfinite(lower) & (first | small)
    return result


def _surely_behind(lower: Floats, feasible: Floats, area: Floats, name: Ranks, best: int) -> Bools:
    """Return who has `best` others surely before it, by (time, area, name)."""
    if best > len(lower):
        return np.zeros(len(lower), dtype=np.bool_)
    last = np.lexsort((name, area, feasible))[best - 1]
    return _after((lower, area, name), (feasible[last], area[last], name[last]))


def _after(keys: tuple[Floats, Floats, Ranks], key: tuple[float, float, int]) -> Bools:
    """Return which keys come lexicographically after the given one."""
    (time, area, name), (at_time, at_area, at_name) = keys, key
    later_name = (area == at_area) & (name > at_name)
    later_area = (area > at_area) | later_name
    result: Bools = (time > at_time) | ((time == at_time) & later_area)
    return result


def _surely_larger(lower: Floats, feasible: Floats, area: Floats) -> Bools:
    """Return for whom a smaller architecture is surely as fast, or one of the same area surely faster."""
    areas, group = np.unique(area, return_inverse=True)
    fastest = np.full(len(areas), np.inf)
    np.minimum.at(fastest, group, feasible)
    smaller = np.concatenate(([np.inf], np.minimum.accumulate(fastest)[:-1]))
    result: Bools = (smaller[group] <= lower) | (fastest[group] < lower)
    return result
