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
from scipy.sparse import csr_array

from phaze.base.arrays import Floats
from phaze.base.progress import counted
from phaze.cost.kernels import energies_on, works_of_kernels
from phaze.cost.network.network import Collective, sent_bytes
from phaze.layout import Layout
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.bounds.chips import AT_ONCE, ELEMENT_BYTES, shards_of
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
    runs = _runs(workload, layout, question.task, repeated)
    parts = _dynamic(question, [runs], [device_of(question.machine)], figures)
    joules = {name: float(part[0, 0]) for name, part in parts.items()}
    sent = sum(number * _sent(operator, layout) for operator, number in runs.items())
    sent += _exchanged(workload, priced)
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
    layouts, _ = shards_of(grid)
    runs, sent = list[Mapping[Operator, float]](), list[float]()
    for layout in counted(layouts, "shards"):
        runs.append(_runs(question.lowering(layout).workload(layout), layout, question.task, {}))
        sent.append(sum(number * _sent(operator, layout) for operator, number in runs[-1].items()))
    link = np.array(sent)[:, None] * figures.link_j_per_byte
    least = []
    batches = -(-len(devices) * len({operator.parts for row in runs for operator in row}) // AT_ONCE)
    for part in np.array_split(np.arange(len(devices)), min(batches, len(devices))):
        parts = _dynamic(question, runs, [devices[place] for place in part], figures)
        least.append((sum(parts.values()) + link).min(axis=0))
    return np.concatenate(least)


def _runs(
    workload: Workload, layout: Layout, task: TrainingTask, repeated: Mapping[str, float]
) -> dict[Operator, float]:
    """Number of runs of every operator in a step, on all devices.

    `repeated` is the share of each layer's forward pass that is recomputed, by default none.
    """
    # Every rank of tensor and context parallelism runs the operators of every microbatch of its replica.
    times = layout.tp * layout.cp * task.global_batch / layout.microbatch
    runs: dict[Operator, float] = defaultdict(float)
    for layer in workload.layers:
        count, forward = workload.counts[layer.name], 1.0 + repeated.get(layer.name, 0.0)
        for operators, passes in ((layer.forward.operators, forward), (layer.backward.operators, 1.0)):
            for operator in operators:
                runs[operator] += times * passes * count
    return runs


def _dynamic(
    question: PlanQuestion,
    runs: Sequence[Mapping[Operator, float]],
    devices: Sequence[Device],
    figures: EnergyFigures,
) -> dict[str, Floats]:
    """Dynamic energy of sets of operators on the cores of every device, in joules by component, (R, D)."""
    kernels: dict[tuple[Part, ...], int] = {}
    entries = [
        (number, place, kernels.setdefault(operator.parts, len(kernels)))
        for place, row in enumerate(runs)
        for operator, number in row.items()
        if operator.core not in (COLLECTIVE, "none")
    ]
    works = works_of_kernels([*kernels], question.machine.vector_cycles)
    number, rows, columns = np.array(entries).T
    numbers = csr_array((number, (rows.astype(int), columns.astype(int))), (len(runs), len(kernels)))
    energies = energies_on(works, devices, ELEMENT_BYTES, figures)
    return {name: numbers @ part for name, part in energies.items()}


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
