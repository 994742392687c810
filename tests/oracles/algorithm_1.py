"""PALM's Algorithm 1 as printed, and where it differs from the strategies of the text.

Its second branch can never be taken: it asks whether weights, states and gradients fit after weights alone
did not. What it adds up in ACT it never looks at. Under its last branch the operand that stays is not
counted: Φ₁ has the input once for each part of the weights, Φ₂ the weights once for each part of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, inf
from typing import Literal

from phaze.tiles.tile import Sizes, Strategy, Training, allocate, forward_access, held, stationary

Printed = Literal["activation_stream", "weight_stream", "weight_stationary", "input_stationary"]

MEANS: dict[Printed, tuple[Strategy, ...]] = {
    "activation_stream": ("S_WSG",),
    "weight_stream": ("S_ACT",),
    "weight_stationary": ("S_PTY",),
    "input_stationary": ("S_PTY",),
}
"""What each printed strategy is called in the text."""

SHARES = (1 / 32, 1 / 16, 1 / 8, 5 / 16, 1 / 2, 5 / 8, 33 / 32, 5 / 4, 5 / 2, 25 / 4)
"""Sizes as shares of the SRAM, at which everything that can happen happens."""


def printed(operators: Sequence[Sizes], sram_bytes: float) -> list[tuple[Printed, float]]:
    """Return the strategy and Op_Fd_Access_Size of every operator, line by line as printed."""
    weights = sum(op.weights for op in operators)
    wsg = sum(op.wsg for op in operators)
    return [_printed(op, weights, wsg, sram_bytes) for op in operators]


def _printed(op: Sizes, weights: float, wsg: float, sram_bytes: float) -> tuple[Printed, float]:
    if weights <= sram_bytes:
        return "activation_stream", op.inputs + op.outputs
    if wsg <= sram_bytes:
        return "weight_stream", op.weights
    of_weights = ceil(op.weights / sram_bytes) * op.inputs
    of_output = ceil(op.outputs / sram_bytes) * op.weights
    if of_weights < of_output:
        return "weight_stationary", of_weights + op.outputs
    return "input_stationary", of_output + op.outputs


@dataclass(frozen=True)
class Difference:
    """An operator for which both ways were asked."""

    op: Sizes
    sram_bytes: float
    printed: Printed
    printed_bytes: float
    """Forward access as printed."""
    intended: Strategy
    intended_bytes: float
    stays: str
    """What stays by the text under S_PTY, else nothing."""

    @property
    def why(self) -> str:
        """Say what is different, and why; empty where nothing is."""
        if self.intended not in MEANS[self.printed]:
            return _REASONS[self.printed, self.intended]
        if self.stays and not self.printed.startswith(self.stays):
            return "the text compares ACT with W, the algorithm Φ₁ with Φ₂"
        if self.printed_bytes != self.intended_bytes:
            return "the operand that stays is not counted as printed"
        return ""


_REASONS: dict[tuple[Printed, Strategy], str] = {
    ("activation_stream", "S_WSG_ACT"): "activations would fit beside the weights, but ACT is not asked",
    ("activation_stream", "S_ACT"): "weights fit, but not with states and gradients; activations would",
    ("activation_stream", "S_PTY"): "weights fit, but neither with states and gradients nor do activations",
    ("weight_stationary", "S_ACT"): "activations fit, but ACT is not asked",
    ("input_stationary", "S_ACT"): "activations fit, but ACT is not asked",
}


def compare(
    operators: Sequence[Sizes], sram_bytes: float, training: Training | None = None
) -> list[Difference]:
    """Return both ways side by side for the operators of a tile."""
    strategy = allocate(*held(operators, training or Training()), sram_bytes)
    return [
        Difference(
            op,
            sram_bytes,
            name,
            size,
            strategy,
            forward_access(strategy, op, sram_bytes).total_bytes,
            stationary(op.inputs, op.weights) if strategy == "S_PTY" else "",
        )
        for op, (name, size) in zip(operators, printed(operators, sram_bytes), strict=True)
    ]


def differences(
    weights: Sequence[float] = SHARES,
    activations: Sequence[float] = SHARES,
    sram_bytes: float = 1.0,
    outputs: Sequence[float] = (0.5, 1.0, 2.0),
    states: float = 7.0,
    training: Training | None = None,
) -> list[Difference]:
    """Return both ways for one operator over sizes: of weights, of inputs, of outputs in inputs.

    Gradients and optimizer states are so many times the weights, without them in inference: with Adam and
    mixed precision 2 + 12 bytes beside 2.
    """
    training = training or Training()
    trained = 1.0 if training.backward else 0.0
    found: list[Difference] = []
    for weight, activation, output in product(weights, activations, outputs):
        op = Sizes(weight, trained * weight, trained * (states - 1) * weight, activation, output * activation)
        found += compare([op], sram_bytes, training)
    return found


@dataclass(frozen=True)
class Reason:
    """Why both ways differ, over all sizes at which they do so for this reason."""

    printed: Printed
    intended: Strategy
    why: str
    sizes: int
    """At how many sizes."""
    least: float
    """Smallest forward access as printed, as a multiple of the intended one; inf where that is nothing."""
    most: float


def reasons(found: Sequence[Difference]) -> list[Reason]:
    """Return where both ways differ, most frequent first; where they agree is left out."""
    grouped: dict[tuple[Printed, Strategy, str], list[float]] = {}
    for some in found:
        ratio = some.printed_bytes / some.intended_bytes if some.intended_bytes else inf
        if some.why:
            grouped.setdefault((some.printed, some.intended, some.why), []).append(ratio)
    rows = [Reason(*key, len(ratios), min(ratios), max(ratios)) for key, ratios in grouped.items()]
    return sorted(rows, key=lambda row: (-row.sizes, row.printed, row.intended, row.why))
