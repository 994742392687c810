"""Data classes of the Piper planner: layers, clusters and plans (Piper, Section 3.6, Appendix E).

A tensor model parallelism configuration (TMPC) describes a layer on t devices: its time, its weights, its
memory as an affine function of the microbatches in flight, and the exchange of the t devices if the layer's
edges cross the boundary of a stage. Memory-saving choices such as recomputation are also configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.cost.network.network import BOTH_DIRECTIONS, Flat
from phaze.layout import Layout
from phaze.workload.graphs import Graph

Synchronisation = Literal["batch", "round"]
"""When a stage synchronises its gradients: once per N microbatches, or once per d (Section 3.4)."""


@dataclass(frozen=True, eq=False)
class Configurations:
    """The C configurations of all layers at one width t, sorted by layer, then in the given order."""

    names: tuple[str, ...]
    layer: Ints
    """(C,) position of the layer, ascending."""
    time_s: Floats
    """(C,) X.p: time per sample including communication between the t devices."""
    weight_bytes: Floats
    """(C,) X.w: weight bytes on each device."""
    stash_bytes: Floats
    """(C,) X.a: memory per microbatch in flight."""
    fixed_bytes: Floats
    """(C,) X.b: memory independent of the microbatches in flight."""
    forward_sync_bytes: Floats
    """(C, E) X.c_fw of the layer's incoming edges; zero for other edges."""
    backward_sync_bytes: Floats
    """(C, E) X.c_bw of the layer's outgoing edges; zero for other edges."""

    def first(self, layers: int) -> Ints:
        """Index of each layer's first configuration, (layers + 1,); the next layer's if it has none."""
        return np.searchsorted(self.layer, np.arange(layers + 1)).astype(np.int64)

    def take(self, rows: Ints | Bools) -> Configurations:
        """Configurations at the positions `rows`, or where `rows` is true."""
        columns = {field.name: getattr(self, field.name)[rows] for field in fields(self)[1:]}
        return replace(self, names=tuple(np.array(self.names, dtype=object)[rows]), **columns)


@dataclass(frozen=True, eq=False)
class ProfiledLayers(Graph):
    """Directed acyclic graph of n layers with E edges c(u, v); layers are identified by position."""

    ids: tuple[int, ...]
    """(n,) ids in the user's input."""
    names: tuple[str, ...]
    options: dict[int, Configurations]
    """Configurations by width t, ascending."""

    def __len__(self) -> int:
        """Number of layers."""
        return len(self.ids)

    def least(self, value: Callable[[int, Configurations], Floats], widest: float = np.inf) -> Floats:
        """Minimum value over the configurations of each layer up to a width, (n,); inf if it has none."""
        minima = np.full(len(self), np.inf)
        for width, options in self.options.items():
            if width <= widest:
                np.minimum.at(minima, options.layer, value(width, options))
        return minima


@dataclass(frozen=True)
class FlatCluster:
    """Cluster on a flat network: number, memory and bandwidth of its devices, and the batch."""

    devices: int
    """Number of devices, K."""
    memory_bytes: float
    """Memory of each device, M."""
    bandwidth_bytes_per_s: float
    """Bandwidth B of each device, for input and output together."""
    microbatches: int
    """N: upper limit of the sum of the data-parallel degrees of all stages."""
    exactly: bool = False
    """True if the degrees must sum to exactly N."""
    synchronisation: Synchronisation = "batch"
    """Frequency of gradient synchronisation.

    `batch`: 4 (d-1)/d w per N microbatches, and d divides N, as in the authors' program; `round`: per d
    microbatches and for any d, as in Section 4 and the printed Table 1.
    """

    @property
    def network(self) -> Flat:
        """Network with equal links between any two devices."""
        return Flat(self.bandwidth_bytes_per_s, BOTH_DIRECTIONS)

    def data_widths(self, most: int | None = None) -> Ints:
        """Possible data-parallel widths d of a stage, ascending; at most `most`."""
        widths = np.arange(1, min(self.devices, self.microbatches, most or self.devices) + 1)
        divides = self.microbatches % widths == 0
        return widths[divides] if self.synchronisation == "batch" else widths

    def exchanged(self, layout: Layout) -> float:
        """Gradient exchange time of d replicas per microbatch, times d, in units of 4 w/B."""
        together = self.microbatches if self.synchronisation == "batch" else layout.dp
        return (layout.dp - 1) / together


