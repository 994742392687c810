"""Rows of the tables of placements and stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from phaze.base.units import GIB
from phaze.cost.utilisation import model_flops_utilisation
from phaze.pipeline.flushing import Chain, Setting
from phaze.plan.phaze.costs import StageCost, binding, stage_costs, time_parts
from phaze.plan.phaze.energy import PARTS, Batch, Rates, dynamic_j, ring_bytes, sample_j, sent_bytes
from phaze.plan.phaze.flush import Infeasible, Placement
from phaze.plan.phaze.point import Conditions, Device, Point

Row = dict[str, object]
ENERGIES = ("joules_per_sample", *(f"{part}_j" for part in PARTS))
"""Columns of table placements."""


@dataclass(frozen=True)
class Found:
    """What a planner found for one device and setting."""

    device: Device
    chain: Chain
    setting: Setting
    planner: str
    result: Placement | Infeasible
    bound_s: float
    """Time per batch with the bounds of unproven layers."""
    unlimited_s: float
    """Time per batch with unlimited memory, without recomputation."""

    @cached_property
    def costs(self) -> list[StageCost]:
        """Return the cost of every stage, none if there is no placement."""
        return (
            [] if isinstance(self.result, Infeasible) else stage_costs(self.chain, self.result, self.setting)
        )


def placement_row(point: Point, found: Found, conditions: Conditions) -> Row:
    """Return the row of the table of placements."""
    if isinstance(found.result, Infeasible):
        return {**_keys(point, found), **_infeasible(found.result)}
    placement = found.result
    scenario = conditions.scenario
    samples_per_s = scenario.global_batch / placement.time_s
    tokens_per_s = samples_per_s * conditions.sequence
    peak = scenario.devices * found.device.peak_flops_per_s
    return {
        **_keys(point, found),
        "status": "placed",
        "reason": "",
        "data": placement.data,
        "stages": placement.stages,
        "devices_used": placement.devices_used,
        "time_per_batch_s": placement.time_s,
        # The bound comes from another algorithm, whose sums may round the other way in the last digit.
        "bound_s": min(found.bound_s, placement.time_s),
        "max_load_s": placement.max_load_s,
        "sync_s": placement.sync_s,
        "samples_per_s": samples_per_s,
        "tokens_per_s": tokens_per_s,
        "mfu": model_flops_utilisation(tokens_per_s, conditions.flops_per_token, peak),
        **_energies(point, found.device, placement, found.setting, conditions),
        "binding": binding(
            time_parts(found.costs, placement, found.setting), placement.time_s, found.unlimited_s
        ),
    }


def _energies(
    point: Point, device: Device, placement: Placement, setting: Setting, conditions: Conditions
) -> dict[str, float]:
    """Return joules per sample, in all and by part."""
    runs, starts, devices = point.runs, list(placement.starts), np.array(placement.devices)
    ends = np.repeat(runs.output_bytes, runs.counts)[np.array(starts[1:], dtype=np.int64) - 1]
    gradients = point.bytes_per_parameter.gradients * np.repeat(point.parameters, runs.counts)
    parts = sample_j(
        dynamic_j(runs, device.work, point.layout, starts[-1], setting.recompute),
        sent_bytes(ends, devices),
        ring_bytes(np.add.reduceat(gradients, starts), devices, placement.layout),
        device.area_um2 * placement.devices_used * placement.time_s,
        Batch(point.layout, conditions.scenario.global_batch),
        Rates.of(conditions.energy),
    )
    return dict(zip(ENERGIES, [float(parts.sum()), *parts.tolist()], strict=True))


def _infeasible(result: Infeasible) -> Row:
    never = dict.fromkeys(("time_per_batch_s", "bound_s", "max_load_s", "sync_s", *ENERGIES), np.inf)
    nothing = dict.fromkeys(("samples_per_s", "tokens_per_s", "mfu"), 0.0)
    none = dict.fromkeys(("data", "stages", "devices_used"), 0)
    return {
        "status": "infeasible",
        "reason": result.reason,
        "binding": result.limit,
        **none,
        **never,
        **nothing,
    }


def stage_rows(point: Point, found: Found) -> list[Row]:
    """Return the rows of the table of stages; none if there is no placement."""
    if isinstance(found.result, Infeasible):
        return []
    parameters = np.add.reduceat(np.repeat(point.parameters, point.runs.counts), found.result.starts).tolist()
    return [
        {**_keys(point, found), "stage": number, **_stage(point, found, cost, parameters[number])}
        for number, cost in enumerate(found.costs)
    ]


def _stage(point: Point, found: Found, cost: StageCost, parameters: float) -> Row:
    each = point.bytes_per_parameter
    return {
        "first_layer": cost.first_layer,
        "last_layer": cost.last_layer,
        "devices": cost.devices,
        "forward_s": cost.forward_s,
        "backward_s": cost.recomputed_s + cost.backward_s,
        "transfer_s": cost.transfer_s,
        "load_s": cost.load_s,
        "weight_bytes": each.weights * parameters,
        "gradient_bytes": each.gradients * parameters,
        "optimizer_bytes": each.optimizer * parameters,
        "activation_bytes": cost.activation_bytes,
        "stashed_bytes": cost.stashed_bytes,
        "memory_bytes": cost.memory_bytes,
        "headroom_bytes": found.setting.memory_bytes - cost.memory_bytes,
    }


def _keys(point: Point, found: Found) -> Row:
    return {
        "model": point.model,
        "layout": point.layout.key,
        "architecture": found.device.name,
        "hbm_gib": found.setting.memory_bytes / GIB,
        "recompute": found.setting.recompute,
        "planner": found.planner,
    }
