"""What the best accelerators make of other bandwidths: they stay, their placement is searched again."""

from __future__ import annotations

import pandas as pd

from phaze.report.inputs import Inputs
from phaze.report.winners import PER_MODEL, baseline_design, in_order, row_of
from phaze.tables import Variations


def vary(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Return table variations: for every variation and model the best placement of the winner."""
    rows = []
    for model in inputs.study.models:
        winner = row_of(results, model, PER_MODEL)
        if winner is not None:
            rows += [_row(inputs, results, winner, name) for name in inputs.study.report.sensitivity]
    rows = [row for row in rows if row]
    return Variations.check(pd.DataFrame(rows)[list(Variations.fields())]) if rows else Variations.empty()


def _row(inputs: Inputs, results: pd.DataFrame, winner: pd.Series, variation: str) -> dict[str, object]:
    """Return the row of a variation; empty if nothing was placed under it."""
    best = under(inputs, variation, winner)
    if best is None:
        return {}
    return {
        **{str(key): value for key, value in best.items()},
        "variation": variation,
        "relative": best["samples_per_s"] / winner["samples_per_s"],
        "speedup": _speedup(inputs, results, variation, best),
    }


def _speedup(inputs: Inputs, results: pd.DataFrame, variation: str, best: pd.Series) -> float:
    """Return the throughput over the baseline's with the experts' placement under the same variation."""
    baseline = baseline_design(inputs.study)
    expert = row_of(results, best["model"], baseline) if baseline else None
    base = under(inputs, variation, expert) if expert is not None else None
    return 0.0 if base is None else float(best["samples_per_s"] / base["samples_per_s"])


def under(inputs: Inputs, variation: str, row: pd.Series) -> pd.Series | None:
    """Return the best placement under a variation with accelerator, HBM and planner of a result."""
    table = inputs.sensitivities
    same = (table["variation"] == variation) & (table["status"] == "placed")
    for key in ("model", "architecture", "hbm_gib", "planner"):
        same &= table[key] == row[key]
    found = table[same].assign(area_um2=row["area_um2"])
    return in_order(found).iloc[0] if len(found) else None
