"""Classes that describe a plan: machine, stages with their work, execution, planner and its claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.network.network import Flat, Network
from phaze.cost.size import slowest
from phaze.layout import Axis, Layout
from phaze.pipeline.schedules import SCHEDULES
from phaze.pipeline.stages import Transfers
from phaze.spec.rows import StageWork
from phaze.spec.system import Stack

if TYPE_CHECKING:
    from phaze.spec.system import Cluster, Device

Way = Literal["forward", "recompute", "backward"]
Request_contra = TypeVar("Request_contra", contravariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)


class Planner(Protocol[Request_contra, Answer_co]):
    """Function that finds the best plan for a request, with a lower bound on the time of all plans."""

    def __call__(self, request: Request_contra, /) -> Answer_co:
        """Find the best plan, or return the reason for infeasibility."""


@dataclass(frozen=True)
class Machine:
    """Devices, network and software stack on which plans are priced."""

    network: Network
    hbm_bytes_per_s: float
    """Sustained HBM bandwidth of a device, the slowest of all."""
    devices: int = 0
    """Number of devices; 0: as many as a plan needs."""
    device: Device | None = None
    """Device that layers run on; None if plans contain the layer times."""
    vector_cycles: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Cycles of vector operations by role and kind."""
    stack: Stack = field(default_factory=Stack)
    """Software stack for training on the devices."""
    system: Cluster | None = None
    """Cluster of the devices, if it is read from a file."""

    @classmethod
    def flat(cls, bandwidth_bytes_per_s: float, hbm_bytes_per_s: float) -> Machine:
        """Machine with equal links between any two devices."""
        return cls(Flat(bandwidth_bytes_per_s), hbm_bytes_per_s)

    @property
    def calibrated(self) -> bool:
        """True if constants are fitted to runs on these devices."""
        return self.system is not None and self.system.calibrated is not None

    def with_device(self, device: Device) -> Machine:
        """Copy of the machine with another type of device."""
        lag = float(slowest(self.devices, device.spread))
        sustained = device.hbm_bandwidth_bytes_per_s * device.sustained_hbm / lag
        return replace(self, device=device, hbm_bytes_per_s=sustained)

    def of_size(self, devices: int) -> Machine:
        """Copy of the machine with a number of devices of the same network, all of which a plan uses."""
        machine = replace(self, devices=devices)
        return machine if self.device is None else machine.with_device(self.device)


@dataclass(frozen=True)
class Traffic:
    """HBM and all-reduce bytes per tensor-parallel rank of every layer, or kind of layer, (n,) each."""

    forward_hbm_bytes: Floats
    backward_hbm_bytes: Floats
    forward_reduced_bytes: Floats
    """Bytes per rank that tensor-parallel ranks all-reduce."""
    backward_reduced_bytes: Floats

    def of_layers(self, kinds: Ints) -> Traffic:
        """Traffic of every layer of a chain, given the kinds of its layers."""
        return Traffic(*(getattr(self, column.name)[kinds] for column in fields(self)))


@dataclass(frozen=True)
class Pass:
    """One pass of a microbatch through a stage."""

    seconds: float
    hbm_bytes: float
    """HBM traffic of a device."""
    reduced_bytes: float
    """Bytes per rank that the ranks of a replica all-reduce; `seconds` includes their time."""

    def duration_s(self, hbm_bytes_per_s: float) -> float:
        """Duration of the pass, at least its HBM traffic over bandwidth."""
        return max(self.seconds, self.hbm_bytes / hbm_bytes_per_s)


