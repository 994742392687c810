"""Classes that describe a plan: machine, stages with their work, and execution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from phaze.cost.network.network import Network
from phaze.cost.size import slowest
from phaze.layout import Axis, Layout
from phaze.pipeline.schedules import SCHEDULES
from phaze.pipeline.stages import Transfers
from phaze.spec.system import Stack

if TYPE_CHECKING:
    from phaze.spec.system import Cluster, Device


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
    traffic: bool = True
    """True if HBM traffic of collectives slows concurrent kernels; bounds of groups of chips leave it out."""

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
        """Copy of the machine with another number of devices on the same network, all used by a plan."""
        machine = replace(self, devices=devices)
        return machine if self.device is None else machine.with_device(self.device)


@dataclass(frozen=True)
class Stage:
    """Stage of a plan: its layers, layout and work, with times and tensors of one microbatch on a replica.

    Bytes are those on each of the stage's devices.
    """

    forward_s: float
    """Time of the forward pass of one microbatch on a replica."""
    recompute_s: float
    """Time to recompute the activations of one microbatch."""
    backward_s: float
    """Time of the backward pass, without recomputation."""
    arriving_bytes: float
    """Bytes of all tensors that enter the stage with a microbatch."""
    departing_bytes: float
    """Bytes of the tensors that leave the stage, whose gradients return."""
    weight_bytes: float
    """Bytes of the weights that passes read; the gradients have the same size."""
    fixed_bytes: float
    """Memory used at all times, independent of in-flight microbatches."""
    stash_bytes: float
    """Memory per microbatch in flight, including the current microbatch."""
    work_bytes: float
    """Additional memory for the current microbatch."""
    first_layer: int
    last_layer: int
    layout: Layout
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
    idle_s: tuple[float, float] = (0.0, 0.0)
    """Time that the device waits for the host to launch kernels of blocks, forward and backward."""
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
    def passes_s(self) -> tuple[float, float, float]:
        """Time of forward pass, recomputation and backward pass of one microbatch on a replica."""
        return self.forward_s, self.recompute_s, self.backward_s

    @property
    def compute_s(self) -> float:
        """Time of all passes of one microbatch on a replica, in seconds."""
        return sum(self.passes_s)


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
class Plan:
    """Pipeline stages in data-flow order, and the batch that they process."""

    stages: tuple[Stage, ...]
    schedule: str
    """Name of a schedule in `pipeline.schedules.SCHEDULES`."""
    microbatches: int
    """Number of microbatches per batch over all replicas, N."""
    execution: Execution = Execution()

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
