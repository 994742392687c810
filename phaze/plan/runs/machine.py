"""The machine that runs: a cluster with what its devices are, as costs see it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from phaze.cost.network.fabric import network_of
from phaze.cost.network.network import Network
from phaze.cost.vector import cycle_figures
from phaze.spec.architecture import Technology
from phaze.spec.config import load_technology
from phaze.spec.system import Cluster, Device
from phaze.spec.systems import load_cluster

TECHNOLOGY = "22nm"
"""Whose cycles of vector operations count."""


@dataclass(frozen=True)
class Machine:
    """A cluster, its device, and the cycles of vector operations."""

    cluster: Cluster
    device: Device
    technology: Technology

    @cached_property
    def vector_cycles(self) -> dict[tuple[str, str], float]:
        """Return the cycles of vector operations by role and kind."""
        return cycle_figures(self.technology.vector_cycles, {})

    @property
    def hbm_bytes_per_s(self) -> float:
        """Return the HBM bandwidth that kernels reach."""
        return self.device.hbm_bandwidth_bytes_per_s * self.device.sustained_hbm

    @cached_property
    def network(self) -> Network:
        """Return the network that collectives and messages go over."""
        return network_of(self.cluster)


def load_machine(system: str) -> Machine:
    """Return a system of config/systems, or of a YAML file by path, that says its device and its levels."""
    cluster, device = load_cluster(system)
    return Machine(cluster, device, load_technology(TECHNOLOGY))
