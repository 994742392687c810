"""Stages that are all alike: equal numbers of repeated layers, one data and one tensor width.

What precedes and follows the repeated layers joins the first and the last stage or, the other way that the
baseline `equi` of the Piper paper tries (Section 5), forms stages of its own. Under the model of flushing
pipelines, so that the best placement of `flush` is never slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from phaze.layout import Layout
from phaze.pipeline.flushing import Chain, Loads, Setting, stage_loads, sync_s, useful_widths
from phaze.plan.phaze.flush import Infeasible, Placement, evaluate_cut, stage_weights
from phaze.plan.phaze.reasons import why_not_stages


def place_equally(
    chain: Chain, layout: Layout, setting: Setting, first: int, repeated: int
) -> Placement | Infeasible:
    """Return the best placement with stages alike, or why none fits.

    `repeated` layers from position `first` on are alike; equal times go as `Placement.rank` says.
    """
    loads = stage_loads(chain, setting.bandwidth_bytes_per_s)
    found = [
        _place_cut(chain, layout, setting, starts, loads)
        for starts in equal_cuts(len(chain), first, repeated)
    ]
    placed = [placement for placement in found if isinstance(placement, Placement)]
    return min(placed, key=Placement.rank) if placed else _why_none(found)


def _why_none(found: Sequence[Placement | Infeasible]) -> Infeasible:
    """Return what is in the way of the most stages that the devices allow."""
    reasons = [one for one in found if isinstance(one, Infeasible)]
    formed = [one for one in reasons if one.limit != "devices"]
    return (formed or reasons or [Infeasible("layers: none is repeated")])[-1]


def equal_cuts(layers: int, first: int, repeated: int) -> Iterator[tuple[int, ...]]:
    """Yield the starts of the stages for every divisor of the repeated layers, once or twice each."""
    end = first + repeated
    for stages in (s for s in range(1, repeated + 1) if repeated % s == 0):
        inner = tuple(range(first, end, repeated // stages))
        joined = (0, *inner[1:])
        apart = (*((0,) if first else ()), *inner, *((end,) if end < layers else ()))
        yield joined
        if apart != joined:
            yield apart


def _place_cut(
    chain: Chain, layout: Layout, setting: Setting, starts: tuple[int, ...], loads: Loads
) -> Placement | Infeasible:
    """Return the placement with these stages and the best data width that fits."""
    pipeline = evaluate_cut(chain, layout, setting, 1, starts, loads)
    each = sum(pipeline.devices)
    if each > setting.devices:
        return Infeasible(f"devices: {len(starts)} stages take {each}, {setting.devices} given")
    counts, widths = useful_widths(setting.microbatches, setting.devices // each)
    waits = [sync_s(stage_weights(chain, starts), int(width), setting) for width in widths]
    times = pipeline.max_load_s * (counts + len(starts) - 1) + waits
    reason = ""
    for w in np.argsort(times, kind="stable"):
        reason = why_not_stages(chain.footprints, starts, setting, int(counts[w]))
        if not reason:
            return evaluate_cut(chain, layout, setting, int(widths[w]), starts, loads)
        if setting.schedule == "1f1b":
            break  # what fits does not depend on the data width
    return Infeasible(reason)
