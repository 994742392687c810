"""Searches by chance, recalled with what they were told: told the same again, they go the same way.

A sampler with a seed suggests what follows from the values that it was told before. A search whose
architectures still have the throughputs of last time therefore need not be made again, which takes a hundred
times as long as to look these up.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from phaze.search.hysteresis import Evaluate
from phaze.search.suggestions import SIZES, suggested
from phaze.tables.evaluations import Plain
from phaze.tables.recalled import Recalled

Search = tuple[list[int], list[float]]
"""Rows of architectures in the order of their first suggestion, and the throughputs that were told."""


@dataclass(frozen=True)
class Searches:
    """Searches that are recalled, in the place of `search.suggestions.suggested`."""

    recalled: Recalled

    def __call__(
        self, architectures: pd.DataFrame, evaluate: Evaluate, seed: int, evaluations: int, suggestions: int
    ) -> list[int]:
        """Return the rows of the architectures in the order of their first suggestion."""

        def make() -> Search:
            rows = suggested(architectures, evaluate, seed, evaluations, suggestions)
            return rows, told(rows)

        def told(rows: list[int]) -> list[float]:
            found: list[float] = evaluate(architectures.iloc[rows])["samples_per_s"].tolist()
            return found

        grid: Plain = architectures[list(SIZES)].to_numpy().tolist()
        asked: list[Plain] = [grid, seed, evaluations, suggestions]
        rows, _ = self.recalled.of(asked, make, lambda known: told(known[0]) == known[1])
        return rows
