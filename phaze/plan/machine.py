"""The machine that a plan runs on: its network, and what its devices are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from phaze.cost.network.fabric import network_of
from phaze.cost.network.network import Flat, Network
from phaze.cost.vector import cycle_figures
from phaze.spec.config import load_technology
from phaze.spec.files import FOLDER
from phaze.spec.system import Device
from phaze.spec.systems import load_cluster

TECHNOLOGY = "22nm"
"""Whose cycles of vector operations count."""


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

    @classmethod
    def flat(cls, bandwidth_bytes_per_s: float, hbm_bytes_per_s: float) -> Machine:
        """Return devices with equal links among all of them."""
        return cls(Flat(bandwidth_bytes_per_s), hbm_bytes_per_s)

    def with_device(self, device: Device) -> Machine:
        """Return the machine with other devices."""
        return replace(
            self, device=device, hbm_bytes_per_s=device.hbm_bandwidth_bytes_per_s * device.sustained_hbm
        )


def load_machine(system: str, folder: Path = FOLDER) -> Machine:
    """Return a system of config/systems, or of a YAML file by path, that says its device and its levels."""
    cluster, device = load_cluster(system, folder)
    cycles = cycle_figures(load_technology(TECHNOLOGY, folder).vector_cycles, {})
    machine = Machine(network_of(cluster), 0.0, cluster.devices, vector_cycles=cycles)
    return machine.with_device(device)
