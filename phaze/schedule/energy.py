"""Energy of a layer as it is scheduled: of every operator the estimate for one core or for all cores."""

from __future__ import annotations

import numpy as np
import pandas as pd

from phaze.schedule.layer import KEY, PASS, POINT
from phaze.tables.columns import ENERGIES
from phaze.theory.graphs import Ints

_DESIGN = {"tensor": "tensor", "vector": "vector", "fused": "fused", "network": "vector"}
"""Whose design an operator's estimate is for: the reduction of a collective runs on the vector cores."""
_PARTS = [f"{part}_j" for part in ENERGIES]


def schedule_energies(
    schedules: pd.DataFrame, operators: pd.DataFrame, estimates: pd.DataFrame, architectures: pd.DataFrame
) -> pd.DataFrame:
    """Return the energy in J of every scheduled layer by part, indexed by KEY; no-ops spend none."""
    works = operators[[*POINT, *PASS, "operator", "work"]]
    busy = schedules.merge(works[works["work"] >= 0], on=[*POINT, *PASS, "operator"])
    spent = busy.assign(design=_designs(busy, architectures)).merge(
        estimates, on=["work", "design"], how="left", suffixes=("", "_estimate"), validate="many_to_one"
    )
    every = spent["core"] < 0
    chosen = {part: spent[part.replace("_j", "_all_j")].where(every, spent[part]) for part in _PARTS}
    return spent[KEY].assign(**chosen).groupby(KEY)[_PARTS].sum()


def _designs(scheduled: pd.DataFrame, architectures: pd.DataFrame) -> Ints:
    """Return the core design that every scheduled operator runs on."""
    chips = architectures.set_index("architecture")
    return np.select(
        [(scheduled["resource"] == core).to_numpy() for core in _DESIGN],
        [scheduled["architecture"].map(chips[f"{of}_design"]).to_numpy(np.int64) for of in _DESIGN.values()],
    )
