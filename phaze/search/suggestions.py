"""Bayesian optimisation with the tree-structured Parzen estimator of Optuna on the paper's grid.

The parameters are the positions of the sizes in the grid (0 is the smallest), because the sizes are powers of
two and their order matters. Values that the grid derives from them (lanes, L2 buffers, bandwidth) are not
parameters. One joint estimator (`multivariate`) sees how they depend on each other through the area limit.

A combination outside the area rules costs no evaluation: it ends as pruned, which the estimator counts as
bad. A combination that was evaluated before is reported again and costs none either. Both count as
suggestions, and their limit ends a study that keeps repeating itself.

The suggestions of a seeded sampler depend only on the values reported so far. A search whose architectures
still have the same throughputs is therefore read from the cache, which is a hundred times faster.
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
"""Columns that identify an architecture of the grid."""


def suggested(
    architectures: pd.DataFrame, evaluate: Evaluate, seed: int, evaluations: int, suggestions: int
) -> list[int]:
    """Rows of the architectures in the order in which Optuna first suggests them."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = TPESampler(seed=seed, multivariate=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    axes, rows = _axes(architectures), _rows(architectures)
    throughputs: dict[int, float] = {}
    for _ in range(suggestions):
        trial = study.ask(axes)
        row = rows.get(tuple(trial.params[size] for size in SIZES))
        if row is None:
            study.tell(trial, state=TrialState.PRUNED)
            continue
        if row not in throughputs:
            throughputs[row] = float(evaluate(architectures.iloc[[row]])["samples_per_s"].iloc[0])
        study.tell(trial, throughputs[row])
        if len(throughputs) == min(evaluations, len(rows)):
            break
    return list(throughputs)


def suggested_again(
    store: Store,
    architectures: pd.DataFrame,
    evaluate: Evaluate,
    seed: int,
    evaluations: int,
    suggestions: int,
) -> list[int]:
    """Rows of `suggested`, from the cache if all architectures still have the same throughputs."""

    def told(rows: list[int]) -> list[float]:
        throughputs: list[float] = evaluate(architectures.iloc[rows])["samples_per_s"].tolist()
        return throughputs

    def make() -> tuple[list[int], list[float]]:
        rows = suggested(architectures, evaluate, seed, evaluations, suggestions)
        return rows, told(rows)

    content: list[Plain] = [architectures[list(SIZES)].to_numpy().tolist(), seed, evaluations, suggestions]
    rows, _ = store.of(content, make, holds=lambda cached: told(cached[0]) == cached[1])
    return rows


def _axes(architectures: pd.DataFrame) -> dict[str, BaseDistribution]:
    """Range of grid positions for every size of an architecture, as Optuna distributions."""
    return {size: IntDistribution(0, architectures[size].nunique() - 1) for size in SIZES}


def _rows(architectures: pd.DataFrame) -> dict[tuple[int, ...], int]:
    """Row number of every architecture, by the grid positions of its sizes."""
    places = [np.unique(architectures[size], return_inverse=True)[1].tolist() for size in SIZES]
    return {place: row for row, place in enumerate(zip(*places, strict=True))}
