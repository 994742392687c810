"""What a stage of a plan does and holds, whoever planned it: planners say it, simulations start from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageWork:
    """Seconds and tensors of one microbatch on one replica, and bytes on each of its devices."""

    forward_s: float
    recompute_s: float
    backward_s: float
    arriving_bytes: float
    longest_arriving_bytes: float
    departing_bytes: float
    longest_departing_bytes: float
    weight_bytes: float
    fixed_bytes: float
    stash_bytes: float
    work_bytes: float
    forward_hbm_bytes: float
    recompute_hbm_bytes: float
    backward_hbm_bytes: float
    forward_reduced_bytes: float
    recompute_reduced_bytes: float
    backward_reduced_bytes: float
