"""The nouns of a plan: the machine, stages with their work, how they are executed, what a planner claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.network.network import Flat, Network
from phaze.layout import Group, Layout
from phaze.pipeline.pipeline import Transfers
from phaze.pipeline.schedules import SCHEDULES
from phaze.spec.system import Stack

if TYPE_CHECKING:
    from phaze.spec.system import Cluster, Device

Way = Literal["forward", "recompute", "backward"]


@dataclass(frozen=True)
class Machine:
    """Devices on a network, as prices of plans see them."""

    network: Network
    hbm_bytes_per_s: float
    """What kernels reach of a device's HBM."""
    devices: int = 0
    """0: as many as a plan needs."""
    device: Device | None = None
    """What layers of a model run on; None where plans bring the times of their layers."""
    vector_cycles: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Cycles of vector operations by role and kind."""
    stack: Stack = field(default_factory=Stack)
    """Software that trains on the devices."""
    system: Cluster | None = None
    """System whose devices these are, where it is read from a file."""

    @classmethod
    def flat(cls, bandwidth_bytes_per_s: float, hbm_bytes_per_s: float) -> Machine:
        """Devices with equal links among all of them."""
        return cls(Flat(bandwidth_bytes_per_s), hbm_bytes_per_s)

    @property
    def calibrated(self) -> bool:
        """Whether constants are fitted to runs on these devices."""
        return self.system is not None and self.system.calibrated is not None

    def with_device(self, device: Device) -> Machine:
        """Machine with other devices."""
        return replace(
            self, device=device, hbm_bytes_per_s=device.hbm_bandwidth_bytes_per_s * device.sustained_hbm
        )


@dataclass(frozen=True)
class Traffic:
    """Bytes of every layer of a chain, or of every kind of layer, on one device of its slices, (n,) each."""

    forward_hbm_bytes: Floats
    backward_hbm_bytes: Floats
    forward_reduced_bytes: Floats
    """Tensors that the slices all-reduce, as large as each slice has them."""
    backward_reduced_bytes: Floats

    def of_layers(self, kinds: Ints) -> Traffic:
        """Bytes of every layer of a chain of these kinds."""
        return Traffic(*(getattr(self, one.name)[kinds] for one in fields(self)))


@dataclass(frozen=True)
class StageWork:
    """Seconds and tensors of one microbatch on one replica, and bytes on each of its devices."""

    forward_s: float
    recompute_s: float
    backward_s: float
    arriving_bytes: float
    longest_arriving_bytes: float
    departing_bytes: float
    longest_departing_bytes: float
    weight_bytes: float
    """Weights that passes read, and as much their gradients."""
    fixed_bytes: float
    stash_bytes: float
    work_bytes: float
    forward_hbm_bytes: float
    recompute_hbm_bytes: float
    backward_hbm_bytes: float
    forward_reduced_bytes: float
    recompute_reduced_bytes: float
    backward_reduced_bytes: float


@dataclass(frozen=True)
class Pass:
    """A pass of one microbatch through a stage."""

    seconds: float
    hbm_bytes: float
    """Traffic of a device's HBM."""
    reduced_bytes: float
    """Tensors that the slices of a replica all-reduce, on each of them; their time is in the seconds."""

    def held_s(self, hbm_bytes_per_s: float) -> float:
        """Seconds of the pass if its HBM, which operators share, takes longer than all of them."""
        return max(self.seconds, self.hbm_bytes / hbm_bytes_per_s)


