"""Tokens dispatched to the experts of the busiest rank, for balanced routing or a model of imbalance."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.layout import BALANCED, Load, law_of_load

POWER_LAW, MAX_VIO = "power_law_", "max_vio_"
DRAWS = 6
"""Number of random draws from a power law over which times are averaged; measurements use five."""
LARGEST_DRAW = 0.8
"""Largest draw relative to the number of tokens, before scaling to the total (`power_law_logits_v3`)."""


def exponent_of(distribution: str) -> float | None:
    """Exponent of a power-law load distribution; None if balanced, PhazeError for any other value."""
    law, number = law_of_load(distribution)
    if law != POWER_LAW and distribution != BALANCED:
        raise PhazeError(
            f"distribution must be {BALANCED} or {POWER_LAW}a with 1 < a < 10, got {distribution[:40]}"
        )
    return number if law else None


@cache
def rank_loads(tokens: int, experts: int, per_token: int, ranks: int, distribution: str = BALANCED) -> Floats:
    """Tokens dispatched to each expert of the busiest rank, (draws, experts per rank).

    Expert popularities are drawn from a power law between 1 and 0.8 · tokens and scaled to the total. An
    expert receives every token at most once. The excess is spread evenly over the ranks, to the experts with
    the fewest tokens. This follows the measurements of aiconfigurator (`_generate_power_law_distribution`),
    with different random draws.
    """
    power = exponent_of(distribution)
    if power is None:
        return np.full((1, experts // ranks), tokens * per_token / experts)
    # Inverse transform sampling: the cumulative power law is inverted at uniform draws. The seed is fixed,
    # so that equal questions have equal answers.
    uniform = np.random.default_rng(0).random((DRAWS, experts))
    low, high = 1.0, max(LARGEST_DRAW * tokens, 1.0) ** (1.0 - power)
    drawn = (low + (high - low) * uniform) ** (1.0 / (1.0 - power))
    rows = drawn / drawn.sum(axis=1, keepdims=True) * tokens * per_token
    # An expert cannot receive more tokens than there are; others receive what is above that.
    excesses = np.maximum(rows - tokens, 0.0).sum(axis=1) / ranks
    capped = np.minimum(rows, tokens).reshape(DRAWS, ranks, experts // ranks)
    filled = np.array(
        [
            [_levelled(rows_of_rank, excess) for rows_of_rank in rows_of_ranks]
            for rows_of_ranks, excess in zip(capped, excesses, strict=True)
        ]
    )
    # The step waits for the rank with the most tokens.
    busiest = filled.sum(axis=2).argmax(axis=1)
    busiest_rows: Floats = np.round(np.minimum(filled[np.arange(DRAWS), busiest], tokens))
    return busiest_rows


@cache
def load_factor(load: Load, tokens: int, experts: int, per_token: int, ranks: int) -> float:
    """Load of the busiest rank relative to balanced routing, for `tokens` tokens summed over all ranks."""
    law, number = law_of_load(load)
    if law == POWER_LAW:
        rows = rank_loads(tokens, experts, per_token, ranks, load).sum(axis=1).mean()
        return float(rows * ranks / (tokens * per_token))
    return _busiest(number, experts, ranks) if law == MAX_VIO else number


def _busiest(violation: float, experts: int, ranks: int) -> float:
    """Expected load of the busiest rank over the mean, if the busiest expert's load is 1 + violation.

    Expert loads are assumed independent and normal. Their deviation follows from the largest load of all
    experts. The deviation of a rank is smaller by the square root of its number of experts. With one expert
    per rank the result is 1 + violation; with all experts on one rank it is 1.
    """
    # The expected maximum of a single variable is 0; that of two avoids a division by zero.
    deviation = violation / max(_largest_of(experts), _largest_of(2))
    return 1.0 + deviation * _largest_of(ranks) / math.sqrt(experts / ranks)


def _largest_of(number: int) -> float:
    """Expected maximum of `number` standard normal variables (Blom 1958)."""
    return float(NormalDist().inv_cdf((number - 0.375) / (number + 0.25)))


def _levelled(tokens: Floats, excess: float) -> Floats:
    """Dispatched tokens per expert (E,) after `excess` tokens have filled up the least loaded experts."""
    order = np.sort(tokens)
    # Water filling: raising the i lowest loads to a common level uses up the excess. The right i is the
    # first whose level stays below the next load.
    levels = (np.cumsum(order) + excess) / np.arange(1, len(order) + 1)
    level = levels[np.argmax(np.append(order[1:], np.inf) >= levels)]
    return np.maximum(tokens, level) if excess > 0 else tokens
