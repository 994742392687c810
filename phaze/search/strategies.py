"""Compare search strategies by the best throughput found after each exact evaluation.

An exact evaluation is the best throughput of one architecture over everything else that is searched, with
exact schedules and placements. It counts once per strategy, even if the strategy asks for it again.

- *certified* evaluates the architectures that the bounds cannot exclude, by increasing lower bound. Every
  architecture a has a time T(a) >= lower(a), and a feasible value above it. An architecture with lower(a) >
  min feasible is not the best, so the best of the others is the best of all.
- *hysteresis-1* to *hysteresis-8* walk from the largest area down (`search.hysteresis`).
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from phaze.base.ranking import name_ranks, tied
from phaze.search.hysteresis import Evaluate, evaluated, walk_areas
from phaze.search.stage import NOISE
from phaze.tables import Trials

LEVELS = range(1, 9)
"""Hysteresis levels of Figures 8 and 9."""


def compare_strategies(
    architectures: pd.DataFrame,
    bounds: pd.DataFrame,
    evaluate: Evaluate,
    *,
    model: str,
    scope: str,
    area_band_um2: float,
) -> pd.DataFrame:
    """Table `trials` of all strategies.

    `bounds` as in `certified`; `evaluate` returns the exact throughputs of the search that `scope` names.
    """
    chips = architectures.sort_values("architecture", ignore_index=True)
    open_ = certified(chips, bounds)
    trials = [_trials("certified", evaluated(chips.iloc[open_], evaluate))] if open_ else []
    trials += _walks(chips, evaluate, model, area_band_um2)
    return Trials.check(
        pd.concat(trials, ignore_index=True).assign(model=model, scope=scope)[list(Trials.fields())]
    )


def certified(architectures: pd.DataFrame, bounds: pd.DataFrame) -> list[int]:
    """Rows that the bounds cannot rule out as best, sorted by lower bound, area and name.

    `bounds` holds lower_s and feasible_s of the time per batch by architecture. Times are compared on the
    grid of `base.ranking`, after widening the bounds by more than the rounding errors.
    """
    by_chip = bounds.loc[architectures["architecture"]]
    lower = tied(by_chip["lower_s"].to_numpy() * (1.0 - NOISE))
    open_ = np.isfinite(lower) & (lower <= tied(by_chip["feasible_s"].to_numpy() * (1.0 + NOISE)).min())
    keys = (name_ranks(architectures["architecture"]), architectures["area_um2"].to_numpy(), lower)
    return [int(row) for row in np.lexsort(keys) if open_[row]]


def _walks(
    architectures: pd.DataFrame, evaluate: Evaluate, model: str, area_band_um2: float
) -> Iterator[pd.DataFrame]:
    """Yield the trials of the descending-area search at each hysteresis level, cut from its longest run."""
    longest = walk_areas(
        architectures, evaluate, model=model, hysteresis=max(LEVELS), area_band_um2=area_band_um2
    )
    for level in LEVELS:
        yield _trials(f"hysteresis-{level}", longest[longest["level"] <= level])


def _trials(strategy: str, evaluations: pd.DataFrame) -> pd.DataFrame:
    """Evaluations of one run of a strategy, in order."""
    return evaluations[["architecture", "area_um2", "samples_per_s"]].assign(
        strategy=strategy,
        evaluation=np.arange(1, len(evaluations) + 1),
        best_samples_per_s=evaluations["samples_per_s"].cummax(),
    )
