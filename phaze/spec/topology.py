"""Networks that stages are mapped to: bandwidth and latency between any two devices (Parmesan, Appendix D-B).

Bandwidths are in GiB/s, as the paper's "GB/s" are: it counts 1024 MB/s, and 1 MB/us = 2^20 bytes/us.
"""

from math import prod
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from phaze.spec.network import Absent, check_nested
from phaze.spec.noun import Noun
from phaze.spec.values import Count, Location, Positive, PositiveInt, Size

MOST_DEVICES = 8192
"""Devices whose matrix of bandwidths fits into memory."""


class Links(Noun):
    """What all networks have in common."""

    @property
    def devices_per_port(self) -> int | None:
        """Devices that have a port together, None if each pair has a link of its own."""
        return None


class LevelLinks(Noun):
    """A level of a tree: groups of devices with equal bandwidth among them."""

    devices: Count
    """Devices in a group of this level."""
    bandwidth_gib_per_s: Positive
    """Between two devices that meet on this level, in each direction."""
    latency_s: Size = 0.0
    """Of a message between them."""


class LevelTopology(Links):
    """Nodes, racks, pods: two devices have the bandwidth of the narrowest group that holds both.

    Two levels of PCIe and Ethernet, a fat tree, or a cluster of nodes with NVLink.
    """

    kind: Literal["levels"]
    """What it is."""
    levels: tuple[LevelLinks, ...] = Field(min_length=1)
    """Levels from the narrowest groups to the one that holds all devices."""
    shared_port: bool = False
    """Whether the devices of a narrowest group have one port to others together, in a study's second step."""

    @model_validator(mode="after")
    def _nested(self) -> Self:
        check_nested([level.devices for level in self.levels])
        return self

    @property
    def devices(self) -> int:
        """Devices of the outermost group."""
        return self.levels[-1].devices

    @property
    def devices_per_port(self) -> int | None:
        """Devices that have a port together, None if each pair has a link of its own."""
        return self.levels[0].devices if self.shared_port else None


class NodeLink(Noun):
    """Devices of a node that a link of its own joins."""

    pairs: tuple[tuple[int, int], ...] = Field(min_length=1)
    """Pairs of devices of a node, numbered from 0."""
    bandwidth_gib_per_s: Positive
    """In each direction."""
    latency_s: Size = 0.0
    """Of a message."""


class Nodes(Links):
    """Equal nodes, some devices of which have links of their own, as in a DGX-1."""

    kind: Literal["nodes"]
    """What it is."""
    nodes: PositiveInt
    """Nodes."""
    devices_per_node: PositiveInt
    """Devices of a node."""
    links: tuple[NodeLink, ...] = ()
    """Links of their own, which are taken where there is one."""
    inside_gib_per_s: Positive
    """Between other devices of a node."""
    outside_gib_per_s: Positive
    """Between devices of different nodes."""
    inside_latency_s: Size = 0.0
    """Of a message inside a node, without a link of its own."""
    outside_latency_s: Size = 0.0
    """Of a message between nodes."""
    shared_port: bool = False
    """Whether the devices of a node have one port to others together, in a study's second step."""

    @model_validator(mode="after")
    def _pairs_exist(self) -> Self:
        for link in self.links:
            for pair in link.pairs:
                if pair[0] == pair[1] or not all(0 <= d < self.devices_per_node for d in pair):
                    last = self.devices_per_node - 1
                    raise ValueError(f"links: pairs must name two devices from 0 to {last}, got {pair}")
        return self

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return self.nodes * self.devices_per_node

    @property
    def devices_per_port(self) -> int | None:
        """Devices that have a port together, None if each pair has a link of its own."""
        return self.devices_per_node if self.shared_port else None


class Hops(Noun):
    """What a message gets over so many hops."""

    to: PositiveInt | None = None
    """The most hops of this row; none: any number."""
    bandwidth_gib_per_s: Positive
    """Bandwidth between devices that far apart."""


