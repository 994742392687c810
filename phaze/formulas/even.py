"""Baseline placements with given widths or equal stages, in the cost model of flushing pipelines.

The experts' widths {p, d, t} are placed with the best boundaries between stages, and with even ones. Equal
stages have equal numbers of repeated layers, and the same data and tensor width. The layers before and after
the repeated ones either join the first and the last stage, or form stages of their own. Both are options of
the baseline `equi` in the Piper paper (Section 5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from phaze.formulas.cuts import devices_of, shape_of
from phaze.formulas.flushing import Chain, Loads, Setting, stage_loads, sync_s, useful_widths
from phaze.formulas.phaze.flush import (
    Infeasible,
    Placement,
    Widths,
    evaluate_cut,
    place_within,
    stage_weights,
)
from phaze.formulas.phaze.reasons import lean_placements, readable, why_not_stages
from phaze.formulas.piper.equal import group_cuts
from phaze.layout import Layout


def place_expert(chain: Chain, expert: Layout, setting: Setting) -> Placement | Infeasible:
    """Best placement with the hand-designed pipeline and data-parallel widths, or why none is feasible."""
    reason = _why_not_widths(chain, expert, setting)
    if reason:
        return Infeasible(reason)
    per_pipeline = np.array([setting.in_pipeline(expert)])
    widths = Widths(expert.pp, expert.pp, per_pipeline, np.array([expert.dp]))
    placement = place_within(chain, expert, setting, widths)
    return placement or Infeasible(_why_no_boundaries(chain, expert, setting))


def place_evenly(
    chain: Chain, expert: Layout, setting: Setting, first: int, repeated: int
) -> Placement | Infeasible:
    """Placement that splits `repeated` layers from position `first` evenly, or why it is infeasible."""
    if expert.pp > repeated:
        return Infeasible(f"pipeline: {repeated} repeated layers do not fill {expert.pp} stages")
    reason = _why_not_widths(chain, expert, setting)
    if reason:
        return Infeasible(reason)
    # Longer stages are first; the other layers join the ends, as in Megatron-LM.
    sizes = [len(part) for part in np.array_split(np.arange(repeated), expert.pp)]
    starts = (0, *(first + int(end) for end in np.cumsum(sizes)[:-1]))
    placement = evaluate_cut(chain, expert, setting, starts)
    if placement.devices_used > setting.devices:
        return Infeasible(_too_few_devices(expert, placement.devices_used, setting))
    reason = why_not_stages(chain.footprints, starts, setting, setting.in_pipeline(expert))
    return Infeasible(reason) if reason else placement


def _why_not_widths(chain: Chain, expert: Layout, setting: Setting) -> str:
    """Reason why the widths are infeasible regardless of memory; empty if they are feasible."""
    if expert.pp > len(chain):
        return f"pipeline: {len(chain)} layers do not fill {expert.pp} stages"
    if expert.dp > setting.microbatches:
        return f"data: width {expert.dp} exceeds the {setting.microbatches} microbatches of a batch"
    shape = shape_of(chain, expert, expert.tp * len(chain))
    least = expert.dp * devices_of(expert.pp, min(shape.singles, expert.pp - 1), shape.wide)
    return _too_few_devices(expert, least, setting) if least > setting.devices else ""


def _too_few_devices(expert: Layout, needed: int, setting: Setting) -> str:
    widths = f"p = {expert.pp}, d = {expert.dp}, t = {expert.tp}"
    missing = needed - setting.devices
    return f"devices: {widths} takes {needed}, {setting.devices} given: {missing} too few"


def _why_no_boundaries(chain: Chain, expert: Layout, setting: Setting) -> str:
    """Reason why no split into p stages is feasible."""
    lean = [
        placement.memory_bytes
        for placement in lean_placements(chain, expert, setting)
        if placement.stages == expert.pp
    ]
    if not lean:
        return _too_few_devices(expert, expert.pp * expert.dp * expert.tp, setting)
    excess = min(lean) - setting.memory_bytes
    return (
        f"memory: the leanest boundaries of {expert.pp} stages need {readable(min(lean))} on their "
        f"fullest device, {readable(setting.memory_bytes)} given: {readable(excess)} too little"
    )


def place_equally(
    chain: Chain, layout: Layout, setting: Setting, first: int, repeated: int
) -> Placement | Infeasible:
    """Best placement with equal stages, or the reason why none fits.

    `repeated` layers from position `first` on are equal; `Placement.rank` breaks ties.
    """
    loads = stage_loads(chain, setting.bandwidth_bytes_per_s)
    cuts = equal_cuts(len(chain), first, repeated)
    results = [_place_cut(chain, layout, setting, starts, loads) for starts in cuts]
    placed = [result for result in results if isinstance(result, Placement)]
    if placed:
        return min(placed, key=Placement.rank)
    # The most useful reason: why the most stages that the devices allow do not fit.
    reasons = [result for result in results if isinstance(result, Infeasible)]
    formed = [result for result in reasons if result.limit != "devices"]
    return (formed or reasons or [Infeasible("layers: none is repeated")])[-1]


def equal_cuts(layers: int, first: int, repeated: int) -> Iterator[tuple[int, ...]]:
    """Yield the first layer of each stage, for all stage counts that divide the repeated layers equally."""
    for stages in (s for s in range(1, repeated + 1) if repeated % s == 0):
        yield from group_cuts(layers, range(first, first + repeated), stages)


def _place_cut(
    chain: Chain, layout: Layout, setting: Setting, starts: tuple[int, ...], loads: Loads
) -> Placement | Infeasible:
    """Placement with the given stages and the fastest data-parallel width that fits, or why none fits."""
    pipeline = evaluate_cut(chain, replace(layout, dp=1), setting, starts, loads)
    devices = sum(pipeline.devices)
    if devices > setting.devices:
        return Infeasible(f"devices: {len(starts)} stages take {devices}, {setting.devices} given")
    counts, widths = useful_widths(setting.microbatches, setting.devices // devices)
    layouts = [replace(layout, dp=int(width)) for width in widths]
    waits = [sync_s(stage_weights(chain, starts), width_layout, setting) for width_layout in layouts]
    times = pipeline.max_load_s * (counts + len(starts) - 1) + waits
    reason = ""
    for w in np.argsort(times, kind="stable"):
        reason = why_not_stages(chain.footprints, starts, setting, int(counts[w]))
        if not reason:
            return evaluate_cut(chain, layouts[w], setting, starts, loads)
        if setting.schedule == "1f1b":
            break  # memory does not depend on the data width
    return Infeasible(reason)
