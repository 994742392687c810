"""Energy of a training step of a plan on a chip: what operators, links and leakage take on all devices.

Operators take the dynamic energy of their mapping on all cores, forward, backward and where they are
recomputed. A byte that a device sends takes the energy of a link: in collectives of layers, between pipeline
stages, and for gradients and weights of data-parallel replicas. The chips leak for the whole step. The update
of the optimizer is not counted: it moves the states of a parameter once a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import cast

import numpy as np

from phaze.cost.kernels import energies_on, works_of_kernels
from phaze.cost.network.network import Collective, sent_bytes
from phaze.layout import Layout
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.layers.scheduled import COLLECTIVE
from phaze.plan.machines import device_of
from phaze.spec.architecture import EnergyFigures
from phaze.workload.kinds import COLLECTIVES
from phaze.workload.operators import Operator
from phaze.workload.workload import Workload


def step_joules(priced: PricedLayout, figures: EnergyFigures, area_mm2: float) -> dict[str, float]:
    """Energy of a step on all devices, in joules by component of the chip; `link` and `leakage` are two."""
    question, layout = priced.question, priced.staged.layout
    task = question.task
    workload = question.lowering(layout).workload(layout)
    lowered = question.lowering(layout).layers(layout)
    # Every rank of tensor and context parallelism runs the operators of every microbatch of its replica.
    times = layout.tp * layout.cp * task.global_batch / layout.microbatch
    recomputed = priced.recomputed_layers / sum(priced.split.blocks) if layout.recompute == "full" else 1.0
    weighted: dict[Operator, float] = defaultdict(float)
    for layer in workload.layers:
        cost, count = lowered.costs[layer.name], workload.counts[layer.name]
        forward_s = cost.forward_s.sum()
        again = recomputed * cost.again_s(layout.recompute).sum() / forward_s if forward_s else 0.0
        for operators, passes in ((layer.forward.operators, 1.0 + again), (layer.backward.operators, 1.0)):
            for operator in operators:
                weighted[operator] += times * passes * count
    joules = _dynamic(priced, weighted, figures)
    sent = sum(number * _sent(operator, layout) for operator, number in weighted.items())
    sent += _exchanged(workload, priced)
    joules["link"] = float(sent) * figures.link_j_per_byte
    joules["leakage"] = figures.leakage_w_per_mm2 * area_mm2 * priced.price.time_s * task.devices
    return joules


def _dynamic(
    priced: PricedLayout, weighted: Mapping[Operator, float], figures: EnergyFigures
) -> dict[str, float]:
    """Dynamic energy of operators on cores, in joules by component."""
    machine, width = priced.question.machine, priced.staged.layout.bytes_per_element
    operators = [operator for operator in weighted if operator.core not in (COLLECTIVE, "none")]
    works = works_of_kernels([operator.parts for operator in operators], machine.vector_cycles)
    numbers = np.array([weighted[operator] for operator in operators])
    energies = energies_on(works, device_of(machine), width, figures)
    return {name: float(part @ numbers) for name, part in energies.items()}


def _sent(operator: Operator, layout: Layout) -> float:
    """Bytes that a rank sends in a collective."""
    if operator.core != COLLECTIVE:
        return 0.0
    sent = 0.0
    for part in operator.parts:
        if part.kind == "send":
            sent += part.network_bytes
        elif part.axis and part.kind in COLLECTIVES:
            kind = cast("Collective", part.kind)
            sent += sent_bytes(kind, part.network_bytes, layout.group(part.axis).ranks)
    return sent


def _exchanged(workload: Workload, priced: PricedLayout) -> float:
    """Bytes that all devices send between stages, and for gradients and weights of replicas, in a step."""
    layout, task = priced.staged.layout, priced.question.task
    ranks = layout.tp * layout.cp * task.global_batch / layout.microbatch
    # What the embedding sends on is what every layer does.
    boundary = workload.layers[0].output_bytes
    between = 2.0 * (layout.pp * layout.vp - 1) * boundary * ranks
    weights = sum(workload.counts[layer.name] * layer.parameter_bytes for layer in workload.layers)
    replicas = layout.group("dp-cp").ranks
    return between + sent_bytes("all_reduce", weights, replicas) * task.devices / layout.pp
