"""Predict a run: time, memory of the fullest device, and what its time goes into."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.base.units import GIB
from phaze.cost.kernels import KERNEL_LIMITS
from phaze.cost.memory import parameter_bytes
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.timeline import Timeline
from phaze.plan.runs.machine import Machine
from phaze.plan.runs.run import Run
from phaze.plan.runs.stages import Stage, pipeline_of, stages_of

WORDS = {
    "compute": "tensor cores",
    "vector": "vector cores",
    "global_buffer": "global buffer",
    "hbm": "HBM",
    "network": "tensor-parallel collectives",
    "kernel_start": "kernel starts",
}
"""What takes the time of passes, in words."""
COMMUNICATION = (WORDS["network"], "pipeline transfers", "gradient synchronisation")


@dataclass(frozen=True)
class Prediction:
    """What is predicted of a run; memory is that of the fullest device."""

    time_s: float
    """Of a batch."""
    memory_gib: float
    weights_gib: float
    """Weights and their gradients."""
    optimizer_gib: float
    activation_gib: float
    """Activations of the microbatches in flight, and what recomputing needs."""
    recompute_gib: float
    """Of it what recomputing needs."""
    model_flops_per_gpu: float
    """FLOP/s of a device without those of recomputation."""
    bubble_share: float
    """Share of device time in which devices wait for other stages."""
    exposed_communication_share: float
    """Share of device time in which devices only communicate."""
    bound_by: str
    """What takes most of the device time, with its share."""


def predict(run: Run, machine: Machine) -> Prediction:
    """Return what is predicted of a run; raise PhazeError where the run cannot be right."""
    run.check()
    run.check_devices(machine.cluster.devices)
    stages = stages_of(run, machine)
    timeline = simulate(pipeline_of(run, stages))
    shares = _shares(run, stages, timeline)
    most = max(shares, key=lambda name: shares[name])
    return Prediction(
        time_s=timeline.time_s,
        **_memory_gib(run, stages, timeline),
        model_flops_per_gpu=run.model_flops / timeline.time_s / run.gpus,
        bubble_share=shares["pipeline bubble"],
        exposed_communication_share=sum(shares[name] for name in COMMUNICATION),
        bound_by=f"{most} ({100 * shares[most]:.0f} %)",
    )


def _shares(run: Run, stages: tuple[Stage, ...], timeline: Timeline) -> dict[str, float]:
    """Return which share of device time goes where."""
    passes = np.sum([stage.passes_s for stage in stages], axis=0) / run.pp
    busy = run.microbatches * passes / timeline.time_s
    found = {WORDS[name]: float(share) for name, share in zip(KERNEL_LIMITS, busy, strict=True)}
    uses = timeline.share_of
    return found | {
        "pipeline bubble": max(uses["bubble"], 0.0),
        "pipeline transfers": uses["transfer"],
        "gradient synchronisation": uses["synchronisation"],
        "optimizer step": uses["update"],
    }


def _memory_gib(run: Run, stages: tuple[Stage, ...], timeline: Timeline) -> dict[str, float]:
    """Return the memory of the fullest device, and what it consists of."""
    group = int(np.argmax(timeline.peak_bytes))
    own = stages[group :: run.pp]
    size = parameter_bytes(run.optimizer, run.precision)
    shares = (run.dp if run.zero >= 3 else 1, run.dp if run.zero >= 2 else 1)
    parameters = sum(stage.parameters for stage in own)
    weights = parameters * (size.weights / shares[0] + size.gradients / shares[1])
    fixed = sum(stage.cost.fixed_bytes for stage in own)
    peak = float(timeline.peak_bytes[group])
    return {
        "memory_gib": peak / GIB,
        "weights_gib": weights / GIB,
        "optimizer_gib": (fixed - weights) / GIB,
        "activation_gib": (peak - fixed) / GIB,
        "recompute_gib": max(stage.cost.work_bytes for stage in own) / GIB,
    }
