"""Lower bounds of what replicas exchange, and of the passes of layers with it.

A stage takes what its passes take, or what its exchanges take on the links, whichever is more, and a maximum
of sums may be less than the sum of maxima: experts that wait for their weights hide behind layers that do
not. So all layers of a layout, and its ends, are bounded by the same side: by their passes, by what they
exchange, or by what one level of the network carries. Each bounds a stage whatever it holds.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.units import GIB
from phaze.cost.memory import parameter_bytes
from phaze.cost.network.network import Kind
from phaze.layout import Group
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.slices import LayerFigures, distinct_rows
from phaze.plan.overlap import lost_share
from phaze.runtimes.grid import LayoutGrid

ENDLESS = 2.0**50
"""Bytes of a collective so large that its fixed time and its choice of algorithm no longer count."""
ROUNDING = 1e-9
"""Share up to which two bandwidths are the same but for rounding."""


def with_exchanges(
    question: PlanQuestion, pass_s: Floats, exchange_s: Floats, links_s: Floats, totals: Ints, ends_s: Floats
) -> tuple[Floats, Bools]:
    """Seconds (N, K) of a pass with exchanges among replicas, of which a share overlaps with it, on links
    that carry its own collectives as well, (N, K, levels) both; and whether they are bounded by passes, (N,),
    which is also when those of the ends count.

    The side is the one on which all layers (K,) and the ends (N,) take longest.
    """
    overlapped_s = question.machine.stack.overlap_share("dp") * exchange_s
    sent_s = overlapped_s.sum(axis=2)
    longer_s = pass_s + lost_share(question.machine) * sent_s
    shared_s = np.where(overlapped_s > 0, overlapped_s + links_s, 0.0)
    sides = np.concatenate([np.stack([longer_s, sent_s], axis=2), shared_s], axis=2)
    whole_s = np.einsum("nks,k->ns", sides, totals)
    whole_s[:, 0] += ends_s
    side = np.argmax(whole_s, axis=1)
    exposed_s = (exchange_s - overlapped_s).sum(axis=2)
    found: Floats = exposed_s + np.take_along_axis(sides, side[:, None, None], axis=2)[:, :, 0]
    return found, side == 0


def exchanged_s(question: PlanQuestion, grid: LayoutGrid, layers: LayerFigures) -> tuple[Floats, Floats]:
    """Seconds on links in which replicas gather the weights of a layer (with ZeRO 3 in every pass), and
    scatter its gradients (from ZeRO 2 on in every pass), both from ZeRO 1 on, (N, K, levels) each; what a
    collective takes whatever its size is left out.
    """
    size = parameter_bytes(question.optimizer, "mixed", question.machine.stack.gradient_bytes)
    ways: tuple[tuple[Kind, int], ...] = (("all_gather", size.weights), ("reduce_scatter", size.gradients))
    groups = ((layers.dense, grid.sharers, grid.tp), (layers.experts, grid.edp, grid.expert_stride))
    gathered_s, reduced_s = (
        sum(
            (width * parameters * (grid.zero >= 1)[:, None])[:, :, None]
            * _collectives(question, kind, ranks, stride)[1][:, None]
            for parameters, ranks, stride in groups
        )
        for kind, width in ways
    )
    return np.asarray(gathered_s), np.asarray(reduced_s)


def _collectives(question: PlanQuestion, kind: Kind, ranks: Ints, stride: Ints) -> tuple[Floats, Floats]:
    """Seconds of collectives whatever their size (N,), and of a byte on the links of each level (N, levels),
    among so many ranks so far apart.

    Both are lower bounds together: the time is that of the fastest of ways whose time is linear in size.
    Large collectives take the way with the fewest seconds a byte, and empty ones the one with the least rest.
    """
    network = question.machine.network
    distinct, _, where = distinct_rows(np.stack([ranks, stride], axis=1))
    groups = [Group(*row) for row in distinct.tolist()]
    start_s = np.array([network.seconds(kind, 0.0, group) for group in groups])
    nothing, many, most, twice = (
        np.array([network.by_level(kind, nbytes, group) for group in groups])
        for nbytes in (0.0, GIB, ENDLESS, 2.0 * ENDLESS)
    )
    byte_s, least_s = (many - nothing) / GIB, (twice - most) / ENDLESS
    concave = least_s < byte_s * (1.0 - ROUNDING)
    return start_s[where], np.where(concave, least_s, byte_s)[where]


def lost_once_s(question: PlanQuestion, grid: LayoutGrid, reduce_s: Floats, backward_s: Floats) -> Floats:
    """Seconds of a layer (N, K) that gradients which ZeRO 1 scatters beside the last backward pass add: what
    that loses to them, and what never overlaps.
    """
    share = question.machine.stack.overlap_share("dp")
    if not share:
        return np.zeros_like(reduce_s)
    lost_s = lost_share(question.machine) * np.minimum(share * reduce_s, backward_s)
    return np.asarray((reduce_s - share * reduce_s + lost_s) * (grid.zero == 1)[:, None])


def late_s(
    question: PlanQuestion, grid: LayoutGrid, layers: LayerFigures, gather_s: Floats
) -> tuple[Floats, Floats, Floats]:
    """Seconds after the updates of a rank in which replicas gather weights with ZeRO 1 and 2, for a layer
    (N, K) and whatever the layers (N,), but for what hides behind the first forward pass; the ends hide more
    of it where the last value is 1, (N,).
    """
    after = (grid.zero == 1) | (grid.zero == 2)
    start_s = after * (grid.vp - 1) * _collectives(question, "all_gather", grid.sharers, grid.tp)[0]
    each_s = gather_s.sum(axis=2) * after[:, None]
    share = question.machine.stack.overlap_share("dp")
    if not share:
        return each_s, start_s, np.zeros(len(grid))
    beside_s = share * each_s
    lost, left_s = lost_share(question.machine), beside_s - layers.forward_s
    counts = after & (left_s > 0).all(axis=1)  # else what is left of a layer hides behind another
    late_s = np.where(counts[:, None], left_s + lost * layers.forward_s, lost * beside_s)
    return each_s - beside_s + late_s, start_s * counts, counts.astype(float)
