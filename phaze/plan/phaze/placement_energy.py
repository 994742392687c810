"""Energy of training a sample with a placement, by part."""

from __future__ import annotations

import numpy as np

from phaze.pipeline.flushing import Setting
from phaze.plan.phaze.energy import PARTS, dynamic_j, ring_bytes, sample_j, sent_bytes
from phaze.plan.phaze.flush import Placement
from phaze.plan.phaze.point import Conditions, Device, Point

ENERGIES = ("joules_per_sample", *(f"{part}_j" for part in PARTS))
"""Columns of table placements."""


def energy_of(
    point: Point, device: Device, placement: Placement, setting: Setting, conditions: Conditions
) -> dict[str, float]:
    """Return joules per sample, in all and by part."""
    runs, starts, devices = point.runs, list(placement.starts), np.array(placement.devices)
    ends = np.repeat(runs.output_bytes, runs.counts)[np.array(starts[1:], dtype=np.int64) - 1]
    gradients = point.bytes_per_parameter.gradients * np.repeat(point.parameters, runs.counts)
    parts = sample_j(
        dynamic_j(runs, device.work, point.layout, starts[-1], setting.recompute),
        sent_bytes(ends, devices),
        ring_bytes(np.add.reduceat(gradients, starts), devices, placement.data),
        device.area_um2 * placement.devices_used * placement.time_s,
        conditions.batch(point.layout),
        conditions.rates,
    )
    return dict(zip(ENERGIES, [float(parts.sum()), *parts.tolist()], strict=True))