@dataclass(frozen=True)
class Stage(StageWork):
    """A stage of a plan: its layers, how they are spread, and its work; as in table plan_stages."""

    first_layer: int
    last_layer: int
    layout: Layout
    time_per_sample_s: float = 0.0
    """The planner's."""
    gradient_bytes: float | None = None
    """Gradients that replicas exchange; as much as the weights unless given."""
    frozen_bytes: float = 0.0
    """Of the weights those without gradients."""
    expert_share: float = 0.0
    """Part of weights and gradients that experts have, whose replicas are others (`Layout.edp`)."""
    update_bytes: float = 0.0
    """What the optimizer moves from and to the HBM of a device."""
    made_bytes: float = 0.0
    """Of `work_bytes` temporaries whose number the runtime decides: all but recomputed activations, and keys
    and values of the whole sequence."""
    copies_bytes: float = 0.0
    """Temporary copies that may lie beside `work_bytes`, at most."""
    states_bytes: float = 0.0
    """States that wait in the host's memory but for the update."""
    states_s: float = 0.0
    """Seconds of a step for which the update waits for them."""
    tied_bytes: float = 0.0
    """Gradients of weights that the first and the last stage both have."""
    weight_s: float = 0.0
    """Of the backward pass the gradients of weights, where that is known."""
    pieces: int = 0
    """In which gradients can be synchronised; 0: as many as layers."""
    spent_s: tuple[float, ...] = ()
    """What of all passes each of `cost.kernels.KERNEL_LIMITS` takes, where that is known."""
    hbm_shares: tuple[float, ...] = ()
    """Share of the time of layers that is bound by HBM, a mean over each part of the weights in
    `replicated`, where that is known."""
    links_s: tuple[tuple[float, ...], ...] = ()
    """For which collectives of the forward pass, and of the others, are on the links of each level of the
    network, where that is known."""

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.last_layer - self.first_layer + 1

    @property
    def exchanged_bytes(self) -> float:
        """Gradients that replicas exchange."""
        return self.weight_bytes if self.gradient_bytes is None else self.gradient_bytes

    @property
    def replicated(self) -> tuple[tuple[float, Group], ...]:
        """Parts of the weights, and the ranks that hold the same ones: dense ones, and those of experts."""
        dense = (1.0 - self.expert_share, self.layout.group("dp-cp"))
        return (dense, (self.expert_share, self.layout.group("edp"))) if self.expert_share else (dense,)

    def kept_share(self, *, shared: bool) -> float:
        """Part of the weights or gradients that a rank keeps, all of them unless replicas share them."""
        return sum(part / (group.ranks if shared else 1) for part, group in self.replicated)

    @property
    def compute_s(self) -> float:
        """Passes of one microbatch on a replica."""
        return sum(one.seconds for one in self.passes.values())

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
    """What devices do in a batch where the papers of planners and runtimes differ."""

    transfers: Transfers = "overlapped"
    exposed_transfers: float = 0.0
    """Share of a transfer between stages that occupies both even where transfers overlap."""
    scattered: bool = False
    """Whether a tensor goes to the next stage in tp shares and is gathered there."""
    early_recompute: bool = True
    overlap_sync: float = 0.0
    """Share of the exchanges among replicas that can overlap with compute; 0: they follow it."""


@dataclass(frozen=True)
class Claim:
    """What a planner says of its plan, and what it assumes."""

    time_per_sample_s: float
    sync_s: float
    """Of a batch's time, the exchange of gradients after it that the planner charges; 0 without a flush."""
    network: Flat
    """Between any two devices, with what it charges an all-reduce in the passes."""
    hbm_bytes_per_s: float


@dataclass(frozen=True)
class Plan:
    """Stages in the order of the data flow, and the batch that goes through them."""

    stages: tuple[Stage, ...]
    schedule: str
    """Name of one of `pipeline.schedules.SCHEDULES`."""
    microbatches: int
    """N, in a batch, over all replicas."""
    execution: Execution = Execution()
    claim: Claim | None = None

    @property
    def layout(self) -> Layout:
        """Layout of the first stage: the plan's, where widths do not differ by stage."""
        return self.stages[0].layout

    @property
    def flushes(self) -> bool:
        """A batch begins when the one before is over."""
        return SCHEDULES[self.schedule].flushes

    @property
    def depth(self) -> int:
        """Pipeline stages p; virtual stages are on the devices of the first p."""
        return len(self.stages) // self.layout.vp

    @property
    def samples(self) -> int:
        """Samples of a batch."""
        return self.layout.microbatch * self.microbatches

    @property
    def planned_s(self) -> float:
        """Time per batch that the planner says."""
        return self.claimed.time_per_sample_s * self.samples

    @property
    def claimed(self) -> Claim:
        """Claim of the planner; PhazeError where nobody planned."""
        if self.claim is None:
            raise PhazeError("plan: is given without a planner, so that there is no time to compare with")
        return self.claim

    @property
    def data(self) -> tuple[int, ...]:
        """Data parallel width d of every group of devices."""
        return tuple(stage.layout.dp for stage in self.stages[: self.depth])

    @property
    def group_devices(self) -> tuple[int, ...]:
        """Devices of every group, those of all its replicas."""
        return tuple(stage.layout.devices // stage.layout.pp for stage in self.stages[: self.depth])

    @property
    def devices(self) -> int:
        """Devices of all stages and replicas."""
        return sum(self.group_devices)

    @property
    def in_pipeline(self) -> int:
        """Microbatches of the fullest pipeline of a plan that flushes, ceil(N/d)."""
        return -(-self.microbatches // self.layout.dp)

    def turns(self, stage: Stage) -> float:
        """Microbatches of a replica in a batch, a mean over the replicas."""
        return self.microbatches / stage.layout.dp
