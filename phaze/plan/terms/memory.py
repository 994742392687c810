"""Peak memory in use on a device, by part: tensors, and all other memory.

A figure is a range: a proven minimum, an expected value, and an upper end, where each uncertain part has its
upper constant. In addition to the tensors there are

    fragments     gaps of the caching allocator: a fraction of its memory, and a smaller one that remains when
                  it gives back all free blocks, because partly used blocks cannot be freed
    copies        temporary copies: gathered weights and scattered gradients of FSDP next to those in use,
                  buffers of tensor-parallel overlap (`Stage.copies_bytes`); at the upper end only
    workspaces    of the GEMM library, one per stream
    graphs        a private pool of CUDA graphs, whose temporaries share no memory with other kernels
    collectives   NCCL buffers: communicators that a layout opens, by channels and connections
    context       CUDA with the loaded kernels
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Literal

from phaze.base.units import GIB, MIB
from phaze.layout import Axis, Group, Layout
from phaze.plan.machines import device_of
from phaze.plan.plan import Machine
from phaze.spec.memory import MemoryKind
from phaze.spec.system import Device

Room = Literal["expected", "upper", "surely"]
"""Memory left to all but tensors: expected, upper end, or that with the largest gaps of the allocator."""
CONNECTION_BYTES = 12 * MIB
"""Bytes of NCCL buffers per connection of a channel.

10 MiB to receive, with 4 MiB of protocol Simple, 4.7 of LL128 and 0.5 of LL, and 2 MiB to send (NVIDIA/nccl,
issue 1685).
"""
CONNECTIONS = (1, 3)
"""Minimum and usual number of connections per channel: a ring; a ring and both neighbours in a tree.

With 16 channels this is 576 MiB; 544 and 688 are measured on A100 (NVIDIA/nccl, issue 964).
"""
MOST_CHANNELS = (24, 32)
"""Maximum number of channels that NCCL opens for collectives, and to each peer of an all-to-all.

NCCL prints them for nodes with NVSwitch (24 coll channels, 32 p2p channels per peer). 7 · 32 · 12 MiB are
2.8 GB; an all-to-all of 8 H100 took 3.3 GB (issue 1685).
"""
STREAMS = (0, 1, 5)
"""Minimum, expected and maximum number of streams with a GEMM workspace.

None; PyTorch's own; and in addition the four of Transformer Engine's grouped products
(`get_multi_stream_cublas_workspace`).
"""

OK, UNFIT = "ok", "does not fit"
"""Prefixes of the status of a run that fits, and of one that does not."""
ROUNDING = 1e-12
"""Relative excess over a device's memory that counts as none."""


@dataclass(frozen=True)
class MemoryRange:
    """Range of an amount of memory in bytes: minimum, expected value and upper end."""

    low: float
    expected: float
    high: float

    def __add__(self, other: MemoryRange) -> MemoryRange:
        return MemoryRange(self.low + other.low, self.expected + other.expected, self.high + other.high)

    @property
    def gib(self) -> tuple[float, float, float]:
        """Minimum, expected value and upper end in GiB."""
        return self.low / GIB, self.expected / GIB, self.high / GIB

    def __str__(self) -> str:
        low, expected, high = self.gib
        return f"{expected:.1f} GiB ({low:.1f} to {high:.1f})"


