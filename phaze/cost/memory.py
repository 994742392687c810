"""Memory of a pipeline stage in steady state (Phaze, Appendix B.1).

A device that holds the stage with layer set S, s-th from the end of the pipeline, stores

    sum over S of (weights + gradients + optimizer state + activations) + in_flight(s) * stashed(S)

The activations are those of the one microbatch at work. `in_flight` counts the microbatches whose forward
pass is done and whose backward pass is not: s - 1 under 1F1B, and under GPipe the microbatches of a pipeline,
ceil(B/d), as the paper replaces s - 1 by B/d (one more than strictly needed when activations are stashed: the
microbatch at work is counted twice). `stashed` is what is kept of each: all activations, or, where the stage
recomputes them, the tensors on its incoming edges. The last stage never recomputes, so under GPipe it stashes
all activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Optimizer = Literal["sgd", "sgd-momentum", "adam"]
Precision = Literal["half", "mixed", "single"]
Schedule = Literal["1f1b", "gpipe"]
Gradients = Literal["every-stage", "first-stage"]
"""Whose exchange of gradients a batch waits for: the longest of any stage, or the first's (Phaze, (18))."""


@dataclass(frozen=True)
class ParameterBytes:
    """Bytes that a device stores for one parameter."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def static(self) -> int:
        """Return all of it: what a layer occupies whatever is in flight."""
        return self.weights + self.gradients + self.optimizer


_STATES: dict[Optimizer, int] = {"sgd": 0, "sgd-momentum": 1, "adam": 2}
"""Values that an optimizer keeps for each parameter: none, the momentum, both moments."""

_SIZES: dict[Precision, tuple[int, int, int, int]] = {
    "half": (2, 2, 0, 2),
    "mixed": (2, 2, 4, 4),
    "single": (4, 4, 0, 4),
}
"""Bytes of a weight, a gradient, a master copy of the weight, and an optimizer state.

Half with SGD is the paper's 2 * weights. Mixed is that of Micikevicius et al., ICLR 2018: 16 bytes in all
with Adam, as in Rajbhandari et al., SC 2020, Section 3.1.
"""


def parameter_bytes(optimizer: Optimizer, precision: Precision) -> ParameterBytes:
    """Return the bytes of weights, gradients and optimizer state of one parameter."""
    weight, gradient, master, state = _SIZES[precision]
    return ParameterBytes(weight, gradient, master + _STATES[optimizer] * state)


def microbatches_in_flight(schedule: Schedule, stage: int, microbatches: int) -> int:
    """Return how many microbatches the stage-th stage from the end stashes, of those of its pipeline."""
    return stage - 1 if schedule == "1f1b" else microbatches


def stage_memory_bytes(
    constant_bytes: NDArray[np.float64],
    stashed_bytes: NDArray[np.float64],
    in_flight: int | NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the memory of stages: what is there once, and what each microbatch in flight adds."""
    return constant_bytes + in_flight * stashed_bytes


def most_in_flight(
    constant_bytes: NDArray[np.float64], stashed_bytes: NDArray[np.float64], memory_bytes: float, limit: int
) -> NDArray[np.int64]:
    """Return how many microbatches in flight fit, at most `limit`, and -1 where not even none fits.

    The memory is affine in their number, so that one division answers for every position of a stage.
    """
    spare = memory_bytes - constant_bytes
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(stashed_bytes > 0, np.floor(spare / stashed_bytes), limit)
    return np.where(spare < 0, -1, np.minimum(room, limit)).astype(np.int64)
