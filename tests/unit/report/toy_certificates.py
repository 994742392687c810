"""Certificates and audits that agree with the toy placements; the excluding bounds are invented."""

from __future__ import annotations

import pandas as pd

from phaze.search.winners import Outcome, space_of
from phaze.spec.study import Study
from phaze.tables import CAUSES, COMMON, Audits, Certificates


def certificates(cluster: Outcome, study: Study) -> pd.DataFrame:
    """Return a certificate for every model, and one for all of them."""
    names = space_of(cluster.architectures, cluster.area_limit_um2)
    own = int((cluster.chips.loc[names, "hbm_gib"] > 0).sum())
    placed = cluster.placements[cluster.placements["architecture"].isin(names)]
    placed = placed[(placed["planner"] == "phaze") & (placed["status"] == "placed")]
    best = placed.loc[placed.groupby("model")["samples_per_s"].idxmax()].set_index("model")
    sizes = own + (len(names) - own) * len(study.training.hbm_gib)
    each = sizes * len(study.training.recompute) * len(study.training.microbatches)
    rows = [
        _row(model, names, each * len(study.workloads[model].tensor), best.loc[model])
        for model in study.models
    ]
    return Certificates.check(pd.DataFrame([*rows, _row(COMMON, names, sizes, best.iloc[0])]))


def _row(model: str, names: pd.Series, points: int, best: pd.Series) -> dict[str, object]:
    value = float(best["samples_per_s"])
    return {
        "model": model, "architectures": len(names), "points": points, **dict.fromkeys(CAUSES, 0),
        "memory": 2, "solved": 5, "work": points - 8, "path": 1, "contradictions": 0,
        "architecture": best["architecture"], "hbm_gib": best["hbm_gib"], "best": value,
        "excluded": 0.98 * value, "bound": value, "schedules": 30, "unproven": 0, "gap": 0.0,
    }  # fmt: skip


def audits(cluster: Outcome) -> pd.DataFrame:
    """Return the first placements of the cluster as points that were solved again."""
    mine = cluster.placements[cluster.placements["planner"] == "phaze"].head(6)
    keys = ["model", "layout", "architecture", "hbm_gib", "recompute"]
    times = dict.fromkeys(("lower_s", "feasible_s", "bound_s", "exact_s"), 2.0)
    rows = mine[keys].assign(**times, plain_s=1.5, best_s=1.0, programs=1, verdict="confirmed")
    return Audits.check(rows.assign(chosen=["best", "nearest", *["drawn"] * (len(rows) - 2)]))
