"""Network topologies for mapping stages: bandwidth and latency between any two devices.

See Parmesan, Appendix D-B. Bandwidths are in GiB/s, as the paper's "GB/s" are: it counts 1024 MB/s, and 1
MB/us = 2^20 bytes/us.
"""

from math import prod
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from phaze.spec.network import Absent, check_nested
from phaze.spec.noun import Noun
from phaze.spec.values import Count, Location, Positive, PositiveInt, Size

# 8192² numbers of 8 bytes are 512 MiB.
MOST_DEVICES = 8192
"""Maximum number of devices whose bandwidth matrix fits into memory."""


class Links(Noun):
    """Base class of all topologies."""

    speeds: tuple[Positive, ...] = ()
    """Speed of each device relative to the profiled one, which a stage's time is divided by; default: 1."""

    @property
    def devices_per_port(self) -> int | None:
        """Number of devices that share a port; None if each pair has its own link."""
        return None


class LevelLinks(Noun):
    """Level of a tree: groups of devices with equal bandwidth between them."""

    devices: Count
    """Devices per group of this level."""
    bandwidth_gib_per_s: Positive
    """Bandwidth in GiB/s, per direction, between two devices whose smallest common group is of this level."""
    latency_s: Size = 0.0
    """Latency of a message between two such devices, in seconds."""


class LevelTopology(Links):
    """Hierarchy of nodes, racks and pods; the smallest common group of two devices sets their bandwidth.

    Examples: two levels of PCIe and Ethernet, a fat tree, or a cluster of nodes with NVLink.
    """

    kind: Literal["levels"]
    """Kind of topology."""
    levels: tuple[LevelLinks, ...] = Field(min_length=1)
    """Levels, from the smallest groups to the one that contains all devices."""
    shared_port: bool = False
    """The devices of a smallest group share one port to all others; a study then also reports the step time
    with contention at the ports."""

    @model_validator(mode="after")
    def _nested(self) -> Self:
        check_nested([level.devices for level in self.levels])
        return self

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.levels[-1].devices

    @property
    def devices_per_port(self) -> int | None:
        """Number of devices that share a port; None if each pair has its own link."""
        return self.levels[0].devices if self.shared_port else None


class NodeLink(Noun):
    """Direct link between devices of a node."""

    pairs: tuple[tuple[int, int], ...] = Field(min_length=1)
    """Linked pairs of devices of a node, numbered from 0."""
    bandwidth_gib_per_s: Positive
    """Bandwidth in GiB/s, per direction."""
    latency_s: Size = 0.0
    """Latency of a message in seconds."""


class Nodes(Links):
    """Identical nodes in which some pairs of devices have direct links, as in a DGX-1."""

    kind: Literal["nodes"]
    """Kind of topology."""
    nodes: PositiveInt
    """Number of nodes."""
    devices_per_node: PositiveInt
    """Devices per node."""
    links: tuple[NodeLink, ...] = ()
    """Direct links, used wherever a pair has one."""
    inside_gib_per_s: Positive
    """Bandwidth in GiB/s between other pairs of devices of a node."""
    outside_gib_per_s: Positive
    """Bandwidth in GiB/s between devices of different nodes."""
    inside_latency_s: Size = 0.0
    """Latency in seconds of a message inside a node, without a direct link."""
    outside_latency_s: Size = 0.0
    """Latency in seconds of a message between nodes."""
    shared_port: bool = False
    """The devices of a node share one port to all others; a study then also reports the step time with
    contention at the ports."""

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
        """Number of devices."""
        return self.nodes * self.devices_per_node

    @property
    def devices_per_port(self) -> int | None:
        """Number of devices that share a port; None if each pair has its own link."""
        return self.devices_per_node if self.shared_port else None


class Hops(Noun):
    """Bandwidth between devices up to a number of hops apart."""

    to: PositiveInt | None = None
    """Maximum number of hops for this row; null: no maximum."""
    bandwidth_gib_per_s: Positive
    """Bandwidth in GiB/s between devices at this distance."""