@dataclass(frozen=True)
class Stage(StageWork):
    """Stage of a plan: its layers, layout and work, as in table plan_stages."""

    first_layer: int
    last_layer: int
    layout: Layout
    time_per_sample_s: float = 0.0
    """Time per sample that the planner charges."""
    gradient_bytes: float | None = None
    """Bytes of gradients that replicas exchange; by default the size of the weights."""
    frozen_bytes: float = 0.0
    """Bytes of weights without gradients, included in `weight_bytes`."""
    expert_share: float = 0.0
    """Fraction of weights and gradients in experts, which have their own replicas (`Layout.edp`)."""
    update_bytes: float = 0.0
    """HBM traffic of the optimizer on a device."""
    made_bytes: float = 0.0
    """Temporaries in `work_bytes` whose number depends on the runtime.

    These exclude recomputed activations, and keys and values of the whole sequence.
    """
    copies_bytes: float = 0.0
    """Upper bound on temporary copies in addition to `work_bytes`."""
    states_bytes: float = 0.0
    """Bytes of optimizer state that stay in host memory, except during the update."""
    states_s: float = 0.0
    """Time per step in which the update waits for optimizer state from the host."""
    tied_bytes: float = 0.0
    """Bytes of the gradients of weights that the first and the last stage share."""
    weight_s: float = 0.0
    """Time of weight gradients in the backward pass, in seconds, if known."""
    pieces: int = 0
    """Number of gradient buckets; 0: one per layer."""
    spent_s: tuple[float, ...] = ()
    """Time of all passes by limiting resource, in the order of `KERNEL_LIMITS`, if known."""
    hbm_shares: tuple[float, ...] = ()
    """HBM-bound fraction of the layers' time, averaged over each part of `replicated`, if known."""
    links_s: tuple[tuple[float, ...], ...] = ()
    """Time of collectives on the links of each network level, in seconds, if known.

    The first row is the forward pass, the second all other passes.
    """

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.last_layer - self.first_layer + 1

    @property
    def exchanged_bytes(self) -> float:
        """Bytes of gradients that replicas exchange."""
        return self.weight_bytes if self.gradient_bytes is None else self.gradient_bytes

    @property
    def replicated(self) -> tuple[tuple[float, Axis], ...]:
        """Fractions of the weights, dense and expert, with the axis of ranks that have copies of each."""
        dense: tuple[float, Axis] = (1.0 - self.expert_share, "dp-cp")
        return (dense, (self.expert_share, "edp")) if self.expert_share else (dense,)

    def stored_share(self, *, shared: bool) -> float:
        """Fraction of weights or gradients that a rank stores; 1 unless replicas shard them."""
        return sum(
            part / (self.layout.sharding(axis)[0].ranks if shared else 1) for part, axis in self.replicated
        )

    @property
    def compute_s(self) -> float:
        """Time of all passes of one microbatch on a replica, in seconds."""
        return sum(stage_pass.seconds for stage_pass in self.passes.values())

    @cached_property
    def passes(self) -> dict[Way, Pass]:
        """Passes of one microbatch on a replica."""
        return {
            "forward": Pass(self.forward_s, self.forward_hbm_bytes, self.forward_reduced_bytes),
            "recompute": Pass(self.recompute_s, self.recompute_hbm_bytes, self.recompute_reduced_bytes),
            "backward": Pass(self.backward_s, self.backward_hbm_bytes, self.backward_reduced_bytes),
        }


@dataclass(frozen=True)
class Execution:
    """Execution details of a batch, which differ between the planners' papers and the runtimes."""

    transfers: Transfers = "overlapped"
    exposed_transfers: float = 0.0
    """Fraction of a transfer that occupies both stages even if transfers overlap."""
    scattered: bool = False
    """True if tensors are sent to the next stage in tp shards and gathered there."""
    early_recompute: bool = True
    overlap_sync: float = 0.0
    """Fraction of collectives among replicas that can overlap with compute; 0: they follow it."""


@dataclass(frozen=True)
class Claim:
    """Time that a planner claims for its plan, with its assumptions."""

    time_per_sample_s: float
    sync_s: float
    """Time that the planner charges for the gradient exchange after a batch; 0 without a flush."""
    network: Flat
    """Flat network that the planner assumes, with its all-reduce factor."""
    hbm_bytes_per_s: float


@dataclass(frozen=True)
class Plan:
    """Pipeline stages in data-flow order, and the batch that they process."""

    stages: tuple[Stage, ...]
    schedule: str
    """Name of a schedule in `pipeline.schedules.SCHEDULES`."""
    microbatches: int
    """Number of microbatches per batch over all replicas, N."""
    execution: Execution = Execution()
    claim: Claim | None = None

    @property
    def layout(self) -> Layout:
        """Layout of the first stage, which is the plan's layout unless widths differ by stage."""
        return self.stages[0].layout

    @property
    def flushes(self) -> bool:
        """True if a batch begins only when the previous one is complete."""
        return SCHEDULES[self.schedule].flushes

    @property
    def depth(self) -> int:
        """Number of pipeline ranks, p; virtual stages run on the devices of the first p stages."""
        return len(self.stages) // self.layout.vp

    @property
    def samples(self) -> int:
        """Number of samples per batch."""
        return self.layout.microbatch * self.microbatches

    @property
    def planned_s(self) -> float:
        """Time per batch that the planner claims."""
        return self.claimed.time_per_sample_s * self.samples

    @property
    def claimed(self) -> Claim:
        """Time that the planner claims, with its assumptions; PhazeError for a plan without a planner."""
        if self.claim is None:
            raise PhazeError("plan: is given without a planner, so that there is no time to compare with")
        return self.claim

    @property
    def data(self) -> tuple[int, ...]:
        """Data-parallel width d of every pipeline rank."""
        return tuple(stage.layout.dp for stage in self.stages[: self.depth])

    @property
    def group_devices(self) -> tuple[int, ...]:
        """Number of devices of every pipeline rank over all its replicas."""
        return tuple(stage.layout.devices // stage.layout.pp for stage in self.stages[: self.depth])

    @property
    def devices(self) -> int:
        """Number of devices over all stages and replicas."""
        return sum(self.group_devices)

    @property
    def in_pipeline(self) -> int:
        """Maximum number of microbatches in one pipeline of a flushing plan, ceil(N/d)."""
        return -(-self.microbatches // self.layout.dp)

    def turns(self, stage: Stage) -> float:
        """Number of microbatches per batch that a replica of a stage processes, on average."""
        return self.microbatches / stage.layout.dp
