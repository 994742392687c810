"""What a user asks of Piper about an instance."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields

from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.plan.piper.instance import Instance
from phaze.plan.piper.layers import Cluster
from phaze.plan.piper.nested import Hierarchy
from phaze.spec.names import MOST

LEAST_GIB, MOST_GIB = 1e-12, 1e18
"""Memory and bandwidth in GiB that a user may ask for."""


@dataclass(frozen=True)
class Question:
    """What to plan beside the layers; None: what the instance says."""

    devices: int | None = None
    memory_gib: float | None = None
    microbatches: int | None = None
    bandwidth_gib: float | None = None
    """GiB/s."""
    exactly: bool = False
    paper_table1: bool = False
    """Plan as the paper's Table 1: along one linear order, and gradients synchronised once a round."""
    exact_knapsack: bool = False
    baselines: bool = False
    levels: str | None = None
    """Devices and bandwidth of a network's levels, from the inside out, such as 8@300,8@25 (GiB/s)."""
    max_downsets: int | None = None
    """None: what the planner allows."""

    def __post_init__(self) -> None:
        """Refuse what no cluster has."""
        for name, value in (("memory-gib", self.memory_gib), ("bandwidth-gib", self.bandwidth_gib)):
            if value is not None and not LEAST_GIB <= value <= MOST_GIB:
                raise PhazeError(
                    f"place: --{name}: must be from {LEAST_GIB:g} to {MOST_GIB:g}, got {value:g}"
                )
        for name, count in (("devices", self.devices), ("microbatches", self.microbatches)):
            if count is not None and not 1 <= count <= MOST:
                raise PhazeError(f"place: --{name}: must be from 1 to {MOST}, got {count}")

    def hierarchy(self, instance: Instance) -> Hierarchy | None:
        """Return the network with levels and the batch, None where no levels are given."""
        if self.levels is None:
            return None
        for name in ("devices", "bandwidth-gib", "baselines"):
            if name.replace("-", "_") in self.given():
                raise PhazeError(
                    f"place: --{name}: not together with --levels, which says what the network is"
                )
        flat, levels = self.cluster(instance), [_level(text) for text in self.levels.split(",")]
        devices = math.prod(count for count, _ in levels)
        if devices > MOST:
            raise PhazeError(f"place: --levels: {self.levels} make {devices} devices, allowed are {MOST}")
        return Hierarchy(
            counts=tuple(count for count, _ in levels),
            bandwidths_bytes_per_s=tuple(bandwidth for _, bandwidth in levels),
            memory_bytes=flat.memory_bytes,
            microbatches=flat.microbatches,
            exactly=flat.exactly,
            synchronisation=flat.synchronisation,
        )

    def cluster(self, instance: Instance) -> Cluster:
        """Return the cluster and the batch."""
        memory, bandwidth = instance.max_memory_per_device, instance.bandwidth
        return Cluster(
            devices=instance.max_devices if self.devices is None else self.devices,
            memory_bytes=memory if self.memory_gib is None else self.memory_gib * GIB,
            bandwidth_bytes_per_s=bandwidth if self.bandwidth_gib is None else self.bandwidth_gib * GIB,
            microbatches=instance.mbs_in_batch if self.microbatches is None else self.microbatches,
            exactly=self.exactly,
            synchronisation="round" if self.paper_table1 else "batch",
        )

    def given(self) -> list[str]:
        """Return the names of what is not left as it is by default."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]


def _level(text: str) -> tuple[int, float]:
    """Return the devices of a level and their bandwidth in bytes per second."""
    found = re.fullmatch(r"\s*(\d+)@(\d+(?:\.\d+)?)\s*", text)
    if found is None or int(found[1]) < 1 or not LEAST_GIB <= float(found[2]) <= MOST_GIB:
        raise PhazeError(
            f"place: --levels: {text!r} is no level, allowed are a number of devices and their bandwidth in "
            f"GiB/s (> 0, at most {MOST_GIB:g}) of each level from the inside out, such as 8@300,8@25"
        )
    return int(found[1]), float(found[2]) * GIB
