"""Where the time and the memory of a placement go, stage by stage, and what binds it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.pipeline.flushing import Chain, Setting, stage_loads
from phaze.plan.phaze.flush import Placement
from phaze.plan.phaze.reasons import stage_stashes

MEMORY_GAIN = 0.01
"""Memory binds a placement if unlimited memory would make it faster by more than this share."""


@dataclass(frozen=True)
class StageCost:
    """One stage of a placement; seconds for one microbatch, bytes on each of its devices."""

    first_layer: int
    last_layer: int
    devices: int
    forward_s: float
    recomputed_s: float
    """Forward pass run again; 0 where activations are stashed."""
    backward_s: float
    load_s: float
    static_bytes: float
    activation_bytes: float
    stashed_bytes: float

    @property
    def transfer_s(self) -> float:
        """Return the time in which the stage waits for tensors of other stages."""
        return max(self.load_s - self.forward_s - self.recomputed_s - self.backward_s, 0.0)

    @property
    def memory_bytes(self) -> float:
        """Return all that each device of the stage stores."""
        return self.static_bytes + self.activation_bytes + self.stashed_bytes


def stage_costs(chain: Chain, placement: Placement, setting: Setting) -> list[StageCost]:
    """Return the cost of every stage of a placement, from the first."""
    load_s = stage_loads(chain, setting.bandwidth_bytes_per_s)
    in_pipeline = setting.in_pipeline(placement.layout)
    stashes = stage_stashes(chain.footprints, placement.starts, setting, in_pipeline)
    forward, backward, static, activations = (
        np.add.reduceat(values, placement.starts).tolist()
        for values in (chain.forward_s, chain.backward_s, chain.static_bytes, chain.activation_bytes)
    )
    costs = []
    for number, (i, j) in enumerate(placement.intervals(len(chain))):
        recompute = setting.recompute and number < placement.stages - 1
        costs.append(
            StageCost(
                first_layer=i,
                last_layer=j - 1,
                devices=placement.devices[number],
                forward_s=forward[number],
                recomputed_s=forward[number] if recompute else 0.0,
                backward_s=backward[number],
                load_s=float(load_s.of(recompute)[i, j]),
                static_bytes=static[number],
                activation_bytes=activations[number],
                stashed_bytes=float(stashes[number]),
            )
        )
    return costs


def time_parts(costs: list[StageCost], placement: Placement, setting: Setting) -> dict[str, float]:
    """Return the parts of the time per batch, in seconds: they sum to it.

    The slowest stage works on every microbatch of its pipeline (compute, recompute, transfers), then waits
    while the pipeline fills and drains (pipeline bubbles) and while the first stage synchronises its
    gradients (network sync).
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
    """Return what limits the throughput: memory if more of it would help, else the largest part of the time.

    `unlimited_s` is the time per batch that the same planner reaches with unlimited memory and without
    recomputation.
    """
    if unlimited_s < (1.0 - MEMORY_GAIN) * time_s:
        return "memory"
    return max(parts, key=lambda part: parts[part])
