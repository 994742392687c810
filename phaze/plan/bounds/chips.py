"""Lower bounds on the step time of many chips at once, whatever their layout.

Each pipeline rank runs both passes of its layers for every microbatch, without overlap with one another. The
mean over the ranks of a layout with N devices, a global batch of B samples, and layers that take u seconds
for a microbatch of b samples is a lower bound on a step:

    T ≥ B / (dp b) · Σ u / pp = B · tp · cp / (N b) · Σ u

Here u is the lower bound of a layer's operators on the cores (`least_latencies`), so that no schedule is
needed: the bound holds for every schedule, the shortest one included. The network, the pipeline,
recomputation and memory are left out: the bounds of a single chip (`bounds.layouts`) have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.progress import counted
from phaze.layout import SHARD_FIELDS, Layout
from phaze.plan.bounds.shards import distinct_rows
from phaze.plan.layers.scheduled import LayerSchedules
from phaze.plan.question import PlanQuestion
from phaze.runtimes.grid import LayoutGrid
from phaze.spec.system import Device
from phaze.workload.operators import LayerPass
from phaze.workload.workload import DIRECTIONS

AT_ONCE = 500
"""Maximum number of chips that are bounded in one batch, which limits memory use."""
ELEMENT_BYTES = Layout().bytes_per_element
"""Bytes per element of all layouts of chips, which train in mixed precision."""


def bound_chips(question: PlanQuestion, grid: LayoutGrid, devices: Sequence[Device]) -> Floats:
    """Lower bound on the step time on every device, over the layouts of a grid, in seconds, (D,).

    The question has the model, the batch and the stack, and may be on any device.
    """
    passes, counts, shards = _passes_of(question, grid)
    bounds_s = []
    for part in counted(np.array_split(np.arange(len(devices)), -(-len(devices) // AT_ONCE)), "chips"):
        schedules = LayerSchedules(
            tuple(devices[place] for place in part), question.machine.vector_cycles, ELEMENT_BYTES
        )
        steps_s = np.zeros((shards[-1] + 1, len(part)))
        np.add.at(steps_s, shards, np.array(counts)[:, None] * schedules.least_s(passes))
        bounds_s.append(steps_s.min(axis=0))
    return np.concatenate(bounds_s)


def _passes_of(
    question: PlanQuestion, grid: LayoutGrid
) -> tuple[list[tuple[LayerPass, Layout]], list[float], list[int]]:
    """Passes of the distinct layers of all shards of a grid, how often a step has each, and their shards."""
    task = question.task
    passes, counts, shards = list[tuple[LayerPass, Layout]](), list[float](), list[int]()
    _, places, _ = distinct_rows(np.stack([getattr(grid, name) for name in SHARD_FIELDS], axis=1))
    for shard, place in enumerate(counted(places.tolist(), "shards")):
        layout = replace(grid.layout(place), pp=1, vp=1, dp=1, zero=0)
        workload = question.lowering(layout).workload(layout)
        # A microbatch of a layer occupies tp · cp of the devices, among which layers and batch are shared.
        share = layout.tp * layout.cp / (task.devices * layout.microbatch)
        for layer in workload.layers:
            for direction in DIRECTIONS:
                passes.append((layer.pass_of(direction), layout))
                counts.append(task.global_batch * share * workload.counts[layer.name])
                shards.append(shard)
    return passes, counts, shards
