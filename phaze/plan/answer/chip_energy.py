"""Energy of a training step of a plan on a chip: what operators, links and leakage take on all devices.

Operators take the dynamic energy of their mapping on all cores, forward, backward and where they are
recomputed. A byte that a device sends takes the energy of a link: in collectives of layers, between pipeline
stages, and for gradients and weights of data-parallel replicas. The chips leak for the whole step. The update
of the optimizer is not counted: it moves the states of a parameter once a step.

The fastest plan of a chip need not take the least energy on it. The lower bound holds for every plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from scipy.sparse import csr_array, diags_array

from phaze.base.arrays import Floats
from phaze.cost.kernels import energies_on, works_of_kernels
from phaze.cost.network.network import Collective, sent_bytes
from phaze.layout import Layout
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.bounds.chips import AT_ONCE
from phaze.plan.bounds.shard_work import ELEMENT_BYTES, microbatches_of, shard_work, shards_of
from phaze.plan.layers.scheduled import COLLECTIVE
from phaze.plan.machines import device_of
from phaze.plan.question import PlanQuestion
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.rules import TrainingTask
from phaze.spec.architecture import EnergyFigures
from phaze.spec.system import Device
from phaze.workload.kinds import COLLECTIVES
from phaze.workload.operators import Operator, Part
from phaze.workload.workload import Workload

OFF_CORES = (COLLECTIVE, "none")
"""Core types of operators whose energy is that of links, or none."""


def step_joules(priced: PricedLayout, figures: EnergyFigures, area_mm2: float) -> dict[str, float]:
    """Energy of a step on all devices, in joules by component of the chip; `link` and `leakage` are two."""
    question, layout = priced.question, priced.staged.layout
    workload = question.lowering(layout).workload(layout)
    costs = question.lowering(layout).layers(layout).costs
    recomputed = priced.recomputed_layers / sum(priced.split.blocks) if layout.recompute == "full" else 1.0
    repeated = {}
    for layer in workload.layers:
        forward_s = costs[layer.name].forward_s.sum()
        again_s = costs[layer.name].again_s(layout.recompute).sum()
        repeated[layer.name] = recomputed * again_s / forward_s if forward_s else 0.0
    runs, sent = _runs(workload, layout, question.task, repeated), _exchanged(workload, priced)
    numbers, device = np.array([[*runs.values()]]), device_of(question.machine)
    kernels = [() if operator.core in OFF_CORES else operator.parts for operator in runs]
    parts = _dynamic(question, kernels, numbers, [device], figures)
    joules = {name: float(part[0, 0]) for name, part in parts.items()}
    sent += sum(
        number * _sent_bytes(part, layout) for operator, number in runs.items() for part in operator.parts
    )
    joules["link"] = float(sent) * figures.link_j_per_byte
    joules["leakage"] = leakage_w(figures, area_mm2, question.task) * priced.price.time_s
    return joules


def leakage_w(figures: EnergyFigures, area_mm2: float, task: TrainingTask) -> float:
    """Leakage power of all devices of a training task, in W."""
    return figures.leakage_w_per_mm2 * area_mm2 * task.devices


def least_joules(
    question: PlanQuestion, grid: LayoutGrid, devices: Sequence[Device], figures: EnergyFigures
) -> Floats:
    """Lower bound on the dynamic energy of a step, over all layouts of a grid on every device, in J, (D,).

    It is that of the operators and collectives of the layers of one shard. Recomputation and what pipeline
    stages and replicas send only add to it.
    """
    task, (layouts, _) = question.task, shards_of(grid)
    work = shard_work(task.model, task.sequence, tuple(layouts))
    microbatches = np.array([microbatches_of(layout, task) for layout in layouts])
    sent = [
        sum(number * _sent_bytes(part, layout) for part, number in exchanges.items())
        for layout, exchanges in zip(layouts, work.sent, strict=True)
    ]
    link = (microbatches * sent)[:, None] * figures.link_j_per_byte
    kernels = [() if core in OFF_CORES else parts for core, parts in work.graphs.works]
    numbers = diags_array(microbatches) @ work.counts @ work.graphs.runs
    least = []
    batches = -(-len(devices) * len(kernels) // AT_ONCE)
    for part in np.array_split(np.arange(len(devices)), min(batches, len(devices))):
        joules = _dynamic(question, kernels, numbers, [devices[place] for place in part], figures)
        least.append((sum(joules.values()) + link).min(axis=0))
    return np.concatenate(least)


def _runs(
    workload: Workload, layout: Layout, task: TrainingTask, repeated: Mapping[str, float]
) -> dict[Operator, float]:
    """Number of runs of every operator in a step, on all devices.

    `repeated` is the share of each layer's forward pass that is recomputed, by default none.
    """
    times = microbatches_of(layout, task)
    runs: dict[Operator, float] = defaultdict(float)
    for layer in workload.layers:
        count, forward = workload.counts[layer.name], 1.0 + repeated.get(layer.name, 0.0)
        for operators, passes in ((layer.forward.operators, forward), (layer.backward.operators, 1.0)):
            for operator in operators:
                runs[operator] += times * passes * count
    return runs


def _dynamic(
    question: PlanQuestion,
    kernels: Sequence[tuple[Part, ...]],
    numbers: Floats | csr_array,
    devices: Sequence[Device],
    figures: EnergyFigures,
) -> dict[str, Floats]:
    """Dynamic energy of sets of kernels on the cores of every device, in joules by component, (R, D).

    `numbers` has the runs of every kernel in every set, (R, K). A kernel without parts takes none.
    """
    works = works_of_kernels(kernels, question.machine.vector_cycles)
    energies = energies_on(works, devices, ELEMENT_BYTES, figures)
    return {name: numbers @ part for name, part in energies.items()}


def _sent_bytes(part: Part, layout: Layout) -> float:
    """Bytes that a rank sends for a part of an operator, if it is a collective."""
    if part.kind == "send":
        return float(part.network_bytes)
    if not part.axis or part.kind not in COLLECTIVES:
        return 0.0
    kind = cast("Collective", part.kind)
    return sent_bytes(kind, part.network_bytes, layout.group(part.axis).ranks)


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
