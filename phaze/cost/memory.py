"""Memory of a pipeline stage in steady state (Phaze, Appendix B.1), with ZeRO and optimizer states.

A device that runs the stage with layer set S, the s-th from the end of the pipeline, stores

    sum over S of (weights + gradients + optimizer state + activations) + in_flight(s) * stashed(S)

The activations are those of the one microbatch in execution. `in_flight` is the number of microbatches whose
forward pass is done and whose backward pass is not. Under 1F1B it is s - 1. Under GPipe it is the number of
microbatches of a pipeline, ceil(B/d), as the paper replaces s - 1 by B/d. That is one more than needed when
activations are stashed, because the microbatch in execution is counted twice. `stashed` is the memory per
microbatch in flight: all activations, or, if the stage recomputes them, the tensors on its incoming edges.
The last stage never recomputes, so under GPipe it stashes all activations.

ZeRO shards the states of weights over d replicas: 1 the optimizer state with the full-precision weights, 2
also the gradients, 3 also the weights (Rajbhandari et al., SC 2020, Section 5).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from phaze.base.arrays import Floats, Ints, Number
from phaze.layout import Optimizer, Precision

HALF = 2
"""Bytes of a half-precision element."""
SINGLE = 4
"""Bytes of a single-precision element."""
Schedule = Literal["1f1b", "gpipe"]
Gradients = Literal["every-stage", "first-stage"]
"""Gradient synchronisation that a batch waits for: the longest, or the first stage's (Phaze, (18))."""
_STATES: dict[Optimizer, int] = {"sgd": 0, "sgd-momentum": 1, "adam": 2, "adam-bf16": 2, "adam-fp8": 2}
"""Number of values that an optimizer stores per parameter: none, the momentum, or both moments."""
_SMALLER: dict[Optimizer, int] = {"adam-bf16": 2, "adam-fp8": 1}
"""Bytes of each of these values, if the precision does not decide. Eight bits have one scale per tensor."""
_SIZES: dict[Precision, tuple[int, int, int, int]] = {
    "half": (2, 2, 0, 2),
    "mixed": (2, 2, 4, 4),
    "single": (4, 4, 0, 4),
}
"""Bytes per weight, gradient, master weight and optimizer state.

Half precision with SGD is the paper's 2 * weights. Mixed precision follows Micikevicius et al., ICLR 2018: 16
bytes in all with Adam, as in Rajbhandari et al., SC 2020, Section 3.1.
"""


@dataclass(frozen=True)
class ParameterBytes:
    """Bytes that a device stores per parameter."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def static(self) -> int:
        """Bytes used at all times, independent of the microbatches in flight."""
        return self.weights + self.gradients + self.optimizer


def parameter_bytes(
    optimizer: Optimizer, precision: Precision, gradient_bytes: int | None = None
) -> ParameterBytes:
    """Bytes of weights, gradients and optimizer state per parameter.

    `gradient_bytes` is the size of the type in which a software stack accumulates gradients in mixed
    precision; 2 by default.
    """
    weight, gradient, master, state = _SIZES[precision]
    # Only mixed precision has a choice: elsewhere gradients have the type of the weights.
    if gradient_bytes is not None and precision == "mixed":
        gradient = gradient_bytes
    state = _SMALLER.get(optimizer, state)
    return ParameterBytes(weight, gradient, master + _STATES[optimizer] * state)


def microbatches_in_flight(schedule: Schedule, stage: int, microbatches: int) -> int:
    """Number of in-flight microbatches that a stage stashes; `stage` counts from the pipeline's end."""
    return stage - 1 if schedule == "1f1b" else microbatches


def most_in_flight(constant_bytes: Floats, stashed_bytes: Floats, memory_bytes: float, limit: int) -> Ints:
    """Maximum number of in-flight microbatches that fit in memory, at most `limit`; -1 if not even zero fit.

    Memory is affine in their number, so one division gives the answer for every position of a stage.
    """
    spare = memory_bytes - constant_bytes
    with np.errstate(divide="ignore", invalid="ignore"):
        # A stage that stashes nothing is limited by the schedule alone; the division by 0 is discarded.
        room = np.where(stashed_bytes > 0, np.floor(spare / stashed_bytes), limit)
    return np.where(spare < 0, -1, np.minimum(room, limit)).astype(np.int64)


def sharers(replicas: Number, zero: Number, first: int) -> Number:
    """Number of replicas over which a state is sharded that ZeRO shards from stage `first` on; 1 before."""
    return 1 + (replicas - 1) * (zero >= first)


def state_bytes(parameters: Number, size: ParameterBytes, zero: Number, replicas: Number) -> Number:
    """Bytes of weights, gradients and optimizer state on each of `replicas` replicas."""
    return parameters * (
        size.weights / sharers(replicas, zero, 3)
        + size.gradients / sharers(replicas, zero, 2)
        + size.optimizer / sharers(replicas, zero, 1)
    )


def update_bytes(
    parameters: Number, optimizer: Optimizer, precision: Precision, zero: Number, replicas: Number
) -> Number:
    """Memory traffic in bytes of a replica's optimizer step.

    Full-precision weights are loaded and stored back (PALM, IV.A). Gradients are loaded, optimizer states are
    loaded and stored, and weights are stored in working precision if that differs.
    """
    size = parameter_bytes(optimizer, precision)
    # SGD has no states, so what its optimizer stores is the master copy of the weights.
    master = parameter_bytes("sgd", precision).optimizer or size.weights
    states = size.optimizer - (master if precision == "mixed" else 0)
    moved = 2.0 * master + size.gradients + 2 * states + (size.weights if precision == "mixed" else 0)
    return parameters * moved / sharers(replicas, zero, 1)
