"""What stages and superstages cost, for all contiguous sets at once (Piper, Section 4 and Appendix E).

A stage of level 1 with degrees d and t, of which the levels above run q replicas, takes for a sample of the
whole

    1/(q d) * [sum p + 2 (c + c_fw or c_bw) / B_1 over the border + L sum w / B_1]

where L = 4 (d-1)/d for synchronisation by rounds and L = 4 (d-1)/d * q d/N by batches. Which configurations
are best depends on t, on L and on how many microbatches are in flight; on d and q only through these. So
one staircase for each set, t and L says all: the least time as a function of what is in flight.

A superstage of level l takes 1/(q d) * [L W + 2 sum of c over the border] / B_l. There the weights of a
layer are those of the whole layer, which all devices inside hold together: W sums t X.w over the layers,
with the least t that a layer has configurations for (and the largest X.w of these). Appendix E leaves this
open, as it ignores tensor parallelism where it states the cost. Slices that t devices copy rather than
share, such as those of normalisations, are counted once. What a layer's t devices exchange (c_fw, c_bw)
stays inside level 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.plan.downsets import Downsets, DownsetsError
from phaze.plan.piper.layers import Layers
from phaze.plan.piper.stages import Costs
from phaze.plan.piper.staircases import staircases

PAIRS = 400_000
"""Contiguous sets that are planned for at most."""


@dataclass(frozen=True, eq=False)
class Sets:
    """All contiguous sets that are not empty, P of them, as pairs of downsets: `outer` without `inner`."""

    outer: Ints
    """(P,) downset, rising."""
    inner: Ints
    """(P,) downset inside it, rising for one outer."""
    number: Ints
    """(downsets, downsets) which set an outer and an inner make, or -1."""
    member: Bools
    """(P, n) whether it holds a layer."""


@dataclass(frozen=True, eq=False)
class Staircase:
    """The least time of every set as a function of the microbatches in flight, in steps."""

    start: Ints
    """(P + 1,) first step of each set."""
    time_s: Floats
    """(steps,) rising within a set."""
    until: Ints
    """(steps,) the most in flight at that time, rising within a set."""


def sets_of(downsets: Downsets) -> Sets:
    """Return all pairs of nested downsets; too many: an error that says what to do."""
    inside: list[Ints] = []
    pairs = 0
    for i in range(len(downsets)):
        inside.append(downsets.within(i)[:-1])
        pairs += len(inside[-1])
        if pairs > PAIRS:
            raise DownsetsError(
                f"{i + 1} of {len(downsets)} downsets make {pairs} contiguous sets; for levels at most "
                f"{PAIRS} are compared; the prefixes of one linear order make fewer"
            )
    sizes = np.array([len(inner) for inner in inside])
    outer = np.repeat(np.arange(len(downsets)), sizes)
    inner = np.concatenate(inside)
    number = np.full((len(downsets), len(downsets)), -1, dtype=np.int64)
    number[outer, inner] = np.arange(len(outer))
    member = downsets.membership
    return Sets(outer, inner, number, member[outer] & ~member[inner])


def border_bytes(layers: Layers, member: Bools) -> Floats:
    """Return the sum of c over the edges that cross each set's border, (P,)."""
    crossing: Floats = (member[:, layers.sources] != member[:, layers.targets]) @ layers.edge_bytes
    return crossing


def whole_weight_bytes(layers: Layers) -> Floats:
    """Return the weights of each layer on all its devices together, (n,)."""
    weights = np.zeros(len(layers))
    for tensor in sorted(layers.options, reverse=True):
        options = layers.options[tensor]
        most = np.full(len(layers), -1.0)
        np.maximum.at(most, options.layer, tensor * options.weight_bytes)
        weights = np.where(most >= 0, most, weights)
    return weights


def least_work_s(layers: Layers, widest: int) -> Floats:
    """Return the least t X.p of each layer over t <= widest, zero where it has no configuration, (n,)."""
    work = np.full(len(layers), np.inf)
    for tensor, options in layers.options.items():
        if tensor <= widest:
            np.minimum.at(work, options.layer, tensor * options.time_s)
    return np.where(np.isinf(work), 0.0, work)


def constant_weight_s(costs: Costs, member: Bools, t: int) -> Floats | None:
    """Return sum w / B of every set at the t-th width (P,), None where it depends on the configurations."""
    spans = [costs.weight_s[i:j] / 4 for i, j in zip(costs.first[t][:-1], costs.first[t][1:], strict=True)]
    if any(len(span) and np.ptp(span) > 0 for span in spans):
        return None
    return np.asarray(member @ np.array([span[0] if len(span) else 0.0 for span in spans]))


def staircase(costs: Costs, member: Bools, t: int, sync_weight: float, most: int) -> Staircase:
    """Return the least times of stages on widths[t] devices with d = q = 1 and the given L."""
    return Staircase(*staircases(costs, member, t, sync_weight / 4, most))
