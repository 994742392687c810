"""Tokens dispatched to the experts of the busiest rank, for balanced routing or a model of imbalance.

Natural routing: a router's scores are normally distributed, and the scores of two tokens have a correlation.
A token visits the experts whose scores exceed a limit. With correlation 0 all experts are equally popular;
with correlation 1 all tokens visit the same experts. The correlation depends on the method of balancing.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.layout import BALANCED, NATURAL, Load, law_of_load
from phaze.spec.blocks import Balancing

POWER_LAW, MAX_VIO = "power_law_", "max_vio_"
DRAWS = 6
"""Number of random draws from a power law over which times are averaged; measurements use five."""
LARGEST_DRAW = 0.8
"""Largest draw relative to the number of tokens, before scaling to the total (`power_law_logits_v3`)."""
CORRELATIONS: dict[Balancing, float] = {"loss": 0.45, "none": 1.0}
"""Correlation of the scores of two tokens, by method of balancing. With an auxiliary loss it is fitted to two
pairs of runs with natural and forced routing; without balancing it is the limit (config/accuracy.md)."""
MOST_LOADS: dict[Balancing, float] = {"loss": 1.72}
"""Load of the busiest expert of a trained router over the mean, by method of balancing: 1 + MaxVio (Wang et
al. 2024, arXiv 2408.15664, Table 2). The runs of the fit have 16 experts a rank; with fewer, the correlation
would give a rank more than that."""
BIASED_VIOLATION = 0.04
"""MaxVio of experts balanced by biases (Wang et al. 2024, arXiv 2408.15664, Table 2)."""
ANGLES = 64
"""Points of the midpoint rule, whose error is then below 1e-4."""


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
def load_factor(
    load: Load, tokens: int, experts: int, per_token: int, ranks: int, balancing: Balancing = "loss"
) -> float:
    """Load of the busiest rank relative to balanced routing, for `tokens` tokens summed over all ranks."""
    law, number = law_of_load(load)
    if law == NATURAL:
        if balancing == "biases":
            return _busiest(BIASED_VIOLATION, experts, ranks)
        most = min(ranks, experts / per_token, MOST_LOADS.get(balancing, math.inf))
        return min(natural_factor(CORRELATIONS[balancing], experts, per_token, ranks), most)
    if law == POWER_LAW:
        rows = rank_loads(tokens, experts, per_token, ranks, load).sum(axis=1).mean()
        return float(rows * ranks / (tokens * per_token))
    return _busiest(number, experts, ranks) if law == MAX_VIO else number


def natural_factor(correlation: float, experts: int, per_token: int, ranks: int) -> float:
    """Expected load of the busiest rank over the mean, for a correlation of router scores from 0 to 1.

    A rank has a random choice of the experts, `experts / ranks` drawn without replacement.
    """
    of_rank = experts // ranks
    varied = (experts - of_rank) / max(experts - 1, 1) / of_rank
    return 1.0 + _largest_of(ranks) * _deviation(correlation, per_token / experts) * math.sqrt(varied)


def _deviation(correlation: float, share: float) -> float:
    """Standard deviation of the experts' loads over their mean, if tokens visit a `share` of the experts.

    The mean square of the popularities is the probability that two tokens visit the same expert: two normal
    variables of this correlation both exceed a limit. It is integrated over the angle whose sine is the
    correlation (Plackett, Biometrika 41, 1954).
    """
    if share == 1.0:
        return 0.0
    limit = NormalDist().inv_cdf(1.0 - share)
    step = math.asin(correlation) / ANGLES
    sines = (math.sin((i + 0.5) * step) for i in range(ANGLES))
    # The integral is the excess over share²: independent tokens visit one expert with probability share².
    excess = sum(math.exp(-(limit**2) / (1.0 + sine)) for sine in sines) * step / math.tau
    return math.sqrt(excess) / share


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
