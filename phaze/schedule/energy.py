"""Energy and traffic of a layer as it is scheduled: of every operator what it takes on one core or on all."""

from __future__ import annotations

import numpy as np
import pandas as pd

from phaze.base.arrays import Ints
from phaze.schedule.layer import KEY, PASS
from phaze.tables.columns import ENERGIES

_DESIGN = {"tensor": "tensor", "vector": "vector", "fused": "fused", "network": "vector"}
"""Whose design an operator's estimate is for: the reduction of a collective runs on the vector cores."""
_ON_ALL = {
    **{f"{part}_j": f"{part}_all_j" for part in ENERGIES},
    "hbm_bytes": "hbm_all_bytes",
    "reduced_bytes": "reduced_bytes",
}
"""What a schedule takes: column of an operator on one core, and on all."""


def schedule_takes(
    schedules: pd.DataFrame, operators: pd.DataFrame, estimates: pd.DataFrame, architectures: pd.DataFrame
) -> pd.DataFrame:
    """Return the energy by part in J and the traffic in bytes of every scheduled layer, indexed by KEY.

    No-ops take none.
    """
    work = _works(schedules, operators)
    busy, work = schedules[work >= 0], work[work >= 0]
    row = _rows_of(estimates)[work, _designs(busy, architectures)]
    every = (busy["core"] < 0).to_numpy()
    one, all_ = (estimates[list(columns)].to_numpy() for columns in (_ON_ALL, _ON_ALL.values()))
    chosen = np.where(every[:, None], all_[row], one[row])
    taken = busy[KEY].assign(**{column: chosen[:, c] for c, column in enumerate(_ON_ALL)})
    return taken.groupby(KEY)[list(_ON_ALL)].sum()


def _works(schedules: pd.DataFrame, operators: pd.DataFrame) -> Ints:
    """Return the work of every scheduled operator, -1 for a no-op."""
    keys = [*PASS, "operator"]
    both = pd.concat([operators[keys], schedules[keys]], ignore_index=True)
    number = both.groupby(keys, sort=False).ngroup().to_numpy(np.int64)
    work = np.full(number.max(initial=0) + 1, -1)
    work[number[: len(operators)]] = operators["work"]
    found: Ints = work[number[len(operators) :]]
    return found


def _rows_of(estimates: pd.DataFrame) -> Ints:
    """Return the row of every estimate by work and design."""
    at = estimates["work"].to_numpy(np.int64), estimates["design"].to_numpy(np.int64)
    rows = np.full([int(index.max(initial=-1)) + 1 for index in at], -1)
    rows[at] = np.arange(len(estimates))
    return rows


def _designs(scheduled: pd.DataFrame, architectures: pd.DataFrame) -> Ints:
    """Return the core design that every scheduled operator runs on."""
    row = pd.Index(architectures["architecture"]).get_indexer(pd.Index(scheduled["architecture"]))
    return np.select(
        [(scheduled["resource"] == core).to_numpy() for core in _DESIGN],
        [architectures[f"{of}_design"].to_numpy(np.int64)[row] for of in _DESIGN.values()],
    )
