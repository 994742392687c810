"""What the layers of a model cost on one slice: kernels, and tensor-parallel collectives between them.

Nothing hides these collectives, but for one: with sequence parallelism the backward pass gathers a kept input
again, beside the product that makes the gradient of that input (Korthikanti et al. 2023, Section 4.2.2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.cost.kernels import KERNEL_LIMITS, kernels_of, time_kernels, works_of_kernels
from phaze.cost.network.fabric import network_of
from phaze.cost.network.network import Kind
from phaze.cost.vector import cycle_figures
from phaze.layout import Layout, Recompute
from phaze.plan.plan import Machine
from phaze.spec.config import load_technology
from phaze.spec.files import FOLDER
from phaze.spec.system import Device
from phaze.spec.systems import load_cluster
from phaze.workload.operators import Operator
from phaze.workload.workload import Layer, Workload

TECHNOLOGY = "22nm"
"""Whose cycles of vector operations count."""
NETWORK = KERNEL_LIMITS.index("network")
HBM = KERNEL_LIMITS.index("hbm")
ON_CHIP_BYTES_PER_S = 1e30
"""Bandwidth of HBM for what does not use it."""
KEPT = ("embedding", "head")
"""Layers that are never recomputed."""


def load_machine(system: str, folder: Path = FOLDER) -> Machine:
    """A system of config/systems, or of a YAML file by path, that says its device and its levels."""
    cluster, device = load_cluster(system, folder)
    cycles = cycle_figures(load_technology(TECHNOLOGY, folder).vector_cycles, {})
    machine = Machine(network_of(cluster), 0.0, cluster.devices, vector_cycles=cycles)
    return machine.with_device(device)


def device_of(machine: Machine) -> Device:
    """Device of a machine; PhazeError for one whose plans bring the times of their layers."""
    if machine.device is None:
        raise PhazeError("machine: says nothing of its device, on which layers would run")
    return machine.device


@dataclass(frozen=True, eq=False)
class LayerCost:
    """Seconds of a layer's passes for one microbatch by what binds, (limits,), see `cost.kernels`."""

    layer: Layer
    forward_s: Floats
    backward_s: Floats
    core_s: Floats
    """What selective recomputation repeats."""
    weight_s: float
    """Of the backward pass the products that make gradients of weights."""

    def again_s(self, recompute: Recompute) -> Floats:
        """Seconds of what runs forward again before the backward pass, (limits,)."""
        if recompute == "none" or self.layer.name in KEPT:
            return np.zeros_like(self.core_s)
        return self.forward_s if recompute == "full" else self.core_s

    def kept_bytes(self, recompute: Recompute) -> tuple[float, float]:
        """Bytes that the layer keeps of a microbatch, and those that it holds while it is at work: what it
        recomputes, and keys and values of the whole sequence.
        """
        layer, gathered = self.layer, self.layer.gathered_bytes
        if recompute == "none" or layer.name in KEPT:
            return layer.activation_bytes, gathered
        if recompute == "full":
            return layer.input_bytes, layer.activation_bytes + gathered
        return layer.activation_bytes - layer.attention_bytes, layer.attention_bytes + gathered


def layer_costs(workload: Workload, machine: Machine, *, flash: bool = False) -> dict[str, LayerCost]:
    """Costs of the distinct layers of a workload by name."""
    cost = _with_flash_attention if flash else _plainly
    return {layer.name: cost(layer, workload.layout, machine) for layer in workload.layers}


def _plainly(layer: Layer, layout: Layout, machine: Machine) -> LayerCost:
    """Cost of a layer whose kernels hand everything on through memory."""
    passes = (layer.forward.operators, layer.backward.operators, layer.attention("forward"))
    (forward_s, _), (backward_s, weight_s), (core_s, _) = (
        _seconds(operators, layout, machine) for operators in passes
    )
    return LayerCost(layer, forward_s, backward_s, core_s, weight_s)


def _with_flash_attention(layer: Layer, layout: Layout, machine: Machine) -> LayerCost:
    """Cost of a layer whose attention core is one kernel that keeps scores on the chip.

    Its products take what arrays and global buffer need; the backward pass makes the scores again (Dao et
    al., NeurIPS 2022). Nothing of the core is kept.
    """
    device = device_of(machine).model_copy(update={"hbm_bandwidth_bytes_per_s": ON_CHIP_BYTES_PER_S})
    inside = machine.with_device(device)

    def seconds(
        all_: tuple[Operator, ...], core: tuple[Operator, ...], fused: tuple[Operator, ...]
    ) -> tuple[Floats, float]:
        rest = tuple(operator for operator in all_ if operator not in core)
        products = tuple(operator for operator in fused if operator.core == "tensor")
        outside_s, weight_s = _seconds(rest, layout, machine)
        return outside_s + _seconds(products, layout, inside)[0], weight_s

    kept = replace(layer, activation_bytes=layer.activation_bytes - layer.attention_bytes, attention_bytes=0)
    core, core_backward = layer.attention("forward"), layer.attention("backward")
    again = (*core_backward, *core[:1])
    forward_s, _ = seconds(layer.forward.operators, core, core)
    backward_s, weight_s = seconds(layer.backward.operators, core_backward, again)
    return LayerCost(kept, forward_s, backward_s, np.zeros(len(KERNEL_LIMITS)), weight_s)


def _seconds(operators: tuple[Operator, ...], layout: Layout, machine: Machine) -> tuple[Floats, float]:
    """Seconds of operators one after the other by what binds, and of their gradients of weights."""
    kernels = [kernel for operator in operators for kernel in kernels_of(operator)]
    total, weight_s = np.zeros(len(KERNEL_LIMITS)), 0.0
    if kernels:
        works = works_of_kernels(kernels, machine.vector_cycles)
        each = time_kernels(works, device_of(machine), layout.bytes_per_element)
        total += each.sum(axis=0)
        weight_s = float(each[[kernel[0].role == "weight_gradient" for kernel in kernels]].sum())
    for part in (part for operator in operators for part in operator.parts):
        if part.axis:
            group = layout.group(part.axis)
            total[NETWORK] += machine.network.seconds(cast(Kind, part.kind), part.network_bytes, group)
    return total, weight_s
