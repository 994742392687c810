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

from dataclasses import dataclass, fields
from functools import cached_property
from math import gcd, inf
from typing import Literal, get_args

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.base.nearest import choices
from phaze.pipeline.schedules import SCHEDULES, Schedule

Transfers = Literal["overlapped", "occupying"]
"""overlapped: a transfer only delays the tensor. occupying: it also occupies sender and then receiver.

Piper's cost model charges both (Section 3.2)."""


@dataclass(frozen=True)
class StageCost:
    """Times and bytes of a stage on one replica; per microbatch unless stated otherwise."""

    forward_s: float
    backward_s: float = 0.0
    recompute_s: float = 0.0
    """Repeated forward pass before the backward pass; 0: the stage stores its activations."""
    send_activation_s: float = 0.0
    """Transfer to the next stage."""
    send_gradient_s: float = 0.0
    """Transfer to the previous stage."""
    sync_s: float = 0.0
    """Per batch: gradient synchronisation over the replicas."""
    update_s: float = 0.0
    """Per batch: load, update and store the full-precision weights."""
    gather_s: float = 0.0
    """Per batch: gather the updated weights if each replica updates a shard (ZeRO 1 and 2)."""
    operators: int = 1
    """Number of gradient buckets."""
    stash_bytes: float = 0.0
    """Stored per microbatch from the start of its forward pass to the end of its backward pass."""
    work_bytes: float = 0.0
    """Additional bytes while the stage works on a microbatch."""
    fixed_bytes: float = 0.0
    """Permanent bytes: weights, gradients, optimizer state, buffers."""
    update_bytes: float = 0.0
    """Additional bytes during the update of a batch: optimizer states that are elsewhere until then."""
    weight_s: float = 0.0
    """Part of the backward pass that computes weight gradients, which some schedules defer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = float(getattr(self, field.name))
            if not 0 <= value < inf:
                raise PhazeError(f"stage: {field.name} must be a number >= 0, got {value}")
        if self.operators < 1:
            raise PhazeError(f"stage: operators must be >= 1, got {self.operators}")
        if self.weight_s > self.backward_s:
            raise PhazeError(f"stage: weight_s must be <= backward_s {self.backward_s}, got {self.weight_s}")


@dataclass(frozen=True)
class Pipeline:
    """Pipeline to simulate: stages in the order of the data flow, the schedule and the batch."""

    stages: tuple[StageCost, ...]
    """The p v stages; stage q is on device group `groups[q]`."""
    microbatches: int
    """Microbatches per batch over all replicas; for inference the total number."""
    schedule: str = "1f1b"
    """Name of one of `schedules.SCHEDULES`."""
    chunks: int = 1
    """Number of stages per device group, v."""
    microbatch_group: int = 0
    """Interleaved schedule: number of microbatches that pass one chunk before the next chunk.

    0: the smallest number that Megatron-LM accepts."""
    data: tuple[int, ...] = ()
    """Replicas of each device group, d, (p,); empty: one each."""
    tensor: tuple[int, ...] = ()
    """Devices per replica, t, (p,); empty: one each."""
    batches: int = 1
    """Number of consecutive batches without a flush; more than one only under 2bw."""
    fetch_s: float = 0.0
    """Duration of a microbatch's Data_Fetch."""
    release_s: float = 0.0
    """Minimum time between the starts of two Data_Fetches; 0: no limit."""
    transfers: Transfers = "overlapped"
    """Model of transfers of activations, gradients and fetched data."""
    exposed_transfers: float = 0.0
    """Share of a transfer that occupies sender and receiver even if transfers overlap."""
    overlap_sync: bool = False
    early_recompute: bool = False

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

    @property
    def depth(self) -> int:
        """Number of device groups, p."""
        return len(self.stages) // self.chunks

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

    @cached_property
    def lanes(self) -> int:
        """Number of concurrent pipelines: the greatest common divisor of the groups' replica counts d."""
        return gcd(*self.data) if self.data else 1

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """Number of replicas of each group in one lane."""
        return tuple(d // self.lanes for d in self.data) if self.data else (1,) * self.depth

    @property
    def lane_microbatches(self) -> int:
        """Microbatches per batch in the busiest lane."""
        return -(-self.microbatches // self.lanes)

    @cached_property
    def suffixes(self) -> tuple[int, ...]:
        """Total number of replicas from each group to the last (Piper's s)."""
        return tuple(np.cumsum(self.replicas[::-1])[::-1].tolist())

    @cached_property
    def workers(self) -> tuple[tuple[int, int], ...]:
        """(group, replica) of all workers of a lane; a worker executes one job at a time."""
        return tuple((g, r) for g, d in enumerate(self.replicas) for r in range(d))

    @property
    def worker_devices(self) -> Ints:
        """Number of devices of each worker."""
        widths = self.tensor or (1,) * self.depth
        return np.array([widths[g] for g, _ in self.workers], np.int64)

    def column(self, name: str) -> Floats:
        """Values of one field of `StageCost` for all stages, as a read-only array."""
        if name not in self._columns:
            column = np.array([getattr(stage, name) for stage in self.stages], np.float64)
            column.setflags(write=False)
            self._columns[name] = column
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str, Floats]:
        return {}


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
