"""Baseline placements with given widths, in the cost model of flushing pipelines.

The experts' widths {p, d, t} are placed with the best boundaries between stages, and with even ones.
"""

from __future__ import annotations

import numpy as np

from phaze.formulas.cuts import devices_of, shape_of
from phaze.formulas.flushing import Chain, Setting
from phaze.formulas.phaze.flush import (
    Infeasible,
    Placement,
    Widths,
    evaluate_cut,
    place_within,
)
from phaze.formulas.phaze.reasons import lean_placements, readable, why_not_stages
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
