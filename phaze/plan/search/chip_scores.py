"""Scores by which chips are compared: on each chip an increasing function of the step time.

The step time itself, the area per throughput and the price per throughput are a chip's rate times its step
time. Energy has a fixed part as well, which no layout on the chip can avoid, and leaks at the rate. Less is
better. The score of a bound on the step time is a bound on the score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from phaze.base.arrays import Floats, Ints

if TYPE_CHECKING:
    from phaze.plan.question import PlanQuestion
    from phaze.plan.search.planned import PlannedLayout


@dataclass(frozen=True, eq=False)
class ChipScores:
    """Score of every chip for its step time T: at least fixed + rate · T, and that without `of_plan`."""

    fixed: Floats
    """Least score of any layout on every chip for T = 0, (D,)."""
    rates: Floats
    """Increase of the score of every chip per second of T, positive, (D,)."""
    of_plan: Callable[[int, PlanQuestion, PlannedLayout], float] | None = None
    """Score of a plan on a chip, if it depends on more than the step time."""

    @classmethod
    def of_rates(cls, rates: Sequence[float]) -> Self:
        """Scores that are proportional to the step time."""
        return cls(np.zeros(len(rates)), np.array(rates, dtype=float))

    def bounds(self, bounds_s: Floats, places: Sequence[int] | Ints) -> Floats:
        """Lower bounds on the scores of some chips from those on the step times of all, (P,)."""
        at = np.asarray(places)
        return self.at(at, bounds_s[at])

    def at(self, places: Ints, times_s: Floats | float) -> Floats:
        """Least scores of some chips for their step times, (P,)."""
        scores: Floats = self.fixed[places] + self.rates[places] * times_s
        return scores

    def longest_s(self, places: Sequence[int] | Ints, scores: float | Floats) -> float:
        """Step time in seconds from which none of some chips scores less than its one of `scores`."""
        at = np.asarray(places)
        return float(((scores - self.fixed[at]) / self.rates[at]).max(initial=0.0))

    def alike(self, places: Sequence[int]) -> bool:
        """True if some chips have the same score for the same step time."""
        at = list(places)
        return bool(np.ptp(self.rates[at]) == 0 and np.ptp(self.fixed[at]) == 0)
