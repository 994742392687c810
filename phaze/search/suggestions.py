"""What Bayesian optimisation evaluates: the tree-structured Parzen estimator of Optuna on the paper's grid.

The parameters are the places of the sizes in the grid (0 for the smallest, counted up), because the sizes are
powers of two and their order matters; what the grid derives from them (lanes, L2 buffers, bandwidth) is no
parameter. One joint estimator (`multivariate`) sees how they depend on each other through the area limit.

A combination that the area rules leave out costs no evaluation: it ends as pruned, which the estimator
counts among the bad ones. One that was evaluated before is told again and costs none either. Both are
suggestions; their number ends a study that goes round in circles.

A sampler with a seed suggests what follows from the values that it was told before. A search whose
architectures still have the throughputs of last time is therefore recalled and not made again, which takes a
hundred times as long as to look these up.
"""

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.trial import TrialState

from phaze.base.store import Plain, Store
from phaze.search.hysteresis import Evaluate

SIZES = ("num_tc", "num_vc", "pe_x", "pe_y", "glb_bytes")
"""What tells the architectures of a grid apart."""


def suggested(
    architectures: pd.DataFrame, evaluate: Evaluate, seed: int, evaluations: int, suggestions: int
) -> list[int]:
    """Rows of the architectures in the order of their first suggestion."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = TPESampler(seed=seed, multivariate=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    axes, rows = _axes(architectures), _rows(architectures)
    found: dict[int, float] = {}
    for _ in range(suggestions):
        trial = study.ask(axes)
        row = rows.get(tuple(trial.params[size] for size in SIZES))
        if row is None:
            study.tell(trial, state=TrialState.PRUNED)
            continue
        if row not in found:
            found[row] = float(evaluate(architectures.iloc[[row]])["samples_per_s"].iloc[0])
        study.tell(trial, found[row])
        if len(found) == min(evaluations, len(rows)):
            break
    return list(found)


def suggested_again(
    store: Store,
    architectures: pd.DataFrame,
    evaluate: Evaluate,
    seed: int,
    evaluations: int,
    suggestions: int,
) -> list[int]:
    """Rows as from `suggested`, recalled where all architectures have the throughputs of last time."""

    def told(rows: list[int]) -> list[float]:
        found: list[float] = evaluate(architectures.iloc[rows])["samples_per_s"].tolist()
        return found

    def make() -> tuple[list[int], list[float]]:
        rows = suggested(architectures, evaluate, seed, evaluations, suggestions)
        return rows, told(rows)

    asked: list[Plain] = [architectures[list(SIZES)].to_numpy().tolist(), seed, evaluations, suggestions]
    rows, _ = store.of(asked, make, holds=lambda known: told(known[0]) == known[1])
    return rows


def _axes(architectures: pd.DataFrame) -> dict[str, BaseDistribution]:
    """Places that every size can take."""
    return {size: IntDistribution(0, architectures[size].nunique() - 1) for size in SIZES}


def _rows(architectures: pd.DataFrame) -> dict[tuple[int, ...], int]:
    """Row of every architecture by the places of its sizes."""
    places = [np.unique(architectures[size], return_inverse=True)[1].tolist() for size in SIZES]
    return {place: row for row, place in enumerate(zip(*places, strict=True))}
