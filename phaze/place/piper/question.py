"""What a user asks of Piper about an instance."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from phaze.errors import PhazeError
from phaze.place.piper.instance import Instance
from phaze.place.piper.layers import Cluster
from phaze.units import GIB


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
    max_downsets: int | None = None
    """None: what the planner allows."""

    def __post_init__(self) -> None:
        """Refuse what no cluster has."""
        for name, value in (("memory-gib", self.memory_gib), ("bandwidth-gib", self.bandwidth_gib)):
            if value is not None and not 0 < value < math.inf:
                raise PhazeError(f"place: --{name}: must be finite and > 0, got {value:g}")

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
