"""What data-parallel replicas send each other by ZeRO stage, in closed form (Rajbhandari et al., Section 7).

Bytes are what each device sends, and as many it receives, in the throughput-optimal ring:

    0: all-reduce of the gradients once per batch, 2 (d-1)/d g
    1: reduce-scatter of the gradients and all-gather of the weights once per batch, (d-1)/d (g + w)
    2: as 1, but gradients are reduced after every microbatch, because no device holds all of them
    3: as 2, and instead of the gather after the update one for every forward and every backward pass
"""

from __future__ import annotations

from dataclasses import dataclass

from phaze.cost.memory import parameter_bytes
from phaze.layout import Precision, Zero


@dataclass(frozen=True)
class StateTraffic:
    """Bytes sent by each device for the parameters of one stage."""

    sync_bytes: float
    """Per batch, gradients before the update."""
    gather_bytes: float
    """Per batch, updated weights after the update."""
    reduce_bytes: float
    """Per microbatch, gradients."""
    pass_bytes: float
    """Per forward pass, and again per backward pass: weights."""

    def per_batch_bytes(self, microbatches: int) -> float:
        """Return all that is sent for a batch."""
        return self.sync_bytes + self.gather_bytes + microbatches * (self.reduce_bytes + 2 * self.pass_bytes)


def state_traffic(parameters: float, precision: Precision, zero: Zero, data: int) -> StateTraffic:
    """Return the bytes that d replicas exchange."""
    size = parameter_bytes("sgd", precision)
    once = (data - 1) / data * parameters
    gradients, weights = once * size.gradients, once * size.weights
    return StateTraffic(
        sync_bytes=2 * gradients if zero == 0 else gradients if zero == 1 else 0.0,
        gather_bytes=weights if zero in (1, 2) else 0.0,
        reduce_bytes=gradients if zero >= 2 else 0.0,
        pass_bytes=weights if zero == 3 else 0.0,
    )