NOTHING = MemoryRange(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class InUse:
    """Peak memory in use on a device, by part."""

    tensors: MemoryRange
    """Tensors: the minimum excludes temporaries of the current layer, the maximum includes temporary copies.
    """
    fragments: MemoryRange
    """Fragmentation; the expected value is at most what the other parts leave."""
    workspaces: MemoryRange
    graphs: MemoryRange
    collectives: MemoryRange
    context: MemoryRange

    def of(self, kind: MemoryKind) -> MemoryRange:
        """Memory range that a kind of measurement reports: the sum of the parts that it includes."""
        memory = self.tensors + self.workspaces
        if kind != "allocated":
            memory = memory + self.fragments + self.graphs
        if kind == "device":
            memory = memory + self.collectives + self.context
        return replace(memory, high=max(memory.high, memory.expected))

    @property
    def beside(self) -> dict[str, float]:
        """Expected bytes of each part other than tensors."""
        names = [part.name for part in fields(self) if part.name != "tensors"]
        return {name: getattr(self, name).expected for name in names}


def capacity_bytes(device: Device) -> float:
    """Device memory available to processes, in bytes, excluding the driver's memory."""
    return (device.hbm_gib - device.driver_gib) * GIB


def status_of(low_gib: float, high_gib: float, device: Device) -> str:
    """Status of a run: `ok`, may fit, or does not fit, from the range of its memory in use on a device."""
    hbm_gib, usable_gib = device.hbm_gib, capacity_bytes(device) / GIB
    if low_gib > usable_gib * (1 + ROUNDING):
        return f"{UNFIT}: needs {low_gib:.1f} GiB or more of {hbm_gib:g} GiB"
    if high_gib > usable_gib * (1 + ROUNDING):
        # Devices of other vendors than NVIDIA have no published share of their driver.
        driver = f"keeps {device.driver_gib:g}" if device.driver_gib else "is assumed to keep none"
        return (
            f"may fit: needs {low_gib:.1f} to {high_gib:.1f} GiB; "
            f"{usable_gib:.4g} of {hbm_gib:g} GiB are usable, as the driver {driver}"
        )
    return OK


def beside_tensors(
    machine: Machine, layout: Layout, work_bytes: float = 0.0, *, tied: bool = False
) -> tuple[MemoryRange, ...]:
    """Memory of workspaces, graphs, collectives and context on a device, independent of its tensors.

    `work_bytes` are temporaries of the current layer.
    """
    stack, workspace = machine.stack, device_of(machine).workspace_mib * MIB
    pool = work_bytes if stack.cuda_graphs else 0.0
    return (
        MemoryRange(*(streams * workspace for streams in STREAMS)),
        MemoryRange(0.0, pool, pool),
        collectives_bytes(machine, layout, tied=tied),
        MemoryRange(*(size * GIB for size in stack.context_gib)),
    )


def collectives_bytes(machine: Machine, layout: Layout, *, tied: bool = False) -> MemoryRange:
    """Buffer memory of a rank's NCCL communicators, as a range.

    These are communicators of all ranks, of each group with several ranks, of a replica for gradient norms,
    and of the two stages with a `tied` embedding (Megatron-Core, `parallel_state`; DeepSpeed,
    `PipelineParallelGrid`). An all-to-all of dispatched tokens connects a rank with every other one in its
    NVLink domain.
    """
    channels = machine.stack.held_processors
    if not channels or layout.devices == 1:
        return NOTHING
    axes: tuple[Axis, ...] = ("tp", "cp", "dp-cp", "pp", *(("ep", "edp") if layout.folds_experts else ()))
    # One communicator for each group of several ranks, and one of the model-parallel ranks for norms.
    groups = sum(layout.group(axis).ranks > 1 for axis in axes) + (layout.tp > 1 and layout.pp > 1)
    least, usual = CONNECTIONS
    usual *= 1 + groups + (tied and layout.pp > 1)
    peers = _peers(machine, layout.group("ep")) if machine.stack.dispatch == "rows" else 0
    # NCCL may open more channels than it uses for one collective.
    most, most_of_peers = (max(number, channels) for number in MOST_CHANNELS)
    return MemoryRange(
        least * channels * CONNECTION_BYTES,
        (usual + peers) * channels * CONNECTION_BYTES,
        (usual * most + peers * most_of_peers) * CONNECTION_BYTES,
    )


def _peers(machine: Machine, group: Group) -> int:
    """Number of other ranks of a group in a rank's NVLink domain."""
    domain = machine.system.levels[0].devices if machine.system is not None else 1
    return max(min(group.ranks, domain // group.stride) - 1, 0)


def in_use(tensors: MemoryRange, work_bytes: float, layout: Layout, machine: Machine, *, tied: bool) -> InUse:
    """Memory in use on a device by part, given the range of its peak tensor memory."""
    if machine.device is None:
        return InUse(tensors, *[NOTHING] * 5)
    beside = beside_tensors(machine, layout, work_bytes, tied=tied)
    return InUse(tensors, _fragments(tensors, _sum(beside), machine), *beside)


def _fragments(tensors: MemoryRange, beside: MemoryRange, machine: Machine) -> MemoryRange:
    """Memory lost to allocator fragmentation, as a range.

    When an allocation fails, the allocator frees unused blocks and tries again (PyTorch,
    CUDACachingAllocator). It is therefore expected to have only lasting gaps where memory is short. The upper
    end has all of them: blocks in use by other streams are not freed, and runs near the limit fail at times.
    """
    share, capacity = machine.stack.fragments, capacity_bytes(device_of(machine))

    def gaps(nbytes: float, part: float) -> float:
        return nbytes * part / (1.0 - part)

    # When memory is short, the allocator frees unused blocks, so expected gaps fit what is left.
    free = max(capacity - tensors.expected - beside.expected, 0.0)
    expected = min(gaps(tensors.expected, share.expected), free)
    return MemoryRange(0.0, expected, gaps(tensors.high, share.most))


def tensor_limit_bytes(
    machine: Machine, layout: Layout, copied_bytes: float = 0.0, *, room: Room = "upper"
) -> float:
    """Memory limit for a layout's tensors in bytes, with other memory at its upper end or as expected.

    `copied_bytes` are temporary copies in addition to the tensors. A plan whose tensors need more does not
    fit with any pipeline split.
    """
    beside, capacity = _sum(beside_tensors(machine, layout)), capacity_bytes(device_of(machine))
    if room == "expected":
        return capacity - beside.expected
    gaps = machine.stack.fragments
    # Near the limit the allocator gives back free blocks, except the partly used ones.
    share = gaps.lasting if room == "upper" else gaps.most
    return (capacity - beside.high) * (1.0 - share) - copied_bytes


def _sum(parts: Iterable[MemoryRange]) -> MemoryRange:
    return sum(parts, NOTHING)
