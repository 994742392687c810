"""Scatter of repeated measurements of operators, which shows whether a machine was busy."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from phaze.base.units import percent

MOST_WORST = 3
"""Number of operators that are named as those with the largest scatter."""
MOST_SCATTER = 0.1
"""Relative scatter, and relative difference of parts and whole, above which there is a warning."""


class Scatter(NamedTuple):
    """Standard deviation over the rounds of a measurement, as fractions of the median."""

    step: float
    """That of the whole module's step."""
    operators: float
    """That of the sum of all operators, run one by one."""
    worst: tuple[str, ...]
    """Operators with the largest deviations in seconds, the largest first."""

    def in_words(self, total_s: float, step_s: float) -> Iterator[str]:
        """Yield a line on the scatter, and warnings where times cannot be trusted.

        `total_s` is the time of the operators one by one, `step_s` that of the whole module.
        """
        yield (
            f"scatter of the repeats (standard deviation): {percent(self.step)} of the whole module, "
            f"{percent(self.operators)} of the operators"
        )
        if max(self.step, self.operators) > MOST_SCATTER:
            yield (
                f"warning: the repeats scatter by more than {percent(MOST_SCATTER, 0)}, most of it in "
                f"{', '.join(self.worst)}. The machine may be busy, or its clock changes: profile again "
                "while nothing else runs"
            )
        longer = total_s / step_s - 1 if step_s else 0.0
        if abs(longer) > MOST_SCATTER:
            which = "longer" if longer > 0 else "less"
            yield (
                f"warning: the operators, from which stages are predicted, take {percent(abs(longer))} "
                f"{which} one by one than the whole module. Profile again on an idle machine; if it stays, "
                "a larger --microbatch hides the time to call operators"
            )


def scatter_of(
    names: Sequence[str], times_s: Sequence[Sequence[tuple[float, float]]], steps_s: Sequence[float]
) -> Scatter:
    """Scatter of the rounds: times of the passes of every operator (R, N, 2), and of the whole step (R,)."""
    by_operator = [[sum(passes) for passes in rounds] for rounds in zip(*times_s, strict=True)]
    sums_s = [sum(operators_s) for operators_s in zip(*by_operator, strict=True)]
    deviations_s = map(statistics.pstdev, by_operator)
    worst = sorted(zip(deviations_s, names, strict=True), key=lambda pair: -pair[0])[:MOST_WORST]
    step, operators = (statistics.pstdev(s) / (statistics.median(s) or 1.0) for s in (steps_s, sums_s))
    return Scatter(step, operators, tuple(name for _, name in worst))
