"""Stages of a pipeline with their costs, and the flow of microbatches, as schedules see them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from math import gcd, inf
from typing import Literal, Protocol

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError

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


class PassKinds(Protocol):
    """Kinds of passes that a schedule has."""

    @property
    def trains(self) -> bool:
        """True if microbatches also go backward."""

    @property
    def splits(self) -> bool:
        """True if weight gradients are computed in passes of their own."""


@dataclass(frozen=True)
class PipelineStages(ABC):
    """Stages in the order of the data flow, and the batch that passes them."""

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

    @property
    @abstractmethod
    def rules(self) -> PassKinds:
        """Kinds of passes of the schedule."""

    @property
    @abstractmethod
    def groups(self) -> Ints:
        """Device group of every stage, (p v,)."""

    @property
    @abstractmethod
    def in_flight(self) -> tuple[int, ...]:
        """Maximum number of in-flight microbatches on a worker of each device group, over all its chunks."""

    @property
    def depth(self) -> int:
        """Number of device groups, p."""
        return len(self.stages) // self.chunks

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
