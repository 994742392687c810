"""What Piper plans: layers with tensor parallel configurations, and the cluster (Piper, Section 3.6).

A tensor model parallelism configuration (TMPC) says how one layer runs on t devices: its time, its weights,
its memory as an affine function of the microbatches in flight, and what the t devices exchange when the
layer's edges cross the border of a stage. Memory-saving choices such as recomputation are configurations too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.cost.network.network import BOTH_DIRECTIONS, Flat
from phaze.layout import Layout
from phaze.workload.graphs import Graph

Synchronisation = Literal["batch", "round"]
"""Gradients of a stage are synchronised once for N microbatches, or once for d (Section 3.4)."""


@dataclass(frozen=True, eq=False)
class Options:
    """The configurations of all layers at one width t, by layer and then as given; C of them."""

    names: tuple[str, ...]
    layer: Ints
    """(C,) position of the layer, rising."""
    time_s: Floats
    """(C,) X.p: time per sample with the communication between the t devices."""
    weight_bytes: Floats
    """(C,) X.w: parameters on each device."""
    stash_bytes: Floats
    """(C,) X.a: memory for each microbatch in flight."""
    fixed_bytes: Floats
    """(C,) X.b: memory beside that."""
    forward_sync_bytes: Floats
    """(C, E) X.c_fw of the layer's incoming edges; zero for other edges."""
    backward_sync_bytes: Floats
    """(C, E) X.c_bw of the layer's outgoing edges; zero for other edges."""

    def first(self, layers: int) -> Ints:
        """Return (layers + 1,) where each layer's configurations begin; equal neighbours: it has none."""
        return np.searchsorted(self.layer, np.arange(layers + 1)).astype(np.int64)

    def take(self, rows: Ints | Bools) -> Options:
        """Return some of them, by position or by mask."""
        columns = {field.name: getattr(self, field.name)[rows] for field in fields(self)[1:]}
        return replace(self, names=tuple(np.array(self.names, dtype=object)[rows]), **columns)


@dataclass(frozen=True, eq=False)
class Layers(Graph):
    """A directed acyclic graph of n layers with E edges c(u, v); layers are positions in it, in any order."""

    ids: tuple[int, ...]
    """(n,) what the user calls them."""
    names: tuple[str, ...]
    options: dict[int, Options]
    """Configurations by width t, rising."""

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self.ids)


@dataclass(frozen=True)
class Cluster:
    """Devices on a flat network, and the batch."""

    devices: int
    """K."""
    memory_bytes: float
    """M, of a device."""
    bandwidth_bytes_per_s: float
    """B, which holds for what goes in and out of a device together."""
    microbatches: int
    """N: what the data parallel degrees of all stages may sum up to."""
    exactly: bool = False
    """The degrees must sum up to N, rather than to N at most."""
    synchronisation: Synchronisation = "batch"
    """`batch`: 4 (d-1)/d w for N microbatches, and d divides N, as the authors' program has it; `round`: for
    d microbatches and any d, as Section 4 and the printed Table 1."""

    @property
    def network(self) -> Flat:
        """Return the network between any two devices."""
        return Flat(self.bandwidth_bytes_per_s, BOTH_DIRECTIONS)


@dataclass(frozen=True)
class PlannedStage:
    """A stage of a plan: which layers, on how many devices, and how each runs."""

    layers: tuple[int, ...]
    """Positions, rising."""
    layout: Layout
    """Its data and tensor parallel degrees d and t."""
    configurations: tuple[int, ...]
    """For each layer the index into `Layers.options[layout.tp]`."""
    in_flight: int
    """Microbatches in flight on each device, ceil(s/d)."""
    time_s: float
    """Time per sample, TPS(S, t, d, s)."""
    memory_bytes: float
    """Of each device."""


@dataclass(frozen=True)
class Plan:
    """Stages in the order of the data flow; the slowest decides."""

    stages: tuple[PlannedStage, ...]

    @property
    def time_per_sample_s(self) -> float:
        """Return the time per sample of the slowest stage."""
        return max(stage.time_s for stage in self.stages)

    @property
    def devices(self) -> int:
        """Return the devices used."""
        return sum(stage.layout.devices for stage in self.stages)

    @property
    def degree(self) -> int:
        """Return s, the sum of the data parallel degrees."""
        return sum(stage.layout.dp for stage in self.stages)


def in_flight(degree: int, data: int) -> int:
    """Return ceil(s/d): microbatches on each device of a stage, s being its and all later stages' degrees.

    In steady state, a stage and those behind it work on s microbatches. All of them wait for their backward
    pass in the stage, in equal shares on its d devices.
    """
    return -(-degree // data)
