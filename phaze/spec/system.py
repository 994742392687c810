"""The cluster in which the accelerators work."""

from pydantic import Field

from phaze.spec.noun import Noun
from phaze.spec.settings import Name, PositiveFloat, PositiveInt


class System(Noun):
    """A cluster of equal accelerators on a flat network."""

    devices: int = Field(1024, gt=0, le=1_000_000)
    """Accelerators in the cluster, K."""
    network_bandwidth_bytes_per_s: float = Field(4294967296.0, gt=0)
    """Bandwidth between any two devices."""
    hbm_bandwidth_bytes_per_s: float = Field(1.2e12, gt=0)
    """Bandwidth between the HBM and the global buffer of a device."""
    clock_hz: float = Field(1.05e9, gt=0)
    """Clock of all cores."""


class Scenario(System):
    """A cluster with the batch that it trains and the area that a chip may have."""

    global_batch: PositiveInt = 4096
    """Samples in a batch."""
    area_limit_mm2: PositiveFloat | Name = "tpu-v4"
    """Largest area of a chip, or the name of an architecture whose area is the limit."""
