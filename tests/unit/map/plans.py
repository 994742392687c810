"""Plans small enough to count their bytes by hand."""

from __future__ import annotations

from collections.abc import Sequence

from phaze.cost.network.network import BOTH_DIRECTIONS, Flat
from phaze.layout import Layout
from phaze.plan.plan import Claim, Execution, Plan, Stage

BANDWIDTH = 1e9


def stage(data: int, tensor: int = 1, *, arriving: float = 6e6, departing: float = 6e6) -> Stage:
    """Return a stage with these numbers of replicas and tensor-parallel ranks."""
    return Stage(
        first_layer=0,
        last_layer=0,
        layout=Layout(tp=tensor, dp=data),
        time_per_sample_s=0.03 / data,
        forward_s=0.01,
        recompute_s=0.005,
        backward_s=0.015,
        arriving_bytes=arriving,
        longest_arriving_bytes=arriving,
        departing_bytes=departing,
        longest_departing_bytes=departing,
        weight_bytes=8e6,
        fixed_bytes=0.0,
        stash_bytes=0.0,
        work_bytes=0.0,
        forward_hbm_bytes=0.0,
        recompute_hbm_bytes=0.0,
        backward_hbm_bytes=0.0,
        forward_reduced_bytes=0.0,
        recompute_reduced_bytes=0.0,
        backward_reduced_bytes=0.0,
    )


def plan(stages: Sequence[Stage], microbatches: int, schedule: str = "1f1b") -> Plan:
    """Return a plan with one sample in a microbatch."""
    claim = Claim(0.03, 0.0, Flat(BANDWIDTH, BOTH_DIRECTIONS), 1e12)
    return Plan(tuple(stages), schedule, microbatches, Execution(overlap_sync=schedule == "2bw"), claim)
