"""What ZeRO and the optimizer do to memory, communication and the gradient update.

ZeRO shares over d replicas: 1 the optimizer state with the full-precision weights, 2 also the gradients, 3
also the weights (Rajbhandari et al., SC 2020, Section 5). Bytes of the whole states are `cost.memory`'s.

Bytes are what each device sends, and as many it receives, in the throughput-optimal ring:

    0: all-reduce of the gradients once per batch, 2 (d-1)/d g
    1: reduce-scatter of the gradients and all-gather of the weights once per batch, (d-1)/d (g + w)
    2: as 1, but gradients are reduced after every microbatch, because no device holds all of them
    3: as 2, and instead of the gather after the update one for every forward and every backward pass

The papers count 4 (d-1)/d w for one synchronisation, both directions against one bandwidth (Phaze,
equation 18); per direction it is 2 (d-1)/d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from phaze.base.errors import PhazeError
from phaze.cost.memory import Optimizer, Precision, parameter_bytes

Zero = Literal[0, 1, 2, 3]


@dataclass(frozen=True)
class StateTraffic:
    """Bytes that each device sends, for the parameters of one stage."""

    sync_bytes: float
    """Per batch, of gradients, before the update."""
    gather_bytes: float
    """Per batch, of updated weights, after the update."""
    reduce_bytes: float
    """Per microbatch, of gradients."""
    pass_bytes: float
    """Per forward pass, and again per backward pass: of weights."""

    def per_batch_bytes(self, microbatches: int) -> float:
        """Return all that is sent for a batch."""
        return self.sync_bytes + self.gather_bytes + microbatches * (self.reduce_bytes + 2 * self.pass_bytes)


def state_bytes(
    parameters: float, optimizer: Optimizer, precision: Precision, zero: Zero, data: int
) -> float:
    """Return the bytes of weights, gradients and optimizer state on each of d replicas."""
    _check(zero, data)
    size = parameter_bytes(optimizer, precision)
    shared = (
        (1, 1, data) if zero == 1 else (1, data, data) if zero == 2 else (data,) * 3 if zero else (1,) * 3
    )
    parts = (size.weights, size.gradients, size.optimizer)
    return parameters * sum(part / share for part, share in zip(parts, shared, strict=True))


def state_traffic(parameters: float, precision: Precision, zero: Zero, data: int) -> StateTraffic:
    """Return what d replicas send each other."""
    _check(zero, data)
    size = parameter_bytes("sgd", precision)
    once = (data - 1) / data * parameters
    gradients, weights = once * size.gradients, once * size.weights
    return StateTraffic(
        sync_bytes=2 * gradients if zero == 0 else gradients if zero == 1 else 0.0,
        gather_bytes=weights if zero in (1, 2) else 0.0,
        reduce_bytes=gradients if zero >= 2 else 0.0,
        pass_bytes=weights if zero == 3 else 0.0,
    )


def update_bytes(
    parameters: float,
    optimizer: Optimizer,
    precision: Precision,
    zero: Zero,
    data: int,
    *,
    states: bool = True,
) -> float:
    """Return the bytes that a replica's update moves from and to memory.

    Full-precision weights are loaded and stored back (PALM, IV.A). With `states` false that is all, as in
    PALM's text; otherwise also the gradients are loaded, optimizer states loaded and stored, and the weights
    for the next batch stored in working precision where that is another.
    """
    _check(zero, data)
    size = parameter_bytes(optimizer, precision)
    master = parameter_bytes("sgd", precision).optimizer or size.weights
    moved = 2.0 * master
    if states:
        rest = size.optimizer - (master if precision == "mixed" else 0)
        moved += size.gradients + 2 * rest + (size.weights if precision == "mixed" else 0)
    return parameters * moved / (data if zero else 1)


def _check(zero: int, data: int) -> None:
    if zero not in get_args(Zero):
        raise PhazeError(f"pipeline: zero must be 0, 1, 2 or 3, got {zero}")
    if data < 1:
        raise PhazeError(f"pipeline: data must be >= 1, got {data}")
