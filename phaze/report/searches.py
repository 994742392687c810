"""What the trials of search strategies say: how far each comes, and what every hysteresis level chooses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.ranking import name_ranks, order, tied
from phaze.tables import MILESTONES, Searches, Walks

WALK = "hysteresis-"
"""Beginning of the name of a walk down the areas; the level follows."""


def optima(trials: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Return the largest throughput by (model, scope), as the certified strategy proves it."""
    proven = trials[trials["strategy"] == "certified"]
    return {
        (str(model), str(scope)): float(mine["samples_per_s"].max())
        for (model, scope), mine in proven.groupby(["model", "scope"])
    }


def choose_by_hysteresis(trials: pd.DataFrame) -> pd.DataFrame:
    """Return table walks: what the walk down the areas chooses at every level, among what it visits."""
    walks = trials[trials["strategy"].str.startswith(WALK)]
    rows = [
        {
            **_best(seen)[["architecture", "area_um2", "samples_per_s"]],
            "model": model,
            "scope": scope,
            "hysteresis": int(str(strategy).removeprefix(WALK)),
            "visited": len(seen),
        }
        for (model, scope, strategy), seen in walks.groupby(["model", "scope", "strategy"])
    ]
    return Walks.check(pd.DataFrame(rows)[list(Walks.fields())]) if rows else Walks.empty()


def _best(seen: pd.DataFrame) -> pd.Series:
    """Return the best of what was evaluated: throughput, then area, then name."""
    with np.errstate(divide="ignore"):
        cost = 1.0 / seen["samples_per_s"].to_numpy()
    first = order(cost, seen["area_um2"].to_numpy(), name_ranks(seen["architecture"]))[0]
    best: pd.Series = seen.iloc[first]
    return best


def summarise_searches(trials: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """Return table searches, of what searches everything; none of a model that fits nowhere."""
    best = optima(trials)
    whole = trials[trials["scope"] == "whole"]
    rows = [
        {"model": model, "strategy": strategy, **_summary(mine, best[str(model), "whole"], tolerance)}
        for (model, strategy), mine in whole.groupby(["model", "strategy"])
        if (model, "whole") in best
    ]
    return Searches.check(pd.DataFrame(rows)) if rows else Searches.empty()


def _summary(trials: pd.DataFrame, optimum: float, tolerance: float) -> dict[str, float]:
    """Return what all runs of a strategy have in common."""
    runs = list(curves(trials))
    near = np.array([_first(run >= (1.0 - tolerance) * optimum) for run in runs])
    optimal = np.array([_first(tied(run) >= tied(np.array([optimum]))) for run in runs])
    return {
        "seeds": len(runs),
        "evaluations": int(np.median([len(run) for run in runs])),
        **{f"after_{m}": _median(run[min(m, len(run)) - 1] for run in runs) / optimum for m in MILESTONES},
        "final": _median(run[-1] for run in runs) / optimum,
        "near": float(np.median(near)),
        "optimal": float(np.median(optimal)),
        "share_near": float(np.isfinite(near).mean()),
        "share_optimal": float(np.isfinite(optimal).mean()),
    }


def curves(trials: pd.DataFrame) -> Iterator[Floats]:
    """Yield for every seed the best throughput after 1, 2, … evaluations."""
    for _, run in trials.groupby("seed"):
        yield run.sort_values("evaluation")["best_samples_per_s"].to_numpy(np.float64)


def _median(values: Iterator[float]) -> float:
    return float(np.median(list(values)))


def _first(reached: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    """Return after how many evaluations this first holds, infinite if never."""
    return float(np.argmax(reached)) + 1.0 if reached.any() else np.inf
