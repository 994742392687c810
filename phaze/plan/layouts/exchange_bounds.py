"""Lower bounds on the time of replica collectives, and of layer passes that overlap with them.

A stage takes the longer of its passes and its exchanges on the links. A maximum of sums may be smaller than
the sum of maxima: experts that wait for their weights overlap with layers that do not. All layers of a layout
and its ends are therefore bounded by the same side: passes, exchanges, or traffic on one level of the
network. Each side bounds every stage, regardless of its layers.
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
"""Collective size in bytes at which fixed time and the choice of algorithm no longer matter."""
ROUNDING = 1e-9
"""Relative tolerance for equal bandwidths."""


def with_exchanges(
    question: PlanQuestion, pass_s: Floats, exchange_s: Floats, links_s: Floats, totals: Ints, ends_s: Floats
) -> tuple[Floats, Bools]:
    """Time of a pass with its replica collectives, (N, K), and whether the pass is the bottleneck, (N,).

    A share of the exchanges overlaps with the pass, on links that also carry the pass's own collectives; both
    are (N, K, levels). The seconds of the ends count only if passes bound the layout. The bounding side is
    the one with the longest total over all layers (K,) and the ends (N,).
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
    """Link time to gather a layer's weights and to scatter its gradients, in seconds, (N, K, levels) each.

    Both occur from ZeRO 1 on; the gather is in every pass with ZeRO 3, the scatter from ZeRO 2 on. The fixed
    time of a collective is left out.
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
    """Fixed time of collectives, (N,), and time per byte on the links of each level, (N, levels).

    Groups have `ranks` members, `stride` devices apart. Together both are a lower bound: a collective takes
    the fastest of several algorithms, each with a time linear in size. Empty collectives show the smallest
    fixed time, very large ones the smallest time per byte.
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
    """Delay of each layer from ZeRO 1 gradient scatters in the last backward pass, in seconds, (N, K).

    They are the slowdown of that pass and the exposed part of the scatter.
    """
    share = question.machine.stack.overlap_share("dp")
    if not share:
        return np.zeros_like(reduce_s)
    lost_s = lost_share(question.machine) * np.minimum(share * reduce_s, backward_s)
    return np.asarray((reduce_s - share * reduce_s + lost_s) * (grid.zero == 1)[:, None])


def late_s(
    question: PlanQuestion, grid: LayoutGrid, layers: LayerFigures, gather_s: Floats
) -> tuple[Floats, Floats, Floats]:
    """Exposed time to gather updated weights among replicas under ZeRO 1 and 2, in seconds.

    The values are per layer (N, K), and fixed (N,), both without the part that overlaps with the first
    forward pass. The third value is 1 if the passes of the ends also overlap with the gather, (N,).
    """
    after = (grid.zero == 1) | (grid.zero == 2)
    start_s = after * (grid.vp - 1) * _collectives(question, "all_gather", grid.sharers, grid.tp)[0]
    each_s = gather_s.sum(axis=2) * after[:, None]
    share = question.machine.stack.overlap_share("dp")
    if not share:
        return each_s, start_s, np.zeros(len(grid))
    beside_s = share * each_s
    lost, left_s = lost_share(question.machine), beside_s - layers.forward_s
    counts = after & (left_s > 0).all(axis=1)  # otherwise the rest of a layer overlaps with another layer
    late_s = np.where(counts[:, None], left_s + lost * layers.forward_s, lost * beside_s)
    return each_s - beside_s + late_s, start_s * counts, counts.astype(float)
