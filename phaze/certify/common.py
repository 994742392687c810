"""Certificate of the best common architecture of all models.

A point is an architecture with an HBM size. Its value is the weighted mean over the models of their best
throughput on it, as in `search.common`: 0 unless it trains every model that any point trains. A mean does not
fall when a throughput rises, so the mean of batch / lower bound over the models is an upper bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats
from phaze.certify.space import names_of_space
from phaze.certify.stage import EQUAL, count_causes, count_proofs
from phaze.tables import COMMON, Certificates

Mean = Literal["mean", "normalised", "geometric"]
AT = ["architecture", "hbm_gib"]


@dataclass(frozen=True)
class Aim:
    """Criterion for the best common architecture: weighted mean over models, and area limit."""

    weights: Mapping[str, float]
    """Weight of every model."""
    mode: Mean
    reference: Mapping[str, float]
    """Every model's best throughput, for the normalised mean."""
    global_batch: int
    limit_um2: float
    """Area limit of a chip."""


def certify_common(
    ranges: pd.DataFrame,
    commons: pd.DataFrame,
    placements: pd.DataFrame,
    solves: pd.DataFrame,
    architectures: pd.DataFrame,
    aim: Aim,
) -> pd.DataFrame:
    """Table `certificates` with one row, for the best common architecture of all models.

    `ranges` cover all models; `commons`, `placements` and `solves` cover the candidates.
    """
    names = names_of_space(architectures, aim.limit_um2)
    lower_s = ranges.pivot(index=AT, columns="model", values="lower_s").reindex(columns=list(aim.weights))
    # A model that a point cannot train has no time: infinite, so a throughput of 0.
    upper = means_of(aim.global_batch / lower_s.fillna(np.inf), aim)
    ours = placements[placements["planner"] == "phaze"]
    bound_s = ours.groupby([*AT, "model"])["bound_s"].min().unstack().reindex(columns=list(aim.weights))
    solved = means_of(aim.global_batch / bound_s.fillna(np.inf), aim)
    candidates = pd.MultiIndex.from_frame(commons[AT])
    is_candidate = upper.index.isin(candidates)
    allowed = upper.reindex(candidates).fillna(np.inf).to_numpy() * (1.0 + EQUAL)
    best = commons.sort_values(["mean", "area_um2", *AT], ascending=[False, True, True, True]).head(1)
    best_mean = float(best["mean"].sum())
    excluded = upper.to_numpy()[~is_candidate]
    # A candidate's own bound can be above its mean, if its layers or placement are not proven.
    bound = max(excluded.max(initial=0.0), solved.max() if len(solved) else 0.0, best_mean)
    row = {
        "model": COMMON,
        "architectures": len(names),
        "points": len(upper),
        **_causes(upper.to_numpy(), is_candidate, best_mean),
        "contradictions": int((commons["mean"].to_numpy() > allowed).sum()),
        "architecture": "".join(best["architecture"]),
        "hbm_gib": float(best["hbm_gib"].sum()),
        "best": best_mean,
        "excluded": float(excluded.max(initial=0.0)),
        "bound": bound,
        **count_proofs(solves),
    }
    return Certificates.check(pd.DataFrame([row]))


def _causes(upper: Floats, is_candidate: Bools, best_mean: float) -> dict[str, int]:
    """Number of design points by the first cause of exclusion that applies."""
    flags = {
        "memory": upper == 0,
        "solved": is_candidate,
        "combined": upper < best_mean * (1.0 - EQUAL),
        "tied": upper <= best_mean * (1.0 + EQUAL),
    }
    return {"work": 0, "path": 0, **count_causes(flags)}


def means_of(samples_per_s: pd.DataFrame, aim: Aim) -> pd.Series:
    """Mean throughput of every row over the models; 0 for a row that cannot train every trainable model."""
    trained = [model for model in aim.weights if (samples_per_s[model] > 0).any()]
    values = samples_per_s[trained].to_numpy(np.float64)
    shares = np.array([aim.weights[model] for model in trained])
    shares = shares / shares.sum()
    if aim.mode == "normalised":
        values = values / np.array([aim.reference[model] for model in trained])
    if aim.mode == "geometric":
        # A throughput of 0 gives exp(-inf) = 0, which the last line sets anyway.
        with np.errstate(divide="ignore"):
            mean = np.exp(np.log(values) @ shares)
    else:
        mean = values @ shares
    return pd.Series(np.where((values > 0).all(axis=1), mean, 0.0), index=samples_per_s.index)
