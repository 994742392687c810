"""Input of the pipeline simulation: stages with their costs, and the flow of microbatches (PALM, IV.A).

A stage is the part of the model on one tile group, or one group of devices. Its costs are seconds and bytes
for one microbatch on one replica. A pipeline of depth p with v chunks has p v stages in the order of the data
flow. Stage q is on device group q mod p, unless the schedule places it elsewhere (`groups`). Group g has d_g
replicas of t_g devices; microbatch m goes to replica m mod d_g of every group (round-robin, Piper, Figure 5).
The greatest common divisor of all d_g is the number of concurrent pipelines (lanes), which share only the
synchronisation. The lane with the most microbatches is simulated and represents all of them.

Where PALM's text leaves a choice, it is a field of `Pipeline`:

- Data_Fetch (Figure 4) has its own port and prefetches, or occupies the first stage.
- Act/Grad Pass takes transfer time but occupies no device, or occupies sender and receiver (`transfers`).
- Recompute begins when the gradient has arrived, as the sub-processes of Figure 5 follow each other, or while
  it arrives (`early_recompute`, Phaze, Appendix B.1).
- "DP communication from the previous operator can overlap with the current operator's execution": the
  gradients of a stage are synchronised in as many equal buckets as it has operators. Each starts as soon as
  the last microbatch's backward pass has computed it on every replica (`overlap_sync`). Without overlap,
  synchronisation follows the device's last backward pass.
- GU starts when the synchronisation of its stage is done, and not before the device's backward passes.
"""

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import get_args

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.errors import PhazeError
from phaze.base.nearest import choices
from phaze.pipeline.schedules import SCHEDULES, Schedule
from phaze.pipeline.stages import PipelineStages, Transfers


@dataclass(frozen=True)
class Pipeline(PipelineStages):
    """Pipeline to simulate: stages in the order of the data flow, the schedule and the batch."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_groups(self)
        for problem in self.rules.problems(self):
            raise PhazeError(f"pipeline: {problem}")

    @property
    def rules(self) -> Schedule:
        """The `Schedule` that the field `schedule` names."""
        return SCHEDULES[self.schedule]

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Maximum number of in-flight microbatches on a worker of each device group, over all its chunks."""
        count = self.lane_microbatches * self.batches
        places = zip(self.rules.places(self), self.replicas, strict=True)
        return tuple(min(-(-count // d) * self.chunks, place) for place, d in places)

    @cached_property
    def groups(self) -> Ints:
        """Device group of every stage, (p v,)."""
        return self.rules.groups(self.depth, self.chunks)

    def stages_of(self, group: int) -> Ints:
        """Stages of a device group in the order of the data flow, (v,)."""
        return np.flatnonzero(self.groups == group)

    @property
    def stream(self) -> int:
        """Number of stages that a microbatch passes: all stages, divided by the number of model copies."""
        return len(self.stages) // self.rules.streams


def _check_numbers(pipeline: Pipeline) -> None:
    for name in ("microbatches", "chunks", "batches"):
        if getattr(pipeline, name) < 1:
            raise PhazeError(f"pipeline: {name} must be >= 1, got {getattr(pipeline, name)}")
    for name in ("fetch_s", "release_s"):
        if not 0 <= getattr(pipeline, name) < inf:
            raise PhazeError(f"pipeline: {name} must be a number >= 0, got {getattr(pipeline, name)}")
    for name, allowed in (("schedule", tuple(SCHEDULES)), ("transfers", get_args(Transfers))):
        if getattr(pipeline, name) not in allowed:
            near = choices(getattr(pipeline, name), allowed, "config/formats.md")
            raise PhazeError(f"pipeline: {name} must be one of {near}, got {getattr(pipeline, name)}")


def _check_groups(pipeline: Pipeline) -> None:
    stages, chunks = len(pipeline.stages), pipeline.chunks
    if not stages or stages % chunks:
        raise PhazeError(
            f"pipeline: the number of stages must be a multiple of chunks = {chunks}, got {stages} stages"
        )
    for name in ("data", "tensor"):
        widths = getattr(pipeline, name)
        if widths and (len(widths) != pipeline.depth or min(widths) < 1):
            raise PhazeError(f"pipeline: {name} must be {pipeline.depth} numbers >= 1, got {widths}")
    if pipeline.microbatches < pipeline.lanes:
        raise PhazeError(
            f"pipeline: microbatches must be at least the {pipeline.lanes} lanes that data allow, "
            f"got {pipeline.microbatches}"
        )
