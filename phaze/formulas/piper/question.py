"""User's options for planning an instance with Piper."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields

from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.formulas.piper.choices import PiperChoices
from phaze.formulas.piper.instance import PiperInstance
from phaze.formulas.piper.layers import FlatCluster, Hierarchy, NetworkLevel
from phaze.spec.names import MOST

LEAST_GIB, MOST_GIB = 1e-12, 1e18
"""Allowed range of memory and bandwidth in GiB."""


@dataclass(frozen=True, kw_only=True)
class PiperQuestion(PiperChoices):
    """User's planning options, with the number of devices."""

    devices: int | None = None
    """Number of devices; None uses the instance's."""

    def __post_init__(self) -> None:
        """Raise PhazeError for values outside the allowed range."""
        for name, value in (("memory-gib", self.memory_gib), ("bandwidth-gib", self.bandwidth_gib)):
            if value is not None and not LEAST_GIB <= value <= MOST_GIB:
                raise PhazeError(
                    f"place: --{name}: must be from {LEAST_GIB:g} to {MOST_GIB:g}, got {value:g}"
                )
        for name, count in (("devices", self.devices), ("microbatches", self.microbatches)):
            if count is not None and not 1 <= count <= MOST:
                raise PhazeError(f"place: --{name}: must be from 1 to {MOST}, got {count}")

    def hierarchy(self, instance: PiperInstance) -> Hierarchy | None:
        """Hierarchical network and the batch; None if no levels are given."""
        if self.levels is None:
            return None
        for name in ("devices", "bandwidth-gib", "baselines"):
            if name.replace("-", "_") in self.given():
                raise PhazeError(
                    f"place: --{name}: not together with --levels, which says what the network is"
                )
        first, *above = [_level(text) for text in self.levels.split(",")]
        devices = math.prod(level.devices for level in (first, *above))
        if devices > MOST:
            raise PhazeError(f"place: --levels: {self.levels} make {devices} devices, allowed are {MOST}")
        return Hierarchy(self._cluster(instance, first), tuple(above))

    def cluster(self, instance: PiperInstance) -> FlatCluster:
        """Cluster with a flat network, and the batch."""
        devices = instance.max_devices if self.devices is None else self.devices
        bandwidth = instance.bandwidth if self.bandwidth_gib is None else self.bandwidth_gib * GIB
        return self._cluster(instance, NetworkLevel(devices, bandwidth))

    def _cluster(self, instance: PiperInstance, level: NetworkLevel) -> FlatCluster:
        memory = instance.max_memory_per_device if self.memory_gib is None else self.memory_gib * GIB
        return FlatCluster(
            devices=level.devices,
            memory_bytes=memory,
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s,
            microbatches=instance.mbs_in_batch if self.microbatches is None else self.microbatches,
            exactly=self.exactly,
            synchronisation="round" if self.paper_table1 else "batch",
        )

    def given(self) -> list[str]:
        """Names of the fields that differ from their defaults."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]


def _level(text: str) -> NetworkLevel:
    """Parse a level such as 8@300: number of devices, and bandwidth converted to bytes per second."""
    match = re.fullmatch(r"\s*(\d+)@(\d+(?:\.\d+)?)\s*", text)
    if match is None or int(match[1]) < 1 or not LEAST_GIB <= float(match[2]) <= MOST_GIB:
        raise PhazeError(
            f"place: --levels: {text!r} is not a level, allowed are a number of devices and their bandwidth "
            f"in GiB/s (> 0, at most {MOST_GIB:g}) of each level from the inside out, such as 8@300,8@25"
        )
    return NetworkLevel(int(match[1]), float(match[2]) * GIB)
