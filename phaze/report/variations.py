"""What the best accelerators make of other bandwidths: they stay, their placement is searched again."""

from __future__ import annotations

import numpy as np
import pandas as pd

from phaze.report.inputs import Inputs
from phaze.report.winners import PER_MODEL, baseline_design, in_order, row_of
from phaze.tables import Variations


def vary(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Return table variations: for every variation and model the best placement of the winner."""
    rows = []
    tried = {str(name): _by_model(table) for name, table in inputs.sensitivities.groupby("variation")}
    for model in inputs.study.models:
        winner = row_of(results, model, PER_MODEL)
        baseline = baseline_design(inputs.study)
        expert = row_of(results, model, baseline) if baseline else None
        for name in inputs.study.report.sensitivity:
            table = tried.get(name, {}).get(model)
            if winner is not None and table is not None:
                rows.append(_row(name, table, winner, expert))
    rows = [row for row in rows if row]
    return Variations.check(pd.DataFrame(rows)[list(Variations.fields())]) if rows else Variations.empty()


def _by_model(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(model): rows for model, rows in table[table["status"] == "placed"].groupby("model")}


def _row(
    variation: str, table: pd.DataFrame, winner: pd.Series, expert: pd.Series | None
) -> dict[str, object]:
    """Return the row of a variation of a model, from its placements; empty if nothing was placed under it.

    The speed-up is the throughput over the baseline's with the experts' placement under the same variation.
    """
    best = _best(table, winner)
    if best is None:
        return {}
    base = None if expert is None else _best(table, expert)
    return {
        **{str(key): value for key, value in best.items()},
        "variation": variation,
        "relative": best["samples_per_s"] / winner["samples_per_s"],
        "speedup": 0.0 if base is None else float(best["samples_per_s"] / base["samples_per_s"]),
    }


def _best(table: pd.DataFrame, row: pd.Series) -> pd.Series | None:
    """Return the best of the placements with accelerator, HBM and planner of a result."""
    same = [table[key] == row[key] for key in ("architecture", "hbm_gib", "planner")]
    found = table[np.logical_and.reduce(same)].assign(area_um2=row["area_um2"])
    return in_order(found).iloc[0] if len(found) else None
