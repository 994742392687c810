"""Rows of the tables of placements and stages: time, memory and bottleneck of a placement."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from phaze.base.units import GIB
from phaze.cost.utilisation import model_flops_utilisation
from phaze.formulas.flushing import Chain, Setting, stage_loads
from phaze.formulas.phaze.energy import Batch, Rates, dynamic_j, ring_bytes, sample_j, sent_bytes
from phaze.formulas.phaze.flush import Infeasible, Placement
from phaze.formulas.phaze.point import Conditions, Point, TimedChip
from phaze.formulas.phaze.reasons import stage_stashes
from phaze.spec.rows import StageLoad
from phaze.tables.columns import SAMPLE_ENERGIES

Row = dict[str, object]
MEMORY_GAIN = 0.01
"""Memory is the bottleneck if unlimited memory would make a placement faster by more than this fraction."""


@dataclass(frozen=True, kw_only=True)
class PlacedStage(StageLoad):
    """One stage of a placement, with times per microbatch and bytes on each of its devices."""

    first_layer: int
    last_layer: int
    devices: int
    recomputed_s: float
    """Recompute time; 0 if activations are stashed."""
    backward_s: float
    static_bytes: float

    @property
    def transfer_s(self) -> float:
        """Time that the stage waits for tensors from other stages."""
        return max(self.load_s - self.forward_s - self.recomputed_s - self.backward_s, 0.0)

    @property
    def memory_bytes(self) -> float:
        """Total memory on each device of the stage."""
        return self.static_bytes + self.activation_bytes + self.stashed_bytes


@dataclass(frozen=True)
class PlannerRun:
    """Result of a planner for one device and setting."""

    device: TimedChip
    chain: Chain
    setting: Setting
    planner: str
    result: Placement | Infeasible
    bound_s: float
    """Lower bound on the time per batch, from the lower bounds on layer latencies."""
    unlimited_s: float
    """Time per batch with unlimited memory and without recomputation."""

    @cached_property
    def costs(self) -> list[PlacedStage]:
        """Time and memory of every stage; empty if there is no placement."""
        return (
            [] if isinstance(self.result, Infeasible) else stage_costs(self.chain, self.result, self.setting)
        )


def placement_row(point: Point, run: PlannerRun, conditions: Conditions) -> Row:
    """Row of table `placements` for the result of a planner."""
    if isinstance(run.result, Infeasible):
        return {**_keys(point, run), **_infeasible(run.result)}
    placement = run.result
    scenario = conditions.scenario
    samples_per_s = scenario.global_batch / placement.time_s
    tokens_per_s = samples_per_s * conditions.sequence
    peak = scenario.devices * run.device.peak_flops_per_s
    return {
        **_keys(point, run),
        "status": "placed",
        "reason": "",
        "data": placement.data,
        "stages": placement.stages,
        "devices_used": placement.devices_used,
        "time_per_batch_s": placement.time_s,
        # The bound comes from another algorithm, whose last digit may round differently.
        "bound_s": min(run.bound_s, placement.time_s),
        "max_load_s": placement.max_load_s,
        "sync_s": placement.sync_s,
        "samples_per_s": samples_per_s,
        "tokens_per_s": tokens_per_s,
        "mfu": model_flops_utilisation(tokens_per_s, conditions.flops_per_token.needed, peak),
        "mfu_paper": model_flops_utilisation(tokens_per_s, conditions.flops_per_token.paper, peak),
        **_energies(point, run.device, placement, run.setting, conditions),
        "binding": binding(time_parts(run.costs, placement, run.setting), placement.time_s, run.unlimited_s),
    }


def _energies(
    point: Point, device: TimedChip, placement: Placement, setting: Setting, conditions: Conditions
) -> dict[str, float]:
    """Energy per sample in joules, in total and by part."""
    runs, starts, devices = point.runs, list(placement.starts), np.array(placement.devices)
    # The last layer of every stage but the last sends its output on.
    ends = runs.output_bytes[runs.layers][np.array(starts[1:], dtype=np.int64) - 1]
    gradients = point.bytes_per_parameter.gradients * point.parameters[runs.layers]
    parts = sample_j(
        dynamic_j(runs, device.work, point.layout, starts[-1], setting.recompute),
        sent_bytes(ends, devices),
        ring_bytes(np.add.reduceat(gradients, starts), devices, placement.layout),
        device.area_um2 * placement.devices_used * placement.time_s,
        Batch(point.layout, conditions.scenario.global_batch),
        Rates.of(conditions.energy),
    )
    return dict(zip(SAMPLE_ENERGIES, [float(parts.sum()), *parts.tolist()], strict=True))


def _infeasible(result: Infeasible) -> Row:
    never = dict.fromkeys(("time_per_batch_s", "bound_s", "max_load_s", "sync_s", *SAMPLE_ENERGIES), np.inf)
    nothing = dict.fromkeys(("samples_per_s", "tokens_per_s", "mfu", "mfu_paper"), 0.0)
    none = dict.fromkeys(("data", "stages", "devices_used"), 0)
    about = {"status": "infeasible", "reason": result.reason, "binding": result.limit}
    return {**about, **none, **never, **nothing}


def stage_rows(point: Point, run: PlannerRun) -> list[Row]:
    """Rows of table `stages`, one per stage; empty if there is no placement."""
    if isinstance(run.result, Infeasible):
        return []
    parameters = np.add.reduceat(point.parameters[point.runs.layers], run.result.starts).tolist()
    return [
        {**_keys(point, run), "stage": number, **_stage(point, run, cost, parameters[number])}
        for number, cost in enumerate(run.costs)
    ]


def _stage(point: Point, run: PlannerRun, cost: PlacedStage, parameters: float) -> Row:
    per_parameter = point.bytes_per_parameter
    return {
        "first_layer": cost.first_layer,
        "last_layer": cost.last_layer,
        "devices": cost.devices,
        "forward_s": cost.forward_s,
        "backward_s": cost.recomputed_s + cost.backward_s,
        "transfer_s": cost.transfer_s,
        "load_s": cost.load_s,
        "weight_bytes": per_parameter.weights * parameters,
        "gradient_bytes": per_parameter.gradients * parameters,
        "optimizer_bytes": per_parameter.optimizer * parameters,
        "activation_bytes": cost.activation_bytes,
        "stashed_bytes": cost.stashed_bytes,
        "memory_bytes": cost.memory_bytes,
        "headroom_bytes": run.setting.memory_bytes - cost.memory_bytes,
    }


def _keys(point: Point, run: PlannerRun) -> Row:
    return {
        "model": point.model,
        "layout": point.layout.key,
        "architecture": run.device.name,
        "hbm_gib": run.setting.memory_bytes / GIB,
        "recompute": run.setting.recompute,
        "planner": run.planner,
    }


def stage_costs(chain: Chain, placement: Placement, setting: Setting) -> list[PlacedStage]:
    """Time and memory of every stage of a placement, from the first stage."""
    load_s = stage_loads(chain, setting.bandwidth_bytes_per_s)
    in_pipeline = setting.in_pipeline(placement.layout)
    stashes = stage_stashes(chain.footprints, placement.starts, setting, in_pipeline)
    forward, backward, static, activations = (
        np.add.reduceat(values, placement.starts).tolist()
        for values in (chain.forward_s, chain.backward_s, chain.static_bytes, chain.activation_bytes)
    )
    costs = []
    for number, layers in enumerate(placement.layers):
        recompute = setting.recompute and number < placement.stages - 1
        costs.append(
            PlacedStage(
                first_layer=layers[0],
                last_layer=layers[-1],
                devices=placement.devices[number],
                forward_s=forward[number],
                recomputed_s=forward[number] if recompute else 0.0,
                backward_s=backward[number],
                load_s=float(load_s.of(recompute)[layers[0], layers[-1] + 1]),
                static_bytes=static[number],
                activation_bytes=activations[number],
                stashed_bytes=float(stashes[number]),
            )
        )
    return costs


def time_parts(costs: list[PlacedStage], placement: Placement, setting: Setting) -> dict[str, float]:
    """Breakdown of the time per batch, in seconds; the parts add up to it.

    The slowest stage works on every microbatch of its pipeline (compute, recompute, transfers). Then it waits
    while the pipeline fills and drains (pipeline bubbles) and while the gradients are synchronised (network
    sync).
    """
    slowest = costs[int(np.argmax([cost.load_s for cost in costs]))]
    microbatches = setting.in_pipeline(placement.layout)
    return {
        "compute": microbatches * (slowest.forward_s + slowest.backward_s),
        "recompute": microbatches * slowest.recomputed_s,
        "transfers": microbatches * slowest.transfer_s,
        "pipeline bubbles": (placement.stages - 1) * slowest.load_s,
        "network sync": placement.sync_s,
    }


def binding(parts: dict[str, float], time_s: float, unlimited_s: float) -> str:
    """Bottleneck of a placement: memory if more of it would help, otherwise the largest part of the time.

    `unlimited_s` is the time per batch of the same planner with unlimited memory and without recomputation.
    """
    if unlimited_s < (1.0 - MEMORY_GAIN) * time_s:
        return "memory"
    return max(parts, key=lambda part: parts[part])
