"""Rows of the experts of the busiest rank, under balanced routing or a power law of it."""

from __future__ import annotations

from functools import cache

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError

BALANCED = "balanced"
LAW = "power_law_"
"""Before the exponent of a power law of routing."""
DRAWS = 6
"""Draws of a power law, over which times are averaged; measurements have five."""
MOST = 0.8
"""Largest draw over the tokens, before draws are scaled to all rows (`power_law_logits_v3`)."""


def exponent_of(distribution: str) -> float | None:
    """Exponent of the power law that a word means, None for balanced; PhazeError for another word."""
    if distribution == BALANCED:
        return None
    try:
        found = float(distribution.removeprefix(LAW)) if distribution.startswith(LAW) else 0.0
    except ValueError:
        found = 0.0
    if not 1 < found < 10:
        raise PhazeError(
            f"distribution must be {BALANCED}, or {LAW}a with 1 < a < 10, got {distribution[:40]}"
        )
    return found


@cache
def rank_loads(tokens: int, experts: int, per_token: int, ranks: int, distribution: str = BALANCED) -> Floats:
    """Rows by expert of the rank with most rows, (draws, experts a rank).

    Popularities of experts are drawn from a power law between 1 and 0.8 · tokens and scaled to all rows. An
    expert has at most every token once; what is over is spread over the ranks alike, to the experts with
    fewest rows. This follows the measurements of aiconfigurator (`_generate_power_law_distribution`), with
    draws of its own.
    """
    power = exponent_of(distribution)
    if power is None:
        return np.full((1, experts // ranks), tokens * per_token / experts)
    uniform = np.random.default_rng(0).random((DRAWS, experts))
    low, high = 1.0, max(MOST * tokens, 1.0) ** (1.0 - power)
    drawn = (low + (high - low) * uniform) ** (1.0 / (1.0 - power))
    rows = drawn / drawn.sum(axis=1, keepdims=True) * tokens * per_token
    over = np.maximum(rows - tokens, 0.0).sum(axis=1) / ranks
    shared = np.minimum(rows, tokens).reshape(DRAWS, ranks, experts // ranks)
    filled = np.array([[_filled(rank, more) for rank in own] for own, more in zip(shared, over, strict=True)])
    busiest = filled.sum(axis=2).argmax(axis=1)
    found: Floats = np.round(np.minimum(filled[np.arange(DRAWS), busiest], tokens))
    return found


def load_of(tokens: int, experts: int, per_token: int, ranks: int, distribution: str = BALANCED) -> float:
    """Rows of the busiest rank over those of balanced experts: `load` of a layout under a distribution."""
    rows = rank_loads(tokens, experts, per_token, ranks, distribution).sum(axis=1).mean()
    return float(rows * ranks / (tokens * per_token))


def _filled(rows: Floats, more: float) -> Floats:
    """Rows (E,) to which more are added, always to the experts with fewest."""
    order = np.sort(rows)
    levels = (np.cumsum(order) + more) / np.arange(1, len(order) + 1)
    level = levels[np.argmax(np.append(order[1:], np.inf) >= levels)]
    return np.maximum(rows, level) if more > 0 else rows
