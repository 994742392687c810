"""Time of collectives and messages on an otherwise idle network, for every kind of network.

Sizes are those of the whole tensor on one rank. This is the input and output of an all-reduce, the input of a
reduce-scatter, and the output of an all-gather or broadcast. In an all-to-all it is a rank's data for all
ranks including itself; for a message it is the data sent to the next rank. Collectives run around a ring in n
parts. An all-reduce is a reduce-scatter and an all-gather, n − 1 rounds each (Phaze, Appendix C.2). A
broadcast passes n parts in sequence from the first rank on, and a reduce passes them to the first rank. In an
all-to-all every rank sends every other one its part.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple, Protocol

import numpy as np

from phaze.base.arrays import Floats, Ints, Number
from phaze.cost.network.nccl import Nccl
from phaze.layout import Group

Collective = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce"]
Kind = Collective | Literal["send"]
Members = Group | Sequence[int] | Ints
"""Participants: ranks at a stride, or device numbers in ring order."""

EXCHANGES: dict[Collective, float] = {
    "all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0, "all_to_all": 1.0, "broadcast": 2.0,
    "reduce": 2.0,
}  # fmt: skip
"""Number of passes of n − 1 ring rounds, by kind of collective."""
BOTH_DIRECTIONS = 4.0
"""`all_reduce_factor` in the papers: a device's sent and received bytes share one bandwidth (Phaze, C.2;
Piper, Section 4).
"""
TREE_SHARE = 0.9
"""Bandwidth of trees relative to rings (NCCL, src/graph/tuning.cc of 2021)."""


class Network(Protocol):
    """Interface of the network models: time of collectives and messages between devices."""

    def seconds(self, kind: Kind, size_bytes: Number, group: Members) -> Number:
        """Time of a collective, or of a message from one rank to the next; 0 for one rank."""

    def by_level(self, kind: Kind, size_bytes: Number, group: Members) -> tuple[Number, ...]:
        """Time of a collective on the links of each level, in seconds, innermost level first."""


def rounds(kind: Collective, ranks: int) -> float:
    """Ring steps of a collective over n ranks: n − 1, twice that for an all-reduce."""
    return EXCHANGES[kind] * (ranks - 1)


def sent_bytes(kind: Collective, size_bytes: Number, ranks: int) -> Number:
    """Bytes that a rank sends: 2 (n − 1)/n of the tensor in an all-reduce, (n − 1)/n in most others.

    In a broadcast or reduce it is the mean: one end sends nothing, the others the tensor.
    """
    times = 1.0 if kind in ("broadcast", "reduce") else EXCHANGES[kind]
    return times * (ranks - 1) / ranks * size_bytes


@dataclass(frozen=True)
class Flat:
    """Network model with equal links between all devices."""

    bandwidth_bytes_per_s: float
    all_reduce_factor: float = 2.0
    """Time of an all-reduce relative to (n − 1)/n of its tensor over the bandwidth; scales all collectives.

    The factor is 2 if a link carries both directions at once, and `BOTH_DIRECTIONS` in the papers.
    """
    latency_s: float = 0.0
    """Latency of a ring step."""

    def seconds(self, kind: Kind, size_bytes: Number, group: Members) -> Number:
        """Time of a collective or message."""
        ranks = _ranks(group)
        if kind == "send":
            return (size_bytes / self.bandwidth_bytes_per_s + self.latency_s) * (ranks > 1)
        charged = self.charged_bytes(kind, size_bytes, ranks)
        return charged / self.bandwidth_bytes_per_s + rounds(kind, ranks) * self.latency_s

    def by_level(self, kind: Kind, size_bytes: Number, group: Members) -> tuple[Number, ...]:
        """Time of a collective; the network has a single level."""
        return (self.seconds(kind, size_bytes, group),)

    def charged_bytes(self, kind: Collective, size_bytes: Number, ranks: int) -> Number:
        """Bytes that a collective charges to the bandwidth of each device."""
        return self.all_reduce_factor / 2 * (rounds(kind, ranks) / ranks * size_bytes)

    def endless_s(self, kind: Collective, size_bytes: Number) -> Number:
        """Time of a collective for n → ∞ ranks, without latencies; multiply it by (n − 1)/n for n ranks."""
        return self.all_reduce_factor / 2 * (EXCHANGES[kind] * size_bytes) / self.bandwidth_bytes_per_s


class Tier(NamedTuple):
    """Level of a network: groups of devices with equal links among them."""

    devices: int
    """Devices in a group of this level."""
    bandwidth_bytes_per_s: float
    """Bandwidth at which a device sends to others of its group, and concurrently receives."""
    latency_s: float = 0.0
    """Latency of a ring step."""
    start_s: float = 0.0
    """Fixed start time of a collective."""
    message_bytes_per_s: float = 0.0
    """Bandwidth of a message to one other device; 0 means the same as collectives."""
    ring_port_devices: int = 1
    """Devices attached to each port to this level, as in NCCL's ring search."""
    exchange_bytes_per_s: float = 0.0
    """Bandwidth of an all-to-all; 0 means the same as other collectives."""
    tree_latency_s: float = 0.0
    """Latency of a tree step; 0 means rings only."""
    hop_latency_s: float = 0.0
    """Latency that each additional device of a node adds to a ring step across nodes, which passes through
    all of them (NCCL, `ncclTopoTuneModel`: separate latencies for steps inside and between nodes).
    """
    nccl: Nccl | None = None
    """Measured collectives of the innermost level, used instead of the ring bandwidth and latency above."""

    @property
    def all_to_all_bytes_per_s(self) -> float:
        """Bandwidth of an all-to-all."""
        return self.exchange_bytes_per_s or self.bandwidth_bytes_per_s


