"""Planning request: a model and a batch on the devices of a machine, with the memory that plans may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from phaze.base.arrays import Bools, Floats
from phaze.base.units import GIB
from phaze.layout import WIDTHS, Layout, Recompute
from phaze.pipeline.graph import refuse_endless
from phaze.pipeline.stages import StageCost
from phaze.plan.layers.activations import buffers_bytes
from phaze.plan.machines import prudent, usable_gib
from phaze.plan.plan import Machine
from phaze.plan.pricing.lowering import Lowering, Lowerings
from phaze.plan.splits.split import Content, StagedLayout
from phaze.plan.terms.memory import Room, tensor_limit_bytes
from phaze.plan.time_limit import Work
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.rules import Runtime, TrainingTask
from phaze.spec.names import Rank


@dataclass(frozen=True, eq=False)
class PlanQuestion:
    """Planning request: the training task, machine and runtime to plan for."""

    task: TrainingTask
    machine: Machine
    runtime: Runtime
    flash: bool = True
    """True if attention keeps its scores on chip, as in all plans; measured runs may differ."""
    room: Room = "expected"
    """Memory that plans must leave to all but tensors."""
    rank: Rank = "expected"
    """Kind of step time that these prices predict: expected or prudent."""

    @cached_property
    def prudent(self) -> PlanQuestion:
        """Same request with prudent (conservative) estimates of step time and memory."""
        task, machine = prudent(self.task, self.machine)
        return replace(self, task=task, machine=machine, room="upper", rank="prudent")

    def roomy(self) -> PlanQuestion:
        """Same request for plans that surely fit; it shares the costs, which no room changes."""
        roomy = replace(self, room="surely")
        vars(roomy).update(_lowerings=self._lowerings, _costs=self._costs)
        return roomy

    def ranked(self, rank: Rank) -> PlanQuestion:
        """Same request with the estimates, expected or prudent, by which layouts are ranked."""
        return self.prudent if rank == "prudent" else self

    @property
    def usable_bytes(self) -> float:
        """Device memory available to tensors in bytes, the limit for planners from the literature."""
        return usable_gib(self.machine) * GIB

    def limit_bytes(self, layout: Layout) -> float:
        """Memory limit for the tensors of a layout, in bytes per device."""
        return self.lowering(layout).limit_bytes(layout, room=self.room)

    def limits_bytes(self, grid: LayoutGrid) -> Floats:
        """Upper bounds on the tensor memory limits of all layouts of a grid, (N,).

        Of the temporary copies only the buffers of tensor-parallel overlap are subtracted.
        """
        names = [name for name in WIDTHS if name != "vp"]
        columns = np.stack([getattr(grid, name) for name in names], axis=1)
        if not self.task.experts:  # then only the presence of a group matters
            columns = np.minimum(columns, 2)
        distinct, where = np.unique(columns, axis=0, return_inverse=True)
        layouts = (Layout(**dict(zip(names, row, strict=True))) for row in distinct.tolist())
        limits = np.array([tensor_limit_bytes(self.machine, layout, room=self.room) for layout in layouts])
        limits = limits[where.ravel()]
        if self.room == "expected":
            return limits
        tokens = grid.cuts_sequence * grid.microbatch * self.task.sequence / grid.cp
        width_bytes = grid.layout(0).bytes_per_element * self.task.model.hidden
        return limits - buffers_bytes(self.machine.stack, width_bytes * tokens)

    def refuse_endless(self, grid: LayoutGrid) -> None:
        """Raise PhazeError if a layout has too many events to fit in memory."""
        if len(grid):
            microbatches = grid.microbatches(self.task.global_batch)
            place = int(np.argmax(microbatches * grid.stages))
            refuse_endless(int(microbatches[place]), int(grid.stages[place]))

    def repeats(self, recomputes: Sequence[Recompute]) -> Bools:
        """Mask of the recompute options that are equivalent to no recompute, (options,).

        The attention kernel stores nothing that selective recompute of its core would free.
        """
        attention = self.machine.stack.selective == "attention"
        return np.array([attention and word == "selective" for word in recomputes], np.bool_)

    def lowering(self, layout: Layout) -> Lowering:
        """Lowering of the model for a layout's tensor parallelism, with a vocabulary padded to match."""
        return self._lowerings.of(layout)

    @property
    def work(self) -> Work:
        """Work of the search that asks, with its time limit."""
        return self._lowerings.work

    def forget(self, most: int) -> None:
        """Free the cached costs of shards if there are more than `most`."""
        self._lowerings.forget(most)

    @property
    def schedule_gap(self) -> float | None:
        """Largest relative gap between a schedule and its lower bound; None without static schedules."""
        schedules = self._lowerings.schedules.values()
        return max((schedule.gap for schedule in schedules), default=None)

    @cached_property
    def _lowerings(self) -> Lowerings:
        return Lowerings(self.task, self.machine, self.flash)

    def staged(self, layout: Layout, schedule: str) -> StagedLayout:
        """Layout under a schedule, prepared for pricing any of its pipeline splits."""
        kin = replace(layout, vp=min(layout.vp, 2))  # more chunks change no stage costs
        costs = self._costs.setdefault((kin, schedule), {})
        counts = self.runtime.recomputed_counts
        return StagedLayout(self.lowering(layout), layout, schedule, counts, _costs=costs)

    @cached_property
    def _costs(self) -> dict[tuple[Layout, str], dict[Content, StageCost]]:
        """Stage costs by content, shared by layouts that differ only in the number of chunks."""
        return {}
