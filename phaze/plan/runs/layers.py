"""What the layers of a run cost on one slice: kernels, and tensor-parallel collectives between them.

Nothing hides these collectives, but for one: with sequence parallelism the backward pass gathers a kept input
again, beside the product that makes the gradient of that input (Korthikanti et al. 2023, Section 4.2.2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from phaze.base.arrays import Floats
from phaze.cost.kernels import KERNEL_LIMITS, kernels_of, time_kernels, works_of_kernels
from phaze.cost.network.network import Kind
from phaze.layout import Group, Layout
from phaze.plan.runs.machine import Machine
from phaze.plan.runs.run import Run
from phaze.workload.lower.kernels import LayerKernels, extract_kernels
from phaze.workload.lower.sharding import slice_model
from phaze.workload.operators import Operator

NETWORK = KERNEL_LIMITS.index("network")
HBM = KERNEL_LIMITS.index("hbm")
ON_CHIP_BYTES_PER_S = 1e30
"""Bandwidth of HBM for what does not use it."""


@dataclass(frozen=True, eq=False)
class LayerCost:
    """Seconds of a layer's passes for one microbatch by what binds, (limits,), see `cost.kernels`."""

    kernels: LayerKernels
    forward_s: Floats
    backward_s: Floats
    core_s: Floats
    """What selective recomputation repeats."""


def layer_costs(run: Run, machine: Machine) -> dict[str, LayerCost]:
    """Return the costs of the distinct layers of a run by name."""
    part = slice_model(
        run.model,
        run.seq,
        Layout(tp=run.tp, microbatch=run.microbatch, sequence_parallel=run.sequence_parallel),
        run.bytes_per_element,
    )
    cost = _with_flash_attention if run.flash_attention else _plainly
    return {name: cost(layer, run, machine) for name, layer in extract_kernels(part).items()}


def _plainly(layer: LayerKernels, run: Run, machine: Machine) -> LayerCost:
    """Return the cost of a layer whose kernels hand everything on through memory."""
    passes = (layer.forward, layer.backward, layer.core)
    return LayerCost(layer, *(_seconds(operators, run, machine) for operators in passes))


def _with_flash_attention(layer: LayerKernels, run: Run, machine: Machine) -> LayerCost:
    """Return the cost of a layer whose attention core is one kernel that keeps scores on the chip.

    Its products take what arrays and global buffer need; the backward pass makes the scores again (Dao et
    al., NeurIPS 2022). Nothing of the core is kept.
    """
    device = machine.device.model_copy(update={"hbm_bandwidth_bytes_per_s": ON_CHIP_BYTES_PER_S})
    inside = replace(machine, device=device)

    def seconds(
        all_: tuple[Operator, ...], core: tuple[Operator, ...], fused: tuple[Operator, ...]
    ) -> Floats:
        rest = tuple(operator for operator in all_ if operator not in core)
        products = tuple(operator for operator in fused if operator.core == "tensor")
        return _seconds(rest, run, machine) + _seconds(products, run, inside)

    kept = layer._replace(stashed_bytes=layer.stashed_bytes - layer.core_bytes, core_bytes=0)
    again = (*layer.core_backward, *layer.core[:1])
    return LayerCost(
        kept,
        seconds(layer.forward, layer.core, layer.core),
        seconds(layer.backward, layer.core_backward, again),
        np.zeros(len(KERNEL_LIMITS)),
    )


def _seconds(operators: tuple[Operator, ...], run: Run, machine: Machine) -> Floats:
    """Return the seconds of operators one after the other by what binds."""
    kernels = [kernel for operator in operators for kernel in kernels_of(operator)]
    total = np.zeros(len(KERNEL_LIMITS))
    if kernels:
        works = works_of_kernels(kernels, machine.vector_cycles)
        total += time_kernels(works, machine.device, run.bytes_per_element).sum(axis=0)
    group = Group(run.tp, 1)
    for part in (part for operator in operators for part in operator.parts if part.network_bytes):
        total[NETWORK] += machine.network.seconds(cast("Kind", part.kind), part.network_bytes, group)
    return total