class MeshOrTorus(Links):
    """A grid of devices; bandwidth depends on the hops between two of them."""

    kind: Literal["mesh", "torus"]
    """Without or with links from the last device of an axis to its first."""
    sides: tuple[PositiveInt, ...] = Field(min_length=1)
    """Devices along every axis; they are numbered with the last axis running fastest."""
    hops: tuple[Hops, ...] = ()
    """Bandwidth by hops, nearest first; the first row that reaches far enough counts."""
    link_gib_per_s: Positive | None = None
    """Bandwidth of a link, instead of `hops`: over h hops a message occupies h links, and gets one h-th."""
    latency_s: Size = 0.0
    """Of a hop."""

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if bool(self.hops) == (self.link_gib_per_s is not None):
            raise ValueError("give either hops or link_gib_per_s")
        reach = [row.to or 2**31 for row in self.hops]
        if reach != sorted(set(reach)):
            raise ValueError("hops: `to` must rise from row to row")
        if self.hops and reach[-1] < self.diameter:
            raise ValueError(f"hops: the last row must reach {self.diameter} hops, got {reach[-1]}")
        return self

    @property
    def diameter(self) -> int:
        """Most hops between two devices."""
        return sum(side // 2 if self.kind == "torus" else side - 1 for side in self.sides)

    @property
    def devices(self) -> int:
        """Devices of the grid."""
        return prod(self.sides)


class RandomBlocks(Links):
    """Nodes of random sizes with random bandwidths inside (random_blk_1 and random_blk_2 of Parmesan).

    The paper does not say how many nodes there are and how their sizes are drawn: here all ways to cut the
    devices into so many nodes are equally likely.
    """

    kind: Literal["random-blk-1", "random-blk-2"]
    """1: one bandwidth a node, and one between nodes. 2: one for every pair inside a node, and between nodes
    a tenth of their mean, divided by how far the nodes' numbers are apart."""
    devices: Count
    """Devices D."""
    nodes: PositiveInt | None = None
    """Nodes L; one for eight devices unless given."""
    seed: int = 0
    """Of the random numbers."""
    falling: bool = True
    """Whether the bandwidth between nodes of random-blk-2 is divided by how far their numbers are apart."""
    own_pairs: bool = True
    """Whether each pair of devices in a node of random-blk-2 has a bandwidth of its own; or each node one."""

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.nodes is not None and self.nodes > self.devices:
            raise ValueError(f"nodes: must be <= devices {self.devices}, got {self.nodes}")
        return self

    @model_validator(mode="after")
    def _read_in_one_way(self) -> Self:
        if self.kind == "random-blk-1":
            for key in ("falling", "own_pairs"):
                if not getattr(self, key):
                    raise ValueError(f"{key}: is for random-blk-2, random-blk-1 has no such choice")
        return self


class UniformDist(Links):
    """Every pair of devices has a random bandwidth, equal in both directions (uniform_dist of Parmesan)."""

    kind: Literal["uniform-dist"]
    """What it is."""
    devices: Count
    """Devices D."""
    seed: int = 0
    """Of the random numbers."""
    directed: bool = False
    """Whether the two directions are drawn apart."""


class MatrixFile(Links):
    """Bandwidths from a file: a square table in CSV, or a graph in NetworkX' node-link JSON or in GraphML."""

    kind: Literal["file"]
    """What it is."""
    path: Location
    """The file, from the folder of this one: .csv with row d to column d', empty where there is no link;
    .json or .graphml with `bandwidth`, and perhaps `latency` in seconds, on edges."""
    unit_bytes_per_s: Positive = 1.0
    """What a bandwidth of 1 in the file means."""
    latency_s: Size = 0.0
    """Of a link whose latency the file does not give."""
    absent: Absent = "widest"
    """Pairs without a link: the path whose narrowest link is widest, with the latencies of its links; or an
    error."""


Topology = Annotated[
    LevelTopology | Nodes | MeshOrTorus | RandomBlocks | UniformDist | MatrixFile, Field(discriminator="kind")
]
TOPOLOGY: TypeAdapter[Topology] = TypeAdapter(Topology)
