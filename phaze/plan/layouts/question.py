"""What is asked: a model and a batch on the devices of a machine, with the memory that plans may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from phaze.base.arrays import Bools, Floats
from phaze.base.units import GIB
from phaze.cost.memory import Optimizer
from phaze.layout import Layout, Recompute
from phaze.pipeline.graph import refuse_endless
from phaze.pipeline.pipeline import StageCost
from phaze.plan.given import Lowering, Lowerings
from phaze.plan.in_use import tensor_limit_bytes
from phaze.plan.layouts.divisions import Content, DividedLayout
from phaze.plan.machines import prudent, usable_gib
from phaze.plan.plan import Machine
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.rules import Runtime, TrainingTask
from phaze.spec.training_plan import Rank


@dataclass(frozen=True, eq=False)
class PlanQuestion:
    """How to train a model on a machine with a runtime."""

    task: TrainingTask
    machine: Machine
    runtime: Runtime
    optimizer: Optimizer = "adam"
    flash: bool = True
    """Whether attention keeps its scores on the chip, as in all plans; a given run may not."""
    upper: bool = False
    """Whether plans fit at the upper end of the memory range; else at what is expected."""

    @cached_property
    def prudent(self) -> PlanQuestion:
        """The same question at prudent prices, with plans that fit at the upper end of the memory range."""
        task, machine = prudent(self.task, self.machine)
        return replace(self, task=task, machine=machine, upper=True)

    def ranked(self, rank: Rank) -> PlanQuestion:
        """The question at the prices that layouts are ranked by, asked at expected ones."""
        return self.prudent if rank == "prudent" else self

    @property
    def usable_bytes(self) -> float:
        """Bytes of a device that plans of any layout may use, as a planner of the literature is told."""
        return usable_gib(self.machine) * GIB

    def limit_bytes(self, layout: Layout) -> float:
        """Bytes of tensors with which a layout fits."""
        return self.lowering(layout).limit_bytes(layout, upper=self.upper)

    def limits_bytes(self, grid: LayoutGrid) -> Floats:
        """The same of all layouts of a grid, (N,), or more: of temporary copies only the buffers of
        tensor-parallel overlap are taken off.
        """
        names = ("tp", "cp", "pp", "dp", "ep", "etp")
        columns = np.stack([getattr(grid, name) for name in names], axis=1)
        if not self.task.experts:  # then only whether there is a group matters
            columns = np.minimum(columns, 2)
        distinct, where = np.unique(columns, axis=0, return_inverse=True)
        layouts = (Layout(**dict(zip(names, row, strict=True))) for row in distinct.tolist())
        limits = np.array([tensor_limit_bytes(self.machine, layout, upper=self.upper) for layout in layouts])
        limits = limits[where.ravel()]
        stack = self.machine.stack
        if not self.upper or "tp" not in stack.overlap:
            return limits
        tokens = grid.sequence_parallel * (grid.tp > 1) * grid.microbatch * self.task.sequence / grid.cp
        width_bytes = grid.layout(0).bytes_per_element * self.task.model.hidden
        return limits - stack.overlap_buffers * width_bytes * tokens

    def refuse_endless(self, grid: LayoutGrid) -> None:
        """Raise PhazeError at once for a batch of which some layout has more events than memory holds."""
        if len(grid):
            microbatches = grid.microbatches(self.task.global_batch)
            place = int(np.argmax(microbatches * grid.stages))
            refuse_endless(int(microbatches[place]), int(grid.stages[place]))

    def repeats(self, recomputes: Sequence[Recompute]) -> Bools:
        """Recompute options that do the same as none, (options,): the attention kernel keeps nothing that
        selective recomputation of its core would free.
        """
        attention = self.machine.stack.selective == "attention"
        return np.array([attention and word == "selective" for word in recomputes], np.bool_)

    def lowering(self, layout: Layout) -> Lowering:
        """Stages of the model in layouts of as many slices, its vocabulary padded for them."""
        return self._lowerings.of(layout)

    def forget(self, most: int) -> None:
        """Free the costs of slices where there are more than so many."""
        self._lowerings.forget(most)

    @cached_property
    def _lowerings(self) -> Lowerings:
        return Lowerings(self.task, self.machine, self.optimizer, self.flash)

    def divided(self, layout: Layout, schedule: str) -> DividedLayout:
        """A layout with all of its divisions."""
        kin = replace(layout, vp=min(layout.vp, 2))  # of more chunks no stage costs anything else
        costs = self._costs.setdefault((kin, schedule), {})
        part = self.runtime.recomputes_part
        return DividedLayout(self.lowering(layout), layout, schedule, part, _costs=costs)

    @cached_property
    def _costs(self) -> dict[tuple[Layout, str], dict[Content, StageCost]]:
        """Costs of stages by content, for layouts that differ in the number of their chunks alone."""
        return {}
