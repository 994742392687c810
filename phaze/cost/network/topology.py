"""Topologies of nodes, directed links with one transfer at a time, and routes (PALM, Equations 2 to 5)."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from phaze.base.arrays import Bools
from phaze.base.errors import PhazeError

Switching = Literal["pipelined", "hop-by-hop"]
"""A transfer occupies its whole route at once (Equation 2), or one link after the other (Equation 3)."""

Router = Callable[[int, int], Sequence[int]]
"""Function from (source, target) to the nodes on the route, both ends included."""


@dataclass(frozen=True)
class Link:
    """One direction of a wire between two nodes, with its bandwidth and latency."""

    source: int
    target: int
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    """Latency of one hop (Link_Time)."""
    resource: int = -1
    """Resource of the link; links with the same resource exclude each other. -1 means one of its own."""
    buffered: bool = False
    """True if a transfer must pass completely before the next link starts, as at a memory port (Equation
    5).
    """


@dataclass(frozen=True)
class Leg:
    """Consecutive links that one transfer occupies at the same time."""

    links: tuple[int, ...]
    resources: tuple[int, ...]
    latency_s: float
    bandwidth_bytes_per_s: float

    def seconds(self, size_bytes: float) -> float:
        """Transfer time: Link_Time · Hops + Comm_Size / BW of the narrowest link (PALM, Equation 2)."""
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True)
class Topology:
    """Devices and their interconnect; devices are numbered first, then switches and memories."""

    name: str
    devices: int
    nodes: int
    links: tuple[Link, ...]
    router: Router = field(repr=False, compare=False)
    _legs: dict[tuple[int, int, Switching], tuple[Leg, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for link in self.links:
            _check_link(self.name, link, self.nodes)

    @cached_property
    def link_between(self) -> dict[tuple[int, int], int]:
        """Index of the link from a node to a neighbour."""
        return {(link.source, link.target): number for number, link in enumerate(self.links)}

    @cached_property
    def resource_of(self) -> tuple[int, ...]:
        """Resource of every link, numbered from 0."""
        numbers: dict[tuple[bool, int], int] = {}
        # The flag keeps numbers given to shared resources apart from the indices of links with their own.
        keys = [
            (link.resource >= 0, link.resource if link.resource >= 0 else k)
            for k, link in enumerate(self.links)
        ]
        return tuple(numbers.setdefault(key, len(numbers)) for key in keys)

    @cached_property
    def resources(self) -> int:
        """Number of resources, an upper bound on the transfers in flight at once."""
        return max(self.resource_of, default=-1) + 1

    @cached_property
    def buffers(self) -> Bools:
        """Mask of the resources that are buffered links, as memory ports are, (resources,)."""
        mask = np.zeros(self.resources, np.bool_)
        for link, resource in zip(self.links, self.resource_of, strict=True):
            mask[resource] |= link.buffered
        mask.setflags(write=False)
        return mask

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Links on the route between two nodes; none from a node to itself."""
        self._check_node(source)
        self._check_node(target)
        path = self.router(source, target)
        return tuple(self.link_between[pair] for pair in itertools.pairwise(path))

    def hops(self, source: int, target: int) -> int:
        """Number of links on the route."""
        return len(self.route(source, target))

    def legs(self, source: int, target: int, switching: Switching = "pipelined") -> tuple[Leg, ...]:
        """Legs of a transfer, in sequence."""
        key = source, target, switching
        if key not in self._legs:
            if switching not in get_args(Switching):
                raise PhazeError(f"network {self.name}: switching must be one of {get_args(Switching)}")
            parts = self._split(self.route(source, target), switching)
            self._legs[key] = tuple(self._leg(part) for part in parts)
        return self._legs[key]

    def seconds(
        self, source: int, target: int, size_bytes: float, switching: Switching = "pipelined"
    ) -> float:
        """Time of a transfer on an idle network (PALM, Equation 2, 3 or 5)."""
        return sum(leg.seconds(size_bytes) for leg in self.legs(source, target, switching))

    def _split(self, route: tuple[int, ...], switching: Switching) -> list[tuple[int, ...]]:
        parts: list[list[int]] = []
        together = False
        for number in route:
            # A buffered link starts a leg of its own, and the next one cannot join it.
            alone = self.links[number].buffered or switching == "hop-by-hop"
            if together and not alone:
                parts[-1].append(number)
            else:
                parts.append([number])
            together = not alone
        return [tuple(part) for part in parts]

    def _leg(self, links: tuple[int, ...]) -> Leg:
        wires = [self.links[number] for number in links]
        resources = dict.fromkeys(self.resource_of[number] for number in links)
        return Leg(
            links,
            tuple(resources),
            sum(wire.latency_s for wire in wires),
            min(wire.bandwidth_bytes_per_s for wire in wires),
        )

    def check_devices(self, needed: int) -> None:
        """Raise `PhazeError` if there are fewer devices than needed."""
        if needed > self.devices:
            raise PhazeError(f"network {self.name}: has {self.devices} devices, {needed} are needed")

    def _check_node(self, node: int) -> None:
        if not 0 <= node < self.nodes:
            raise PhazeError(f"network {self.name}: a node must be from 0 to {self.nodes - 1}, got {node}")


def _check_link(name: str, link: Link, nodes: int) -> None:
    where = f"network {name}: link {link.source} to {link.target}"
    if not link.bandwidth_bytes_per_s > 0:
        raise PhazeError(f"{where}: bandwidth_bytes_per_s must be > 0, got {link.bandwidth_bytes_per_s}")
    if not 0 <= link.latency_s < float("inf"):
        raise PhazeError(f"{where}: latency_s must be ≥ 0 and finite, got {link.latency_s}")
    if (
        link.source == link.target
        or not 0 <= min(link.source, link.target) <= max(link.source, link.target) < nodes
    ):
        raise PhazeError(f"{where}: ends must be two of {nodes} nodes")


def both_ways(a: int, b: int, bandwidth_bytes_per_s: float, latency_s: float = 0.0) -> tuple[Link, Link]:
    """Pair of links, one in each direction, each with the full bandwidth."""
    return Link(a, b, bandwidth_bytes_per_s, latency_s), Link(b, a, bandwidth_bytes_per_s, latency_s)
