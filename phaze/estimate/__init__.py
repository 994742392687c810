"""Estimate: from operators and core designs to latencies and energies."""

from phaze.estimate.loads import Hardware
from phaze.estimate.operators import estimate_operators
from phaze.estimate.space import (
    area_um2,
    describe_named,
    enumerate_grid,
    enumerate_smaller,
    within_limit,
)

__all__ = [
    "Hardware",
    "area_um2",
    "describe_named",
    "enumerate_grid",
    "enumerate_smaller",
    "estimate_operators",
    "within_limit",
]
