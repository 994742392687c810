"""What the layers of a model run and exchange under each shard, whatever the chip and the network.

A shard is what a rank holds of a model and a microbatch. Lowering all shards takes longer than bounding them
on a chip, so that all chips, objectives and assumptions share the result.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.progress import counted
from phaze.layout import SHARD_FIELDS, Layout
from phaze.plan.bounds.shards import distinct_rows
from phaze.plan.layers.scheduled import WorkGraphs
from phaze.plan.pricing.lowering import ModelTraining
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.rules import TrainingTask
from phaze.spec.models import AnyModel
from phaze.workload.models import chip_workload
from phaze.workload.operators import Part
from phaze.workload.workload import DIRECTIONS

if TYPE_CHECKING:
    from scipy.sparse import csr_array

ELEMENT_BYTES = Layout().bytes_per_element
"""Bytes per element of all layouts of chips, which train in mixed precision."""


def shards_of(grid: LayoutGrid) -> tuple[list[Layout], Ints]:
    """Distinct shards of a grid, with one stage and one replica each, and the shard of each layout, (F,)."""
    _, places, where = distinct_rows(np.stack([getattr(grid, name) for name in SHARD_FIELDS], axis=1))
    return [replace(grid.layout(place), pp=1, vp=1, dp=1, zero=0) for place in places.tolist()], where


def microbatches_of(layout: Layout, task: TrainingTask) -> float:
    """Number of microbatches that all ranks of a layout together run in a step, with one stage."""
    # Every rank of tensor and context parallelism runs every microbatch of its replica.
    return layout.tp * layout.cp * task.global_batch / layout.microbatch


@dataclass(frozen=True, eq=False)
class ShardWork:
    """Operators and exchanges of a microbatch in all layers of a model, under each of its shards."""

    graphs: WorkGraphs
    """Distinct graphs of operators."""
    counts: csr_array
    """Number of layers and passes of every shard with each graph, (S, G)."""
    sent: tuple[dict[Part, float], ...]
    """Exchanges of every shard, with the number of each."""


@lru_cache(maxsize=1)
def shard_work(model: AnyModel, sequence: int, layouts: tuple[Layout, ...]) -> ShardWork:
    """Lower a model with samples of `sequence` tokens under shards, with one stage and replica each.

    The last result is kept: searches of the same model for other objectives and under other assumptions need
    it again.
    """
    from scipy.sparse import csr_array  # slow to import, and searches without chips need none

    graphs, counts = WorkGraphs(), list[tuple[int, int, int]]()
    sent, parts = list[dict[Part, float]](), dict[Part, Part]()
    models: dict[int, AnyModel] = {}
    for shard, layout in enumerate(counted(layouts, "shards")):
        if layout.tp not in models:
            models[layout.tp] = ModelTraining(model, sequence, 1).padded(layout).model
        workload = chip_workload(models[layout.tp], sequence, layout)
        exchanges: dict[Part, float] = defaultdict(float)
        for layer in workload.layers:
            count = workload.counts[layer.name]
            for layer_pass in map(layer.pass_of, DIRECTIONS):
                counts.append((count, shard, graphs.number_of(layer_pass, layout)))
                for operator in layer_pass.operators:
                    for part in operator.parts:
                        if part.axis:
                            exchanges[parts.setdefault(part, part)] += count
        sent.append(dict(exchanges))
    number, row, column = np.array(counts).T
    matrix = csr_array((number.astype(float), (row, column)), (len(layouts), len(graphs)))
    return ShardWork(graphs, matrix, tuple(sent))
