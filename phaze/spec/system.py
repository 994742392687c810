"""The cluster in which the accelerators work."""

from math import prod
from typing import Literal, Self

from pydantic import Field, model_validator

from phaze.spec.architecture import Architecture
from phaze.spec.network import Torus, check_nested
from phaze.spec.noun import Noun
from phaze.spec.values import Count, Location, Name, Part, Positive, PositiveInt, Size


class System(Noun):
    """A cluster of equal accelerators on a flat network."""

    devices: Count = 1024
    """Accelerators in the cluster, K."""
    network_bandwidth_bytes_per_s: Positive = 4294967296.0
    """Bandwidth between any two devices."""
    hbm_bandwidth_bytes_per_s: Positive = 1.2e12
    """Bandwidth between the HBM and the global buffer of a device."""
    clock_hz: Positive = 1.05e9
    """Clock of all cores."""
    all_reduce_factor: Positive = 2.0
    """An all-reduce over n devices takes this times (n - 1)/n of its tensor over the bandwidth: 2 in a ring
    whose links carry both directions at once, 4 where one bandwidth holds for both together (Phaze, C.2)."""


class Scenario(System):
    """A cluster with the batch that it trains and the area that a chip may have."""

    global_batch: PositiveInt = 4096
    """Samples in a batch."""
    area_limit_mm2: Positive | Name = "tpu-v4"
    """Largest area of a chip, or the name of an architecture whose area is the limit."""


class Device(Architecture):
    """A chip by the template of an architecture, with clock and memory, and what software reaches of them."""

    clock_hz: Positive
    """Clock of all cores."""
    hbm_gib: Positive
    """HBM in GiB."""
    number_bytes: Literal[2, 4] = 2
    """Bytes of a number that its arrays multiply at full speed, and of a word of its buffers."""
    hbm_bandwidth_bytes_per_s: Positive
    """Bandwidth between HBM and global buffer."""
    sustained_clock: Part = 1.0
    """Share of the clock that the cores keep while all arrays work, as power allows."""
    sustained_hbm: Part = 1.0
    """Share of the HBM bandwidth that kernels reach."""
    kernel_s: Size = 0.0
    """Time of a kernel beside its work, in which the device is started and drained."""


class Level(Noun):
    """A level of a network: groups of devices with equal links among them."""

    devices: Count
    """Devices in a group of this level."""
    bandwidth_bytes_per_s: Positive
    """Bandwidth of a device to others of its group, in each direction."""
    sustained: Part = 1.0
    """Share of the bandwidth that collectives reach."""
    latency_s: Size = 0.0
    """Time of a step of a collective beside its bytes."""


class Cluster(Noun):
    """Equal devices on a network with levels, the narrowest groups first."""

    device: Location
    """Name of a file in config/devices, or path of one from the folder of this file, in that folder."""
    levels: tuple[Level, ...] = Field(min_length=1)
    """Levels of the network; the last one holds all devices."""
    torus: Torus | None = None
    """The links where devices form a torus or a mesh: then what is simulated with contention uses them."""

    @model_validator(mode="after")
    def _nested(self) -> Self:
        check_nested([level.devices for level in self.levels])
        if self.torus is not None and prod(self.torus.shape) != self.devices:
            held = prod(self.torus.shape)
            raise ValueError(f"torus.shape: must hold the {self.devices} devices of the levels, got {held}")
        return self

    @property
    def devices(self) -> int:
        """Devices of the cluster."""
        return self.levels[-1].devices