@dataclass(frozen=True)
class Levels:
    """Hierarchical network model: groups of devices within groups, innermost first."""

    tiers: tuple[Tier, ...]

    def meeting(self, group: Members) -> tuple[int, ...]:
        """Number of ranks, or groups of ranks, that communicate across each level.

        A level that is filled unevenly counts as its largest group.
        """
        if not isinstance(group, Group):
            return self._meeting_devices(group)
        counts, inside = [], 1
        for tier in self.tiers:
            # Ranks of the group inside one unit of this level; a stride as wide as the unit leaves one.
            filled = min(group.ranks, max(1, tier.devices // group.stride))
            counts.append(-(-filled // inside))
            inside = max(filled, inside)
        return tuple(counts)

    def _meeting_devices(self, devices: Sequence[int] | Ints) -> tuple[int, ...]:
        counts, inside, cells = [], 1, set(devices)
        for tier in self.tiers:
            outer = Counter(cell * inside // tier.devices for cell in cells)
            counts.append(max(outer.values()))
            inside, cells = tier.devices, set(outer)
        return tuple(counts)

    def seconds(self, kind: Kind, size_bytes: Number, group: Members) -> Number:
        """Time of a collective, summed over levels, or of a message on the level that connects both ends.

        A reduce-scatter leaves each rank of a level its shard, so n ranks exchange (n − 1)/n of the tensor
        that the inner level left: all of it inside a node of g, 1/g of it between nodes. An all-gather
        mirrors it, and an all-reduce is both. An all-to-all does not shrink: a rank sends every other one its
        part over the level that connects them. All-reduces between nodes use a tree where that is faster, as
        NCCL chooses by size and ranks.
        """
        levels_s = self.by_level(kind, size_bytes, group)
        start_s = 0.0
        if kind != "send":
            met = zip(self.tiers, self.meeting(group), strict=True)
            # A collective over several levels is one call, which starts once.
            start_s = max(tier.start_s * (ranks > 1) for tier, ranks in met)
        return sum(levels_s, 0.0 * size_bytes) + start_s

    def by_level(self, kind: Kind, size_bytes: Number, group: Members) -> tuple[Number, ...]:
        """Time of a collective or message on the links of each level, in seconds, innermost level first."""
        if kind == "send":
            return self._message_s(size_bytes, group)
        meeting = self.meeting(group)
        levels_s, inside, all_ranks = [], 1, prod(meeting)
        for level, (tier, ranks) in enumerate(zip(self.tiers, meeting, strict=True)):
            if tier.nccl is not None:
                tensor_bytes = size_bytes * (ranks / all_ranks) if kind == "all_to_all" else size_bytes
                levels_s.append(tier.nccl.seconds(kind, tensor_bytes, ranks))
            else:
                # An all-to-all sends n-ths of the tensor; rings send parts of the shard left by the inner
                # levels.
                part = size_bytes / (all_ranks if kind == "all_to_all" else inside * ranks)
                ports = self._ports_for_one(level, group) if inside > 1 else 1.0
                ring_s = _ring_s(kind, part, tier, ranks, inside, ports)
                if kind == "all_reduce" and tier.tree_latency_s and ranks > 1:
                    ring_s = np.minimum(ring_s, _tree_s(size_bytes / inside, ranks, ports, tier))
                levels_s.append(ring_s)
            inside *= ranks
        return tuple(levels_s)

    def _ports_for_one(self, level: int, group: Members) -> float:
        """Ratio of a node's ports to the ports in use, for rings with several ranks per node.

        NCCL searches for rings that leave a node by the port by which they enter. It prefers a port far from
        a device to a second port for the way out (`ncclTopoCompute`, src/graph/search.cc). If no two ranks of
        a node share a port, all groups of the node therefore use the same port.
        """
        shared = self.tiers[level].ring_port_devices
        stride = group.stride if isinstance(group, Group) else 1
        return 1.0 if stride < shared or shared == 1 else self.tiers[level - 1].devices / shared

    def _message_s(self, size_bytes: Number, group: Members) -> tuple[Number, ...]:
        levels_s = [0.0 * size_bytes] * len(self.tiers)
        if _ranks(group) > 1:
            ends = self.meeting(Group(2, group.stride) if isinstance(group, Group) else group[:2])
            level = next((k for k, ranks in enumerate(ends) if ranks > 1), len(ends) - 1)
            tier = self.tiers[level]
            bandwidth = tier.message_bytes_per_s or tier.bandwidth_bytes_per_s
            levels_s[level] = size_bytes / bandwidth + tier.latency_s
            if tier.nccl is not None:
                levels_s[level] = tier.start_s + tier.nccl.seconds("send", size_bytes, 2)
        return tuple(levels_s)


class Wired(ABC):
    """Network with individual links per pair of devices: the slowest message determines a ring step."""

    @abstractmethod
    def wires(self, sources: Ints, targets: Ints) -> tuple[Floats, Floats]:
        """Latency and seconds per byte from every source to its target, as arrays."""

    def by_level(self, kind: Kind, size_bytes: Number, group: Members) -> tuple[Number, ...]:
        """Time of a collective, as a single level, because only simulated messages distinguish links."""
        return (self.seconds(kind, size_bytes, group),)

    def seconds(self, kind: Kind, size_bytes: Number, group: Members) -> Number:
        """Time of a collective around the members, or of a message from the first to the second."""
        members = _devices(group)[::-1] if kind == "reduce" else _devices(group)
        count = len(members)
        if count == 1:
            return 0.0 * size_bytes
        part = np.asarray(size_bytes if kind == "send" else size_bytes / count, np.float64)[..., None]
        # Row r of `targets` is the peer r positions ahead; rings only send to the next.
        shifts = np.arange(1, count if kind == "all_to_all" else 2)[:, None]
        targets = members[(np.arange(count) + shifts) % count]
        waits_s, seconds_per_byte = self.wires(np.broadcast_to(members, targets.shape), targets)
        times: Floats = waits_s.sum(axis=0) + part * seconds_per_byte.sum(axis=0)
        if kind == "send":
            collective_s: Floats = times[..., 0]
        elif kind == "all_to_all":
            collective_s = times.max(axis=-1)
        elif kind in ("broadcast", "reduce"):
            # The first part passes all links; the other n − 1 parts follow at the pace of the slowest link.
            collective_s = times[..., :-1].sum(axis=-1) + (count - 1) * times[..., :-1].max(axis=-1)
        else:
            collective_s = rounds(kind, count) * times.max(axis=-1)
        return collective_s[()]  # type: ignore[return-value]  # a number for a number


def _ring_s(
    kind: Collective, part_bytes: Number, tier: Tier, ranks: int, inside: int, ports: float
) -> Number:
    """Time of a ring collective on the links of a level, among `ranks` groups of `inside` ranks each."""
    # In an all-to-all each rank has `inside` peers in every other group; a ring takes one step per other
    # group.
    others = (ranks - 1) * (inside if kind == "all_to_all" else 1)
    bandwidth = tier.all_to_all_bytes_per_s if kind == "all_to_all" else tier.bandwidth_bytes_per_s / ports
    hops = 0 if kind == "all_to_all" else inside - 1
    latency_s = tier.latency_s + hops * tier.hop_latency_s
    return EXCHANGES[kind] * others * (part_bytes / bandwidth + latency_s)


def _tree_s(size_bytes: Number, ranks: int, ports: float, tier: Tier) -> Number:
    """Time of an all-reduce up and down a tree (NCCL, `ncclTopoTuneModel`)."""
    # Depth of a binary tree, once up and once down.
    steps = 2 * (ranks.bit_length() - 1)
    bandwidth = tier.bandwidth_bytes_per_s / ports
    return 2.0 * size_bytes / (TREE_SHARE * bandwidth) + steps * tier.tree_latency_s


def _ranks(group: Members) -> int:
    return group.ranks if isinstance(group, Group) else len(group)


def _devices(group: Members) -> Ints:
    if isinstance(group, Group):
        return np.arange(group.ranks) * group.stride
    return np.array(group, np.int64)