class NetworkLevel(NamedTuple):
    """Network level: its number of devices inside one device of the next level, and their bandwidth."""

    devices: int
    bandwidth_bytes_per_s: float


@dataclass(frozen=True)
class Hierarchy:
    """Hierarchical network, and the batch (Piper, Appendix E).

    K_L devices of the highest level share the batch. Each consists of K_{L-1} devices of the level below, and
    so on down to level 1, whose devices compute. Devices of level l within one device of level l + 1 exchange
    data at B_l. With `batch`, every level synchronises once per N microbatches of the whole, and the product
    of a stage's width and all widths around it divides N. With `round` it synchronises once per d
    microbatches that reach the device around it, for any d, as Appendix E prints it.
    """

    inner: FlatCluster
    """Level 1 with K_1 and B_1, the memory M of each of its devices, and the batch N of the whole network."""
    above: tuple[NetworkLevel, ...] = ()
    """Levels above the first: K_2 and B_2 to K_L and B_L."""

    @property
    def levels(self) -> tuple[NetworkLevel, ...]:
        """All levels from the innermost, with their device counts and bandwidths: K_1, B_1 to K_L, B_L."""
        return (NetworkLevel(self.inner.devices, self.inner.bandwidth_bytes_per_s), *self.above)

    def devices(self, levels: int) -> int:
        """Number of level-1 devices in the lowest `levels` levels."""
        return prod(level.devices for level in self.levels[:levels])

    def cluster(self, level: int, around: int) -> FlatCluster:
        """Cluster of the devices that form one device of the next level, with its share of the batch.

        around: product of the data widths at the levels above.
        """
        count, bandwidth = self.levels[level - 1]
        share = self.inner.microbatches // around
        return replace(self.inner, devices=count, bandwidth_bytes_per_s=bandwidth, microbatches=share)


@dataclass(frozen=True)
class PlannedStage:
    """Stage of a plan; above level 1 a superstage, whose `parts` all run on each of its d devices."""

    layers: tuple[int, ...]
    """Layer positions, ascending."""
    layout: Layout
    """Data- and tensor-parallel degrees d and t."""
    time_s: float
    """Time per sample of the global batch, TPS(S, t, d, s); above level 1 only one device's communication."""
    configurations: tuple[int, ...] = ()
    """Index of each layer's configuration in `ProfiledLayers.options[layout.tp]`."""
    in_flight: int = 0
    """Microbatches in flight on each device, ceil(s/d)."""
    memory_bytes: float = 0.0
    """Memory of each device."""
    level: int = 1
    parts: tuple[PlannedStage, ...] = ()
    """Parts of a superstage, in the order of the data flow."""

    @property
    def degree(self) -> int:
        """Product of d and the sum of the parts' data-parallel degrees; d for a stage without parts."""
        return self.layout.dp * (sum(part.degree for part in self.parts) or 1)

    def walk(self, around: int = 1) -> Iterator[tuple[int, PlannedStage]]:
        """Yield the stage and its parts, outer before inner, each with the number of its outer replicas."""
        yield around, self
        for part in self.parts:
            yield from part.walk(around * self.layout.dp)


@dataclass(frozen=True)
class PiperPlan:
    """Plan: stages in the order of the data flow; with several levels, superstages of the highest level."""

    stages: tuple[PlannedStage, ...]

    @property
    def time_per_sample_s(self) -> float:
        """Time per sample of the slowest device of any level."""
        return max(part.time_s for stage in self.stages for _, part in stage.walk())

    @property
    def devices(self) -> int:
        """Number of devices used, in units of the highest level."""
        return sum(stage.layout.devices for stage in self.stages)

    @property
    def degree(self) -> int:
        """Sum s of the data-parallel degrees of all stages."""
        return sum(stage.degree for stage in self.stages)

    @property
    def binding_level(self) -> int:
        """Network level of the slowest device; ties go to the innermost."""
        slowest = self.time_per_sample_s
        parts = (part for stage in self.stages for _, part in stage.walk())
        return min(part.level for part in parts if part.time_s == slowest)


def in_flight(degree: int, layout: Layout) -> int:
    """Microbatches in flight on each device, ceil(s/d), where s sums the degrees of this and later stages.

    In steady state, a stage and the later ones work on s microbatches. All of them wait for their backward
    pass in the stage, in equal shares on its d devices.
    """
    return -(-degree // layout.dp)