class MeshOrTorus(Links):
    """Grid of devices; the bandwidth between two devices depends on their distance in hops."""

    kind: Literal["mesh", "torus"]
    """Kind of topology; a torus also links the last device of an axis to the first."""
    sides: tuple[PositiveInt, ...] = Field(min_length=1)
    """Devices along every axis; device numbers increase fastest along the last one."""
    hops: tuple[Hops, ...] = ()
    """Bandwidth by number of hops, nearest first; the first row that reaches far enough applies."""
    link_gib_per_s: Positive | None = None
    """Bandwidth of a link in GiB/s, instead of `hops`: a message over h hops occupies h links and gets 1/h of
    it."""
    latency_s: Size = 0.0
    """Latency of a hop in seconds."""

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if bool(self.hops) == (self.link_gib_per_s is not None):
            raise ValueError("give hops or link_gib_per_s, not both")
        reach = [row.to or 2**31 for row in self.hops]
        if reach != sorted(set(reach)):
            raise ValueError("hops: `to` must increase from row to row")
        if self.hops and reach[-1] < self.diameter:
            raise ValueError(f"hops: the last row must reach {self.diameter} hops, got {reach[-1]}")
        return self

    @property
    def diameter(self) -> int:
        """Maximum number of hops between two devices."""
        return sum(side // 2 if self.kind == "torus" else side - 1 for side in self.sides)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return prod(self.sides)


class RandomBlocks(Links):
    """Nodes of random sizes with random bandwidths (random_blk_1 and random_blk_2 in Parmesan).

    The paper does not state the number of nodes or the distribution of their sizes. Here all ways to divide
    the devices into `nodes` nodes are equally likely.
    """

    kind: Literal["random-blk-1", "random-blk-2"]
    """1: one bandwidth per node, and one between nodes. 2: one bandwidth per pair inside a node; between
    nodes a tenth of their mean, divided by the difference of the nodes' numbers."""
    devices: Count
    """Number of devices D."""
    nodes: PositiveInt | None = None
    """Number of nodes L; default: one per eight devices."""
    seed: int = 0
    """Seed of the random numbers."""
    falling: bool = True
    """For random-blk-2: divide the bandwidth between nodes by the difference of their numbers."""
    own_pairs: bool = True
    """For random-blk-2: each pair of devices in a node has its own bandwidth; false: one bandwidth per
    node."""

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
                    raise ValueError(f"{key}: applies to random-blk-2 only, not to random-blk-1")
        return self


class UniformDist(Links):
    """Random bandwidth for every pair of devices, equal in both directions (uniform_dist in Parmesan)."""

    kind: Literal["uniform-dist"]
    """Kind of topology."""
    devices: Count
    """Number of devices D."""
    seed: int = 0
    """Seed of the random numbers."""
    directed: bool = False
    """Draw the two directions of a pair independently."""


class MatrixFile(Links):
    """Bandwidths read from a file: a square CSV table, or a graph in NetworkX node-link JSON or GraphML."""

    kind: Literal["file"]
    """Kind of topology."""
    path: Location
    """The file, relative to the folder of this one. A .csv has the bandwidth from device d to d' in row d,
    column d', empty for no link, or one link per row as `phaze measure --links` writes. A .json or .graphml
    has `bandwidth`, and optionally `latency` in seconds, on its edges."""
    unit_bytes_per_s: Positive = 1.0
    """Bytes per second of a bandwidth of 1 in the file."""
    latency_s: Size = 0.0
    """Latency in seconds of links for which the file has none."""
    absent: Absent = "widest"
    """Pairs without a link: `widest` takes the path whose narrowest link is widest, and adds up the latencies
    of its links; `refuse` is an error."""


Topology = Annotated[
    LevelTopology | Nodes | MeshOrTorus | RandomBlocks | UniformDist | MatrixFile, Field(discriminator="kind")
]
TOPOLOGY: TypeAdapter[Topology] = TypeAdapter(Topology)
